//! The CPU device: runs programs on a small thread pool with the widest vectors the host has.
//!
//! ```text
//! device   validate, then op by op
//!   ops      views, cutting into items        memory   buffers, tensors to pointers
//!     kernels  one table an instruction set   pool     threads
//! ```
//!
//! Results equal the reference device's to the bit, whatever the instruction set, the number
//! of threads or the number of columns that share a pass.

#[cfg(target_endian = "big")]
compile_error!("weights are read in place and are little-endian");

mod cache;
mod device;
mod kernels;
mod level;
mod memory;
mod ops;
mod pool;
mod repack;

pub use device::{Cpu, CpuConfig, CpuError, MAX_THREADS, OpTime};
pub use level::IsaLevel;
