//! The Hexagon device: the host's driver, and in `dsp/` the program that runs on the DSP.
//!
//! ```text
//! Program ─▶ Hexagon (checks, lowers) ─▶ packets in shared memory ─▶ executor.c ─▶ kernels
//!                └─ Link: 64-byte requests and replies ─────────────────┘
//! ```
//!
//! [`Hexagon`] implements [`tandem_program::Device`] over a [`Link`]. There are two:
//! [`emulator::Emulator`] runs the DSP's program as a process, under `qemu-hexagon`, or natively for the
//! sanitizers; [`fastrpc::Fastrpc`] reaches a phone's DSP. Weights are packed for the DSP's vectors when a program first uses them
//! ([`packed`]); the numbers both sides share are in [`abi`].

pub mod abi;
mod device;
pub mod emulator;
pub mod fastrpc;
mod lower;
mod memory;
pub mod packed;
pub mod planner;
mod power;
pub mod tiles;
mod window;

pub use device::{Counters, Hexagon, HexagonConfig, HexagonError};
pub use emulator::{Emulator, EmulatorConfig, EmulatorError};
pub use fastrpc::{Fastrpc, FastrpcConfig, FastrpcError};
pub use memory::{Shared, SharedError};

use std::sync::Arc;
use tandem_program::Power;

/// What carries requests to the DSP and replies back.
pub trait Link: Send {
    /// For people: `emulator` and the like.
    fn name(&self) -> &str;

    /// How near results lie to the reference's.
    fn exactness(&self) -> tandem_program::Exactness;

    /// The DSP's power handler: a call of its own beside the requests, usable from any thread.
    /// `None` where batches run without votes.
    fn power(&self) -> Option<Arc<dyn Power>> {
        None
    }

    /// Hands over a request.
    ///
    /// # Errors
    ///
    /// Text for [`tandem_program::DeviceError::Lost`]: the session is gone.
    fn send(&mut self, request: &abi::Request) -> Result<(), String>;

    /// Waits for the next reply, within the link's budget for one batch.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; a session that made no progress within its budget is torn down.
    fn receive(&mut self) -> Result<abi::Reply, String>;
}
