//! Speed of a model on a device: prefill, decode, and passes of several columns.
//!
//! Figures are for comparison within one run; machines drift.

use crate::executor::Executor;
use crate::pass::{Kind, Pass, Segment};
use crate::state::{KvCache, State};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tandem_program::DeviceError;

/// Tokens of the prefill figure.
const PREFILL: u32 = 512;
/// Tokens of the decode figure.
const DECODE: u32 = 64;
/// Passes a verify figure is taken over.
const VERIFY_PASSES: u32 = 8;
/// Most columns measured.
const VERIFY_COLUMNS: u32 = 8;

/// A figure over several runs, a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The slowest run.
    pub min: f64,
    /// The middle run.
    pub median: f64,
    /// The fastest run.
    pub max: f64,
}

impl Figure {
    /// Of at least one value.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        Figure { min: values[0], median: values[last / 2], max: values[last] }
    }
}

/// What [`measure`] found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Prompt tokens a second over 512.
    pub pp512: Figure,
    /// Generated tokens a second over 64, from an empty context.
    pub tg64: Figure,
    /// Passes a second by number of columns, each with its logits.
    pub verify: BTreeMap<u32, Figure>,
}

struct Sequence<'a> {
    executor: &'a mut Executor,
    kv: KvCache,
}

impl Sequence<'_> {
    /// Any tokens do: the time does not depend on them.
    fn tokens(&self, from: u32, count: u32) -> Vec<u32> {
        let vocabulary = self.executor.dims().vocabulary;
        (from..from + count).map(|i| i.wrapping_mul(7919) % vocabulary).collect()
    }

    fn run(
        &mut self,
        kind: Kind,
        position: u32,
        count: u32,
        state: Arc<State>,
        logits: Vec<u32>,
    ) -> Result<Arc<State>, DeviceError> {
        let end = self.executor.take_state()?;
        let segment = Segment {
            states: vec![(count - 1, Arc::clone(&end))],
            logits,
            ..Segment::new(kind, self.tokens(position, count), position, self.kv, state)
        };
        let out = self.executor.run(&Pass { segments: vec![segment] })?;
        self.executor.recycle(out.logits);
        Ok(end)
    }

    /// A prefill pass from the start that saves after `positions` tokens, as a prompt's last.
    fn save(&mut self, tokens: u32, positions: &[u32], zero: Arc<State>) -> Result<(), DeviceError> {
        let mut states = Vec::with_capacity(positions.len() + 1);
        for after in positions.iter().copied().chain([tokens]) {
            states.push((after - 1, self.executor.take_state()?));
        }
        let segment = Segment {
            states,
            logits: vec![tokens - 1],
            ..Segment::new(Kind::Prefill, self.tokens(0, tokens), 0, self.kv, zero)
        };
        self.executor.run(&Pass { segments: vec![segment] }).map(drop)
    }

    fn prefill(&mut self) -> Result<f64, DeviceError> {
        let zero = self.executor.states().zero();
        let start = Instant::now();
        self.run(Kind::Prefill, 0, PREFILL, zero, vec![PREFILL - 1])?;
        Ok(f64::from(PREFILL) / start.elapsed().as_secs_f64())
    }

    fn decode(&mut self) -> Result<f64, DeviceError> {
        let mut state = self.executor.states().zero();
        let start = Instant::now();
        for position in 0..DECODE {
            state = self.run(Kind::Decode, position, 1, state, vec![0])?;
        }
        Ok(f64::from(DECODE) / start.elapsed().as_secs_f64())
    }

    fn verify(&mut self, columns: u32) -> Result<f64, DeviceError> {
        let mut state = self.executor.states().zero();
        let start = Instant::now();
        for pass in 0..VERIFY_PASSES {
            state = self.run(Kind::Decode, pass * columns, columns, state, (0..columns).collect())?;
        }
        Ok(f64::from(VERIFY_PASSES) / start.elapsed().as_secs_f64())
    }
}

/// Prompt lengths of [`prefill_passes`]: ends on and off the grid of chunks.
const PASS_TOKENS: [u32; 8] = [20, 64, 100, 150, 256, 300, 400, 512];
/// States saved inside a pass, beside its end.
const PASS_SAVES: [u32; 4] = [0, 2, 4, 6];

/// One prefill pass as it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PassTime {
    /// Tokens of the pass.
    pub tokens: u32,
    /// States saved inside it.
    pub saves: u32,
    /// Milliseconds.
    pub ms: f64,
}

/// Measures prefill passes of several lengths with several saves, each `runs` times (at least
/// once) after one warm-up, in turn.
pub fn prefill_passes(executor: &mut Executor, runs: usize) -> Result<Vec<PassTime>, DeviceError> {
    let kv = executor.new_kv(PREFILL)?;
    let mut sequence = Sequence { executor, kv };
    let mut times = Vec::new();
    for run in 0..=runs.max(1) {
        for tokens in PASS_TOKENS {
            for saves in PASS_SAVES {
                // Spread over the pass, off the grid.
                let positions: Vec<u32> = (1..=saves).map(|i| i * tokens / (saves + 1)).collect();
                let zero = sequence.executor.states().zero();
                let start = Instant::now();
                sequence.save(tokens, &positions, zero)?;
                let ms = start.elapsed().as_secs_f64() * 1e3;
                if run > 0 {
                    times.push(PassTime { tokens, saves, ms });
                }
            }
        }
    }
    executor.destroy_kv(kv)?;
    Ok(times)
}

/// Measures `runs` times (at least once) after one warm-up, the figures in turn, so that a
/// drift of the machine falls on all of them.
pub fn measure(executor: &mut Executor, runs: usize) -> Result<Speed, DeviceError> {
    let kv = executor.new_kv(PREFILL)?;
    let mut sequence = Sequence { executor, kv };
    let mut prefill = Vec::new();
    let mut decode = Vec::new();
    let mut verify: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for run in 0..=runs.max(1) {
        let measured = (sequence.prefill()?, sequence.decode()?);
        for columns in 1..=VERIFY_COLUMNS {
            let rate = sequence.verify(columns)?;
            if run > 0 {
                verify.entry(columns).or_default().push(rate);
            }
        }
        if run > 0 {
            prefill.push(measured.0);
            decode.push(measured.1);
        }
    }
    executor.destroy_kv(kv)?;
    let verify = verify.into_iter().map(|(columns, rates)| (columns, Figure::of(rates))).collect();
    Ok(Speed { pp512: Figure::of(prefill), tg64: Figure::of(decode), verify })
}
