//! The status report: one JSON object, numbers and names only, never text of prompts or
//! answers.

use crate::policy::PolicyStatus;
use crate::scheduler::{Client, ClientId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use tandem_engine::engine::Engine;

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The model file.
    pub model: PathBuf,
    /// Placement policy of new slots.
    pub placement: String,
    /// When the daemon began to serve.
    pub started: Instant,
}

pub(crate) fn report(
    facts: &Facts,
    engine: &Engine,
    clients: &BTreeMap<ClientId, Client>,
    policies: &[PolicyStatus],
    power: Value,
    session: Value,
) -> Value {
    let device = engine.executor().device();
    let dims = engine.dims();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_s": facts.started.elapsed().as_secs(),
        "device": { "name": device.name, "detail": device.detail, "threads": device.threads },
        "session": session,
        "model": {
            "file": facts.model.display().to_string(),
            "architecture": dims.architecture,
            "layers": dims.layers,
            "hidden": dims.hidden,
            "vocabulary": dims.vocabulary,
            "context": engine.options().context,
            "mtp": dims.mtp,
        },
        "placement": facts.placement,
        "policies": policies,
        "switches": serde_json::to_value(&engine.options().switches).unwrap_or(Value::Null),
        "clients": clients.iter().map(|(id, c)| client(*id, c, engine)).collect::<Vec<_>>(),
        "memory": memory(engine, clients, policies),
        "power": power,
        "counters": engine.counters(),
    })
}

fn client(id: ClientId, client: &Client, engine: &Engine) -> Value {
    let slot = engine.slot(client.slot);
    json!({
        "id": id.0,
        "app": client.app,
        "uid": client.peer.uid,
        "pid": client.peer.pid,
        "requests": client.requests,
        "running": client.jobs.len(),
        "tokens": slot.map_or(0, |s| s.tokens().len()),
        "checkpoints": slot.map_or_else(Vec::new, |s| s.checkpoints().iter().map(|c| c.position).collect()),
    })
}

/// Bytes by purpose. `kv_reserved` is address space; pages are committed as cells are
/// written.
fn memory(engine: &Engine, clients: &BTreeMap<ClientId, Client>, policies: &[PolicyStatus]) -> Value {
    let executor = engine.executor();
    let states = executor.states();
    let cell = executor.kv_bytes(1);
    let (entries, cached, cap) = engine.prompt_cache();
    let used: u64 =
        clients.values().filter_map(|c| engine.slot(c.slot)).map(|s| s.tokens().len() as u64).sum();
    json!({
        "weights_mapped": engine.weights_bytes(),
        "vocabulary": engine.vocabulary_bytes(),
        "kv_used": used * cell,
        "kv_reserved": clients.len() as u64 * executor.kv_bytes(engine.options().context),
        "states": states.in_use() * states.state_bytes(),
        "states_free": states.total_bytes() - states.in_use() * states.state_bytes(),
        "states_cap": engine.options().state_budget,
        "prompt_cache_entries": entries,
        "prompt_cache": cached,
        "prompt_cache_cap": cap,
        "checkpoint": states.state_bytes(),
        "policies": policies.iter().map(|p| p.memory).sum::<u64>(),
        "scratch": executor.scratch_bytes(),
        "device": executor.device_bytes(),
    })
}
