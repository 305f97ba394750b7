//! One slot's instance of a plugin, as the engine sees it: a [`Placement`].

use super::call::Failed;
use super::caller::Caller;
use super::host::Source;
use super::plugin::Live;
use super::world::placement::{Placement as PlacementWorld, tandem::policy::placement_types as wire};
use std::collections::VecDeque;
use std::sync::Arc;
use tandem_policies::Builtin;
use tandem_policy::{Boundary, Cost, Kept, Observation, PlaceRequest, Placement, Positions};
use wasmtime::StoreContextMut;

/// Requests that a fresh instance is told again.
const HISTORY: usize = 64;

/// A request as it was, to tell it to a fresh instance.
#[derive(Clone, Default)]
struct Told {
    request: OwnedRequest,
    seen: Option<OwnedObservation>,
    /// The plugin failed on it, and is not told it again.
    failed: bool,
}

#[derive(Clone, Default)]
struct OwnedRequest {
    numbers: [u32; 6],
    sizes: [u64; 2],
    cost: Cost,
    kept: Vec<Kept>,
    boundaries: Vec<Boundary>,
}

#[derive(Clone, Default)]
struct OwnedObservation {
    numbers: [u32; 4],
    saved: Vec<u32>,
}

impl OwnedRequest {
    fn of(r: &PlaceRequest<'_>) -> Self {
        Self {
            numbers: [r.prompt, r.shared, r.restored, r.cap, r.pass_limit, r.max_saves],
            sizes: [r.bytes_left, r.checkpoint_bytes],
            cost: r.cost,
            kept: r.kept.to_vec(),
            boundaries: r.boundaries.to_vec(),
        }
    }

    fn as_request(&self) -> PlaceRequest<'_> {
        let [prompt, shared, restored, cap, pass_limit, max_saves] = self.numbers;
        let [bytes_left, checkpoint_bytes] = self.sizes;
        PlaceRequest {
            prompt,
            shared,
            restored,
            kept: &self.kept,
            cap,
            bytes_left,
            checkpoint_bytes,
            cost: self.cost,
            pass_limit,
            max_saves,
            boundaries: &self.boundaries,
        }
    }
}

impl OwnedObservation {
    fn of(o: &Observation<'_>) -> Self {
        Self { numbers: [o.prompt, o.shared, o.restored, o.answer], saved: o.saved.to_vec() }
    }

    fn as_observation(&self) -> Observation<'_> {
        let [prompt, shared, restored, answer] = self.numbers;
        Observation { prompt, shared, restored, answer, saved: &self.saved }
    }
}

/// A slot's placement policy that runs in Wasm, with its built-in stand-in.
pub struct WasmPlacement {
    caller: Caller<Builtin>,
    /// Answers while the plugin is quarantined.
    stand_in: Option<Box<dyn Placement + Send>>,
    history: VecDeque<Told>,
}

impl WasmPlacement {
    pub(crate) fn new(source: Arc<Source<Builtin>>) -> Self {
        Self { caller: Caller::new(source), stand_in: None, history: VecDeque::new() }
    }

    /// Goes over to the newest plugin after a reload.
    fn follow_reload(&mut self) {
        if self.caller.follow_reload() {
            self.stand_in = None;
        }
    }

    /// Asks the plugin; where it fails, the stand-in. False where it failed or was not asked.
    fn ask<R>(
        &mut self,
        wasm: impl FnOnce(&mut Live) -> Result<R, Failed>,
        native: impl FnOnce(&mut (dyn Placement + Send)) -> R,
    ) -> (R, bool) {
        let past = self.history.iter().filter(|told| !told.failed);
        if let Some(answer) = self.caller.ask(past, tell, wasm) {
            return (answer, true);
        }
        let mut stand_in = self.stand_in.take().unwrap_or_else(|| self.make_stand_in());
        let answer = native(&mut *stand_in);
        self.caller.health().stood_in();
        // In quarantine it stays; otherwise the next failure makes one that knows the requests since.
        if self.caller.health().is_quarantined() {
            self.stand_in = Some(stand_in);
        }
        (answer, false)
    }

    fn make_stand_in(&self) -> Box<dyn Placement + Send> {
        let mut stand_in = (self.caller.stand_in().native)();
        let mut ignored = Positions::new();
        for told in &self.history {
            ignored.clear();
            stand_in.place(&told.request.as_request(), &mut ignored);
            if let Some(seen) = &told.seen {
                stand_in.observe(&seen.as_observation());
            }
        }
        stand_in
    }

