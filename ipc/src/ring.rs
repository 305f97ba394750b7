//! One direction of a connection: a single-producer, single-consumer ring of
//! length-prefixed frames (`layout.rs` draws the memory).
//!
//! Own cursors are private fields; shared memory holds copies of them for the
//! other side. The other side's cursor is loaded once per step and must satisfy
//! `write - read <= capacity`; anything else is [`Corrupt`], and the half stays
//! failed. A frame is copied out before anyone looks at it.
//!
//! # When to ring the doorbell
//! Neither side makes a system call while the other is awake.
//!
//! ```text
//! producer: copy frame; write := w       consumer: sleep := odd (a new epoch)
//!           fence                                  fence
//!           sleep odd and not yet rung?            write still == read? sleep
//!           -> ring                                else stay awake
//! ```
//!
//! The two fences make it impossible that the producer sees "awake" *and* the
//! consumer sees "empty". `sleep` counts up at every change, so the producer
//! rings once a sleep, however many frames it adds. A producer that found the
//! ring full says so the same way in `room`; the consumer rings once half the
//! ring is free, which is enough for the largest frame.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::layout::{
    DATA_AT, Direction, FRAME_HEADER, READ_AT, ROOM_AT, SLEEP_AT, WORD, WRITE_AT, frame_bytes, frame_cap,
};
use crate::words::{Words, WordsMut};

/// Shared memory that breaks the ring's rules. The connection cannot be
/// continued: drop it (a client reconnects).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// The cursors cannot both be true.
    #[error(
        "{ring} ring: write index {write} less read index {read} is more than the capacity of \
         {capacity} bytes (or not a multiple of 8); the peer's {peer_wrote} index is wrong, drop the connection"
    )]
    Index {
        /// Which ring, `request` or `response`.
        ring: &'static str,
        /// The write index used.
        write: u64,
        /// The read index used.
        read: u64,
        /// The ring's size in bytes.
        capacity: u64,
        /// Which of the two the peer supplied, `write` or `read`.
        peer_wrote: &'static str,
    },
    /// The peer took a frame back that it had announced.
    #[error(
        "{ring} ring: write index went back to {write}, the read index, after more had been announced; \
         drop the connection"
    )]
    TakenBack {
        /// Which ring, `request` or `response`.
        ring: &'static str,
        /// The write index found.
        write: u64,
    },
    /// A frame's length word is impossible.
    #[error(
        "{ring} ring: frame at index {at} has length word {word:#018x}, allowed are 1..={cap} bytes \
         and at most the {available} bytes written; drop the connection"
    )]
    Length {
        /// Which ring, `request` or `response`.
        ring: &'static str,
        /// The read index of the frame.
        at: u64,
        /// The length word found.
        word: u64,
        /// The largest payload allowed, bytes.
        cap: usize,
        /// Bytes between the read and the write index.
        available: u64,
    },
}

/// Why a frame was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No room now; the doorbell rings when half the ring is free.
    #[error("{ring} ring is full: the frame needs {needed} bytes, {free} are free; retry after the doorbell")]
    Full {
        /// Which ring, `request` or `response`.
        ring: &'static str,
        /// Bytes the frame takes.
        needed: usize,
        /// Bytes free now.
        free: usize,
    },
    /// The frame can never fit.
    #[error(
        "{ring} ring: a frame of {len} bytes is outside 1..={cap}; send less, or configure a larger ring"
    )]
    Size {
        /// Which ring, `request` or `response`.
        ring: &'static str,
        /// Payload bytes offered.
        len: usize,
        /// Largest payload, bytes.
        cap: usize,
    },
    /// The peer's read index is impossible.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// Whether the peer has to be woken after a step.
#[must_use = "a sleeping peer that is not rung never sees the frame"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The peer will look by itself.
    Awake,
    /// Ring its doorbell.
    Asleep,
}

/// The sending half of a ring. `O` is this side's region (data, `write`,
/// `room`), `P` the peer's (`read`, `sleep`).
#[derive(Debug)]
pub struct Producer<O, P> {
    own: Arc<O>,
    peer: Arc<P>,
    ring: Direction,
    capacity: u64,
    write: u64,
    /// The last read index loaded; never ahead of the peer's true one.
    read: u64,
    room: u64,
    rung: u64,
    failed: Option<Corrupt>,
}

impl<O: WordsMut, P: Words> Producer<O, P> {
    /// The producer of a fresh ring of `capacity` bytes (a power of two that
    /// `own` has as data).
    pub fn new(ring: Direction, capacity: usize, own: Arc<O>, peer: Arc<P>) -> Self {
        Producer {
            own,
            peer,
            ring,
            capacity: capacity as u64,
            write: 0,
            read: 0,
            room: 0,
            rung: 0,
            failed: None,
        }
    }

