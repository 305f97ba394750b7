//! The engine: slots that share one model, and the passes that serve them in turn.
//!
//! ```text
//! submit ─▶ queue of a slot ─▶ prefill passes ─▶ decode passes ─▶ Done
//!               │ Slot::begin: restore, place, plan      (all slots' decode columns share a pass)
//! step() runs one pass: decode and prefill in turn, interactive requests first
//! ```
//!
//! `prefill` and `decode` build those passes, `verify` takes what came of them; `renewal` goes on
//! with another device where the session with the first was lost.

mod decode;
mod prefill;
mod probe;
mod renewal;
mod verify;

use crate::drafting::{COLUMNS, Terms};
use crate::executor::Executor;
use crate::generation::Generation;
use crate::gguf::Gguf;
use crate::grammar::{GrammarCompiler, GrammarError};
use crate::model::{Dims, ModelError};
use crate::planner::{PlannedPass, Planner};
use crate::prompt_cache::PromptCache;
use crate::request::{EngineError, Event, Finish, Input, JobId, Request};
use crate::residency::{self, Seat};
use crate::slot::{Slot, SlotLimits};
use crate::speculation::{Costs, Rates};
use crate::state::{KvCache, State};
use crate::switches::Switches;
use crate::template::{ChatTemplate, Prompt, RenderOptions, TemplateError};
use crate::tokenizer::{Tokenizer, TokenizerError};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use tandem_policy::{Cost, Placement};
use tandem_program::Device;

pub use verify::RowSink;

/// Limits and switches of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens a slot can hold; the model's own context at most.
    pub context: u32,
    /// Slots.
    pub slots: u32,
    /// Requests that may wait in a slot, the running one included.
    pub queue: usize,
    /// Checkpoints a slot keeps.
    pub checkpoints: u32,
    /// Saves a request.
    pub saves: u32,
    /// Bytes of all recurrent states together: live, checkpoints, prompt cache.
    pub state_budget: u64,
    /// Bytes of the prompt cache, KV copies and states; 0 turns it off.
    pub prompt_cache: u64,
    /// What work costs on the device, as policies are told.
    pub cost: Cost,
    /// Mechanisms.
    pub switches: Switches,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context: 4096,
            slots: 8,
            queue: 4,
            checkpoints: 8,
            saves: 6,
            state_budget: 1 << 30,
            prompt_cache: 512 << 20,
            cost: Cost::PHONE,
            switches: Switches::default(),
        }
    }
}

/// Why an engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model file.
    #[error("model {path}: {source}")]
    Model {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: ModelError,
    },
    /// Its tokenizer.
    #[error("model {path}: {source}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// Its vocabulary, as schemas need it.
    #[error("model {path}: {source}")]
    Grammar {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: GrammarError,
    },
    /// Its chat template.
    #[error("model {path}: {source}")]
    Template {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: TemplateError,
    },
}

struct Job {
    id: JobId,
    prompt: Prompt,
    generation: Generation,
    background: bool,
    /// The MTP block runs over the request's tokens.
    mtp: bool,
    phase: Phase,
}

enum Phase {
    Waiting,
    /// `tail` goes through the model before the first pass.
    Prefill {
        state: Arc<State>,
        tail: Vec<u32>,
        passes: VecDeque<PlannedPass>,
    },
    /// Tokens of the answer to feed, at least one.
    Decode {
        feed: Vec<u32>,
    },
}

struct SlotEntry {
    slot: Slot<Arc<State>>,
    owner: u32,
    /// Made for the first request, and again after an unload.
    kv: Option<KvCache>,
    jobs: VecDeque<Job>,
    /// How good drafts were for this client.
    rates: Rates,
}

/// A slot of an engine. Never reused while the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// Counters since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Requests accepted.
    pub requests: u64,
    /// Requests answered to their end.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests cancelled.
    pub cancelled: u64,
    /// Prefill passes.
    pub prefill_passes: u64,
    /// Decode passes.
    pub decode_passes: u64,
    /// Prompt tokens processed.
    pub prompt_tokens: u64,
    /// Prompt tokens taken over from a slot.
    pub reused_tokens: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Of these, accepted.
    pub accepted: u64,
    /// Steps of the MTP block to draft.
    pub draft_steps: u64,
    /// States saved.
    pub saves: u64,
    /// Saves left out because the budget was used up.
    pub saves_refused: u64,
    /// What slots held, put into the prompt cache.
    pub cache_stores: u64,
    /// Requests that went on from the prompt cache.
    pub cache_hits: u64,
    /// Times everything but the file mapping was given back.
    pub unloads: u64,
}