    fn remember(&mut self, request: &PlaceRequest<'_>, failed: bool) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Told { request: OwnedRequest::of(request), seen: None, failed });
    }
}

impl Placement for WasmPlacement {
    fn place(&mut self, request: &PlaceRequest<'_>, positions: &mut Positions) {
        self.follow_reload();
        let asked = !self.caller.health().is_quarantined();
        let (mut answer, by_plugin) = self.ask(
            |live| call_place(live, request),
            |native| {
                let mut answer = Positions::new();
                native.place(request, &mut answer);
                answer
            },
        );
        self.caller.health().clamped(answer.clamp(request) as u64);
        for &p in answer.as_slice() {
            positions.push(p);
        }
        self.remember(request, asked && !by_plugin);
    }

    fn evict(&mut self, kept: &[Kept], incoming: u32) -> usize {
        self.ask(|live| call_evict(live, kept, incoming), |native| native.evict(kept, incoming)).0
    }

    fn observe(&mut self, seen: &Observation<'_>) {
        let asked = !self.caller.health().is_quarantined();
        let ((), by_plugin) = self.ask(|live| call_observe(live, seen), |native| native.observe(seen));
        if let Some(last) = self.history.back_mut() {
            last.seen = Some(OwnedObservation::of(seen));
            last.failed |= asked && !by_plugin;
        }
    }
}

/// Tells a request that was, and what came of it.
fn tell(live: &mut Live, told: &Told) -> Result<(), Failed> {
    call_place(live, &told.request.as_request())?;
    told.seen.as_ref().map_or(Ok(()), |seen| call_observe(live, &seen.as_observation()))
}

fn wire_kept(kept: &[Kept]) -> Vec<wire::Kept> {
    let record = |k: &Kept| wire::Kept { position: k.position, age: k.age, hits: k.hits, bytes: k.bytes };
    kept.iter().map(record).collect()
}

fn context(live: &mut Live) -> (&PlacementWorld, StoreContextMut<'_, super::plugin::Instance>) {
    (&live.world, wasmtime::AsContextMut::as_context_mut(&mut live.store))
}

pub(crate) fn call_place(live: &mut Live, r: &PlaceRequest<'_>) -> Result<Positions, Failed> {
    let boundaries = r
        .boundaries
        .iter()
        .take(tandem_policy::MAX_BOUNDARIES)
        .map(|b| wire::Boundary { token: b.token, kind: b.kind.0 })
        .collect();
    let request = wire::PlaceRequest {
        prompt: r.prompt,
        shared: r.shared,
        restored: r.restored,
        kept: wire_kept(r.kept),
        cap: r.cap,
        bytes_left: r.bytes_left,
        checkpoint_bytes: r.checkpoint_bytes,
        cost: wire::Cost {
            per_token: r.cost.per_token,
            per_pass: r.cost.per_pass,
            per_save: r.cost.per_save,
        },
        pass_limit: r.pass_limit,
        max_saves: r.max_saves,
        boundaries,
    };
    let (world, store) = context(live);
    let answer = world.call_place(store, &request)?;
    if answer.len() > Positions::CAPACITY {
        let (count, most) = (answer.len(), Positions::CAPACITY);
        return Err(Failed::nonsense(format!("place answered {count} positions, at most {most} make sense")));
    }
    let mut positions = Positions::new();
    for p in answer {
        positions.push(p);
    }
    Ok(positions)
}

pub(crate) fn call_evict(live: &mut Live, kept: &[Kept], incoming: u32) -> Result<usize, Failed> {
    let list = wire_kept(kept);
    let (world, store) = context(live);
    let answer = world.call_evict(store, &list, incoming)? as usize;
    if answer > kept.len() {
        let held = kept.len();
        return Err(Failed::nonsense(format!("evict answered index {answer} of {held} checkpoints")));
    }
    Ok(answer)
}

pub(crate) fn call_observe(live: &mut Live, o: &Observation<'_>) -> Result<(), Failed> {
    let seen = wire::Observation {
        prompt: o.prompt,
        shared: o.shared,
        restored: o.restored,
        answer: o.answer,
        saved: o.saved.to_vec(),
    };
    let (world, store) = context(live);
    Ok(world.call_observe(store, &seen)?)
}
