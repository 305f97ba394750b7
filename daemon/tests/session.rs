//! A device that is lost at any moment: the daemon makes another session and serves on, requests
//! at work are told, the others go on, answers stay what they were, and nothing is left behind.
//!
//! The daemon is the real one, front and scheduler on real rings, on the real CPU device; around
//! that device is one that dies when it is told to. One test at a time: they count descriptors,
//! maps and threads of this process.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use libtest_mimic::{Arguments, Trial};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::engine::EngineOptions;
use tandem_ipc::server::{Listener, ListenerConfig};
use tandem_program::power::{Power, Votes};
use tandem_program::{BufferId, Device, DeviceError, DeviceInfo, Program, Region, Ticket};
use tandem_sdk::{Client, Error, FailureCode, Request};
use tandemd::board::StatusBoard;
use tandemd::front::{Admission, Front};
use tandemd::policy::PolicyHost;
use tandemd::power::{Manager, Options};
use tandemd::scheduler::{Command, Parts, Scheduler};
use tandemd::serve::ServeError;
use tandemd::session::{Make, Sessions, Terms};
use tandemd::status::Facts;

/// When devices die, and how many there are.
#[derive(Default)]
struct Fate {
    /// Calls (submissions, waits, reads) until the device dies; negative: it lives.
    calls: AtomicI64,
    /// Devices that cannot be made from now on.
    refusals: AtomicU64,
    /// New devices die over their first batch.
    stillborn: AtomicBool,
    made: AtomicU64,
    alive: AtomicI64,
    /// What no test may see.
    faults: AtomicU64,
}

impl Fate {
    fn new() -> Arc<Self> {
        Arc::new(Fate { calls: AtomicI64::new(-1), ..Fate::default() })
    }

    fn dies_after(&self, calls: u64) {
        self.calls.store(calls as i64, Ordering::SeqCst);
    }

    /// Whether the device dies in this call.
    fn strikes(&self) -> bool {
        let left = self.calls.load(Ordering::SeqCst);
        if left >= 0 {
            self.calls.store(left - 1, Ordering::SeqCst);
        }
        left == 0
    }
}

/// The CPU device, until it dies. Then everything fails, as on a session that is gone.
struct Mortal {
    cpu: Cpu,
    fate: Arc<Fate>,
    votes: Arc<Handler>,
    with_votes: bool,
    dead: bool,
}

/// The session's power handler.
struct Handler {
    fate: Arc<Fate>,
    held: AtomicBool,
    dead: AtomicBool,
}

impl Power for Handler {
    fn apply(&self, votes: &Votes) -> Result<(), DeviceError> {
        if self.dead.load(Ordering::SeqCst) {
            // Nothing may be asked of a session that is known to be lost.
            self.fate.faults.fetch_add(1, Ordering::SeqCst);
            return Err(DeviceError::Lost("the handler is gone".into()));
        }
        self.held.store(*votes == Votes::HELD, Ordering::SeqCst);
        Ok(())
    }
}

impl Mortal {
    fn make(fate: &Arc<Fate>, with_votes: bool) -> Result<Box<dyn Device>, ServeError> {
        let refused =
            fate.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        if refused {
            return Err(DeviceError::Lost("the processor does not start".into()).into());
        }
        let cpu = Cpu::new(CpuConfig { threads: 2, ..CpuConfig::default() })?;
        fate.made.fetch_add(1, Ordering::SeqCst);
        fate.alive.fetch_add(1, Ordering::SeqCst);
        if fate.stillborn.load(Ordering::SeqCst) {
            fate.dies_after(0);
        }
        let votes = Arc::new(Handler {
            fate: Arc::clone(fate),
            held: AtomicBool::default(),
            dead: AtomicBool::default(),
        });
        Ok(Box::new(Mortal { cpu, fate: Arc::clone(fate), votes, with_votes, dead: false }))
    }

    fn live(&mut self) -> Result<(), DeviceError> {
        if self.dead {
            self.fate.faults.fetch_add(1, Ordering::SeqCst);
        } else if self.fate.strikes() {
            self.dead = true;
            self.votes.dead.store(true, Ordering::SeqCst);
        }
        if self.dead { Err(DeviceError::Lost("the processor died".into())) } else { Ok(()) }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.fate.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Device for Mortal {
    fn info(&self) -> &DeviceInfo {
        self.cpu.info()
    }
    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        self.cpu.create(bytes)
    }
    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        self.cpu.import(region)
    }
    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.cpu.destroy(buffer)
    }
    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.cpu.write(buffer, offset, bytes)
    }
    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.live()?;
        self.cpu.read(buffer, offset, bytes)
    }
    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        self.live()?;
        if self.with_votes && !self.votes.held.load(Ordering::SeqCst) {
            self.fate.faults.fetch_add(1, Ordering::SeqCst);
        }
        self.cpu.submit(program)
    }
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.live()?;
        self.cpu.wait(ticket)
    }
    fn used(&self) -> u64 {
        self.cpu.used()
    }
    fn rest(&mut self) {
        self.cpu.rest();
    }
    fn power(&self) -> Option<Arc<dyn Power>> {
        self.with_votes.then(|| Arc::clone(&self.votes) as Arc<dyn Power>)
    }
}

