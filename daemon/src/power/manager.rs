//! The power thread: asks the policy, sleeps until its time, releases at the gate.

use super::gate::{Entry, Gate, Reason};
use super::meter::{Collapses, Ledger, Meters, Stretch};
use crate::policy::PolicyHost;
use serde_json::{Value, json};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tandem_policy::{Power, PowerAction, PowerDecision, PowerEvent, PowerEventKind};

/// The longest a policy may put off the next question.
const LONGEST_WAIT_MS: u64 = 600_000;
/// Wake-ups in one pause after which the next comes not before so many milliseconds.
const FREE_WAKES: u32 = 16;
const SHORTEST_WAIT_MS: u64 = 1000;
/// The thread looks at the clock that counts suspend at least this often while a time is set:
/// its own sleep does not count suspend.
const SHORTEST_LOOK: Duration = Duration::from_millis(50);
const LONGEST_LOOK: Duration = Duration::from_millis(500);
/// How often the meters are read at work and while the policy waits, and how often else.
const METERED_MS: u64 = 500;
const SELDOM_METERED_MS: u64 = 60_000;

/// What can change while the daemon runs.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    policy: String,
    idle_release: bool,
}

impl Settings {
    fn of(options: &Options) -> Self {
        Settings { policy: options.policy.clone(), idle_release: options.idle_release }
    }
}

/// How votes are managed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides when they go: a built-in policy's name or the path of a component.
    pub policy: String,
    /// Whether they ever go.
    pub idle_release: bool,
    /// Where changes are written, a JSON object a line.
    pub vote_log: Option<PathBuf>,
    /// Folder of the battery's fuel gauge: looked for where `None`, none where empty.
    pub battery: Option<PathBuf>,
    /// File with the DSP's collapse counters, likewise.
    pub collapses: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            policy: tandem_policies::POWERS[0].name.into(),
            idle_release: true,
            vote_log: None,
            battery: None,
            collapses: None,
        }
    }
}

/// What the meters told so far.
#[derive(Debug, Default)]
struct Books {
    battery: Option<PathBuf>,
    ledger: Ledger,
    collapses: Option<(Collapses, Collapses)>,
}

impl Books {
    /// Takes a reading of the collapse counters.
    fn collapsed(&mut self, now: Option<Collapses>) {
        let Some(now) = now else { return };
        let first = self.collapses.map_or(now, |(first, _)| first);
        self.collapses = Some((first, now));
    }

    /// Microwatts drawn while held and while released, as policies are told; 0 is unknown.
    fn microwatts(&self, stretch: Stretch) -> u32 {
        let known = self.ledger.account(stretch).microwatts().unwrap_or(0);
        u32::try_from(known).unwrap_or(u32::MAX)
    }

    fn energy(&self, steps: u64) -> Value {
        let Some(battery) = &self.battery else { return Value::Null };
        let account = |stretch| {
            let account = self.ledger.account(stretch);
            json!({ "ms": account.ms, "metered_ms": account.metered_ms, "microwatts": account.microwatts() })
        };
        json!({
            "battery": battery.display().to_string(),
            "step_microjoules": self.ledger.step_microjoules(steps),
            "busy": account(Stretch::Busy),
            "held": account(Stretch::Held),
            "released": account(Stretch::Released),
        })
    }

    /// Collapses since the first reading.
    fn collapses(&self) -> Value {
        self.collapses.map_or(Value::Null, |(first, last)| {
            // Counters of a DSP that was started anew begin again.
            let count = last.count.checked_sub(first.count).unwrap_or(last.count);
            json!({ "count": count, "ms": last.ms.checked_sub(first.ms).unwrap_or(last.ms) })
        })
    }
}

/// The daemon's way to the gate; cheap to copy.
#[derive(Clone, Debug)]
pub struct Handle {
    gate: Arc<Gate>,
    books: Arc<Mutex<Books>>,
}

// Numbers that are each changed as a whole: what a panic left is good.
fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// The gate, for [`super::Gated`].
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// A request is on its way: votes are raised while it is read.
    pub fn expect(&self) {
        self.gate.expect();
    }

    /// Whether there is work.
    pub fn busy(&self, busy: bool) {
        self.gate.set_busy(busy);
    }

    /// Releases the votes at the end, while the device is still there.
    pub fn stop(&self) {
        self.gate.set_busy(false);
        let batches = self.gate.totals().batches;
        if let Err(error) = self.gate.release(batches, Reason::Stop) {
            tracing::warn!(%error, "cannot release the power votes at the end");
        }
    }

    /// Takes over a policy and the switch from settings that were read again.
    pub fn set(&self, options: &Options) {
        let settings = Settings::of(options);
        self.gate.lock().settings = Some(settings);
        self.gate.notify();
    }

    /// For the status report; `steps` is the number of requests answered so far.
    pub fn status(&self, options: &Options, steps: u64) -> Value {
        if !self.gate.is_attached() {
            return json!({ "votes": "none" });
        }
        let totals = self.gate.totals();
        let state = self.gate.lock();
        let (unlogged, lost) = (state.unlogged, state.is_lost());
        drop(state);
        // Never with the gate's lock held, nor it with this one: the power thread has both.
        let books = lock(&self.books);
        json!({
            "votes": match (lost, totals.held) {
                (true, _) => "lost",
                (false, true) => "held",
                (false, false) => "released",
            },
            "policy": options.policy,
            "idle_release": options.idle_release,
            "held_ms": totals.held_ms,
            "released_ms": totals.released_ms,
            "releases": totals.releases,
            "wakeups": totals.wakeups,
            "prevented": totals.prevented,
            "batches": totals.batches,
            "slowest_restore_us": totals.slowest_restore_us,
            "unlogged": unlogged,
            "energy": books.energy(steps),
            "collapses": books.collapses(),
        })
    }
}