    /// Largest payload, bytes.
    pub fn frame_cap(&self) -> usize {
        frame_cap(self.capacity as usize)
    }

    /// Adds one frame.
    ///
    /// # Errors
    /// [`PushError::Full`] leaves a wish for room behind: the consumer will ring.
    pub fn push(&mut self, frame: &[u8]) -> Result<Peer, PushError> {
        if let Some(corrupt) = self.failed {
            return Err(corrupt.into());
        }
        if frame.is_empty() || frame.len() > self.frame_cap() {
            return Err(PushError::Size { ring: self.ring.name(), len: frame.len(), cap: self.frame_cap() });
        }
        let needed = frame_bytes(frame.len()) as u64;
        if self.free() < needed {
            self.load_read()?;
        }
        if self.free() < needed {
            self.wish_for_room(needed)?;
        }
        self.put(frame);
        Ok(self.publish(needed))
    }

    fn free(&self) -> u64 {
        // `read` was checked against `write` when it was loaded.
        self.capacity - self.write.wrapping_sub(self.read)
    }

    fn load_read(&mut self) -> Result<(), Corrupt> {
        let read = self.peer.load(READ_AT, Ordering::Acquire);
        let used = self.write.wrapping_sub(read);
        if used > self.capacity || !used.is_multiple_of(WORD as u64) {
            let corrupt = Corrupt::Index {
                ring: self.ring.name(),
                write: self.write,
                read,
                capacity: self.capacity,
                peer_wrote: "read",
            };
            self.failed = Some(corrupt);
            return Err(corrupt);
        }
        self.read = read;
        Ok(())
    }

    /// Announces that this side waits for room, a new epoch each time, then looks
    /// once more: the consumer may have made room before it could see it.
    fn wish_for_room(&mut self, needed: u64) -> Result<(), PushError> {
        self.room = next_odd(self.room);
        self.own.store(ROOM_AT, self.room, Ordering::Relaxed);
        self.own.fence();
        self.load_read()?;
        if self.free() < needed {
            return Err(PushError::Full {
                ring: self.ring.name(),
                needed: needed as usize,
                free: self.free() as usize,
            });
        }
        Ok(())
    }

    fn put(&mut self, frame: &[u8]) {
        let header = frame.len() as u64;
        let at = data_word(self.write, self.capacity);
        self.own.store(at, header, Ordering::Relaxed);
        let start = self.write.wrapping_add(FRAME_HEADER as u64);
        let to_end = (self.capacity - start % self.capacity) as usize;
        let (head, tail) = frame.split_at(frame.len().min(to_end));
        self.own.copy_in(data_word(start, self.capacity), head);
        if !tail.is_empty() {
            self.own.copy_in(DATA_AT, tail);
        }
    }

    fn publish(&mut self, bytes: u64) -> Peer {
        self.write = self.write.wrapping_add(bytes);
        self.own.store(WRITE_AT, self.write, Ordering::Release);
        if self.room % 2 == 1 {
            self.room = self.room.wrapping_add(1);
            self.own.store(ROOM_AT, self.room, Ordering::Relaxed);
        }
        self.own.fence();
        ring_once(self.peer.load(SLEEP_AT, Ordering::Relaxed), &mut self.rung)
    }
}

/// The receiving half of a ring. `O` is this side's region (`read`, `sleep`),
/// `P` the peer's (data, `write`, `room`).
#[derive(Debug)]
pub struct Consumer<O, P> {
    own: Arc<O>,
    peer: Arc<P>,
    ring: Direction,
    capacity: u64,
    read: u64,
    /// The last write index loaded; never ahead of the peer's true one.
    write: u64,
    /// A look outside `take` saw a frame. Without this a peer that flips its
    /// index could keep a reader looking forever.
    announced: bool,
    sleep: u64,
    rung: u64,
    failed: Option<Corrupt>,
}

impl<O: WordsMut, P: Words> Consumer<O, P> {
    /// The consumer of a fresh ring of `capacity` bytes (a power of two that
    /// `peer` has as data).
    pub fn new(ring: Direction, capacity: usize, own: Arc<O>, peer: Arc<P>) -> Self {
        Consumer {
            own,
            peer,
            ring,
            capacity: capacity as u64,
            read: 0,
            write: 0,
            announced: false,
            sleep: 0,
            rung: 0,
            failed: None,
        }
    }

