//! What can go wrong, and whether to try again.

use std::time::Duration;

use tandem_ipc::client::ConnectError;
use tandem_ipc::handshake::{Goodbye, Refusal};
use tandem_ipc::message::FailureCode;
use tandem_ipc::request::InvalidRequest;

use crate::request::RequestError;

/// An error of the SDK.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection to the daemon.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon went away with the request in flight. Send it again: the next
    /// request connects anew.
    #[error("the daemon went away before the answer was complete; send the request again")]
    DaemonGone,
    /// The daemon ended this connection and said why.
    #[error(transparent)]
    Goodbye(Goodbye),
    /// The daemon failed this request.
    #[error("the daemon failed the request ({code}): {message}")]
    Failed {
        /// What kind of failure.
        code: FailureCode,
        /// The daemon's words.
        message: String,
        /// When a retry makes sense.
        retry_after: Option<Duration>,
    },
    /// A field is out of range; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// A chat-completions body that cannot be used; nothing was sent.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The request does not fit the request ring; nothing was sent.
    #[error("the request does not fit: {0}")]
    TooLarge(String),
    /// The daemon did not take requests from the ring in time.
    #[error("the daemon took nothing from the full request ring for {} ms; try again later", waited.as_millis())]
    Busy {
        /// The time allowed.
        waited: Duration,
    },
    /// No answer in time. The request is still in flight.
    #[error("no answer within {} ms", waited.as_millis())]
    Timeout {
        /// The time allowed.
        waited: Duration,
    },
    /// The daemon broke the protocol: a fault in one of the two programs.
    #[error("protocol error: {0}; report it with both versions")]
    Protocol(String),
}

impl Error {
    /// Whether the same request may succeed when it is sent again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Connect(error) => error.is_retryable(),
            Error::DaemonGone | Error::Busy { .. } | Error::Timeout { .. } => true,
            Error::Goodbye(goodbye) => goodbye.is_retryable(),
            Error::Failed { code, .. } => code.is_retryable(),
            Error::Invalid(_) | Error::Request(_) | Error::TooLarge(_) | Error::Protocol(_) => false,
        }
    }

    /// How long to wait before a retry, where the daemon said so.
    pub fn retry_after(&self) -> Option<Duration> {
        let millis = match self {
            Error::Failed { retry_after, .. } => return *retry_after,
            Error::Goodbye(Goodbye::ShuttingDown { retry_after_ms })
            | Error::Connect(ConnectError::Refused {
                refusal: Refusal::Quota { retry_after_ms, .. } | Refusal::Unavailable { retry_after_ms, .. },
                ..
            }) => *retry_after_ms,
            _ => None,
        };
        millis.map(|millis| Duration::from_millis(millis.into()))
    }
}

/// Why a connection ended: one reason, told to every request that was in flight.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    Gone,
    Goodbye(Goodbye),
    Protocol(String),
}

impl From<Ending> for Error {
    fn from(ending: Ending) -> Error {
        match ending {
            Ending::Gone => Error::DaemonGone,
            Ending::Goodbye(goodbye) => Error::Goodbye(goodbye),
            Ending::Protocol(what) => Error::Protocol(what),
        }
    }
}
