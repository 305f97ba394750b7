//! What the engine keeps, without its contents: its own slots and prompt cache,
//! and the budget that spans them.

use crate::simulate::{Settings, Step, predicted_ms};
use crate::trace::Request;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use tandem_engine::prompt_cache::PromptCache;
use tandem_engine::slot::{Slot, SlotLimits};
use tandem_policy::Placement;

/// The one user whose clients a trace has.
const OWNER: u32 = 0;

/// A state without its contents: it counts while anything refers to it.
struct Counted(Rc<Cell<u64>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

type State = Rc<Counted>;

pub(crate) struct Store {
    settings: Settings,
    in_use: Rc<Cell<u64>>,
    slots: HashMap<String, Slot<State>>,
    cache: PromptCache<State, ()>,
}

impl Store {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            settings: *settings,
            in_use: Rc::default(),
            slots: HashMap::new(),
            cache: PromptCache::new(settings.prompt_cache),
        }
    }

    /// Opens the client's slot. False where it was open.
    pub(crate) fn open(&mut self, client: &str, make: &dyn Fn() -> Box<dyn Placement + Send>) -> bool {
        if self.slots.contains_key(client) {
            return false;
        }
        let limits = SlotLimits {
            checkpoints: self.settings.checkpoints,
            saves: self.settings.saves,
            checkpoint_bytes: self.settings.checkpoint_bytes,
            cost: self.settings.cost,
        };
        self.slots.insert(client.to_owned(), Slot::new(make(), limits));
        true
    }

    fn bytes_left(&self) -> u64 {
        self.settings.state_budget.saturating_sub(self.in_use.get() * self.settings.checkpoint_bytes)
    }

    /// A state within the budget; `None` where everything that could go is gone.
    fn reserve(&mut self) -> Option<State> {
        while self.bytes_left() < self.settings.checkpoint_bytes {
            if self.cache.drop_oldest().is_none() {
                let fullest = self.slots.values_mut().max_by_key(|s| s.checkpoints().len())?;
                if !fullest.drop_oldest() {
                    return None;
                }
            }
        }
        self.in_use.set(self.in_use.get() + 1);
        Some(Rc::new(Counted(self.in_use.clone())))
    }

    /// As the engine before a prompt starts: puts away what the slot is about to
    /// lose, and takes up what restores later.
    fn exchange(&mut self, request: &Request) {
        let Some(slot) = self.slots.get_mut(&request.client) else { return };
        let swap = self.cache.swap(OWNER, slot, &request.tokens);
        let loaded = swap.load.and_then(|i| self.cache.load(i)).map(|(held, ())| held);
        if swap.stash
            && let Some(held) = slot.held()
        {
            let bytes = held.tokens.len() as u64 * self.settings.kv_bytes
                + held.states.len() as u64 * self.settings.checkpoint_bytes;
            if self.cache.make_room(bytes).is_some() {
                self.cache.insert(OWNER, held, (), bytes);
            }
        }
        if let Some(held) = loaded {
            slot.adopt(held);
        }
    }

    /// Serves a request of an open slot.
    pub(crate) fn serve(&mut self, request: &Request) -> Step {
        self.exchange(request);
        let prompt = request.tokens.len() as u32;
        let mut step = Step {
            client: request.client.clone(),
            first: false,
            prompt,
            shared: 0,
            restored: 0,
            new: 0,
            passes: 0,
            saves: 0,
            saved: Vec::new(),
            bytes: 0,
            predicted_ms: 0.0,
        };
        let (bytes_left, planner) = (self.bytes_left(), self.settings.planner);
        let Some(slot) = self.slots.get_mut(&request.client) else { return step };
        let start = slot.begin(&request.tokens, &request.boundaries, bytes_left, planner);
        (step.shared, step.restored, step.new) = (start.shared, start.restored, prompt - start.restored);
        step.passes = start.passes.len() as u32;
        drop(start.state);
        for pass in &start.passes {
            let end = self.reserve();
            let saves: Vec<_> = pass
                .saves
                .iter()
                .filter_map(|&p| if p == pass.end { end.clone() } else { self.reserve() }.map(|s| (p, s)))
                .collect();
            let (Some(slot), Some(end)) = (self.slots.get_mut(&request.client), end) else { break };
            for (position, state) in saves {
                slot.save(position, state);
            }
            slot.advance(&request.tokens[pass.start as usize..pass.end as usize], end);
        }
        // The last token of an answer is chosen, but never fed.
        let fed = request.answer.len().saturating_sub(1);
        for &token in &request.answer[..fed] {
            let state = self.reserve();
            if let (Some(slot), Some(state)) = (self.slots.get_mut(&request.client), state) {
                slot.advance(&[token], state);
            }
        }
        let Some(slot) = self.slots.get_mut(&request.client) else { return step };
        step.saved = slot.saved().to_vec();
        step.saves = step.saved.len() as u32;
        slot.finish(request.answer.len() as u32);
        step.bytes = slot.checkpoints().len() as u64 * self.settings.checkpoint_bytes;
        step.predicted_ms = predicted_ms(&self.settings.cost, step.new, step.passes, step.saves);
        step
    }
}