    /// Takes the oldest frame into `out` (replacing its content), or returns
    /// `None` when the ring is empty. `Peer::Asleep` means that the producer
    /// waits for room and has to be rung.
    pub fn pop(&mut self, out: &mut Vec<u8>) -> Result<Option<Peer>, Corrupt> {
        if let Some(corrupt) = self.failed {
            return Err(corrupt);
        }
        match self.take(out) {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => {
                self.wake();
                Ok(Some(self.release(bytes)))
            }
            Err(corrupt) => {
                self.failed = Some(corrupt);
                Err(corrupt)
            }
        }
    }

    /// Announces that this side goes to sleep, and returns whether it may: false
    /// when a frame (or a corrupt index, which [`pop`](Consumer::pop) reports)
    /// is there after all. After `true` the producer rings for the next frame.
    ///
    /// Every call is a new epoch, also when the last one still stands: the
    /// producer may have rung for that one already, late, for a frame taken
    /// before (the model in `tests/ring_model.rs` finds this).
    pub fn sleep(&mut self) -> bool {
        self.sleep = next_odd(self.sleep);
        self.own.store(SLEEP_AT, self.sleep, Ordering::Relaxed);
        self.own.fence();
        if !self.has_news() {
            return true;
        }
        self.wake();
        false
    }

    /// Takes the announcement of [`sleep`](Consumer::sleep) back.
    pub fn wake(&mut self) {
        if self.sleep % 2 == 1 {
            self.sleep = self.sleep.wrapping_add(1);
            self.own.store(SLEEP_AT, self.sleep, Ordering::Relaxed);
        }
    }

    /// Whether something changed in the ring since the last frame taken.
    pub fn has_news(&mut self) -> bool {
        let news = self.peer.load(WRITE_AT, Ordering::Relaxed) != self.read;
        self.announced |= news;
        news
    }

    fn take(&mut self, out: &mut Vec<u8>) -> Result<Option<u64>, Corrupt> {
        if self.write == self.read {
            let write = self.peer.load(WRITE_AT, Ordering::Acquire);
            let used = write.wrapping_sub(self.read);
            if used > self.capacity || !used.is_multiple_of(WORD as u64) {
                return Err(Corrupt::Index {
                    ring: self.ring.name(),
                    write,
                    read: self.read,
                    capacity: self.capacity,
                    peer_wrote: "write",
                });
            }
            self.write = write;
            if used == 0 && self.announced {
                return Err(Corrupt::TakenBack { ring: self.ring.name(), write });
            }
            if used == 0 {
                return Ok(None);
            }
        }
        self.announced = false;
        let available = self.write.wrapping_sub(self.read);
        let at = data_word(self.read, self.capacity);
        let word = self.peer.load(at, Ordering::Relaxed);
        let cap = frame_cap(self.capacity as usize);
        let len = word as usize;
        if word == 0 || word > cap as u64 || frame_bytes(len) as u64 > available {
            return Err(Corrupt::Length { ring: self.ring.name(), at: self.read, word, cap, available });
        }
        // `resize` only ever writes the bytes that are new.
        out.resize(len, 0);
        let start = self.read.wrapping_add(FRAME_HEADER as u64);
        let to_end = (self.capacity - start % self.capacity) as usize;
        let (head, tail) = out.split_at_mut(len.min(to_end));
        self.peer.copy_out(data_word(start, self.capacity), head);
        if !tail.is_empty() {
            self.peer.copy_out(DATA_AT, tail);
        }
        Ok(Some(frame_bytes(len) as u64))
    }

    fn release(&mut self, bytes: u64) -> Peer {
        self.read = self.read.wrapping_add(bytes);
        self.own.store(READ_AT, self.read, Ordering::Release);
        if self.write.wrapping_sub(self.read) > self.capacity / 2 {
            return Peer::Awake;
        }
        self.own.fence();
        ring_once(self.peer.load(ROOM_AT, Ordering::Relaxed), &mut self.rung)
    }
}

/// The word that the byte at cursor `cursor` lies in.
fn data_word(cursor: u64, capacity: u64) -> usize {
    DATA_AT + (cursor % capacity) as usize / WORD
}

/// The next epoch in which a side waits.
fn next_odd(epoch: u64) -> u64 {
    epoch.wrapping_add(1 + epoch % 2)
}

/// Rings once per odd epoch. A peer that lies here only loses its own wake-ups
/// or is rung at most once a frame.
fn ring_once(epoch: u64, rung: &mut u64) -> Peer {
    if epoch % 2 == 1 && epoch != *rung {
        *rung = epoch;
        Peer::Asleep
    } else {
        Peer::Awake
    }
}
