//! Shared-memory rings, handshake and message types between apps and the daemon.
//!
//! A client connects to a Unix socket, is identified by the kernel, and gets
//! two sealed memfds (a ring each way) and two doorbells. From then on
//! everything travels through the rings; the socket stays open as the life
//! line, whose hang-up is the peer's death. This crate knows nothing of models
//! or tensors.
//!
//! | module | holds |
//! | --- | --- |
//! | [`layout`] | the memory both sides share, drawn once |
//! | [`words`], `region` | access to it: words, atomically, bounds checked |
//! | [`ring`] | frames in one direction, and when to ring |
//! | `memfd`, `doorbell`, `nowait`, [`peer`] | what the kernel lends |
//! | [`handshake`] | packets on the socket |
//! | [`message`], [`request`] | what the frames say |
//! | [`channel`] | messages over rings and doorbells |
//! | [`server`], [`client`] | the two halves of a connection |
//! | [`board`] | the status board: what the daemon does, readable when it is stuck |
//! | [`mod@bench`] | round trips and bursts beside a Unix socket |
//!
//! # Who trusts whom
//! The daemon treats everything a client can touch as hostile: its region, its
//! doorbell, its packets. A client that misbehaves costs itself its connection
//! and nobody else anything. A daemon reads a client's cursors once and checks
//! them, copies frames out before parsing, and never makes a call that a client
//! can make block.
//!
//! Linux 5.8 or later (`F_SEAL_FUTURE_WRITE`, `RWF_NOWAIT` on eventfds).

pub mod bench;
pub mod board;
pub mod channel;
pub mod client;
mod doorbell;
pub mod handshake;
pub mod layout;
mod listener;
mod memfd;
pub mod message;
mod nowait;
pub mod peer;
mod region;
pub mod request;
pub mod ring;
pub mod server;
mod spin;
pub mod words;
