//! Power votes: a batch never meets a device without them, and letting go of them changes nothing.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::engine::{Engine, EngineOptions};
use tandem_program::power::{Power, Votes};
use tandem_program::reference::Reference;
use tandem_program::{BufferId, Device, DeviceError, DeviceInfo, Program, Region, Ticket};
use tandemd::policy::PolicyHost;
use tandemd::power::{Gate, Gated, Handle, Manager, Options, Reason};

/// What a device with votes knows of them.
#[derive(Default)]
struct Handler {
    held: AtomicBool,
    /// The session is gone: nothing can be applied.
    dead: AtomicBool,
    applied: AtomicU64,
    submitted: AtomicU64,
    waited: AtomicU64,
    in_flight: AtomicU64,
    /// Faults that no test may see.
    faults: Mutex<Vec<&'static str>>,
}

impl Handler {
    fn fault(&self, what: &'static str) {
        self.faults.lock().unwrap().push(what);
    }
}

impl Power for Handler {
    fn apply(&self, votes: &Votes) -> Result<(), DeviceError> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(DeviceError::Lost("the handler does not answer".into()));
        }
        let held = *votes == Votes::HELD;
        if !held && self.in_flight.load(Ordering::SeqCst) > 0 {
            self.fault("released under a batch");
        }
        self.held.store(held, Ordering::SeqCst);
        self.applied.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A device that computes, but refuses what is submitted while its votes are released.
struct Voting<D> {
    device: D,
    handler: Arc<Handler>,
}

impl<D: Device> Device for Voting<D> {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }
    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        self.device.create(bytes)
    }
    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        self.device.import(region)
    }
    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.device.destroy(buffer)
    }
    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(buffer, offset, bytes)
    }
    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(buffer, offset, bytes)
    }
    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        if !self.handler.held.load(Ordering::SeqCst) {
            self.handler.fault("submitted without votes");
            return Err(DeviceError::Lost("submitted without votes".into()));
        }
        let ticket = self.device.submit(program)?;
        self.handler.submitted.fetch_add(1, Ordering::SeqCst);
        self.handler.in_flight.fetch_add(1, Ordering::SeqCst);
        Ok(ticket)
    }
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.device.wait(ticket)?;
        if !self.handler.held.load(Ordering::SeqCst) {
            self.handler.fault("a batch ended without votes");
        }
        self.handler.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.handler.waited.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn used(&self) -> u64 {
        self.device.used()
    }
    fn rest(&mut self) {
        self.device.rest();
    }
    fn power(&self) -> Option<Arc<dyn Power>> {
        Some(self.handler.clone())
    }
}

fn voting<D: Device>(device: D) -> (Voting<D>, Arc<Handler>) {
    let handler = Arc::new(Handler::default());
    (Voting { device, handler: handler.clone() }, handler)
}

fn options(name: &str) -> Options {
    Options {
        policy: name.into(),
        battery: Some("".into()),
        collapses: Some("".into()),
        ..Options::default()
    }
}

/// One for all tests: compiling a policy takes seconds in a development build.
fn policies() -> Arc<PolicyHost> {
    static HOST: OnceLock<Arc<PolicyHost>> = OnceLock::new();
    Arc::clone(HOST.get_or_init(|| Arc::new(PolicyHost::new().unwrap())))
}

/// Looks until it is so. Only a fault makes it hang, which the run's own limit ends.
fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn released(handle: &Handle) -> bool {
    !handle.gate().totals().held
}

