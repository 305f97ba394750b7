//! The ring's orderings, explored by loom: every interleaving of one producer
//! and one consumer, and every value a weakly ordered load may return. The code
//! under test is `tandem_ipc::ring` itself, on loom's atomics.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use tandem_ipc::layout::{DATA_AT, Direction, READ_AT, ROOM_AT, SLEEP_AT, WRITE_AT};
use tandem_ipc::ring::{Consumer, Peer, Producer, PushError};
use tandem_ipc::words::{Words, WordsMut};

/// Two frames of one word each fit: 2 x (length word + payload word).
const CAPACITY: usize = 32;

/// A region of which only the words that are used exist. `FENCED` false leaves
/// the fences out, to see that the model notices.
struct Modelled<const FENCED: bool> {
    words: Vec<AtomicU64>,
}

impl<const FENCED: bool> Modelled<FENCED> {
    fn new() -> Arc<Self> {
        let words = (0..4 + CAPACITY / 8).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Modelled { words })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[match at {
            WRITE_AT => 0,
            READ_AT => 1,
            SLEEP_AT => 2,
            ROOM_AT => 3,
            data => 4 + data - DATA_AT,
        }]
    }
}

impl<const FENCED: bool> Words for Modelled<FENCED> {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    fn fence(&self) {
        if FENCED {
            fence(Ordering::SeqCst);
        }
    }
}

impl<const FENCED: bool> WordsMut for Modelled<FENCED> {
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }
}

/// An eventfd: counts rings, a wait takes them all.
#[derive(Default)]
struct Bell {
    rings: Mutex<u32>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rings.lock().unwrap() += 1;
        self.rung.notify_one();
    }

    fn wait(&self) {
        let mut rings = self.rings.lock().unwrap();
        while *rings == 0 {
            rings = self.rung.wait(rings).unwrap();
        }
        *rings = 0;
    }
}

/// One producer sends `frames` frames, one consumer takes them; either sleeps
/// when it has nothing to do. loom fails on a deadlock, which is what a lost
/// wake-up is.
fn exchange<const FENCED: bool>(frames: u64) {
    let sender_memory = Modelled::<FENCED>::new();
    let receiver_memory = Modelled::<FENCED>::new();
    let frame_bell = Arc::new(Bell::default());
    let room_bell = Arc::new(Bell::default());

    let mut producer =
        Producer::new(Direction::Request, CAPACITY, Arc::clone(&sender_memory), Arc::clone(&receiver_memory));
    let mut consumer = Consumer::new(Direction::Request, CAPACITY, receiver_memory, sender_memory);

    let sending = {
        let frame_bell = Arc::clone(&frame_bell);
        let room_bell = Arc::clone(&room_bell);
        thread::spawn(move || {
            for frame in 1..=frames {
                loop {
                    match producer.push(&frame.to_ne_bytes()) {
                        Ok(Peer::Asleep) => break frame_bell.ring(),
                        Ok(Peer::Awake) => break,
                        Err(PushError::Full { .. }) => room_bell.wait(),
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        })
    };

    let mut out = Vec::new();
    for frame in 1..=frames {
        loop {
            match consumer.pop(&mut out).unwrap() {
                Some(Peer::Asleep) => break room_bell.ring(),
                Some(Peer::Awake) => break,
                None if consumer.sleep() => frame_bell.wait(),
                None => {}
            }
        }
        assert_eq!(out, frame.to_ne_bytes(), "frame {frame}");
    }
    sending.join().unwrap();
}

fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder
}

#[test]
fn one_frame_always_arrives() {
    loom::model(|| exchange::<true>(1));
}

/// Found a lost wake-up in the first form of `Consumer::sleep`, which kept a
/// standing epoch after a late ring.
#[test]
fn two_frames_arrive_in_order_without_a_lost_wake_up() {
    bounded(3).check(|| exchange::<true>(2));
}

#[test]
fn a_full_ring_wakes_its_producer_again() {
    // The third frame does not fit until the first is taken.
    bounded(2).check(|| exchange::<true>(3));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_a_wake_up_is_lost() {
    loom::model(|| exchange::<false>(1));
}