/// See the module.
pub struct Engine {
    executor: Executor,
    /// The file, from which a new device takes the weights again.
    gguf: Gguf,
    path: String,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    grammars: GrammarCompiler,
    options: EngineOptions,
    slots: BTreeMap<SlotId, SlotEntry>,
    cache: PromptCache<Arc<State>, KvCache>,
    next_slot: u32,
    decode_turn: bool,
    last_served: SlotId,
    counters: Counters,
    weights_bytes: u64,
    vocabulary_bytes: u64,
    costs: Costs,
    /// How good drafts were for all clients.
    rates: Rates,
    sink: Option<RowSink>,
}

/// Bytes of this process's memory that are no file's, as the kernel counts them; 0 where it
/// does not tell.
fn resident_anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

impl Engine {
    /// Opens a model file on a device.
    pub fn open(path: &Path, device: Box<dyn Device>, options: EngineOptions) -> Result<Self, LoadError> {
        let name = || path.display().to_string();
        let fail = |source: ModelError| LoadError::Model { path: name(), source };
        let gguf = Gguf::open(path).map_err(|e| fail(e.into()))?;
        let before = resident_anonymous();
        let tokenizer =
            Tokenizer::from_gguf(&gguf).map_err(|source| LoadError::Tokenizer { path: name(), source })?;
        let tokenizer = Arc::new(tokenizer);
        let template = ChatTemplate::from_tokenizer(&tokenizer)
            .map_err(|source| LoadError::Template { path: name(), source })?;
        let grammars = GrammarCompiler::new(Arc::clone(&tokenizer))
            .map_err(|source| LoadError::Grammar { path: name(), source })?;
        let vocabulary_bytes = resident_anonymous().saturating_sub(before);
        let executor = Executor::new(&gguf, device, options.switches.clone()).map_err(fail)?;
        let rows = executor.dims().vocabulary as usize;
        if tokenizer.vocab_size() > rows {
            return Err(fail(ModelError::Config {
                key: "tokenizer.ggml.tokens".into(),
                value: format!("{} tokens", tokenizer.vocab_size()),
                need: format!("the embedding has only {rows} rows"),
            }));
        }
        let options =
            EngineOptions { context: options.context.min(executor.dims().context).max(2), ..options };
        Ok(Engine {
            grammars,
            executor,
            tokenizer,
            template,
            cache: PromptCache::new(options.prompt_cache),
            options,
            slots: BTreeMap::new(),
            next_slot: 0,
            decode_turn: false,
            last_served: SlotId(0),
            counters: Counters::default(),
            vocabulary_bytes,
            costs: Costs::default(),
            rates: Rates::default(),
            sink: None,
            weights_bytes: AsRef::<[u8]>::as_ref(&*gguf.map()).len() as u64,
            gguf,
            path: name(),
        })
    }

    /// The model's sizes.
    pub fn dims(&self) -> &Dims {
        self.executor.dims()
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Limits and switches.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The pass executor, for reports.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Bytes of the mapped model file.
    pub fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    /// Bytes that the vocabulary took when it was loaded: tokenizer, and the tries that schemas
    /// are matched with. Measured on the process, so exact when nothing else runs meanwhile.
    pub fn vocabulary_bytes(&self) -> u64 {
        self.vocabulary_bytes
    }

    /// Bytes of one checkpoint.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.executor.states().state_bytes()
    }

    fn planner(&self) -> Planner {
        Planner {
            consolidate: self.options.switches.consolidate,
            in_pass_saves: self.options.switches.in_pass_saves,
        }
    }