#[test]
fn four_hundred_releases_between_requests_change_no_bit_and_lose_no_batch() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/model/demo.gguf");
    let cpu = || Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let rows = |engine: &mut Engine| {
        let mut bits = Vec::new();
        let mut take = |_, row: &[f32]| bits.extend(row.iter().map(|v| v.to_bits()));
        engine.probe(&[5, 6, 7], false, &mut take).unwrap();
        bits
    };
    let expected = rows(&mut Engine::open(&model, Box::new(cpu()), EngineOptions::default()).unwrap());

    let (device, handler) = voting(cpu());
    let gate = Arc::new(Gate::new(Box::new(|| 0)));
    let device = Gated::around(Box::new(device), &gate).unwrap();
    let mut engine = Engine::open(&model, device, EngineOptions::default()).unwrap();
    let mut batches = None;
    for cycle in 0..400 {
        assert!(gate.release(gate.totals().batches, Reason::Policy).is_ok());
        // The start is an event that the policy has not heard of: nobody listens here.
        assert!(gate.release(gate.totals().batches, Reason::Stop).is_ok());
        assert!(!gate.totals().held && !handler.held.load(Ordering::SeqCst));
        let before = handler.submitted.load(Ordering::SeqCst);
        assert!(rows(&mut engine) == expected, "cycle {cycle}: other logits");
        let now = handler.submitted.load(Ordering::SeqCst) - before;
        assert_eq!(*batches.get_or_insert(now), now, "cycle {cycle}: batches lost or doubled");
    }
    let totals = gate.totals();
    assert_eq!((totals.releases, totals.wakeups, totals.in_flight), (400, 400, 0));
    assert_eq!(totals.batches, handler.submitted.load(Ordering::SeqCst));
    assert_eq!(totals.batches, handler.waited.load(Ordering::SeqCst));
    assert!(handler.faults.lock().unwrap().is_empty());
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn submission_racing_release_never_meets_a_device_without_votes() {
    let (device, handler) = voting(Reference::new());
    let gate = Arc::new(Gate::new(Box::new(|| 0)));
    let mut device = Gated::around(Box::new(device), &gate).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        // However this ends, or the scope would wait for the others without end.
        let _stop = StopAtEnd(&stop);
        for perturbed in [false, true] {
            let (gate, stop) = (&gate, &stop);
            threads.spawn(move || {
                let mut seed = 1u64;
                while !stop.load(Ordering::Relaxed) {
                    let batches = gate.totals().batches;
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    if perturbed && seed >> 62 == 0 {
                        std::thread::sleep(Duration::from_micros(seed >> 57));
                    }
                    gate.release(batches, Reason::Stop).unwrap();
                }
            });
        }
        for i in 0..20_000u32 {
            let ticket = device.submit(&Program::new()).unwrap();
            if i % 7 == 0 {
                std::thread::yield_now();
            }
            device.wait(ticket).unwrap();
            if i % 64 == 0 {
                // So that a release has its chance on a machine with one core, too.
                until(|| gate.release(gate.totals().batches, Reason::Stop).is_ok() && !gate.totals().held);
            }
        }
    });
    let faults = handler.faults.lock().unwrap().clone();
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    let totals = gate.totals();
    assert_eq!(totals.batches, 20_000);
    assert_eq!(handler.submitted.load(Ordering::SeqCst), 20_000);
    assert!(totals.wakeups >= 300, "only {} wake-ups: the race was not run", totals.wakeups);
}

