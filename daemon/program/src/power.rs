//! Power votes: what a device asks of the platform so that it may compute.

use crate::device::DeviceError;

/// How fast a clock is asked to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Corner {
    /// No vote: the platform decides, and may stop the clock.
    Off,
    /// The lowest corner at which the part works.
    Low,
    /// The nominal corner.
    Nominal,
    /// The highest corner.
    Max,
}

/// Everything a device votes on, set together in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Votes {
    /// The processor's own clock.
    pub clock: Corner,
    /// The bus to memory.
    pub bus: Corner,
    /// Whether memory is held in its fast mode.
    pub ddr: bool,
    /// Whether the matrix unit is powered.
    pub hmx: bool,
    /// Whether the processor may sleep (power-collapse) between batches.
    pub sleep: bool,
}

impl Votes {
    /// What work needs: everything up, no sleep.
    pub const HELD: Votes =
        Votes { clock: Corner::Max, bus: Corner::Max, ddr: true, hmx: true, sleep: false };
    /// What an idle device needs: nothing. Weights and states stay in memory.
    pub const RELEASED: Votes =
        Votes { clock: Corner::Off, bus: Corner::Off, ddr: false, hmx: false, sleep: true };
}

/// The power handler of a device: a call of its own beside the queue of batches, so that it
/// answers whatever the queue does. Shared by the thread that owns the device and the one that
/// lets go of the votes.
pub trait Power: Send + Sync {
    /// Puts these votes in place of the ones before and returns when they hold.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Lost`] if the session is gone; votes are then not held. [`DeviceError::Votes`]
    /// if the platform refused them, or a batch is running.
    fn apply(&self, votes: &Votes) -> Result<(), DeviceError>;
}
