//! The gate between submission and release: one lock, under which votes change.

use super::meter::Stretch;
use std::ops::DerefMut;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tandem_policy::PowerEventKind;
use tandem_program::DeviceError;
use tandem_program::power::{Power, Votes};

/// Events that may wait for the policy; older ones go first, the policy then misses a pause.
const EVENTS: usize = 64;
/// Votes that may wait to be written to the vote log.
const ENTRIES: usize = 4096;

/// Why votes changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The daemon took the device up.
    Start,
    /// A request arrived.
    Request,
    /// A batch was submitted and the votes were not back yet.
    Batch,
    /// The power policy.
    Policy,
    /// The daemon ends.
    Stop,
}

impl Reason {
    /// Its name in the vote log.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Start => "start",
            Reason::Request => "request",
            Reason::Batch => "batch",
            Reason::Policy => "policy",
            Reason::Stop => "stop",
        }
    }
}

/// What happened to the votes so far. Times are milliseconds that count suspend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Votes are held now.
    pub held: bool,
    /// Time with votes held.
    pub held_ms: u64,
    /// Time without.
    pub released_ms: u64,
    /// Releases.
    pub releases: u64,
    /// Restores after a release.
    pub wakeups: u64,
    /// Releases that the policy wanted and work prevented.
    pub prevented: u64,
    /// Batches submitted.
    pub batches: u64,
    /// Batches in flight.
    pub in_flight: u32,
    /// Time the platform took for the slowest restore, in microseconds.
    pub slowest_restore_us: u64,
}

/// One change of votes, for the vote log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) boot_ms: u64,
    pub(crate) held: bool,
    pub(crate) reason: Reason,
    pub(crate) took_us: u64,
}

/// The device's power handler, as far as there is one.
#[derive(Default)]
enum Handler {
    /// No device, or one without votes.
    #[default]
    None,
    Here(Arc<dyn Power>),
    /// The session is gone and its votes with it; nothing is asked of it any more.
    Lost,
}

/// What the lock of a [`Gate`] guards.
#[derive(Default)]
pub struct State {
    handler: Handler,
    totals: Totals,
    since: u64,
    busy: bool,
    pub(crate) expected: bool,
    pub(crate) quit: bool,
    /// What happened, and when.
    pub(crate) events: std::collections::VecDeque<(PowerEventKind, u64)>,
    pub(crate) entries: Vec<Entry>,
    /// Changes of the votes that the vote log lacks.
    pub(crate) unlogged: u64,
    /// Settings that were read again; the power thread takes them.
    pub(crate) settings: Option<super::manager::Settings>,
}

/// Counts suspend, in milliseconds.
pub(crate) type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The lock of a gate and the bell beside it. There is one in the daemon, [`SystemLock`]; a model
/// checker puts its own in place, so that the very code of the gate is explored.
pub trait Lock: Send + Sync {
    /// Holds the lock.
    type Guard<'a>: DerefMut<Target = State>
    where
        Self: 'a;

    /// Guards the state.
    fn new(state: State) -> Self;
    /// Takes the lock.
    fn lock(&self) -> Self::Guard<'_>;
    /// Lets go of the lock until the bell rings, at most `limit`.
    fn wait<'a>(&'a self, guard: Self::Guard<'a>, limit: Option<Duration>) -> Self::Guard<'a>;
    /// Rings the bell.
    fn notify(&self);
}

/// The system's mutex and condition variable.
#[derive(Default)]
pub struct SystemLock {
    state: Mutex<State>,
    changed: Condvar,
}

// A state is changed by code that does not panic half way: what a panic elsewhere left is good.
impl Lock for SystemLock {
    type Guard<'a> = MutexGuard<'a, State>;