/// A running daemon.
struct Daemon {
    folder: tempfile::TempDir,
    commands: mpsc::Sender<Command>,
    threads: Vec<JoinHandle<()>>,
    _power: Manager,
}

/// How a daemon is started.
#[derive(Clone, Copy, Default)]
struct Setup {
    with_votes: bool,
    fallback: bool,
    tries: u32,
}

impl Daemon {
    fn start(fate: &Arc<Fate>, setup: Setup) -> Result<Self, ServeError> {
        let Setup { with_votes, fallback, tries } = setup;
        let none = Some(PathBuf::new());
        let votes = Options { battery: none.clone(), collapses: none, ..Options::default() };
        let policies = Arc::new(PolicyHost::new().unwrap());
        let power = Manager::start(&votes, &policies).unwrap();
        let own = Arc::clone(fate);
        let make: Make = Box::new(move || Mortal::make(&own, with_votes));
        let cpu = || -> Make {
            Box::new(|| Ok(Box::new(Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?)))
        };
        let terms = Terms { wanted: "mortal".into(), make, fallback: fallback.then(cpu), tries };
        let mut sessions = Sessions::new(terms, Arc::clone(power.handle().gate()));
        let model = model();
        let engine = sessions.open(&model, EngineOptions::default())?;
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(folder.path().join("s"), ListenerConfig::default()).unwrap();
        let (commands, inbox) = mpsc::channel();
        let admission = Admission { clients: 8, clients_per_user: 8 };
        let (front, orders) = Front::new(listener, admission, commands.clone(), power.handle()).unwrap();
        let scheduler = Scheduler::new(Parts {
            engine,
            sessions,
            policies,
            commands: inbox,
            orders,
            facts: Facts { model, placement: "anchor".into(), started: Instant::now() },
            unload_after: None,
            board: StatusBoard::default(),
            power: power.handle(),
            votes,
        });
        let threads = vec![
            std::thread::spawn(move || front.run().unwrap()),
            std::thread::spawn(move || scheduler.run()),
        ];
        Ok(Daemon { folder, commands, threads, _power: power })
    }

    fn client(&self, app: &str) -> Client {
        Client::builder(self.folder.path().join("s")).app(app).connect().unwrap()
    }

    fn stop(self) {
        self.commands.send(Command::Stop).unwrap();
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/model/demo.gguf")
}

fn request(subject: &str) -> Request {
    Request::text(subject).max_tokens(12)
}

fn ask(client: &Client, subject: &str) -> Result<String, Error> {
    Ok(client.generate(request(subject))?.answer()?.text)
}

/// What a request that was at work must be told.
fn is_told_to_retry(error: &Error) -> bool {
    let device = matches!(error, Error::Failed { code: FailureCode::DeviceFailed, .. });
    device && error.is_retryable() && error.retry_after().is_some()
}

/// Bits of the logits of a prompt.
fn bits(client: &Client) -> Vec<u32> {
    let rows = client.logits(vec![vec![5, 6, 7, 8]], true).unwrap();
    rows.into_iter().flat_map(|row| row.values).map(f32::to_bits).collect()
}

/// Descriptors, maps and threads of this process.
fn belongings() -> [usize; 3] {
    let entries = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // Named maps only: the allocator's come and go.
    let named = maps.lines().filter(|line| line.contains('/') || line.contains("memfd")).count();
    [entries("/proc/self/fd"), named, entries("/proc/self/task")]
}

/// Looks until it is so. Only a fault makes it hang, which the run's own limit ends.
fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lost_at_a_hundred_moments_the_daemon_serves_on() {
    let fate = Fate::new();
    let daemon = Daemon::start(&fate, Setup { tries: 5, ..Setup::default() }).unwrap();
    let (one, two) = (daemon.client("one"), daemon.client("two"));
    let (first, second) = (ask(&one, "screen 1").unwrap(), ask(&two, "screen 2").unwrap());
    let logits = bits(&one);
    let calls = 1 << 40;
    fate.dies_after(calls);
    ask(&one, "another").unwrap();
    let a_request = (calls as i64 - fate.calls.load(Ordering::SeqCst)) as u64;
    let (mut seed, mut failed, mut beside) = (1u64, 0, 0);
    let mut had = None;
    for round in 0..100 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        fate.dies_after(seed % a_request);
        // Two at once: both at work, or one before the other.
        let (told, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| ask(&two, "screen 2"));
            (ask(&one, "screen 1"), other.join().unwrap())
        });
        for (answer, expected) in [(&told, &first), (&other, &second)] {
            match answer {
                Ok(text) => assert_eq!(text, expected, "round {round}"),
                Err(error) => assert!(is_told_to_retry(error), "round {round}: {error}"),
            }
        }
        failed += u32::from(told.is_err()) + u32::from(other.is_err());
        beside += u32::from(told.is_err() != other.is_err());
        assert_eq!(ask(&one, "screen 1").unwrap(), first, "round {round}");
        if round % 10 == 9 {
            assert!(bits(&one) == logits, "round {round}: other bits");
        }
        // Once the pools, rings and logs have been used.
        let have = belongings();
        assert_eq!(*had.get_or_insert(have), have, "round {round}: descriptors, maps, threads");
    }
    let session = &one.status().unwrap()["session"];
    let lost = session["lost"].as_u64().unwrap();
    println!("{failed} requests failed over {lost} losses, {beside} times one of two");
    assert!(lost >= 95 && session["rebuilt"] == lost, "{session}");
    assert!(beside > 0 && failed >= 50, "{failed} failed, {beside} of them alone");
    assert_eq!((session["state"].as_str(), session["fallback"].as_str()), (Some("up"), None));
    assert_eq!(fate.alive.load(Ordering::SeqCst), 1);
    assert_eq!(fate.faults.load(Ordering::SeqCst), 0, "a lost device was asked for something");
    drop((one, two));
    daemon.stop();
    assert_eq!(fate.alive.load(Ordering::SeqCst), 0);
}