    /// Opens a slot for user `owner` whose saves `placement` decides. The prompt cache's
    /// entries of that user serve it.
    pub fn open_slot(
        &mut self,
        owner: u32,
        placement: Box<dyn Placement + Send>,
    ) -> Result<SlotId, EngineError> {
        if self.slots.len() >= self.options.slots as usize {
            return Err(EngineError::SlotsFull { limit: self.options.slots });
        }
        let limits = SlotLimits {
            checkpoints: self.options.checkpoints,
            saves: self.options.saves,
            checkpoint_bytes: self.checkpoint_bytes(),
            cost: self.options.cost,
        };
        self.next_slot += 1;
        let id = SlotId(self.next_slot);
        let slot = Slot::new(placement, limits);
        self.slots.insert(
            id,
            SlotEntry {
                slot,
                owner,
                kv: None,
                jobs: VecDeque::new(),
                rates: Rates::of_newcomer(&self.rates),
            },
        );
        Ok(id)
    }

    /// Closes a slot: its requests end without a further event, what it holds goes to the
    /// prompt cache, its memory is freed.
    pub fn close_slot(&mut self, id: SlotId) -> Result<(), EngineError> {
        let stored = self.stash(id);
        let entry = self.slots.remove(&id).ok_or(EngineError::NoSlot(id.0))?;
        self.counters.cancelled += entry.jobs.len() as u64;
        if let Some(kv) = entry.kv {
            self.executor.destroy_kv(kv)?;
        }
        drop(entry.slot);
        self.executor.shrink_states()?;
        stored
    }

    /// Copies what a slot holds into the prompt cache, if it fits.
    fn stash(&mut self, id: SlotId) -> Result<(), EngineError> {
        if self.lost().is_some() {
            return Ok(());
        }
        let Some(SlotEntry { slot, owner, kv, .. }) = self.slots.get_mut(&id) else { return Ok(()) };
        let seat = Seat { slot, kv, owner: *owner };
        let stored = residency::stash(&mut self.executor, &mut self.cache, &seat)?;
        self.counters.cache_stores += u64::from(stored);
        Ok(())
    }

    /// Before a prompt starts: puts away what the slot is about to lose, and takes up from
    /// the prompt cache what restores later.
    fn exchange(&mut self, id: SlotId) -> Result<(), EngineError> {
        let Some(SlotEntry { slot, owner, kv, jobs, .. }) = self.slots.get_mut(&id) else { return Ok(()) };
        let Some(job) = jobs.front() else { return Ok(()) };
        let mut seat = Seat { slot, kv, owner: *owner };
        let (tokens, context) = (&job.prompt.tokens, self.options.context);
        let done = residency::exchange(&mut self.executor, &mut self.cache, &mut seat, tokens, context)?;
        self.counters.cache_stores += u64::from(done.stored);
        self.counters.cache_hits += u64::from(done.loaded);
        Ok(())
    }

    /// The slot's KV cache, made where it has none.
    fn slot_kv(&mut self, id: SlotId) -> Result<KvCache, EngineError> {
        let entry = self.slots.get_mut(&id).ok_or(EngineError::NoSlot(id.0))?;
        if let Some(kv) = entry.kv {
            return Ok(kv);
        }
        let kv = self.executor.new_kv(self.options.context)?;
        entry.kv = Some(kv);
        Ok(kv)
    }

    /// Gives back everything but the file mapping: caches, states, prompt cache, scratch.
    /// Does nothing while there is work.
    pub fn unload(&mut self) -> Result<(), EngineError> {
        if self.has_work() {
            return Ok(());
        }
        for entry in self.slots.values_mut() {
            entry.slot.clear();
            if let Some(kv) = entry.kv.take() {
                self.executor.destroy_kv(kv)?;
            }
        }
        while let Some(kv) = self.cache.drop_oldest() {
            self.executor.destroy_kv(kv)?;
        }
        self.executor.shrink_states()?;
        self.executor.shrink_scratch()?;
        self.executor.rest();
        self.counters.unloads += 1;
        Ok(())
    }

    /// The prompt cache, for reports: entries, bytes, cap.
    pub fn prompt_cache(&self) -> (usize, u64, u64) {
        (self.cache.len(), self.cache.bytes(), self.cache.cap())
    }

    /// The slot's bookkeeping, for reports and reloads.
    pub fn slot(&self, id: SlotId) -> Option<&Slot<Arc<State>>> {
        self.slots.get(&id).map(|e| &e.slot)
    }

    /// Takes the limits of `options` from now on: slots, queue and state budget at once,
    /// checkpoints and saves for new slots. What is over a lowered budget goes as it is released.
    pub fn set_limits(&mut self, options: &EngineOptions) {
        let EngineOptions { slots, queue, checkpoints, saves, state_budget, .. } = *options;
        self.options =
            EngineOptions { slots, queue, checkpoints, saves, state_budget, ..self.options.clone() };
    }

