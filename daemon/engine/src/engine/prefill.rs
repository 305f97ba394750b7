//! Prefill passes: a prompt's tokens, and behind its last the opening of the answer.

use super::verify::{tail_segment, want};
use super::{Engine, Phase, SlotEntry, SlotId};
use crate::drafting::{COLUMNS, Chain, Drafter};
use crate::pass::{Kind, Pass, Segment};
use crate::planner::PlannedPass;
use crate::request::{EngineError, Event, JobId};
use crate::residency::{self, PassStates};
use crate::state::{KvCache, State};
use crate::switches::RollbackPrefill;
use std::sync::Arc;
use std::time::Instant;

impl Engine {
    pub(super) fn prefill(&mut self, id: SlotId, events: &mut Vec<(SlotId, JobId, Event)>) {
        self.last_served = id;
        if let Err(error) = self.prefill_pass(id, events) {
            self.fail(id, error, events);
        }
    }

    /// Restores, asks where to save, and plans the passes of a request that waits.
    fn begin(&mut self, id: SlotId) -> Result<(), EngineError> {
        let waiting = |e: &SlotEntry| e.jobs.front().is_some_and(|j| matches!(j.phase, Phase::Waiting));
        if !self.slots.get(&id).is_some_and(waiting) {
            return Ok(());
        }
        self.exchange(id)?;
        self.slot_kv(id)?;
        let (planner, bytes_left, zero) = (self.planner(), self.bytes_left(), self.executor.states().zero());
        let mtp = self.mtp();
        let Some(entry) = self.slots.get_mut(&id) else { return Ok(()) };
        let Some(job) = entry.jobs.front_mut() else { return Ok(()) };
        let start = entry.slot.begin(&job.prompt.tokens, &job.prompt.boundaries, bytes_left, planner);
        job.mtp = mtp && entry.slot.may_draft() && entry.rates.wants_mtp(&self.costs);
        let stats = &mut job.generation.stats;
        stats.prompt = job.prompt.tokens.len() as u32;
        stats.shared = start.shared;
        stats.restored = start.restored;
        stats.new = stats.prompt - start.restored;
        stats.passes = start.passes.len() as u32;
        self.counters.prompt_tokens += u64::from(stats.new);
        self.counters.reused_tokens += u64::from(start.restored);
        job.phase = Phase::Prefill {
            state: start.state.unwrap_or(zero),
            tail: start.tail,
            passes: start.passes.into(),
        };
        Ok(())
    }

    fn prefill_pass(
        &mut self,
        id: SlotId,
        events: &mut Vec<(SlotId, JobId, Event)>,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        self.begin(id)?;
        let kv = self.slot_kv(id)?;
        let Some(job) = self.slots.get_mut(&id).and_then(|entry| entry.jobs.front_mut()) else {
            return Ok(());
        };
        let Phase::Prefill { state, tail, passes } = &mut job.phase else { return Ok(()) };
        let Some(planned) = passes.pop_front() else { return Ok(()) };
        let (last, mtp) = (passes.is_empty(), job.mtp);
        let (mut state, tail) = (Arc::clone(state), std::mem::take(tail));
        let tokens = job.prompt.tokens[planned.start as usize..planned.end as usize].to_vec();
        let mut segments = Vec::new();
        if !tail.is_empty() {
            let next = self.reserve_state()?;
            let position = planned.start - tail.len() as u32;
            segments.push(tail_segment(tail, position, kv, state, Arc::clone(&next), mtp));
            state = next;
        }
        let PassStates { end, saves, refused } =
            residency::pass_states(&planned, || self.try_reserve())?.ok_or_else(|| self.no_room())?;
        self.counters.saves_refused += u64::from(refused);
        segments.extend(self.prompt_segments(&planned, &tokens, kv, state, &end, &saves)?);
        segments.iter_mut().for_each(|s| s.mtp = mtp);
        let chain = if last { self.opening(id) } else { Chain::default() };
        let verified = self.planes(id, chain)?;
        if let Some(segment) = segments.last_mut() {
            if let Some(need) = verified.chain.needs.first() {
                want(segment, segment.tokens.len() as u32 - 1, need);
            }
            if !verified.chain.tokens.is_empty() {
                segments.push(verified.segment(planned.end, kv, Arc::clone(&end), mtp, 1));
            }
        }
        let out = self.executor.run(&Pass { segments })?;
        self.counters.prefill_passes += 1;
        let Some(entry) = self.slots.get_mut(&id) else { return Ok(()) };
        let Some(job) = entry.jobs.front_mut() else { return Ok(()) };
        let saved = residency::commit(&mut entry.slot, &tokens, saves, Arc::clone(&end));
        if mtp {
            entry.slot.entered();
        }
        job.generation.stats.saves += saved;
        self.counters.saves += u64::from(saved);
        job.generation.stats.prefill_ms += started.elapsed().as_secs_f64() * 1e3;
        if let Phase::Prefill { state, .. } = &mut job.phase {
            *state = end;
        }
        if last {
            self.verify(vec![verified], out, events);
        }
        Ok(())
    }

