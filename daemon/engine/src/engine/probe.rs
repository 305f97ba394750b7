//! The numeric door: logits of a prompt, without a slot.

use super::Engine;
use crate::pass::{Kind, Pass, Segment};
use crate::planner::PlannedPass;
use crate::request::EngineError;
use crate::state::KvCache;
use std::sync::Arc;

/// Columns of a pass whose logits are all wanted: a chunk, so that pass ends stay on the grid.
const PROBE_COLUMNS: u32 = tandem_program::op::CHUNK;

impl Engine {
    /// Logits of a prompt, at the last position or at all, handed to `sink`
    /// as (position, row). Uses a sequence of its own.
    pub fn probe(
        &mut self,
        prompt: &[u32],
        all_positions: bool,
        sink: &mut dyn FnMut(u32, &[f32]),
    ) -> Result<(), EngineError> {
        self.tokenizer.check_ids(prompt)?;
        let (tokens, context) = (prompt.len(), self.options.context);
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens > context as usize {
            return Err(EngineError::PromptTooLong { tokens, context });
        }
        let kv = self.executor.new_kv(tokens as u32)?;
        let result = self.probe_passes(prompt, kv, all_positions, sink);
        self.executor.destroy_kv(kv)?;
        result
    }

    fn probe_passes(
        &mut self,
        prompt: &[u32],
        kv: KvCache,
        all_positions: bool,
        sink: &mut dyn FnMut(u32, &[f32]),
    ) -> Result<(), EngineError> {
        let passes = if all_positions {
            let starts = (0..prompt.len() as u32).step_by(PROBE_COLUMNS as usize);
            let end = |start: u32| (start + PROBE_COLUMNS).min(prompt.len() as u32);
            starts.map(|start| PlannedPass { start, end: end(start), saves: Vec::new() }).collect()
        } else {
            self.planner().plan(0, prompt.len() as u32, &[])
        };
        let mut state = self.executor.states().zero();
        for planned in passes {
            let next = self.executor.take_state()?;
            let columns = planned.end - planned.start;
            let last = planned.end == prompt.len() as u32;
            let logits: Vec<u32> = match (all_positions, last) {
                (true, _) => (0..columns).collect(),
                (false, true) => vec![columns - 1],
                (false, false) => Vec::new(),
            };
            let tokens = prompt[planned.start as usize..planned.end as usize].to_vec();
            let segment = Segment {
                states: vec![(columns - 1, Arc::clone(&next))],
                logits: logits.clone(),
                ..Segment::new(Kind::Prefill, tokens, planned.start, kv, state)
            };
            let out = self.executor.run(&Pass { segments: vec![segment] })?;
            for (column, row) in logits.iter().zip(&out.logits) {
                sink(planned.start + column, row);
            }
            state = next;
        }
        Ok(())
    }
}