    fn new(state: State) -> Self {
        SystemLock { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, limit: Option<Duration>) -> MutexGuard<'a, State> {
        match limit {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    fn notify(&self) {
        self.changed.notify_one();
    }
}

/// See the module.
pub struct Gate<L: Lock = SystemLock> {
    lock: L,
    clock: Clock,
}

impl<L: Lock> std::fmt::Debug for Gate<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate without a device. `clock` gives milliseconds and counts suspend.
    pub fn new(clock: Box<dyn Fn() -> u64 + Send + Sync>) -> Self {
        Gate::with_lock(clock)
    }
}

impl<L: Lock> Gate<L> {
    /// As [`Gate::new`], with a lock of another kind.
    pub fn with_lock(clock: Box<dyn Fn() -> u64 + Send + Sync>) -> Self {
        Gate { lock: L::new(State::default()), clock }
    }

    pub(crate) fn lock(&self) -> L::Guard<'_> {
        self.lock.lock()
    }

    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Waits for something new, at most `limit`.
    pub(crate) fn wait<'a>(&'a self, state: L::Guard<'a>, limit: Option<Duration>) -> L::Guard<'a> {
        self.lock.wait(state, limit)
    }

    pub(crate) fn notify(&self) {
        self.lock.notify();
    }

    /// Takes a device's power handler, in place of the one before, and raises its votes.
    pub fn attach(&self, power: Arc<dyn Power>) -> Result<(), DeviceError> {
        let mut state = self.lock();
        let now = self.now();
        state.account(now);
        state.handler = Handler::Here(power);
        state.totals.in_flight = 0;
        state.event(PowerEventKind::STARTED, now);
        let raised = self.apply(&mut state, true, Reason::Start);
        if raised.is_err() {
            // The device is given up: its handler is not to outlive it here.
            let now = self.now();
            state.lose(now);
        }
        drop(state);
        self.notify();
        raised
    }

    /// Whether a device with votes is there, or was until its session was lost.
    pub fn is_attached(&self) -> bool {
        !matches!(self.lock().handler, Handler::None)
    }

    /// The device's session is gone: it holds no votes, and none are asked of it until
    /// [`Gate::attach`]. Nothing where there was no device with votes.
    pub fn lose(&self) {
        let mut state = self.lock();
        let now = self.now();
        state.lose(now);
    }

    /// There is no device with votes any more.
    pub fn detach(&self) {
        let mut state = self.lock();
        let now = self.now();
        state.lose(now);
        state.handler = Handler::None;
    }

