//! The daemon: it takes clients in, runs the engine for them, and stops cleanly.
//!
//! ```text
//!  clients ══ rings ══▶ front (one thread: epoll) ── Command ──▶ scheduler (one thread: the
//!     ▲                                                          engine and the device)
//!     ╚════════════ rings, written by the scheduler ═════════════════╝
//! ```
//!
//! [`front`] owns the socket, handshakes and the clients' request rings; [`scheduler`] owns
//! the engine, so one thread alone touches the device, and the clients' response rings.
//! Neither waits for a client. [`power`] lets go of the device's votes
//! when it is idle, [`session`] makes another session where the device was lost, [`board`] shows what the scheduler does to monitors,
//! [`supervisor`] to what started the daemon.

pub mod board;
pub mod check;
pub mod config;
pub mod front;
pub mod log;
pub mod policy;
pub mod power;
mod private_folder;
pub mod scheduler;
pub mod serve;
pub mod session;
pub mod status;
pub mod supervisor;
