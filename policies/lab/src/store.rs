//! What the engine keeps, without its contents: the engine's own slots, prompt cache and
//! [`residency`] over counters in place of memory.

use crate::simulate::{Settings, Step, predicted_ms};
use crate::trace::Request;
use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use tandem_engine::prompt_cache::PromptCache;
use tandem_engine::residency::{self, Memory, Seat};
use tandem_engine::slot::{Slot, SlotLimits};
use tandem_policy::Placement;

/// The one user whose clients a trace has.
const OWNER: u32 = 0;

/// A state without its contents: it counts while anything refers to it.
pub(crate) struct Counted(Rc<Cell<u64>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// KV cells without their contents.
#[derive(Clone, Copy)]
struct Cells;

struct Counters {
    state_bytes: u64,
    kv_bytes: u64,
    in_use: Rc<Cell<u64>>,
}

impl Memory for Counters {
    type State = Rc<Counted>;
    type Kv = Cells;
    type Error = Infallible;

    fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    fn states_in_use(&self) -> u64 {
        self.in_use.get()
    }

    fn take_state(&mut self) -> Result<Rc<Counted>, Infallible> {
        self.in_use.set(self.in_use.get() + 1);
        Ok(Rc::new(Counted(self.in_use.clone())))
    }

    fn kv_bytes(&self, cells: u32) -> u64 {
        self.kv_bytes * u64::from(cells)
    }

    fn new_kv(&mut self, _: u32) -> Result<Cells, Infallible> {
        Ok(Cells)
    }

    fn copy_kv(&mut self, _: &Cells, _: Option<Cells>, _: u32) -> Result<Cells, Infallible> {
        Ok(Cells)
    }

    fn destroy_kv(&mut self, _: Cells) -> Result<(), Infallible> {
        Ok(())
    }
}

struct Client {
    name: String,
    slot: Slot<Rc<Counted>>,
    kv: Option<Cells>,
}

pub(crate) struct Store {
    settings: Settings,
    memory: Counters,
    /// In the order of their first requests, as the engine has them.
    clients: Vec<Client>,
    cache: PromptCache<Rc<Counted>, Cells>,
}

impl Store {
    pub(crate) fn new(settings: &Settings) -> Self {
        let memory = Counters {
            state_bytes: settings.checkpoint_bytes,
            kv_bytes: settings.kv_bytes,
            // The state before the first token.
            in_use: Rc::new(Cell::new(1)),
        };
        Self {
            settings: *settings,
            memory,
            clients: Vec::new(),
            cache: PromptCache::new(settings.prompt_cache),
        }
    }

    /// The client's slot, opened where it has none; true where it was opened.
    fn client(&mut self, name: &str, make: &dyn Fn() -> Box<dyn Placement + Send>) -> (usize, bool) {
        if let Some(at) = self.clients.iter().position(|c| c.name == name) {
            return (at, false);
        }
        let limits = SlotLimits {
            checkpoints: self.settings.checkpoints,
            saves: self.settings.saves,
            checkpoint_bytes: self.settings.checkpoint_bytes,
            cost: self.settings.cost,
        };
        self.clients.push(Client { name: name.to_owned(), slot: Slot::new(make(), limits), kv: None });
        (self.clients.len() - 1, true)
    }

    fn reserve(&mut self) -> Result<Option<Rc<Counted>>, Infallible> {
        let clients = &mut self.clients;
        let drop_checkpoint = || residency::drop_checkpoint(clients.iter_mut().map(|c| &mut c.slot));
        residency::reserve(&mut self.memory, &mut self.cache, self.settings.state_budget, drop_checkpoint)
    }

    /// Serves a request; its client's slot gets a policy from `make` where it is new.
    pub(crate) fn serve(&mut self, request: &Request, make: &dyn Fn() -> Box<dyn Placement + Send>) -> Step {
        let (at, first) = self.client(&request.client, make);
        let prompt = request.tokens.len() as u32;
        let mut step = Step { client: request.client.clone(), first, prompt, ..Step::default() };
        let Ok(()) = self.run(at, request, &mut step);
        step.predicted_ms = predicted_ms(&self.settings.cost, step.new, step.passes, step.saves);
        step
    }

    /// As the engine's prefill and decode passes.
    fn run(&mut self, at: usize, request: &Request, step: &mut Step) -> Result<(), Infallible> {
        let Client { slot, kv, .. } = &mut self.clients[at];
        let mut seat = Seat { slot, kv, owner: OWNER };
        residency::exchange(&mut self.memory, &mut self.cache, &mut seat, &request.tokens, u32::MAX)?;
        kv.get_or_insert(Cells);
        let bytes_left = residency::bytes_left(&self.memory, self.settings.state_budget);
        let start = slot.begin(&request.tokens, &request.boundaries, bytes_left, self.settings.planner);
        (step.shared, step.restored, step.new) = (start.shared, start.restored, step.prompt - start.restored);
        step.passes = start.passes.len() as u32;
        drop(start.state);
        for pass in &start.passes {
            let Some(states) = residency::pass_states(pass, || self.reserve())? else { break };
            let tokens = &request.tokens[pass.start as usize..pass.end as usize];
            step.saves += residency::commit(&mut self.clients[at].slot, tokens, states.saves, states.end);
        }
        // The last token of an answer is chosen, but never fed.
        let fed = request.answer.len().saturating_sub(1);
        for token in &request.answer[..fed] {
            let Some(state) = self.reserve()? else { break };
            self.clients[at].slot.advance(&[*token], state);
        }
        let slot = &mut self.clients[at].slot;
        slot.finish(request.answer.len() as u32);
        step.saved = slot.saved().to_vec();
        step.bytes = slot.checkpoints().len() as u64 * self.settings.checkpoint_bytes;
        Ok(())
    }
}
