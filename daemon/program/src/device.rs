//! The seam between the engine and whatever computes.

use crate::power::Power;
use crate::program::{Program, ProgramError};
use crate::tensor::BufferId;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that outlive the device's use of them and never change: a mapped model file.
pub type Region = Arc<dyn Bytes>;

/// What a [`Region`] is made of.
pub trait Bytes: AsRef<[u8]> + Send + Sync {
    /// Says that a device holds a copy of `range` (in bytes) and will hardly read it again: a
    /// mapped file may let go of those pages. They stay readable, and what they hold stays the
    /// same. Does nothing by default.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }

    /// Tells these contents from others, the same at every start: what a cache of something made
    /// from them goes by. None (the default) where that cannot be told.
    fn identity(&self) -> Option<u64> {
        None
    }
}

impl Bytes for Vec<u8> {}

/// How near a device's results lie to the reference device's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exactness {
    /// Every bit equal.
    Bits,
    /// Integer parts equal, floats within this relative bound (against the largest
    /// magnitude of the op's result).
    Relative(f32),
}

/// What the engine may ask about a device. Nothing above the device branches on its name.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// For people: `cpu`, `reference`, `hexagon`, `emulator`.
    pub name: String,
    /// For people: instruction set, threads and the like.
    pub detail: String,
    /// Worker threads (1 for devices where the word means nothing).
    pub threads: usize,
    /// Bytes the device can hold in buffers it creates.
    pub memory: u64,
    /// See [`Exactness`].
    pub exactness: Exactness,
}

/// A submitted program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Errors of a device.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The program is malformed; nothing of it ran.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A buffer could not be made.
    #[error("device {device}: no room for a buffer of {bytes} bytes ({used} of {limit} in use)")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes in use.
        used: u64,
        /// The device's limit.
        limit: u64,
    },
    /// Access to bytes the buffer does not have, or that may not be written.
    #[error("buffer {buffer}: {access} of {len} bytes at {offset} refused, it holds {size} bytes{}", if *.read_only { " and is read-only" } else { "" })]
    Access {
        /// The buffer.
        buffer: u32,
        /// `read` or `write`.
        access: &'static str,
        /// Byte offset.
        offset: u64,
        /// Byte count.
        len: u64,
        /// The buffer's size.
        size: u64,
        /// An imported region.
        read_only: bool,
    },
    /// No such buffer.
    #[error("buffer {0} does not exist on this device")]
    NoBuffer(u32),
    /// Power votes and work are at odds: a batch without votes was not run, or votes could not
    /// change. The session goes on.
    #[error("power votes: {0}")]
    Votes(String),
    /// The session is gone; in-flight work is lost and may be tried again.
    #[error("device session lost: {0}")]
    Lost(String),
}

/// Executes programs. One thread owns a device; it is `Send`, not `Sync`.
pub trait Device: Send {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Makes a zeroed buffer.
    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError>;

    /// Makes a read-only buffer of existing bytes, without a copy where the device can.
    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError>;

    /// Frees a buffer. Programs that name it afterwards are refused.
    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError>;

    /// Copies bytes in, after all submitted work.
    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes out, after all submitted work.
    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Checks a program and makes what its weights need on this device, such as a copy in another
    /// order, so that the first submission has not to wait for it. Runs nothing, and promises nothing: what
    /// is missing is made when it is needed. Nothing by default.
    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError> {
        let _ = program;
        Ok(())
    }

    /// Checks a program and starts it. Programs run in the order of their submission.
    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError>;

    /// Waits for a submitted program.
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError>;

    /// Bytes in buffers made by [`Device::create`], and in what the device made for itself.
    fn used(&self) -> u64;

    /// Gives back what the device made for itself and can make again, such as weights in
    /// another order. The next program makes what it needs. Nothing by default.
    fn rest(&mut self) {}

    /// The device's power handler, where it has votes to hold. A program submitted while its
    /// votes are released is refused. Nothing by default: the platform needs no votes.
    fn power(&self) -> Option<Arc<dyn Power>> {
        None
    }
}