fn votes_are_asked_of_the_session_that_lives() {
    let fate = Fate::new();
    let daemon = Daemon::start(&fate, Setup { with_votes: true, tries: 5, ..Setup::default() }).unwrap();
    let client = daemon.client("one");
    let expected = ask(&client, "screen").unwrap();
    for moment in [0, 1, 2, 7, 11, 20] {
        fate.dies_after(moment);
        if let Err(error) = ask(&client, "screen") {
            assert!(is_told_to_retry(&error), "{error}");
        }
        assert_eq!(ask(&client, "screen").unwrap(), expected);
        let status = client.status().unwrap();
        assert_eq!(status["power"]["votes"], "held", "{status}");
    }
    drop(client);
    daemon.stop();
    assert_eq!(fate.faults.load(Ordering::SeqCst), 0, "a lost session was asked for votes");
}

fn requests_wait_while_a_session_is_made_and_are_answered() {
    let fate = Fate::new();
    let daemon = Daemon::start(&fate, Setup { tries: 5, ..Setup::default() }).unwrap();
    let client = daemon.client("one");
    let expected = ask(&client, "screen").unwrap();
    fate.refusals.store(3, Ordering::SeqCst);
    fate.dies_after(0);
    assert!(is_told_to_retry(&ask(&client, "screen").unwrap_err()));
    assert_eq!(ask(&client, "screen").unwrap(), expected, "it waits for the fourth try");
    assert_eq!(fate.refusals.load(Ordering::SeqCst), 0);
    let session = &client.status().unwrap()["session"];
    assert_eq!((&session["lost"], &session["rebuilt"]), (&1.into(), &1.into()));
    drop(client);
    daemon.stop();
}

fn a_device_that_stays_dead_is_told_to_every_request_until_it_is_back() {
    let fate = Fate::new();
    let daemon = Daemon::start(&fate, Setup { tries: 2, ..Setup::default() }).unwrap();
    let (client, late) = (daemon.client("one"), daemon.client("two"));
    let expected = ask(&client, "screen").unwrap();
    fate.refusals.store(u64::MAX, Ordering::SeqCst);
    fate.dies_after(0);
    assert!(is_told_to_retry(&ask(&client, "screen").unwrap_err()));
    // The first waits for the second try, the next is refused as it comes.
    for _ in 0..2 {
        let error = ask(&client, "screen").unwrap_err();
        assert!(is_told_to_retry(&error), "{error}");
        let error = late.logits(vec![vec![5]], false).unwrap_err();
        assert!(is_told_to_retry(&error) && error.to_string().contains("does not start"), "{error}");
    }
    assert_eq!(client.status().unwrap()["session"]["state"], "down");
    fate.refusals.store(0, Ordering::SeqCst);
    let mut answer = None;
    until(|| {
        answer = ask(&client, "screen").ok();
        answer.is_some()
    });
    assert_eq!(answer.unwrap(), expected);
    assert_eq!(client.status().unwrap()["session"]["state"], "up");
    drop((client, late));
    daemon.stop();
}