/// The power thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Manager {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts the thread; it takes its policy out of `policies` when a device with votes is
    /// there. A vote log that cannot be opened is an error.
    pub fn start(options: &Options, policies: &Arc<PolicyHost>) -> std::io::Result<Self> {
        Self::with_clock(options, policies, Box::new(tandem_ipc::board::boot_ms))
    }

    /// As [`Manager::start`], on another clock (milliseconds).
    pub fn with_clock(
        options: &Options,
        policies: &Arc<PolicyHost>,
        clock: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> std::io::Result<Self> {
        let log = options.vote_log.as_deref().map(open_log).transpose()?;
        let gate = Arc::new(Gate::new(clock));
        let settings = Settings::of(options);
        let meters = Meters::find(options.battery.as_deref(), options.collapses.as_deref());
        let books = Books { battery: meters.battery().map(Path::to_owned), ..Books::default() };
        let books = Arc::new(Mutex::new(books));
        let worker = Worker {
            gate: Arc::clone(&gate),
            meters,
            books: Arc::clone(&books),
            stretch: None,
            look_at: 0,
            logs: log.is_some(),
            told_unlogged: 0,
            policies: Arc::clone(policies),
            policy: None,
            settings,
            wake_at: None,
            wakes: 0,
            log,
        };
        let thread = std::thread::Builder::new().name("power".into()).spawn(move || worker.run())?;
        Ok(Manager { handle: Handle { gate, books }, thread: Some(thread) })
    }

    /// The daemon's way to it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.handle.gate.lock().quit = true;
        self.handle.gate.notify();
        if let Some(thread) = self.thread.take() {
            // It catches what a policy does; there is nothing else that panics.
            let _ = thread.join();
        }
    }
}

/// The policy of that name. What cannot be loaded was told when the settings were read; here the
/// built-in default does.
fn made(policies: &PolicyHost, name: &str) -> Box<dyn Power + Send> {
    policies.power(name).unwrap_or_else(|error| {
        let built_in = &tandem_policies::POWERS[0];
        tracing::error!(policy = name, %error, "not loaded; {} decides", built_in.name);
        (built_in.native)()
    })
}

fn open_log(path: &Path) -> std::io::Result<std::fs::File> {
    let named = |e: std::io::Error| {
        std::io::Error::new(e.kind(), format!("cannot open power.vote_log {}: {e}", path.display()))
    };
    std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(named)
}

struct Worker {
    gate: Arc<Gate>,
    policies: Arc<PolicyHost>,
    /// Made for the first event.
    policy: Option<Box<dyn Power + Send>>,
    settings: Settings,
    wake_at: Option<u64>,
    /// Wake-ups since anything else happened.
    wakes: u32,
    log: Option<std::fs::File>,
    /// There is to be a vote log.
    logs: bool,
    /// Changes that the log is known to lack.
    told_unlogged: u64,
    meters: Meters,
    books: Arc<Mutex<Books>>,
    /// What the device has been about since the last reading.
    stretch: Option<Stretch>,
    /// When the meters are read again, if nothing changes before.
    look_at: u64,
}

