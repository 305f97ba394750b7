//! What is resident, and what makes room: exchanges between slots and the prompt cache, states
//! within the budget, what a pass leaves in its slot.
//!
//! The engine runs this over the device's memory, the simulator over counters: there is one
//! mechanism, so what the simulator counts is what the engine does.

use crate::planner::PlannedPass;
use crate::prompt_cache::PromptCache;
use crate::slot::Slot;

/// Memory of recurrent states and KV cells.
pub trait Memory {
    /// A reference to a state; the last one to go gives the state back.
    type State: Clone;
    /// The KV cells of a sequence.
    type Kv: Copy;
    /// What goes wrong.
    type Error;

    /// Bytes of a state.
    fn state_bytes(&self) -> u64;
    /// States in use, the one before the first token included.
    fn states_in_use(&self) -> u64;
    /// A state to be written.
    fn take_state(&mut self) -> Result<Self::State, Self::Error>;
    /// Bytes of the cells of `cells` positions.
    fn kv_bytes(&self, cells: u32) -> u64;
    /// Room for `cells` positions.
    fn new_kv(&mut self, cells: u32) -> Result<Self::Kv, Self::Error>;
    /// Copies the first `cells` positions into `to`, or into new cells.
    fn copy_kv(&mut self, from: &Self::Kv, to: Option<Self::Kv>, cells: u32)
    -> Result<Self::Kv, Self::Error>;
    /// Gives cells back.
    fn destroy_kv(&mut self, kv: Self::Kv) -> Result<(), Self::Error>;
}

/// A slot with its cells and the user it belongs to.
pub struct Seat<'a, S, K> {
    /// The slot.
    pub slot: &'a mut Slot<S>,
    /// Its cells; made when they are first needed.
    pub kv: &'a mut Option<K>,
    /// Its user.
    pub owner: u32,
}

/// What an exchange did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// What the slot held went to the prompt cache.
    pub stored: bool,
    /// The slot goes on from the prompt cache.
    pub loaded: bool,
}

/// States that a pass writes.
#[derive(Clone, Debug)]
pub struct PassStates<S> {
    /// After its last token.
    pub end: S,
    /// To be saved, by position; one at the pass's end is `end`.
    pub saves: Vec<(u32, S)>,
    /// Saves for which the budget had no room.
    pub refused: u32,
}

/// Copies what a slot holds into the prompt cache, if it fits. False where it does not, or
/// where there is nothing worth keeping.
pub fn stash<M: Memory>(
    memory: &mut M,
    cache: &mut PromptCache<M::State, M::Kv>,
    seat: &Seat<'_, M::State, M::Kv>,
) -> Result<bool, M::Error> {
    let (Some(held), Some(kv)) = (seat.slot.held(), *seat.kv) else { return Ok(false) };
    let cells = held.tokens.len() as u32;
    let bytes = memory.kv_bytes(cells) + held.states.len() as u64 * memory.state_bytes();
    let Some(freed) = cache.make_room(bytes) else { return Ok(false) };
    for kv in freed {
        memory.destroy_kv(kv)?;
    }
    let copy = memory.copy_kv(&kv, None, cells)?;
    for kv in cache.insert(seat.owner, held, copy, bytes) {
        memory.destroy_kv(kv)?;
    }
    Ok(true)
}

/// Before `prompt` starts in a slot: puts away what the slot is about to lose, and takes up
/// from the prompt cache what restores later. New cells get room for `context` positions.
pub fn exchange<M: Memory>(
    memory: &mut M,
    cache: &mut PromptCache<M::State, M::Kv>,
    seat: &mut Seat<'_, M::State, M::Kv>,
    prompt: &[u32],
    context: u32,
) -> Result<Exchanged, M::Error> {
    let swap = cache.swap(seat.owner, seat.slot, prompt);
    // Copied first: storing may drop the entry.
    let aside = match swap.load.and_then(|entry| cache.load(entry)) {
        Some((held, from)) => {
            let cells = held.tokens.len() as u32;
            let from = *from;
            Some((held, memory.copy_kv(&from, None, cells)?))
        }
        None => None,
    };
    let stored = swap.stash && stash(memory, cache, seat)?;
    let Some((held, copy)) = aside else { return Ok(Exchanged { stored, loaded: false }) };
    let cells = held.tokens.len() as u32;
    let kv = match *seat.kv {
        Some(kv) => kv,
        None => *seat.kv.insert(memory.new_kv(context)?),
    };
    memory.copy_kv(&copy, Some(kv), cells)?;
    memory.destroy_kv(copy)?;
    seat.slot.adopt(held);
    Ok(Exchanged { stored, loaded: true })
}

/// Bytes of states that `budget` still allows.
pub fn bytes_left<M: Memory>(memory: &M, budget: u64) -> u64 {
    budget.saturating_sub(memory.states_in_use() * memory.state_bytes())
}

/// A state for the next pass to write, within the budget: what was not used for longest goes
/// first, the prompt cache before checkpoints. `None` where everything that could go is gone.
pub fn reserve<M: Memory>(
    memory: &mut M,
    cache: &mut PromptCache<M::State, M::Kv>,
    budget: u64,
    mut drop_checkpoint: impl FnMut() -> bool,
) -> Result<Option<M::State>, M::Error> {
    while bytes_left(memory, budget) < memory.state_bytes() {
        if let Some(kv) = cache.drop_oldest() {
            memory.destroy_kv(kv)?;
        } else if !drop_checkpoint() {
            return Ok(None);
        }
    }
    memory.take_state().map(Some)
}

/// Drops the oldest checkpoint of the slot that has most; of several, of the last. False where
/// there is none.
pub fn drop_checkpoint<'a, S: Clone + 'a>(slots: impl Iterator<Item = &'a mut Slot<S>>) -> bool {
    slots.max_by_key(|slot| slot.checkpoints().len()).is_some_and(Slot::drop_oldest)
}

/// The states that a pass writes. Saves for which `reserve` has no room are left out; `None`
/// where it has none for the end.
pub fn pass_states<S: Clone, E>(
    planned: &PlannedPass,
    mut reserve: impl FnMut() -> Result<Option<S>, E>,
) -> Result<Option<PassStates<S>>, E> {
    let Some(end) = reserve()? else { return Ok(None) };
    let mut states = PassStates { end, saves: Vec::with_capacity(planned.saves.len()), refused: 0 };
    for &position in &planned.saves {
        let state = if position == planned.end { Some(states.end.clone()) } else { reserve()? };
        match state {
            Some(state) => states.saves.push((position, state)),
            None => states.refused += 1,
        }
    }
    Ok(Some(states))
}

/// Records a prefill pass over `tokens` in its slot. Gives the number of states saved.
pub fn commit<S: Clone>(slot: &mut Slot<S>, tokens: &[u32], saves: Vec<(u32, S)>, end: S) -> u32 {
    let mut saved = 0;
    for (position, state) in saves {
        saved += u32::from(slot.save(position, state));
    }
    slot.advance(tokens, end);
    saved
}