fn a_device_that_dies_over_every_first_batch_is_given_up() {
    let fate = Fate::new();
    let setup = Setup { tries: 3, fallback: true, ..Setup::default() };
    let daemon = Daemon::start(&fate, setup).unwrap();
    let client = daemon.client("one");
    let expected = ask(&client, "screen").unwrap();
    fate.stillborn.store(true, Ordering::SeqCst);
    fate.dies_after(0);
    let mut told = 0;
    let answer = loop {
        match ask(&client, "screen") {
            Ok(answer) => break answer,
            Err(error) => assert!(is_told_to_retry(&error), "{error}"),
        }
        told += 1;
    };
    assert_eq!(answer, expected);
    // The first session had worked; three more were made, all stillborn.
    assert_eq!((told, fate.made.load(Ordering::SeqCst)), (4, 4));
    let status = client.status().unwrap();
    assert_eq!(status["session"]["fallback"], "the processor died", "{status}");
    assert_eq!((&status["session"]["wanted"], &status["device"]["threads"]), (&"mortal".into(), &1.into()));
    drop(client);
    daemon.stop();
}

fn without_a_fallback_such_a_device_refuses_between_its_tries_until_it_works() {
    let fate = Fate::new();
    let daemon = Daemon::start(&fate, Setup { tries: 2, ..Setup::default() }).unwrap();
    let client = daemon.client("one");
    let expected = ask(&client, "screen").unwrap();
    fate.stillborn.store(true, Ordering::SeqCst);
    fate.dies_after(0);
    let status = || client.status().unwrap()["session"]["state"].clone();
    until(|| {
        let error = ask(&client, "screen").unwrap_err();
        assert!(is_told_to_retry(&error), "{error}");
        status() == "down"
    });
    // Refused as it comes, not after the wait for the next try: no other session was made for it.
    let made = fate.made.load(Ordering::SeqCst);
    assert!(is_told_to_retry(&ask(&client, "screen").unwrap_err()));
    assert!(fate.made.load(Ordering::SeqCst) <= made + 1);
    fate.stillborn.store(false, Ordering::SeqCst);
    let mut answer = None;
    until(|| {
        answer = ask(&client, "screen").ok();
        answer.is_some()
    });
    assert_eq!(answer.unwrap(), expected);
    drop(client);
    daemon.stop();
}

fn a_device_that_cannot_be_had_at_the_start_gives_way_to_the_cpu_if_allowed() {
    for (refusals, votes) in [(1, false), (1, true)] {
        let fate = Fate::new();
        fate.refusals.store(refusals, Ordering::SeqCst);
        let setup = Setup { tries: 3, with_votes: votes, ..Setup::default() };
        let error = Daemon::start(&fate, setup).err().expect("no device, no daemon");
        assert!(error.to_string().contains("does not start"), "{error}");
        fate.refusals.store(refusals, Ordering::SeqCst);
        let daemon = Daemon::start(&fate, Setup { fallback: true, ..setup }).unwrap();
        let client = daemon.client("one");
        ask(&client, "screen").unwrap();
        let status = client.status().unwrap();
        assert_eq!((&status["device"]["name"], &status["power"]["votes"]), (&"cpu".into(), &"none".into()));
        let why = status["session"]["fallback"].as_str().unwrap();
        assert!(why.contains("does not start"), "{why}");
        drop(client);
        daemon.stop();
    }
}

fn main() {
    let tests: [(&str, fn()); 7] = [
        (
            "without_a_fallback_such_a_device_refuses_between_its_tries_until_it_works",
            without_a_fallback_such_a_device_refuses_between_its_tries_until_it_works,
        ),
        ("lost_at_a_hundred_moments_the_daemon_serves_on", lost_at_a_hundred_moments_the_daemon_serves_on),
        ("votes_are_asked_of_the_session_that_lives", votes_are_asked_of_the_session_that_lives),
        (
            "requests_wait_while_a_session_is_made_and_are_answered",
            requests_wait_while_a_session_is_made_and_are_answered,
        ),
        (
            "a_device_that_stays_dead_is_told_to_every_request_until_it_is_back",
            a_device_that_stays_dead_is_told_to_every_request_until_it_is_back,
        ),
        (
            "a_device_that_dies_over_every_first_batch_is_given_up",
            a_device_that_dies_over_every_first_batch_is_given_up,
        ),
        (
            "a_device_that_cannot_be_had_at_the_start_gives_way_to_the_cpu_if_allowed",
            a_device_that_cannot_be_had_at_the_start_gives_way_to_the_cpu_if_allowed,
        ),
    ];
    let trials = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.into()).exit();
}
