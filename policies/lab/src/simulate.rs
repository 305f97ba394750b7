//! Replays a trace through the engine's slots, prompt cache and planner, with a
//! cost model in place of a model.

use crate::store::Store;
use crate::trace::Request;
use serde::Serialize;
use std::collections::HashMap;
use tandem_engine::planner::Planner;
use tandem_engine::slot::shared_prefix;
use tandem_policy::{Cost, Placement};

/// What a simulation assumes of the daemon and its device.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Checkpoints a slot keeps.
    pub checkpoints: u32,
    /// Saves a request.
    pub saves: u32,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: u64,
    /// Bytes of one token's KV cells.
    pub kv_bytes: u64,
    /// Most bytes of all states: live ones, checkpoints and the prompt cache's.
    pub state_budget: u64,
    /// Most bytes of the prompt cache; 0 turns it off.
    pub prompt_cache: u64,
    /// What work costs.
    pub cost: Cost,
    /// How passes are laid.
    pub planner: Planner,
}

impl Default for Settings {
    /// The paper's phone and model (8 checkpoints of 50 MiB a slot, 32 KiB of KV
    /// a token) and the daemon's own limits.
    fn default() -> Self {
        Self {
            checkpoints: 8,
            saves: 6,
            checkpoint_bytes: 50 << 20,
            kv_bytes: 32 << 10,
            state_budget: 1 << 30,
            prompt_cache: 512 << 20,
            cost: Cost::PHONE,
            planner: Planner { consolidate: true, in_pass_saves: true },
        }
    }
}

/// One request as it went.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Step {
    /// Whose request it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// True for a client's first request, which the means leave out.
    pub first: bool,
    /// Tokens in the prompt.
    pub prompt: u32,
    /// Tokens shared with the slot.
    pub shared: u32,
    /// Where the state was restored.
    pub restored: u32,
    /// Tokens processed.
    pub new: u32,
    /// Passes run.
    pub passes: u32,
    /// States saved.
    pub saves: u32,
    /// Where they were saved.
    pub saved: Vec<u32>,
    /// Bytes of checkpoints that the slot holds afterwards.
    pub bytes: u64,
    /// What processing the prompt costs by the cost model, in milliseconds.
    pub predicted_ms: f64,
}

/// What a policy made of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The policy.
    pub name: String,
    /// Mean tokens processed; all means leave out each client's first request.
    pub new: f64,
    /// Mean passes.
    pub passes: f64,
    /// Mean saves.
    pub saves: f64,
    /// Mean bytes of checkpoints held after a request.
    pub bytes: f64,
    /// Mean predicted time, in milliseconds.
    pub predicted_ms: f64,
    /// Every request.
    pub steps: Vec<Step>,
}

/// All policies on one trace.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Mean tokens that would be processed if the cache could be cut anywhere.
    pub kv_bound: f64,
    /// The policies.
    pub policies: Vec<Outcome>,
}

/// Tokens of `request` left to process if the cache of the client's last
/// request could be cut anywhere; the last token is always processed.
fn bound(request: &Request, cached: &[u32]) -> u32 {
    let length = request.tokens.len() as u32;
    length - shared_prefix(cached, &request.tokens).min(length.saturating_sub(1))
}

/// Mean over the requests after each client's first of what must be processed
/// if the cache of the client's last request could be cut anywhere.
pub fn kv_bound(trace: &[Request]) -> f64 {
    let mut last: HashMap<&str, &Request> = HashMap::new();
    let bounds: Vec<f64> = trace
        .iter()
        .filter_map(|request| {
            let before = last.insert(&request.client, request)?;
            let cached: Vec<u32> = before.tokens.iter().chain(&before.answer).copied().collect();
            Some(f64::from(bound(request, &cached)))
        })
        .collect();
    mean(bounds.iter().copied())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let mut count = 0u32;
    let mut sum = 0.0;
    for v in values {
        count += 1;
        sum += v;
    }
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

/// Replays `trace` in order, a slot a client, each with a policy from `make`.
/// All clients are one user's.
pub fn simulate(
    name: &str,
    trace: &[Request],
    settings: &Settings,
    make: &dyn Fn() -> Box<dyn Placement + Send>,
) -> Outcome {
    let mut store = Store::new(settings);
    let mut steps = Vec::with_capacity(trace.len());
    for request in trace.iter().filter(|r| !r.tokens.is_empty()) {
        steps.push(store.serve(request, make));
    }
    let later = || steps.iter().filter(|s| !s.first);
    Outcome {
        name: name.to_owned(),
        new: mean(later().map(|s| f64::from(s.new))),
        passes: mean(later().map(|s| f64::from(s.passes))),
        saves: mean(later().map(|s| f64::from(s.saves))),
        bytes: mean(later().map(|s| s.bytes as f64)),
        predicted_ms: mean(later().map(|s| s.predicted_ms)),
        steps,
    }
}

/// What tokens, passes and saves cost together, in milliseconds.
pub fn predicted_ms(cost: &Cost, tokens: u32, passes: u32, saves: u32) -> f64 {
    let nanoseconds = u128::from(tokens) * u128::from(cost.per_token)
        + u128::from(passes) * u128::from(cost.per_pass)
        + u128::from(saves) * u128::from(cost.per_save);
    nanoseconds as f64 / 1e6
}