    /// Before a batch is submitted: votes are back when this returns, and stay until [`Gate::leave`].
    pub fn enter(&self) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if matches!(state.handler, Handler::Lost) {
            return Err(DeviceError::Lost("its power votes went with the session".into()));
        }
        if !state.totals.held {
            self.apply(&mut state, true, Reason::Batch)?;
            state.totals.wakeups += 1;
        }
        state.totals.batches += 1;
        state.totals.in_flight += 1;
        Ok(())
    }

    /// A batch is done, or was not taken.
    pub fn leave(&self) {
        let mut state = self.lock();
        state.totals.in_flight = state.totals.in_flight.saturating_sub(1);
    }

    /// Releases the votes unless something is queued or in flight, or a batch came after `batches`
    /// were counted. True if they are released now.
    pub fn release(&self, batches: u64, reason: Reason) -> Result<bool, DeviceError> {
        let mut state = self.lock();
        let State { totals, busy, expected, events, .. } = &mut *state;
        // A decision that has not heard of everything is an old one.
        let stale = totals.batches != batches || (reason == Reason::Policy && !events.is_empty());
        if *busy || *expected || totals.in_flight > 0 || stale {
            totals.prevented += 1;
            return Ok(false);
        }
        if !totals.held {
            return Ok(false);
        }
        self.apply(&mut state, false, reason)?;
        state.totals.releases += 1;
        let now = self.now();
        state.event(PowerEventKind::RELEASED, now);
        Ok(true)
    }

    /// Raises the votes for a request that was announced.
    pub(crate) fn raise(&self, state: &mut State) -> Result<(), DeviceError> {
        if !state.totals.held && state.is_here() {
            self.apply(state, true, Reason::Request)?;
            state.totals.wakeups += 1;
        }
        Ok(())
    }

    /// There is work (or no more).
    pub(crate) fn set_busy(&self, busy: bool) {
        let mut state = self.lock();
        let expected = std::mem::take(&mut state.expected);
        if !state.is_here() || (state.busy == busy && !expected) {
            return;
        }
        let now = self.now();
        // A request that was announced and then refused: the idle time begins again.
        if !state.busy && (busy || expected) {
            state.event(PowerEventKind::SUBMITTED, now);
        }
        if !busy && (state.busy || expected) {
            state.event(PowerEventKind::IDLE, now);
        }
        state.busy = busy;
        drop(state);
        self.notify();
    }

    /// A request is on its way.
    pub(crate) fn expect(&self) {
        let mut state = self.lock();
        if !state.is_here() {
            return;
        }
        state.expected = true;
        if state.totals.held {
            return;
        }
        drop(state);
        self.notify();
    }

    /// What happened so far.
    pub fn totals(&self) -> Totals {
        let mut state = self.lock();
        let now = self.now();
        state.account(now);
        state.totals
    }

    fn apply(&self, state: &mut State, held: bool, reason: Reason) -> Result<(), DeviceError> {
        let Handler::Here(power) = &state.handler else { return Ok(()) };
        let power = Arc::clone(power);
        let began = std::time::Instant::now();
        let applied = power.apply(if held { &Votes::HELD } else { &Votes::RELEASED });
        let took_us = began.elapsed().as_micros() as u64;
        let boot_ms = self.now();
        state.account(boot_ms);
        match &applied {
            Ok(()) => state.totals.held = held,
            // A session that is gone holds no votes, whatever was asked.
            Err(DeviceError::Lost(_)) => state.lose(boot_ms),
            Err(_) => state.totals.held &= held,
        }
        if held {
            state.totals.slowest_restore_us = state.totals.slowest_restore_us.max(took_us);
            if applied.is_ok() && reason != Reason::Start {
                state.event(PowerEventKind::RESTORED, boot_ms);
            }
        }
        if state.entries.len() < ENTRIES {
            let held = state.totals.held;
            state.entries.push(Entry { boot_ms, held, reason, took_us });
        } else {
            state.unlogged += 1;
        }
        self.notify();
        applied
    }
}

impl State {
    fn is_here(&self) -> bool {
        matches!(self.handler, Handler::Here(_))
    }

    /// Whether the session is gone and no other took its place.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.handler, Handler::Lost)
    }

    fn lose(&mut self, now: u64) {
        if !self.is_here() {
            return;
        }
        self.account(now);
        self.handler = Handler::Lost;
        self.totals.held = false;
        self.totals.in_flight = 0;
        (self.busy, self.expected) = (false, false);
        // The policy hears of the next session's start.
        self.events.clear();
    }

    fn event(&mut self, kind: PowerEventKind, now: u64) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((kind, now));
    }

    fn account(&mut self, now: u64) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.since, now));
        if self.totals.held {
            self.totals.held_ms += passed;
        } else if self.is_here() {
            self.totals.released_ms += passed;
        }
    }

    /// Batches counted so far: what a decision rests on.
    pub(crate) fn batches(&self) -> u64 {
        self.totals.batches
    }

    /// What the device is about; `None` without one that has votes.
    pub(crate) fn stretch(&self) -> Option<Stretch> {
        match (self.is_here(), self.busy || self.totals.in_flight > 0, self.totals.held) {
            (false, ..) => None,
            (true, true, _) => Some(Stretch::Busy),
            (true, false, true) => Some(Stretch::Held),
            (true, false, false) => Some(Stretch::Released),
        }
    }

    pub(crate) fn slowest_restore_us(&self) -> u64 {
        self.totals.slowest_restore_us
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }
}
