//! What a pass brought is taken, token by token, as far as the drafts were right.
//!
//! The rest is cut off by moving the position and by taking up the state that was kept before
//! the first wrong draft: nothing is copied, nothing is run again.

use super::{Engine, Phase, SlotId};
use crate::drafting::Chain;
use crate::executor::PassOutput;
use crate::generation::{Need, Next, Row};
use crate::pass::{Kind, Segment};
use crate::request::{EngineError, Event, JobId};
use crate::state::{KvCache, State};
use std::sync::Arc;

/// Sees the logits that every token of every answer is chosen from: the request, the token's
/// place in the answer, the tokens the logits are of (all, in order, where `None`), the logits.
pub type RowSink = Box<dyn FnMut(JobId, usize, Option<&[u32]>, &[f32]) + Send>;

/// A chain in a pass, with the states it may be cut back to: columns before, and the state.
pub(super) struct Verified {
    pub(super) slot: SlotId,
    pub(super) chain: Chain,
    pub(super) planes: Vec<(usize, Arc<State>)>,
}

impl Verified {
    /// The chain's columns as a segment. What stands behind the chain's first column is wanted
    /// of it from need `first` on.
    pub(super) fn segment(
        &self,
        position: u32,
        kv: KvCache,
        state: Arc<State>,
        mtp: bool,
        first: usize,
    ) -> Segment {
        let states = self.planes.iter().filter(|(columns, _)| *columns > 0);
        let mut segment = Segment {
            states: states.map(|(columns, state)| (*columns as u32 - 1, Arc::clone(state))).collect(),
            mtp,
            ..Segment::new(Kind::Decode, self.chain.tokens.clone(), position, kv, state)
        };
        for (i, need) in self.chain.needs.iter().enumerate().skip(first) {
            want(&mut segment, (self.chain.certain + i) as u32 - 1, need);
        }
        segment
    }
}

/// Asks a segment for what a choice behind one of its columns needs.
pub(super) fn want(segment: &mut Segment, column: u32, need: &Need) {
    match need {
        Need::Nothing => {}
        Need::Rows(rows) => segment.restricted.push((column, Arc::clone(rows))),
        Need::Whole => segment.logits.push(column),
    }
}

impl Engine {
    /// Watches the logits that answers are made of, for checks; `None` ends it.
    pub fn watch(&mut self, sink: Option<RowSink>) {
        self.sink = sink;
    }

    /// Takes the outputs of a pass, which hold what the chains need in their order.
    pub(super) fn verify(
        &mut self,
        chains: Vec<Verified>,
        out: PassOutput,
        events: &mut Vec<(SlotId, JobId, Event)>,
    ) {
        let (mut whole, mut restricted) = (out.logits.into_iter(), out.restricted.into_iter());
        for verified in chains {
            let row = |need: &Need| match need {
                Need::Nothing => None,
                Need::Rows(_) => restricted.next(),
                Need::Whole => whole.next(),
            };
            let rows: Vec<Option<Vec<f32>>> = verified.chain.needs.iter().map(row).collect();
            self.accept(verified, &rows, events);
            self.executor.recycle(rows.into_iter().flatten());
        }
    }