impl Worker {
    fn run(mut self) {
        let gate = Arc::clone(&self.gate);
        let mut look = SHORTEST_LOOK;
        let mut state = gate.lock();
        while !state.quit {
            if state.expected
                && let Err(error) = gate.raise(&mut state)
            {
                // The batch tells whoever waits for it.
                state.expected = false;
                tracing::error!(%error, "cannot raise the power votes; the next batch tries again");
            }
            let settings = state.settings.take();
            let entries = std::mem::take(&mut state.entries);
            let now = gate.now();
            let kind = match state.events.pop_front() {
                Some(event) => Some(event),
                None => self.wake_at.filter(|at| *at <= now).map(|_| (PowerEventKind::WAKE, now)),
            };
            let stretch = state.stretch();
            let metered =
                self.meters.any() && (stretch != self.stretch || (stretch.is_some() && self.look_at <= now));
            if kind.is_none() && settings.is_none() && entries.is_empty() && !metered {
                let limit = self.wake_at.map(|at| {
                    let left = Duration::from_millis(at.saturating_sub(gate.now()));
                    left.max(Duration::from_millis(1)).min(look)
                });
                look = (look * 2).min(LONGEST_LOOK);
                let metering = self.meters.any() && stretch.is_some();
                let meter = metering.then(|| Duration::from_millis(self.look_at.saturating_sub(now).max(1)));
                state = gate.wait(state, limit.into_iter().chain(meter).min());
                continue;
            }
            look = SHORTEST_LOOK;
            let (batches, queued) = (state.batches(), state.is_busy().into());
            let restore_time = u32::try_from(state.slowest_restore_us()).unwrap_or(u32::MAX);
            // Policy, files and the platform are not waited for with the lock held, nor the books.
            drop(state);
            let event = kind.map(|(kind, now)| PowerEvent { now, queued, restore_time, ..self.event(kind) });
            if metered {
                self.meter(stretch);
            }
            self.write(&entries);
            if let Some(settings) = settings {
                self.take(settings);
            }
            if let Some(event) = event {
                self.ask(&event, batches);
            }
            state = gate.lock();
        }
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        self.write(&entries);
    }

    fn take(&mut self, settings: Settings) {
        if self.settings.policy != settings.policy {
            self.policy = None;
        }
        self.settings = settings;
        // A new policy, or one that may release again, begins with the idle time from now.
        let state = self.gate.lock();
        let (batches, busy) = (state.batches(), state.is_busy());
        drop(state);
        if !busy {
            self.ask(&self.event(PowerEventKind::STARTED), batches);
        }
    }

    /// An event with what the meters tell.
    fn event(&self, kind: PowerEventKind) -> PowerEvent {
        let books = lock(&self.books);
        PowerEvent {
            held_power: books.microwatts(Stretch::Held),
            released_power: books.microwatts(Stretch::Released),
            ..PowerEvent::new(kind, self.gate.now())
        }
    }

    /// Reads the meters, books the time since the last reading, and goes on with `stretch`.
    fn meter(&mut self, stretch: Option<Stretch>) {
        let (reading, collapses) = (self.meters.read(), self.meters.collapses());
        let now = self.gate.now();
        let mut books = lock(&self.books);
        match self.stretch {
            Some(been) => books.ledger.book(been, now, reading),
            None => books.ledger.begin(now, reading),
        }
        books.collapsed(collapses);
        drop(books);
        self.stretch = stretch;
        let soon = stretch == Some(Stretch::Busy) || self.wake_at.is_some();
        self.look_at = now + if soon { METERED_MS } else { SELDOM_METERED_MS };
    }

    /// Asks the policy and does what it says, as far as that is allowed.
    fn ask(&mut self, event: &PowerEvent, batches: u64) {
        let Worker { policies, policy, settings, .. } = self;
        let policy = policy.get_or_insert_with(|| made(policies, &settings.policy));
        let answer = catch_unwind(AssertUnwindSafe(|| policy.event(event)));
        let decision = answer.unwrap_or_else(|_| {
            tracing::error!(policy = self.settings.policy, "the power policy panicked; it begins anew");
            self.policy = None;
            PowerDecision { action: PowerAction::HOLD, wake_after: 3000 }
        });
        self.wakes = if event.kind == PowerEventKind::WAKE { self.wakes.saturating_add(1) } else { 0 };
        // A policy that wants to be woken again and again would keep the processor awake itself.
        let least = if self.wakes < FREE_WAKES { 1 } else { SHORTEST_WAIT_MS };
        let wait = u64::from(decision.wake_after).min(LONGEST_WAIT_MS);
        self.wake_at = (wait > 0).then(|| event.now + wait.max(least));
        if decision.action != PowerAction::RELEASE || !self.settings.idle_release {
            return;
        }
        if let Err(error) = self.gate.release(batches, Reason::Policy) {
            tracing::error!(%error, "cannot release the power votes; the device's session is gone");
        }
    }

    /// Writes the vote log; what it lacks is counted.
    fn write(&mut self, entries: &[Entry]) {
        if !self.logs {
            return;
        }
        let mut written = 0;
        while let (Some(file), Some(entry)) = (&mut self.log, entries.get(written)) {
            let line = json!({
                "boottime_ms": entry.boot_ms,
                "votes": if entry.held { "held" } else { "released" },
                "reason": entry.reason.as_str(),
                "took_us": entry.took_us,
            });
            match writeln!(file, "{line}") {
                Ok(()) => written += 1,
                Err(error) => {
                    tracing::error!(%error, "cannot write the vote log; it ends here");
                    self.log = None;
                }
            }
        }
        let left = (entries.len() - written) as u64;
        let mut state = self.gate.lock();
        state.unlogged += left;
        let (all, new) = (state.unlogged, state.unlogged != self.told_unlogged);
        drop(state);
        // Once for each file or flood, not for every change after it.
        if new && self.told_unlogged == 0 {
            tracing::warn!(changes = all, "the vote log lacks changes; status counts them");
        }
        self.told_unlogged = all;
    }
}