#[test]
fn votes_go_three_seconds_after_the_last_work_by_the_given_clock() {
    let clock = Arc::new(AtomicU64::new(10_000));
    let now = clock.clone();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("votes.jsonl");
    let with_log = Options { vote_log: Some(log.clone()), ..options("idle-timer") };
    let manager =
        Manager::with_clock(&with_log, &policies(), Box::new(move || now.load(Ordering::SeqCst))).unwrap();
    let handle = manager.handle();
    let (device, handler) = voting(Reference::new());
    let mut device = Gated::around(Box::new(device), handle.gate()).unwrap();

    handle.busy(true);
    let ticket = device.submit(&Program::new()).unwrap();
    clock.fetch_add(60_000, Ordering::SeqCst);
    assert!(!released(&handle), "released under work");
    device.wait(ticket).unwrap();
    handle.busy(false);
    clock.fetch_add(2999, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(700));
    assert!(!released(&handle), "released a millisecond early");
    clock.fetch_add(1, Ordering::SeqCst);
    until(|| released(&handle));

    // A request on its way raises them, and they stay until it came.
    clock.fetch_add(5000, Ordering::SeqCst);
    handle.expect();
    until(|| !released(&handle));
    clock.fetch_add(50_000, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!released(&handle), "released under an announced request");
    assert_eq!(handler.submitted.load(Ordering::SeqCst), 1);
    handle.busy(false);
    clock.fetch_add(60_000, Ordering::SeqCst);
    until(|| {
        clock.fetch_add(3000, Ordering::SeqCst);
        released(&handle)
    });
    handle.stop();
    drop(manager);
    let text = std::fs::read_to_string(&log).unwrap();
    let entries: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let reasons: Vec<_> = entries.iter().map(|e| e["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["start", "policy", "request", "policy"], "{text}");
    assert_eq!(entries[1]["boottime_ms"], 73_000);
    assert!(handler.faults.lock().unwrap().is_empty());
}

#[test]
fn the_switch_keeps_votes_and_takes_effect_at_once() {
    let clock = Arc::new(AtomicU64::new(0));
    let now = clock.clone();
    let off = Options { idle_release: false, ..options("adaptive") };
    let manager =
        Manager::with_clock(&off, &policies(), Box::new(move || now.load(Ordering::SeqCst))).unwrap();
    let handle = manager.handle();
    let (device, _handler) = voting(Reference::new());
    let _device = Gated::around(Box::new(device), handle.gate()).unwrap();
    handle.busy(true);
    handle.busy(false);
    clock.fetch_add(1_000_000, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(600));
    assert!(!released(&handle));
    assert_eq!(handle.status(&off, 0)["votes"], "held");
    handle.set(&options("adaptive"));
    until(|| {
        clock.fetch_add(1000, Ordering::SeqCst);
        released(&handle)
    });
    let status = handle.status(&options("adaptive"), 0);
    assert_eq!((&status["votes"], &status["releases"]), (&"released".into(), &1.into()));
}

#[test]
fn a_session_that_dies_is_asked_for_no_votes_and_the_next_one_is() {
    let (device, handler) = voting(Reference::new());
    let gate = Arc::new(Gate::new(Box::new(|| 0)));
    let mut device = Gated::around(Box::new(device), &gate).unwrap();
    gate.release(0, Reason::Stop).unwrap();
    handler.dead.store(true, Ordering::SeqCst);
    assert!(matches!(device.submit(&Program::new()), Err(DeviceError::Lost(_))));
    assert!(!gate.totals().held && gate.totals().in_flight == 0);
    // Alive again or not: what was lost is not asked any more.
    handler.dead.store(false, Ordering::SeqCst);
    let applied = handler.applied.load(Ordering::SeqCst);
    assert!(matches!(device.submit(&Program::new()), Err(DeviceError::Lost(_))));
    assert_eq!(gate.release(gate.totals().batches, Reason::Stop).ok(), Some(false));
    assert_eq!(handler.applied.load(Ordering::SeqCst), applied);
    drop(device);

    let (next, handler) = voting(Reference::new());
    let mut device = Gated::around(Box::new(next), &gate).unwrap();
    assert!(gate.totals().held && handler.held.load(Ordering::SeqCst));
    let ticket = device.submit(&Program::new()).unwrap();
    device.wait(ticket).unwrap();
    assert_eq!(gate.totals().batches, 1);
}

#[test]
fn a_session_lost_under_a_batch_is_not_released() {
    let (device, handler) = voting(Reference::new());
    let gate = Arc::new(Gate::new(Box::new(|| 0)));
    let mut device = Gated::around(Box::new(device), &gate).unwrap();
    let _in_flight = device.submit(&Program::new()).unwrap();
    // A ticket that the device does not know fails in its own way: the session lives.
    assert!(device.read(BufferId(99), 0, &mut [0]).is_err() && gate.totals().held);
    drop(device);
    assert!(!gate.totals().held && gate.totals().in_flight == 0);
    let applied = handler.applied.load(Ordering::SeqCst);
    assert_eq!(gate.release(gate.totals().batches, Reason::Stop).ok(), Some(false));
    assert_eq!(handler.applied.load(Ordering::SeqCst), applied, "a session that is gone was asked");
    assert!(handler.faults.lock().unwrap().is_empty());
}

#[test]
fn a_device_without_votes_is_used_as_it_is() {
    let manager = Manager::start(&options("idle-timer"), &policies()).unwrap();
    let handle = manager.handle();
    let device = Gated::around(Box::new(Reference::new()), handle.gate()).unwrap();
    assert_eq!(device.info().name, "reference");
    handle.busy(true);
    handle.busy(false);
    assert_eq!(handle.status(&options("idle-timer"), 0), serde_json::json!({ "votes": "none" }));
}

/// The daemon's numbers of a made-up battery, whose power follows what the device is about.
#[test]
fn energy_and_collapses_are_told_of_a_made_up_sysfs_tree() {
    let clock = Arc::new(AtomicU64::new(1000));
    let now = clock.clone();
    let tree = tempfile::tempdir().unwrap();
    // A file of the kernel is never seen half written.
    let write = |name: &str, text: String| {
        let aside = tree.path().join("aside");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(aside, tree.path().join(name)).unwrap();
    };
    let power = |microwatts: u64| write("power_now", format!("-{microwatts}\n"));
    let collapsed = |count: u64, ms: u64| {
        write("cdsp", format!("Count: {count}\nAccumulated Duration: {}\n", ms * 19_200));
    };
    power(2_000_000);
    collapsed(10, 500);
    let metered = Options {
        battery: Some(tree.path().into()),
        collapses: Some(tree.path().join("cdsp")),
        // Until time has been spent with votes held: this clock leaps.
        idle_release: false,
        ..options("idle-timer")
    };
    let manager =
        Manager::with_clock(&metered, &policies(), Box::new(move || now.load(Ordering::SeqCst))).unwrap();
    let handle = manager.handle();
    let (device, _handler) = voting(Reference::new());
    let _device = Gated::around(Box::new(device), handle.gate()).unwrap();
    let ms = |what: &str| handle.status(&metered, 4)["energy"][what]["ms"].as_u64().unwrap();
    // Every look is asked for and waited for: it is another thread's.
    let pass = |by: u64, what: &str, more: u64| {
        let before = ms(what);
        until(|| {
            clock.fetch_add(by, Ordering::SeqCst);
            handle.set(&metered);
            ms(what) >= before + more
        });
    };
    handle.busy(true);
    pass(500, "busy", 8000);
    handle.busy(false);
    pass(1000, "held", 1);
    power(800_000);
    let releasing = Options { idle_release: true, ..metered.clone() };
    handle.set(&releasing);
    until(|| {
        clock.fetch_add(3000, Ordering::SeqCst);
        released(&handle)
    });
    pass(10_000, "released", 1);
    power(300_000);
    collapsed(11, 2500);
    pass(20_000, "released", 400_000);
    let status = handle.status(&metered, 4);
    let energy = &status["energy"];
    // Two watts all the time, over four steps.
    let step = energy["step_microjoules"].as_u64().unwrap();
    assert_eq!(energy["busy"]["microwatts"], 2_000_000, "{status}");
    assert_eq!(step, 2 * energy["busy"]["ms"].as_u64().unwrap() * 1000 / 4, "{status}");
    let mean = |what: &str| energy[what]["microwatts"].as_u64().unwrap();
    assert!(mean("released") < mean("held") && mean("held") < 2_000_000, "{status}");
    assert_eq!(status["collapses"], serde_json::json!({ "count": 1, "ms": 2000 }), "{status}");
    handle.stop();
}

#[test]
fn a_vote_log_that_cannot_be_written_says_what_it_lacks() {
    let full = Options { vote_log: Some("/dev/full".into()), ..options("idle-timer") };
    let manager = Manager::start(&full, &policies()).unwrap();
    let handle = manager.handle();
    let (device, _handler) = voting(Reference::new());
    let _device = Gated::around(Box::new(device), handle.gate()).unwrap();
    until(|| handle.status(&full, 0)["unlogged"] == 1);
    handle.gate().release(handle.gate().totals().batches, Reason::Stop).unwrap();
    until(|| handle.status(&full, 0)["unlogged"] == 2);
}
