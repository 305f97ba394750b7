//! The Rust SDK for agent apps.
//!
//! ```no_run
//! use tandem_sdk::{Client, Event, Request};
//!
//! let client = Client::connect_default()?;
//! let request = Request::text("What is the next action?").max_tokens(48);
//! for event in client.generate(request)? {
//!     match event? {
//!         Event::Token(token) => print!("{}", token.text),
//!         Event::Done { finish, stats } => println!("\n{finish}, {} ms", stats.ms),
//!         Event::Accepted { .. } => {}
//!     }
//! }
//! # Ok::<(), tandem_sdk::Error>(())
//! ```
//!
//! A [`Client`] is cheap to clone and may be used by many threads; every
//! [`Generation`] has a queue of its own. When the daemon restarts, requests in
//! flight end with [`Error::DaemonGone`] (retryable) and the next request
//! connects again. Dropping a [`Generation`] cancels it.

mod client;
mod error;
mod generation;
mod link;
mod logits;
mod mailbox;
#[cfg(feature = "private-daemon")]
mod private;
mod request;
#[cfg(feature = "async")]
mod stream;

pub use client::{Builder, Client, default_socket};
pub use error::Error;
pub use generation::{Answer, Canceller, Event, Generation, Token};
pub use logits::LogitsRow;
#[cfg(feature = "private-daemon")]
pub use private::{PrivateBuilder, PrivateDaemon, PrivateError};
pub use request::{ChatMessage, Request, RequestError};
pub use tandem_ipc::client::ConnectError;
pub use tandem_ipc::handshake::{Goodbye, Refusal};
pub use tandem_ipc::message::{DraftCounts, DraftsByKind, FailureCode, Finish, Stats};
pub use tandem_ipc::request::{GenerateRequest, Input, InvalidRequest, LogprobsScope, Priority};
