//! A slot: what is kept of one client's last request, and how the next one starts from it.
//!
//! ```text
//! tokens     ████████████████████████████████████░░░░░░░ (prompt, then answer)
//! checkpoints      ▲          ▲              ▲           saved states, newest first to restore
//! live                                              ▲    the state after all tokens: free
//! tail                                            ░░▓    tokens that the live state lacks yet
//! new prompt ████████████████████▓▓▓▓▓▓▓▓▓▓▓▓▓           shares L tokens, restores at R <= L
//! ```
//!
//! An answer may end with tokens that need not go through the model: forced ones, or drafts
//! past the last kept state. They count as held, and go through it, one by one as decoding
//! would have fed them, when a prompt continues from behind them.
//!
//! Bookkeeping only: `S` is `Arc<State>` in the engine and `()` in the simulator, which
//! therefore counts with the very code that serves.

use crate::planner::{PlannedPass, Planner};
use tandem_policy::{Boundary, Cost, Kept, Observation, PlaceRequest, Placement, Positions};

/// Limits of a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    /// Checkpoints a slot keeps.
    pub checkpoints: u32,
    /// Positions a policy may save in one request.
    pub saves: u32,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: u64,
    /// What work costs on the device, as policies are told.
    pub cost: Cost,
}

/// A kept state.
#[derive(Clone, Debug)]
pub struct Checkpoint<S> {
    /// Tokens that went into it.
    pub position: u32,
    /// The state.
    pub state: S,
    hits: u32,
    used: u64,
}

/// How a request starts.
#[derive(Clone, Debug)]
pub struct Start<S> {
    /// Tokens shared with the slot, at most all but one of the prompt's.
    pub shared: u32,
    /// Where the state was restored; 0 with no state.
    pub restored: u32,
    /// The state there, but for the tail; `None` is the state before the first token.
    pub state: Option<S>,
    /// Tokens before `restored` that must go through the model first, one by one.
    pub tail: Vec<u32>,
    /// Passes to run.
    pub passes: Vec<PlannedPass>,
}

/// What a slot holds, in a form that can be put away and taken up again.
#[derive(Clone, Debug)]
pub struct Held<S> {
    /// Tokens, up to the last state.
    pub tokens: Vec<u32>,
    /// States by position, ascending, the last after all tokens but the tail.
    pub states: Vec<(u32, S)>,
    /// Tokens at the end that the last state lacks.
    pub tail: u32,
    /// Tokens, from the first on, whose entries of the MTP block are in the cells.
    pub entries: u32,
}

/// See the module.
pub struct Slot<S> {
    tokens: Vec<u32>,
    live: Option<S>,
    tail: u32,
    entries: u32,
    checkpoints: Vec<Checkpoint<S>>,
    placement: Box<dyn Placement + Send>,
    limits: SlotLimits,
    requests: u64,
    current: Option<(u32, u32, u32)>,
    saved: Vec<u32>,
}

/// Length of the longest common prefix.
pub fn shared_prefix(a: &[u32], b: &[u32]) -> u32 {
    a.iter().zip(b).take_while(|(x, y)| x == y).count() as u32
}

impl<S: Clone> Slot<S> {
    /// An empty slot.
    pub fn new(placement: Box<dyn Placement + Send>, limits: SlotLimits) -> Self {
        Slot {
            tokens: Vec::new(),
            live: None,
            tail: 0,
            entries: 0,
            checkpoints: Vec::new(),
            placement,
            limits,
            requests: 0,
            current: None,
            saved: Vec::new(),
        }
    }

    /// Tokens whose cells and state the slot holds.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The state after all tokens but the tail.
    pub fn live(&self) -> Option<S> {
        self.live.clone()
    }

