//! Power votes: held while there is work, released when the power policy says so.
//!
//! ```text
//! front ── expect ──▶┐                                    ┌── asks the policy (its own thread)
//! scheduler ─ busy, idle ─▶  Gate (one lock)  ◀── power ──┤
//! engine ─ Gated::submit ─▶┘  votes, batches in flight    └── releases under the lock
//! ```
//!
//! Submission and release share the lock of `gate.rs`, so a batch either prevents a release or
//! waits until the votes are back. The engine knows nothing of it: [`Gated`] is a device around
//! the device. A device without votes is used as it is.

mod gate;
mod gated;
mod manager;
mod meter;

pub use gate::{Gate, Lock, Reason, State, SystemLock, Totals};
pub use gated::Gated;
pub use manager::{Handle, Manager, Options};
pub use meter::{Account, Collapses, Ledger, Meters, Reading, Stretch};