    fn accept(
        &mut self,
        verified: Verified,
        rows: &[Option<Vec<f32>>],
        events: &mut Vec<(SlotId, JobId, Event)>,
    ) {
        let Verified { slot: id, mut chain, planes } = verified;
        let Some(entry) = self.slots.get_mut(&id) else { return };
        let Some(job) = entry.jobs.front_mut() else { return };
        let generation = &mut job.generation;
        let base = entry.slot.tokens().len();
        let before = (generation.stats.decode_tokens, generation.drafted());
        let mut own = Vec::new();
        let mut fed = chain.certain;
        let mut feed = Some(std::mem::take(&mut chain.rest));
        for source in &chain.sources {
            generation.drafted_one(*source);
        }
        for (i, (need, row)) in chain.needs.iter().zip(rows).enumerate() {
            let ids = match need {
                Need::Rows(ids) => Some(&**ids),
                _ => None,
            };
            let row = row.as_ref().map(|logits| Row { ids, logits });
            if let (Some(sink), Some(row)) = (&mut self.sink, row) {
                sink(job.id, generation.answer().len(), row.ids, row.logits);
            }
            let draft = chain.draft(i);
            let place = generation.answer().len();
            let next = generation.take(row, draft, &self.tokenizer, &mut own);
            let right = draft.is_some_and(|(_, id)| generation.answer().get(place) == Some(&id));
            if let Some((source, _)) = draft {
                entry.rates.note(source, right);
                self.rates.note(source, right);
            }
            match next {
                Next::Feed(_) if right => fed += 1,
                Next::Feed(token) => {
                    feed = Some(vec![token]);
                    break;
                }
                Next::Over => {
                    feed = None;
                    break;
                }
            }
        }
        let switches = &self.options.switches;
        if let Some(tokens) = feed.as_mut().filter(|tokens| tokens.len() == 1)
            && switches.speculate
            && switches.schema_drafts
        {
            match generation.take_known(&self.tokenizer, &mut own) {
                Some(known) => tokens.extend(known),
                None => feed = None,
            }
        }
        // What decoding one by one would have put through the model by now.
        let due = match &feed {
            Some(_) => fed,
            None => job.prompt.tokens.len() + generation.fed() - base,
        };
        let kept = planes.into_iter().rev().find(|(columns, _)| *columns <= due.min(fed));
        let have = kept.as_ref().map_or(0, |(columns, _)| *columns);
        if let Some((_, state)) = kept.filter(|_| have > 0) {
            entry.slot.advance(&chain.tokens[..have], state);
        }
        if have < due {
            let from = base + have - job.prompt.tokens.len();
            entry.slot.owe(&generation.answer()[from..from + due - have]);
        }
        if job.mtp {
            entry.slot.entered();
        }
        let after = (generation.stats.decode_tokens, generation.drafted());
        self.counters.answer_tokens += u64::from(after.0 - before.0);
        self.counters.drafted += u64::from(after.1.drafted - before.1.drafted);
        self.counters.accepted += u64::from(after.1.accepted - before.1.accepted);
        let failed = matches!(own.last(), Some(Event::Failed(_)));
        events.extend(own.into_iter().map(|e| (id, job.id, e)));
        match feed {
            Some(feed) => job.phase = Phase::Decode { feed },
            None => {
                let answer = generation.stats.decode_tokens;
                entry.jobs.pop_front();
                entry.slot.finish(answer);
                let counter = if failed { &mut self.counters.failed } else { &mut self.counters.answered };
                *counter += 1;
            }
        }
    }

    /// What a slot holds, byte for byte, after its tail has gone through the model: KV cells
    /// of all its tokens and the state after them. `None` where it holds nothing.
    pub fn contents(&mut self, id: SlotId) -> Result<Option<Vec<u8>>, EngineError> {
        let Some(entry) = self.slots.get(&id) else { return Ok(None) };
        let (Some(kv), Some(mut state)) = (entry.kv, entry.slot.live()) else { return Ok(None) };
        let (tail, all) = (entry.slot.tail().to_vec(), entry.slot.tokens().len() as u32);
        let mtp = self.mtp() && entry.slot.may_draft();
        if !tail.is_empty() {
            let next = self.reserve_state()?;
            let position = all - tail.len() as u32;
            let segment = tail_segment(tail, position, kv, state, Arc::clone(&next), mtp);
            self.executor.run(&crate::pass::Pass { segments: vec![segment] })?;
            state = next;
            if let Some(entry) = self.slots.get_mut(&id) {
                entry.slot.advance(&[], Arc::clone(&state));
                if mtp {
                    entry.slot.entered();
                }
            }
        }
        Ok(Some(self.executor.contents(&kv, &state, all)?))
    }
}

/// Answer tokens at a slot's end that were not fed yet.
pub(super) fn tail_segment(
    tail: Vec<u32>,
    position: u32,
    kv: KvCache,
    state: Arc<State>,
    next: Arc<State>,
    mtp: bool,
) -> Segment {
    Segment {
        states: vec![(tail.len() as u32 - 1, next)],
        mtp,
        ..Segment::new(Kind::Decode, tail, position, kv, state)
    }
}