    /// Tokens at the end that the live state lacks.
    pub fn tail(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.tail as usize..]
    }

    /// Checkpoints, by position.
    pub fn checkpoints(&self) -> &[Checkpoint<S>] {
        &self.checkpoints
    }

    /// Replaces the placement policy (reload).
    pub fn set_placement(&mut self, placement: Box<dyn Placement + Send>) {
        self.placement = placement;
    }

    /// Starts a request: finds the shared prefix, restores the newest state at or before it,
    /// drops what lies past it, asks the policy where to save, and plans the passes.
    ///
    /// `prompt` is not empty. `bytes_left` is what the daemon's budget still allows.
    pub fn begin(
        &mut self,
        prompt: &[u32],
        boundaries: &[Boundary],
        bytes_left: u64,
        planner: Planner,
    ) -> Start<S> {
        self.requests += 1;
        let length = prompt.len() as u32;
        let shared = shared_prefix(&self.tokens, prompt).min(length.saturating_sub(1));
        let (restored, state) = self.restore(shared);
        if restored < self.tokens.len() as u32 {
            self.tail = 0;
        }
        self.tokens.truncate(restored as usize);
        self.entries = self.entries.min(restored);
        let tail = self.tail().to_vec();
        self.live.clone_from(&state);
        let kept = self.kept();
        let request = PlaceRequest {
            prompt: length,
            shared,
            restored,
            kept: &kept,
            cap: self.limits.checkpoints,
            bytes_left,
            checkpoint_bytes: self.limits.checkpoint_bytes,
            cost: self.limits.cost,
            pass_limit: crate::planner::PASS_LIMIT,
            max_saves: self.limits.saves,
            boundaries: &boundaries[..boundaries.len().min(tandem_policy::MAX_BOUNDARIES)],
        };
        let mut positions = Positions::new();
        self.placement.place(&request, &mut positions);
        positions.clamp(&request);
        self.current = Some((length, shared, restored));
        self.saved.clear();
        Start { shared, restored, state, tail, passes: planner.plan(restored, length, positions.as_slice()) }
    }

    /// Where `prompt` would be restored, without starting it.
    pub fn restorable(&self, prompt: &[u32]) -> u32 {
        let shared = shared_prefix(&self.tokens, prompt).min((prompt.len() as u32).saturating_sub(1));
        let live = Some(self.tokens.len() as u32).filter(|end| *end <= shared && self.live.is_some());
        let saved = self.checkpoints.iter().rev().map(|c| c.position).find(|p| *p <= shared);
        live.or(saved).unwrap_or(0)
    }

    /// What it holds; `None` where no state would be worth keeping.
    pub fn held(&self) -> Option<Held<S>> {
        let mut states: Vec<(u32, S)> =
            self.checkpoints.iter().map(|c| (c.position, c.state.clone())).collect();
        let end = self.tokens.len() as u32;
        if let Some(live) = self.live.clone().filter(|_| states.last().is_none_or(|(p, _)| *p < end)) {
            states.push((end, live));
        }
        let last = states.last()?.0;
        let tail = if last == end { self.tail } else { 0 };
        (last > 0).then(|| Held {
            tokens: self.tokens[..last as usize].to_vec(),
            states,
            tail,
            entries: self.entries.min(last),
        })
    }

    /// Goes on with what was put away, in place of what it holds. The KV cells must be there.
    pub fn adopt(&mut self, held: Held<S>) {
        let mut states = held.states;
        self.live = states.pop().map(|(_, state)| state);
        self.tail = held.tail;
        self.entries = held.entries;
        self.tokens = held.tokens;
        let keep = states.len().saturating_sub(self.limits.checkpoints as usize);
        let checkpoint = |(position, state)| Checkpoint { position, state, hits: 0, used: self.requests };
        self.checkpoints = states.drain(keep..).map(checkpoint).collect();
    }

    /// The newest state at or before `shared`: the live one, or a checkpoint.
    fn restore(&mut self, shared: u32) -> (u32, Option<S>) {
        self.checkpoints.retain(|c| c.position <= shared);
        let end = self.tokens.len() as u32;
        if end <= shared && self.live.is_some() {
            return (end, self.live.clone());
        }
        match self.checkpoints.last_mut() {
            Some(c) => {
                c.hits += 1;
                c.used = self.requests;
                (c.position, Some(c.state.clone()))
            }
            None => (0, None),
        }
    }

    fn kept(&self) -> Vec<Kept> {
        let describe = |c: &Checkpoint<S>| Kept {
            position: c.position,
            age: u32::try_from(self.requests - c.used).unwrap_or(u32::MAX),
            hits: c.hits,
            bytes: self.limits.checkpoint_bytes,
        };
        self.checkpoints.iter().map(describe).collect()
    }

    /// Keeps the state after `position` tokens, dropping one where the slot is full. False
    /// where the policy would rather keep what there is.
    pub fn save(&mut self, position: u32, state: S) -> bool {
        if let Some(same) = self.checkpoints.iter_mut().find(|c| c.position == position) {
            same.used = self.requests;
            return false;
        }
        if self.limits.checkpoints == 0 {
            return false;
        }
        if self.checkpoints.len() >= self.limits.checkpoints as usize {
            let kept = self.kept();
            let drop = self.placement.evict(&kept, position);
            if drop >= kept.len() {
                return false;
            }
            self.checkpoints.remove(drop);
        }
        let at = self.checkpoints.partition_point(|c| c.position < position);
        self.checkpoints.insert(at, Checkpoint { position, state, hits: 0, used: self.requests });
        self.saved.push(position);
        true
    }

    /// Records tokens that went through the model, and the state after the last.
    pub fn advance(&mut self, tokens: &[u32], live: S) {
        self.tokens.extend_from_slice(tokens);
        self.live = Some(live);
        self.tail = 0;
    }

    /// Whether the MTP block has run over all tokens that the live state has seen.
    pub fn may_draft(&self) -> bool {
        self.entries >= self.tokens.len() as u32 - self.tail
    }

    /// Records that the MTP block ran over the tokens of the last [`Slot::advance`] too, as
    /// over those before them.
    pub fn entered(&mut self) {
        self.entries = self.tokens.len() as u32 - self.tail;
    }

    /// Records tokens of an answer's end that did not go through the model.
    pub fn owe(&mut self, tokens: &[u32]) {
        if self.live.is_some() {
            self.tokens.extend_from_slice(tokens);
            self.tail += tokens.len() as u32;
        }
    }

    /// Ends the request: tells the policy what came of it. `answer` tokens were generated.
    pub fn finish(&mut self, answer: u32) {
        if let Some((prompt, shared, restored)) = self.current.take() {
            self.saved.sort_unstable();
            self.placement.observe(&Observation { prompt, shared, restored, answer, saved: &self.saved });
        }
    }

    /// Positions saved in the current request.
    pub fn saved(&self) -> &[u32] {
        &self.saved
    }

    /// Drops the oldest checkpoint, for a budget that spans slots. False where there is none.
    pub fn drop_oldest(&mut self) -> bool {
        let oldest = (0..self.checkpoints.len()).min_by_key(|i| self.checkpoints[*i].used);
        oldest.map(|i| self.checkpoints.remove(i)).is_some()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.live = None;
        self.tail = 0;
        self.entries = 0;
        self.checkpoints.clear();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    struct At(Vec<u32>);
    impl Placement for At {
        fn place(&mut self, _: &PlaceRequest<'_>, positions: &mut Positions) {
            for p in &self.0 {
                positions.push(*p);
            }
        }
    }

    pub(crate) fn slot(saves: &[u32], checkpoints: u32) -> Slot<u32> {
        let limits = SlotLimits { checkpoints, saves: 6, checkpoint_bytes: 1, cost: Cost::PHONE };
        Slot::new(Box::new(At(saves.to_vec())), limits)
    }

    const PLANNER: Planner = Planner { consolidate: true, in_pass_saves: true };

    /// Runs a whole request; the state of a position is the position.
    fn serve(slot: &mut Slot<u32>, prompt: &[u32], answer: &[u32]) -> Start<u32> {
        let start = slot.begin(prompt, &[], u64::MAX, PLANNER);
        for pass in &start.passes {
            for save in &pass.saves {
                slot.save(*save, *save);
            }
            slot.advance(&prompt[pass.start as usize..pass.end as usize], pass.end);
        }
        for (i, token) in answer.iter().enumerate() {
            slot.advance(&[*token], (prompt.len() + i + 1) as u32);
        }
        slot.finish(answer.len() as u32);
        start
    }

    fn prompt(shared: u32, own: u32) -> Vec<u32> {
        (0..shared).chain(own..own + 100).collect()
    }

    #[test]
    fn the_newest_state_at_or_before_the_shared_prefix_is_restored() {
        let mut s = slot(&[10, 40, 90], 8);
        serve(&mut s, &prompt(50, 1000), &[7]);
        let start = serve(&mut s, &prompt(50, 2000), &[7]);
        assert_eq!((start.shared, start.restored, start.state), (50, 40, Some(40)));
        assert_eq!(s.checkpoints().iter().map(|c| c.position).collect::<Vec<_>>(), [10, 40, 90]);
    }

    #[test]
    fn the_live_state_continues_a_growing_conversation_for_free() {
        let mut s = slot(&[], 8);
        let first = prompt(50, 1000);
        serve(&mut s, &first, &[7, 8]);
        let mut next = first.clone();
        next.extend([7, 8, 9]);
        let start = serve(&mut s, &next, &[]);
        assert_eq!((start.shared, start.restored, start.state), (152, 152, Some(152)));
    }

    #[test]
    fn a_tail_counts_as_held_and_is_due_when_a_prompt_continues_behind_it() {
        let mut s = slot(&[40], 8);
        let first = prompt(50, 1000);
        serve(&mut s, &first, &[7]);
        s.owe(&[8, 9]);
        let held = s.held().expect("states");
        assert_eq!((held.tokens.len(), held.states.last(), held.tail), (153, Some(&(153, 151)), 2));
        let mut other = slot(&[], 8);
        other.adopt(held);
        for s in [&mut s, &mut other] {
            let mut next = first.clone();
            next.extend([7, 8]);
            assert_eq!(s.restorable(&next), 40, "the state after two of three tokens is not there");
            next.extend([9, 10]);
            let start = s.begin(&next, &[], u64::MAX, PLANNER);
            assert_eq!((start.restored, start.state, &start.tail[..]), (153, Some(151), &[8, 9][..]));
            let start = s.begin(&first, &[], u64::MAX, PLANNER);
            assert_eq!((start.restored, start.tail.len()), (40, 0));
        }
    }

    #[test]
    fn drafting_goes_on_only_where_the_mtp_block_ran_all_the_way() {
        let mut s = slot(&[40, 120], 8);
        assert!(s.may_draft(), "nothing is complete");
        serve(&mut s, &prompt(50, 1000), &[7]);
        assert!(!s.may_draft());
        s.entered();
        s.owe(&[8]);
        assert!(s.may_draft(), "the tail is run when it is fed");
        s.begin(&prompt(50, 2000), &[], u64::MAX, PLANNER);
        assert!(s.may_draft(), "restored at 40, inside what it ran over");
        // A request without it, from 40 on: what it saves at 120 cannot be drafted from.
        serve(&mut s, &prompt(50, 2000), &[7]);
        s.begin(&prompt(50, 2000), &[], u64::MAX, PLANNER);
        assert_eq!((s.tokens().len(), s.may_draft()), (120, false));
        s.begin(&prompt(50, 3000), &[], u64::MAX, PLANNER);
        assert_eq!((s.tokens().len(), s.may_draft()), (40, true));
    }

    #[test]
    fn the_same_prompt_again_computes_its_last_token() {
        let mut s = slot(&[149, 150], 8);
        let p = prompt(50, 1000);
        serve(&mut s, &p, &[7]);
        let start = serve(&mut s, &p, &[7]);
        assert_eq!((start.shared, start.restored), (149, 149));
    }

    #[test]
    fn what_is_put_away_can_be_taken_up_in_another_slot() {
        let mut s = slot(&[10, 40, 90], 8);
        serve(&mut s, &prompt(50, 1000), &[7]);
        let mut other = slot(&[], 8);
        other.adopt(s.held().expect("states"));
        assert_eq!(other.restorable(&prompt(50, 2000)), 40);
        assert_eq!(serve(&mut other, &prompt(50, 2000), &[]).restored, 40);
    }

    #[test]
    fn a_full_slot_drops_the_least_recently_used() {
        let mut s = slot(&[10, 20, 30], 2);
        serve(&mut s, &prompt(50, 1000), &[]);
        assert_eq!(s.checkpoints().len(), 2);
        assert!(s.drop_oldest());
        assert_eq!(s.checkpoints().len(), 1);
    }
}
