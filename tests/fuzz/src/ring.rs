//! A peer that rewrites its region between any two loads: the reader gets frames no longer
//! than the ring, or a typed error, and then nothing more.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use tandem_ipc::layout::{DATA_AT, Direction, WRITE_AT};
use tandem_ipc::ring::Consumer;
use tandem_ipc::words::{Words, WordsMut};

const CAPACITY: usize = 4096;

/// Words that the input dictates, one load after the other.
struct Script<'a> {
    data: &'a [u8],
    at: AtomicUsize,
}

impl Words for Script<'_> {
    fn load(&self, at: usize, _: Ordering) -> u64 {
        let here = self.at.fetch_add(1, Ordering::Relaxed);
        let Some(byte) = self.data.get(here).copied() else { return 0 };
        match (at, byte & 3) {
            // Plausible indices and lengths, so that the reader gets far.
            (WRITE_AT, 0..3) => u64::from(byte >> 2) * 8 + here as u64 * 8,
            (DATA_AT.., 0..3) => u64::from(byte >> 2),
            _ => u64::from_le_bytes([byte; 8]),
        }
    }

    fn fence(&self) {}
}

struct Own;

impl Words for Own {
    fn load(&self, _: usize, _: Ordering) -> u64 {
        0
    }
    fn fence(&self) {}
}

impl WordsMut for Own {
    fn store(&self, _: usize, _: u64, _: Ordering) {}
}

/// One input.
pub fn run(data: &[u8]) {
    let script = Arc::new(Script { data, at: AtomicUsize::new(0) });
    let mut consumer = Consumer::new(Direction::Request, CAPACITY, Arc::new(Own), Arc::clone(&script));
    let mut out = Vec::new();
    // Every look costs the peer a byte of its script.
    for _ in 0..=data.len() {
        match consumer.pop(&mut out) {
            Ok(Some(_)) => assert!(out.len() <= CAPACITY, "a frame of {} bytes", out.len()),
            Ok(None) => {
                consumer.sleep();
            }
            Err(error) => {
                assert_eq!(consumer.pop(&mut out), Err(error), "a corrupt ring is read on");
                return;
            }
        }
    }
}
