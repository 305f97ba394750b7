//! Whole-system tests: they drive the real `tandem` and `tandemd`, built from this checkout,
//! on the models in `tests/golden` and `tests/model`.
//!
//! [`tandem`] runs the command to its end, [`start`] lets it run, [`daemon`] starts a daemon
//! that ends with the test. Nothing here waits a fixed time: [`eventually`] looks again until
//! a state is reached, and gives up only where a test would hang.

mod files;
mod programs;
mod service;

pub use files::{Trace, demo_model, demo_trace, golden, heldout_trace, root};
pub use programs::{Finished, Programs, daemon, eventually, programs, signal, start, tandem, tandemd};
pub use service::Service;