    /// The columns behind a prompt: what the answer is likely to begin with. No MTP drafts: the
    /// hidden row they start from is what the pass computes. No checkpoint is dropped for them.
    fn opening(&mut self, id: SlotId) -> Chain {
        let room = self.bytes_left() >= self.checkpoint_bytes();
        let terms = super::terms(&self.options, &self.costs, &self.tokenizer, &self.executor);
        let Some(entry) = self.slots.get_mut(&id) else { return Chain::default() };
        let Some(job) = entry.jobs.front_mut() else { return Chain::default() };
        let merged = terms.switches.rollback_prefill == RollbackPrefill::Planes;
        let columns = if merged && terms.switches.speculate && room { COLUMNS } else { 0 };
        let generation = &mut job.generation;
        let mut drafter = Drafter::new(&job.prompt.tokens, generation, Vec::new(), columns, false, terms);
        // Without the MTP block no step is asked for.
        while drafter.advance(generation, &mut entry.rates, terms).is_some() {}
        drafter.finish(generation)
    }

    /// A pass's prompt tokens: chunked, or as the switch `rollback_prefill` has it.
    fn prompt_segments(
        &mut self,
        planned: &PlannedPass,
        tokens: &[u32],
        kv: KvCache,
        state: Arc<State>,
        end: &Arc<State>,
        saves: &[(u32, Arc<State>)],
    ) -> Result<Vec<Segment>, EngineError> {
        let count = tokens.len() as u32;
        let mut states: Vec<(u32, Arc<State>)> =
            saves.iter().map(|(p, s)| (p - planned.start - 1, Arc::clone(s))).collect();
        if !saves.iter().any(|(p, _)| *p == planned.end) {
            states.push((count - 1, Arc::clone(end)));
        }
        // The other forms keep a state for each of the last tokens.
        let drafts = u32::from(self.options.switches.drafts).min(count);
        let chunked = match self.options.switches.rollback_prefill {
            RollbackPrefill::Planes => count,
            RollbackPrefill::Tail => count - drafts,
            RollbackPrefill::PerToken => 0,
        };
        if chunked < count {
            for column in (count - drafts).saturating_sub(1)..count - 1 {
                if let Some(plane) = self.spare_state()?.filter(|_| states.iter().all(|s| s.0 != column)) {
                    states.push((column, plane));
                }
            }
        }
        let mut from = state;
        let mut segments = Vec::new();
        for (kind, first, until) in [(Kind::Prefill, 0, chunked), (Kind::Decode, chunked, count)] {
            if first == until {
                continue;
            }
            let inside = states.iter().filter(|(column, _)| (first..until).contains(column));
            let mut own: Vec<(u32, Arc<State>)> =
                inside.map(|(column, state)| (column - first, Arc::clone(state))).collect();
            let at_end = own.iter().find(|(column, _)| *column == until - first - 1);
            let next = match at_end {
                Some((_, state)) => Arc::clone(state),
                None => {
                    let state = self.reserve_state()?;
                    own.push((until - first - 1, Arc::clone(&state)));
                    state
                }
            };
            let part = tokens[first as usize..until as usize].to_vec();
            segments
                .push(Segment { states: own, ..Segment::new(kind, part, planned.start + first, kv, from) });
            from = next;
        }
        Ok(segments)
    }
}
