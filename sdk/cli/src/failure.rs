//! How a run fails, and its exit code.

use std::io;
use std::path::{Path, PathBuf};
use tandem_engine::gguf::GgufError;
use tandem_ipc::board::BoardError;
use tandem_sdk::{Error, PrivateError};

/// The daemon failed the request.
pub(crate) const REQUEST: u8 = 1;
/// The command line, a file it names, or the model cannot be used.
pub(crate) const USAGE: u8 = 2;
/// No daemon.
pub(crate) const NO_DAEMON: u8 = 3;

/// Why a subcommand ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The daemon, or the way to it.
    #[error(transparent)]
    Sdk(#[from] Error),
    /// A status board.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// A private daemon.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// The daemon failed one of several requests.
    #[error("{what}: {source}")]
    OneOf {
        /// Which.
        what: String,
        /// Why.
        source: Error,
    },
    /// Options that do not go together in a way that the parser cannot know.
    #[error("{0}")]
    Usage(String),
    /// A file that cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file whose content is not what the command needs.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A line of a trace.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A model file.
    #[error("model {}: {source}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// Another server did not answer.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// The address tried.
        url: String,
        /// Why.
        reason: String,
    },
    /// Another server's answer to a request.
    #[error("{url}, request of line {line}: {reason}")]
    Peer {
        /// The address.
        url: String,
        /// Line of the trace.
        line: usize,
        /// What it said.
        reason: String,
    },
    /// Standard output.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// Output that cannot be made into JSON or a tensor file.
    #[error("cannot encode the output: {0}")]
    Encode(String),
}

impl Failure {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::File { what: "read", path: path.to_owned(), source }
    }

    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> Failure {
        move |source| Failure::File { what: "write", path: path.to_owned(), source }
    }

    pub(crate) fn content(path: &Path, reason: impl Into<String>) -> Failure {
        Failure::Content { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the daemon went away under a request.
    pub(crate) fn is_daemon_gone(&self) -> bool {
        matches!(self, Failure::Sdk(Error::DaemonGone) | Failure::OneOf { source: Error::DaemonGone, .. })
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Sdk(error) | Failure::OneOf { source: error, .. } => of_sdk(error),
            Failure::Private(PrivateError::Connect(error)) => of_sdk(error),
            // The daemon's 2 means that settings or the model cannot be used.
            Failure::Private(PrivateError::Ended { status, .. }) if status.code() == Some(2) => USAGE,
            Failure::Private(PrivateError::Ended { .. } | PrivateError::Killed { .. }) => REQUEST,
            Failure::Board(BoardError::Name(_)) => USAGE,
            Failure::Private(_) | Failure::Unreachable { .. } | Failure::Board(_) => NO_DAEMON,
            Failure::Usage(_)
            | Failure::File { .. }
            | Failure::Content { .. }
            | Failure::Line { .. }
            | Failure::Model { .. } => USAGE,
            Failure::Peer { .. } | Failure::Output(_) | Failure::Encode(_) => REQUEST,
        }
    }
}

fn of_sdk(error: &Error) -> u8 {
    match error {
        Error::Connect(_) => NO_DAEMON,
        // Nothing was sent.
        Error::Invalid(_) | Error::Request(_) => USAGE,
        _ => REQUEST,
    }
}
