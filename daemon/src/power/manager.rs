//! The power thread: asks the policy, sleeps until its time, releases at the gate.

use super::gate::{Entry, Gate, Reason};
use crate::policy::PolicyHost;
use serde_json::{Value, json};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
}

/// The daemon's way to the gate; cheap to copy.
#[derive(Clone, Debug)]
pub struct Handle {
    gate: Arc<Gate>,
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

    /// For the status report.
    pub fn status(&self, options: &Options) -> Value {
        if !self.gate.is_attached() {
            return json!({ "votes": "none" });
        }
        let totals = self.gate.totals();
        json!({
            "votes": match (self.gate.lock().is_lost(), totals.held) {
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
        let worker = Worker {
            gate: Arc::clone(&gate),
            policies: Arc::clone(policies),
            policy: None,
            settings,
            wake_at: None,
            wakes: 0,
            log,
        };
        let thread = std::thread::Builder::new().name("power".into()).spawn(move || worker.run())?;
        Ok(Manager { handle: Handle { gate }, thread: Some(thread) })
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
            let kind = match state.events.pop_front() {
                Some(kind) => Some(kind),
                None => self.wake_at.filter(|at| *at <= gate.now()).map(|_| PowerEventKind::WAKE),
            };
            if kind.is_none() && settings.is_none() && entries.is_empty() {
                let limit = self.wake_at.map(|at| {
                    let left = Duration::from_millis(at.saturating_sub(gate.now()));
                    left.max(Duration::from_millis(1)).min(look)
                });
                look = (look * 2).min(LONGEST_LOOK);
                state = gate.wait(state, limit);
                continue;
            }
            look = SHORTEST_LOOK;
            let event = kind.map(|kind| PowerEvent {
                kind,
                now: gate.now(),
                queued: state.is_busy().into(),
                clients: 0,
                held_power: 0,
                released_power: 0,
                restore_time: u32::try_from(state.slowest_restore_us()).unwrap_or(u32::MAX),
                restore_energy: 0,
            });
            let batches = state.batches();
            // Policy, files and the platform are not waited for with the lock held.
            drop(state);
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
            let event = PowerEvent {
                kind: PowerEventKind::STARTED,
                now: self.gate.now(),
                queued: 0,
                clients: 0,
                held_power: 0,
                released_power: 0,
                restore_time: 0,
                restore_energy: 0,
            };
            self.ask(&event, batches);
        }
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

    fn write(&mut self, entries: &[Entry]) {
        let Some(file) = &mut self.log else { return };
        for entry in entries {
            let line = json!({
                "boottime_ms": entry.boot_ms,
                "votes": if entry.held { "held" } else { "released" },
                "reason": entry.reason.as_str(),
                "took_us": entry.took_us,
            });
            if let Err(error) = writeln!(file, "{line}") {
                tracing::error!(%error, "cannot write the vote log; it ends here");
                self.log = None;
                return;
            }
        }
    }
}