    /// Replaces a slot's placement policy.
    pub fn set_placement(
        &mut self,
        id: SlotId,
        placement: Box<dyn Placement + Send>,
    ) -> Result<(), EngineError> {
        let entry = self.slots.get_mut(&id).ok_or(EngineError::NoSlot(id.0))?;
        entry.slot.set_placement(placement);
        Ok(())
    }

    /// Open slots.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.slots.keys().copied()
    }

    /// Requests in a slot, the running one included.
    pub fn jobs(&self, id: SlotId) -> usize {
        self.slots.get(&id).map_or(0, |e| e.jobs.len())
    }

    /// Accepts a request; its events come out of [`Engine::step`]. Gives the number of
    /// requests in front of it in its slot.
    pub fn submit(&mut self, slot: SlotId, id: JobId, request: &Request) -> Result<usize, EngineError> {
        let limit = self.options.queue;
        let waiting = self.slots.get(&slot).ok_or(EngineError::NoSlot(slot.0))?.jobs.len();
        if waiting >= limit {
            return Err(EngineError::QueueFull { limit });
        }
        let prompt = self.prompt(request)?;
        let tokens = prompt.tokens.len();
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        let context = self.options.context;
        // The last token of an answer takes no cell, so a full prompt still gets one token.
        let room = context.checked_sub(tokens as u32).filter(|_| tokens < context as usize);
        let room = room.ok_or(EngineError::PromptTooLong { tokens, context })?;
        let constraint = match &request.schema {
            Some(text) => Some(self.grammars.compile(text)?.start()),
            None => None,
        };
        let forced = match &request.forced_answer {
            Some(text) => Some(self.tokenizer.encode(text, false)?),
            None => None,
        };
        let limit = request.max_tokens.unwrap_or(room).min(room);
        let job = Job {
            id,
            generation: Generation::new(request, constraint, forced, limit),
            prompt,
            background: request.background,
            mtp: false,
            phase: Phase::Waiting,
        };
        self.counters.requests += 1;
        if let Some(entry) = self.slots.get_mut(&slot) {
            entry.jobs.push_back(job);
        }
        Ok(waiting)
    }

    fn prompt(&self, request: &Request) -> Result<Prompt, EngineError> {
        let messages = match &request.input {
            Input::Tokens(ids) => return Ok(Prompt::from_tokens(&self.tokenizer, ids.clone())?),
            Input::Text(text) => &serde_json::json!([{ "role": "user", "content": text }]),
            Input::Chat { messages, .. } => messages,
        };
        let tools = match &request.input {
            Input::Chat { tools, .. } => tools.as_ref(),
            _ => None,
        };
        let chat = self.template.chat(messages, tools)?;
        let options = RenderOptions { enable_thinking: request.enable_thinking, add_generation_prompt: true };
        Ok(self.template.render(&chat, options)?.prompt(&self.tokenizer)?)
    }

    /// The ids and boundaries of a request's prompt, without running it.
    pub fn tokenize(&self, request: &Request) -> Result<Prompt, EngineError> {
        self.prompt(request)
    }

    /// Ends a request; it gets a [`Event::Done`] if it was still there.
    pub fn cancel(&mut self, slot: SlotId, id: JobId, events: &mut Vec<(SlotId, JobId, Event)>) {
        let Some(entry) = self.slots.get_mut(&slot) else { return };
        let Some(at) = entry.jobs.iter().position(|j| j.id == id) else { return };
        let Some(mut job) = entry.jobs.remove(at) else { return };
        let mut own = Vec::new();
        job.generation.end(Finish::Cancelled, &mut own);
        events.extend(own.into_iter().map(|e| (slot, id, e)));
        if !matches!(job.phase, Phase::Waiting) {
            entry.slot.finish(job.generation.stats.decode_tokens);
        }
        self.counters.cancelled += 1;
    }

    /// True where [`Engine::step`] has something to do.
    pub fn has_work(&self) -> bool {
        self.slots.values().any(|e| !e.jobs.is_empty())
    }

    /// Runs one pass and gives out what came of it. A request that fails gets its error;
    /// the others go on.
    pub fn step(&mut self, events: &mut Vec<(SlotId, JobId, Event)>) {
        let decoding = self.decoding();
        let prefilling = self.prefilling();
        self.decode_turn = !self.decode_turn;
        match prefilling {
            Some(slot) if decoding.is_empty() || !self.decode_turn => self.prefill(slot, events),
            _ if !decoding.is_empty() => self.decode(&decoding, events),
            _ => {}
        }
    }

    /// Slots in the order of their turns: those after the last served first.
    fn turns(&self) -> impl Iterator<Item = (&SlotId, &SlotEntry)> {
        let after = (std::ops::Bound::Excluded(self.last_served), std::ops::Bound::Unbounded);
        self.slots.range(after).chain(self.slots.range(..=self.last_served))
    }

    fn decoding(&self) -> Vec<SlotId> {
        let runs = |e: &SlotEntry| matches!(e.jobs.front(), Some(Job { phase: Phase::Decode { .. }, .. }));
        self.turns().filter(|(_, e)| runs(e)).map(|(id, _)| *id).take(COLUMNS).collect()
    }

    /// The next slot with a prompt to process: interactive requests before background ones.
    fn prefilling(&self) -> Option<SlotId> {
        let front = |background: bool| {
            self.turns()
                .find(|(_, e)| {
                    e.jobs.front().is_some_and(|j| {
                        j.background == background && !matches!(j.phase, Phase::Decode { .. })
                    })
                })
                .map(|(id, _)| *id)
        };
        front(false).or_else(|| front(true))
    }

    /// Ends the slot's running request with an error.
    fn fail(&mut self, id: SlotId, error: EngineError, events: &mut Vec<(SlotId, JobId, Event)>) {
        let Some(entry) = self.slots.get_mut(&id) else { return };
        let Some(job) = entry.jobs.pop_front() else { return };
        entry.slot.finish(job.generation.stats.decode_tokens);
        self.counters.failed += 1;
        events.push((id, job.id, Event::Failed(error)));
    }

    fn bytes_left(&self) -> u64 {
        residency::bytes_left(&self.executor, self.options.state_budget)
    }

    /// A state for the next pass to write, within the budget; `None` where there is no room.
    fn try_reserve(&mut self) -> Result<Option<Arc<State>>, EngineError> {
        let slots = &mut self.slots;
        let drop_checkpoint = || residency::drop_checkpoint(slots.values_mut().map(|e| &mut e.slot));
        let budget = self.options.state_budget;
        Ok(residency::reserve(&mut self.executor, &mut self.cache, budget, drop_checkpoint)?)
    }

    fn reserve_state(&mut self) -> Result<Arc<State>, EngineError> {
        self.try_reserve()?.ok_or_else(|| self.no_room())
    }

    /// A state for a plane: only where nothing must go for it.
    fn spare_state(&mut self) -> Result<Option<Arc<State>>, EngineError> {
        if self.bytes_left() < self.checkpoint_bytes() {
            return Ok(None);
        }
        Ok(Some(self.executor.take_state()?))
    }

    /// Whether the MTP block may draft.
    fn mtp(&self) -> bool {
        self.options.switches.drafts_with_mtp() && self.dims().mtp
    }

    fn no_room(&self) -> EngineError {
        EngineError::StateBudget {
            budget: self.options.state_budget,
            state: self.checkpoint_bytes(),
            in_use: self.executor.states().in_use(),
        }
    }

    /// After a panic in a pass: fails the request at the front of every slot, one of which
    /// was at fault, and empties the slots, whose bookkeeping may be half done.
    pub fn abandon(&mut self, events: &mut Vec<(SlotId, JobId, Event)>) {
        let ids: Vec<SlotId> = self.slots.keys().copied().collect();
        for id in ids {
            self.fail(id, EngineError::Fault, events);
            if let Some(entry) = self.slots.get_mut(&id) {
                entry.slot.clear();
            }
        }
    }
}

/// What drafting goes by; not a method, so that slots can be borrowed beside it.
fn terms<'a>(
    options: &'a EngineOptions,
    costs: &'a Costs,
    tokenizer: &'a Tokenizer,
    executor: &'a Executor,
) -> Terms<'a> {
    Terms { switches: &options.switches, costs, tokenizer, draft_ids: executor.draft_ids() }
}
