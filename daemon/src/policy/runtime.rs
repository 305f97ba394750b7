//! The Wasm engine, its limits, and the clock that ends calls.

use super::error::PolicyError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wasmtime::{Config, Engine, StoreLimits, StoreLimitsBuilder};

/// Fuel of one call: some 2 ms on a desktop core.
pub const CALL_FUEL: u64 = 20_000_000;
/// Fuel of making an instance.
pub(crate) const START_FUEL: u64 = 20_000_000;
/// Most memory of one instance, in bytes.
pub const MAX_MEMORY_BYTES: usize = 4 << 20;
/// Stack of a call, in bytes.
const STACK_BYTES: usize = 512 << 10;
/// How often the clock ticks while a call runs.
const TICK: Duration = Duration::from_millis(5);
/// Ticks after which a call is ended, should fuel not have done it: fuel counts a fill of all
/// memory as one instruction. Long enough that a call on a busy machine is not taken for one.
pub(crate) const CALL_TICKS: u64 = 20;
/// Ticks without a call after which the clock stops.
const IDLE_TICKS: u32 = 20;

/// The Wasm engine. Clones share it.
#[derive(Clone)]
pub struct Runtime {
    engine: Engine,
    clock: Arc<Owner>,
}

/// Ends the clock's thread when the last `Runtime` goes.
struct Owner(Arc<Clock>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
    }
}

/// Calls that run now, for the clock.
#[derive(Default)]
struct Clock {
    calls: Mutex<Calls>,
    wake: Condvar,
}

#[derive(Default)]
struct Calls {
    running: u32,
    ticking: bool,
    closed: bool,
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that the clock watches.
pub(crate) struct Watch<'a>(&'a Clock);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
    }
}

impl Runtime {
    /// Makes the engine and the clock's thread.
    pub fn new() -> Result<Self, PolicyError> {
        let fail = |reason: String| PolicyError::Engine { reason };
        let mut config = Config::new();
        config
            .consume_fuel(true)
            .epoch_interruption(true)
            .max_wasm_stack(STACK_BYTES)
            .memory_reservation(MAX_MEMORY_BYTES as u64)
            .memory_reservation_for_growth(0)
            .memory_guard_size(0);
        let engine = Engine::new(&config).map_err(|e| fail(format!("{e:#}")))?;
        let clock = Arc::new(Clock::default());
        let (watched, ticked) = (clock.clone(), engine.clone());
        std::thread::Builder::new()
            .name("policy-clock".to_owned())
            .spawn(move || tick(&watched, &ticked))
            .map_err(|e| fail(e.to_string()))?;
        Ok(Self { engine, clock: Arc::new(Owner(clock)) })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Limits of one instance.
    pub(crate) fn limits() -> StoreLimits {
        StoreLimitsBuilder::new()
            .memory_size(MAX_MEMORY_BYTES)
            .memories(2)
            .tables(8)
            .table_elements(4096)
            .instances(16)
            .trap_on_grow_failure(true)
            .build()
    }

    /// Has the clock tick until the watch is dropped.
    pub(crate) fn watch(&self) -> Watch<'_> {
        let clock = &self.clock.0;
        let mut calls = clock.lock();
        calls.running += 1;
        if !calls.ticking {
            calls.ticking = true;
            clock.wake.notify_one();
        }
        Watch(clock)
    }
}

/// Advances the engine's epoch while calls run and a little longer, so that a
/// burst of calls does not pay a wake-up each and an idle phone is left alone.
fn tick(clock: &Clock, engine: &Engine) {
    let mut idle = 0;
    loop {
        let mut calls = clock.lock();
        idle = if calls.running > 0 { 0 } else { idle + 1 };
        if idle > IDLE_TICKS {
            calls.ticking = false;
        }
        while !calls.ticking && !calls.closed {
            idle = 0;
            calls = clock.wake.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
        if calls.closed {
            return;
        }
        drop(calls);
        std::thread::sleep(TICK);
        engine.increment_epoch();
    }
}
