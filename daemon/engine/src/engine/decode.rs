//! Decode passes: the columns of every slot that makes an answer, certain tokens and drafts.

use super::verify::Verified;
use super::{Engine, Job, Phase, SlotId};
use crate::drafting::{COLUMNS, Chain, Drafter, Step};
use crate::pass::{DraftColumn, Pass};
use crate::request::{EngineError, Event, JobId};
use crate::state::State;
use std::sync::Arc;
use std::time::Instant;

/// The error of a pass, for another of its requests.
fn again(error: &EngineError) -> EngineError {
    match error {
        EngineError::Device(error) => EngineError::Device(error.clone()),
        EngineError::StateBudget { budget, state, in_use } => {
            EngineError::StateBudget { budget: *budget, state: *state, in_use: *in_use }
        }
        // A decode pass meets no other.
        _ => EngineError::Fault,
    }
}

impl Engine {
    pub(super) fn decode(&mut self, slots: &[SlotId], events: &mut Vec<(SlotId, JobId, Event)>) {
        if let Err(error) = self.decode_pass(slots, events) {
            // The pass served several requests; each is told.
            for id in slots {
                self.fail(*id, again(&error), events);
            }
        }
    }

    fn decode_pass(
        &mut self,
        slots: &[SlotId],
        events: &mut Vec<(SlotId, JobId, Event)>,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        let chains = self.draft(slots)?;
        let drafted = started.elapsed();
        let (mut pass, mut verified) = (Pass::default(), Vec::with_capacity(chains.len()));
        let zero = self.executor.states().zero();
        for (id, chain) in chains {
            let chain = self.planes(id, chain)?;
            let Some(entry) = self.slots.get(&id) else { continue };
            let (Some(kv), Some(job)) = (entry.kv, entry.jobs.front()) else { continue };
            let state = entry.slot.live().unwrap_or_else(|| Arc::clone(&zero));
            pass.segments.push(chain.segment(entry.slot.tokens().len() as u32, kv, state, job.mtp, 0));
            verified.push(chain);
        }
        let columns = pass.columns() as usize;
        let out = self.executor.run(&pass)?;
        drop(pass);
        self.counters.decode_passes += 1;
        let spent = started.elapsed();
        self.costs.note_pass(columns, (spent - drafted).as_secs_f64() * 1e3);
        for id in slots {
            if let Some(job) = self.slots.get_mut(id).and_then(|entry| entry.jobs.front_mut()) {
                job.generation.stats.decode_ms += spent.as_secs_f64() * 1e3;
                job.generation.stats.decode_passes += 1;
            }
        }
        self.verify(verified, out, events);
        Ok(())
    }

    /// What each slot's columns hold. The slots' MTP steps run together.
    fn draft(&mut self, slots: &[SlotId]) -> Result<Vec<(SlotId, Chain)>, EngineError> {
        let share = (COLUMNS / slots.len().max(1)).max(1);
        let terms = super::terms(&self.options, &self.costs, &self.tokenizer, &self.executor);
        let mut drafters = Vec::with_capacity(slots.len());
        for id in slots {
            let Some(entry) = self.slots.get(id) else { continue };
            let Some(Job { phase: Phase::Decode { feed }, prompt, generation, mtp, .. }) = entry.jobs.front()
            else {
                continue;
            };
            let feed = feed.clone();
            drafters.push((*id, Drafter::new(&prompt.tokens, generation, feed, share, *mtp, terms)));
        }
        loop {
            let mut steps: Vec<(usize, Step)> = Vec::new();
            let terms = super::terms(&self.options, &self.costs, &self.tokenizer, &self.executor);
            for (at, (id, drafter)) in drafters.iter_mut().enumerate() {
                let Some(entry) = self.slots.get_mut(id) else { continue };
                let Some(job) = entry.jobs.front_mut() else { continue };
                let step = drafter.advance(&mut job.generation, &mut entry.rates, terms);
                steps.extend(step.map(|step| (at, step)));
            }
            if steps.is_empty() {
                break;
            }
            let began = Instant::now();
            let zero = self.executor.states().zero();
            let mut columns = Vec::with_capacity(steps.len());
            for (at, step) in &steps {
                let (id, drafter) = &drafters[*at];
                let Some(entry) = self.slots.get(id) else { continue };
                let Some(kv) = entry.kv else { continue };
                columns.push(DraftColumn {
                    token: drafter.token(step.column),
                    position: (entry.slot.tokens().len() + step.column) as u32,
                    kv,
                    state: entry.slot.live().unwrap_or_else(|| Arc::clone(&zero)),
                    hidden: step.hidden.clone(),
                    head: step.head.clone(),
                });
            }
            let outputs = self.executor.draft(&columns)?;
            self.counters.draft_steps += 1;
            self.costs.note_step(columns.len(), began.elapsed().as_secs_f64() * 1e3);
            let mut outputs = outputs.into_iter();
            let terms = super::terms(&self.options, &self.costs, &self.tokenizer, &self.executor);
            for (at, _) in steps {
                let (id, drafter) = &mut drafters[at];
                let output = outputs.next();
                let Some(entry) = self.slots.get_mut(id) else { continue };
                let Some(job) = entry.jobs.front_mut() else { continue };
                let rates = [&mut entry.rates, &mut self.rates];
                drafter.stepped(output, &mut job.generation, rates, terms);
            }
        }
        let mut chains = Vec::with_capacity(drafters.len());
        for (id, drafter) in drafters {
            let Some(job) = self.slots.get_mut(&id).and_then(|entry| entry.jobs.front_mut()) else {
                continue;
            };
            chains.push((id, drafter.finish(&mut job.generation)));
        }
        Ok(chains)
    }

    /// Takes the states that a chain may be cut back to. Where the budget has none to spare the
    /// chain ends before the draft that would need it.
    pub(super) fn planes(&mut self, id: SlotId, mut chain: Chain) -> Result<Verified, EngineError> {
        if chain.tokens.is_empty() {
            return Ok(Verified { slot: id, chain, planes: Vec::new() });
        }
        let end = self.reserve_state()?;
        let mut planes: Vec<(usize, Arc<State>)> = Vec::new();
        for column in chain.planes() {
            match self.spare_state()? {
                Some(state) => planes.push((column, state)),
                None => {
                    chain.cut(column);
                    break;
                }
            }
        }
        planes.push((chain.tokens.len(), end));
        Ok(Verified { slot: id, chain, planes })
    }
}
