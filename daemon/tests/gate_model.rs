//! The gate, explored by loom: every interleaving of threads that submit, announce, release and
//! lose a session, within a bound of preemptions. The code under test is `tandemd::power::Gate`
//! itself, on loom's lock.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;
use std::sync::Arc;
use std::time::Duration;
use tandem_program::DeviceError;
use tandem_program::power::{Power, Votes};
use tandemd::power::{Gate, Lock, Reason, State};

/// Loom's mutex. Nothing here waits for the bell.
struct ModelLock(Mutex<State>);

impl Lock for ModelLock {
    type Guard<'a> = MutexGuard<'a, State>;

    fn new(state: State) -> Self {
        ModelLock(Mutex::new(state))
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
    fn wait<'a>(&'a self, guard: MutexGuard<'a, State>, _limit: Option<Duration>) -> MutexGuard<'a, State> {
        guard
    }
    fn notify(&self) {}
}

/// A device that knows its votes. Each of its panics is a broken promise of the gate.
#[derive(Default)]
struct Device {
    held: AtomicBool,
    running: AtomicU32,
    run: AtomicU32,
    released: AtomicU32,
    gone: AtomicBool,
}

impl Power for Device {
    fn apply(&self, votes: &Votes) -> Result<(), DeviceError> {
        assert!(!self.gone.load(Ordering::SeqCst), "votes asked of a session that is lost");
        let held = *votes == Votes::HELD;
        if !held {
            assert_eq!(self.running.load(Ordering::SeqCst), 0, "released under a batch");
            self.released.fetch_add(1, Ordering::SeqCst);
        }
        self.held.store(held, Ordering::SeqCst);
        Ok(())
    }
}

impl Device {
    /// A batch, as the engine's thread submits it and waits for it.
    fn batch(&self, gate: &Gate<ModelLock>) {
        gate.enter().unwrap();
        self.running.fetch_add(1, Ordering::SeqCst);
        assert!(self.held.load(Ordering::SeqCst), "submitted without votes");
        self.run.fetch_add(1, Ordering::SeqCst);
        assert!(self.held.load(Ordering::SeqCst), "a batch ran without votes");
        self.running.fetch_sub(1, Ordering::SeqCst);
        gate.leave();
    }
}

type Pair = (Arc<Gate<ModelLock>>, Arc<Device>);

fn pair() -> Pair {
    let gate = Arc::new(Gate::<ModelLock>::with_lock(Box::new(|| 0)));
    let device = Arc::new(Device::default());
    gate.attach(Arc::clone(&device) as Arc<dyn Power>).unwrap();
    (gate, device)
}

fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder
}

/// As the power thread releases: on what it knew before it decided.
fn release(gate: &Gate<ModelLock>) {
    let batches = gate.totals().batches;
    gate.release(batches, Reason::Stop).unwrap();
}

#[test]
fn a_submission_racing_a_release_has_its_votes_and_is_run_once() {
    bounded(3).check(|| {
        let (gate, device) = pair();
        let (own, held) = (Arc::clone(&gate), Arc::clone(&device));
        let submitting = thread::spawn(move || {
            held.batch(&own);
            held.batch(&own);
        });
        release(&gate);
        release(&gate);
        submitting.join().unwrap();
        let totals = gate.totals();
        assert_eq!((totals.batches, totals.in_flight), (2, 0));
        assert_eq!(device.run.load(Ordering::SeqCst), 2, "a batch lost or doubled");
        let released = device.released.load(Ordering::SeqCst);
        assert_eq!((totals.releases, totals.held), (released.into(), device.held.load(Ordering::SeqCst)));
        // Every wake-up follows a release; the last release may still stand.
        assert_eq!(totals.wakeups + u64::from(!totals.held), totals.releases);
    });
}

#[test]
fn two_that_release_at_once_release_once() {
    bounded(2).check(|| {
        let (gate, device) = pair();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || release(&gate))
            })
            .collect();
        device.batch(&gate);
        others.into_iter().for_each(|other| other.join().unwrap());
        let totals = gate.totals();
        assert_eq!(totals.batches, 1);
        assert_eq!(totals.wakeups + u64::from(!totals.held), totals.releases);
        assert_eq!(totals.releases, u64::from(device.released.load(Ordering::SeqCst)));
    });
}

#[test]
fn a_release_racing_a_session_that_is_lost_reaches_the_next_one_or_none() {
    bounded(3).check(|| {
        let (gate, device) = pair();
        let (own, first) = (Arc::clone(&gate), Arc::clone(&device));
        let next = Arc::new(Device::default());
        let second = Arc::clone(&next);
        let working = thread::spawn(move || {
            first.batch(&own);
            own.lose();
            first.gone.store(true, Ordering::SeqCst);
            assert!(own.enter().is_err(), "a batch on a session that is lost");
            own.attach(Arc::clone(&second) as Arc<dyn Power>).unwrap();
            second.batch(&own);
        });
        release(&gate);
        release(&gate);
        working.join().unwrap();
        assert_eq!((gate.totals().batches, next.run.load(Ordering::SeqCst)), (2, 1));
        assert_eq!(gate.totals().held, next.held.load(Ordering::SeqCst));
    });
}

/// That the model sees what it is for: a release that looks, and acts after it let go of the lock.
#[test]
#[should_panic(expected = "without votes")]
fn a_release_beside_the_lock_is_found() {
    bounded(3).check(|| {
        let (gate, device) = pair();
        let (own, held) = (Arc::clone(&gate), Arc::clone(&device));
        let submitting = thread::spawn(move || held.batch(&own));
        if gate.totals().in_flight == 0 && gate.totals().batches == 0 {
            device.held.store(false, Ordering::SeqCst);
        }
        submitting.join().unwrap();
    });
}
