//! One answer, as it comes.

use std::sync::Arc;
use std::time::Duration;

use tandem_ipc::message::{Finish, RequestId, ServerMessage, Stats};

use crate::error::Error;
use crate::link::Link;
use crate::mailbox::Mailbox;

/// One token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id in the vocabulary.
    pub id: u32,
    /// Text that became complete with it; may be empty.
    pub text: String,
    /// `(token, text, natural log of the probability)`, likeliest first, where
    /// the request asked for it.
    pub top_logprobs: Option<Vec<(u32, String, f32)>>,
}

/// What happens to a generation, in order: `Accepted`, tokens, `Done`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The daemon has queued the request.
    Accepted {
        /// Requests ahead of it.
        queue_position: u32,
    },
    /// One token.
    Token(Token),
    /// The end.
    Done {
        /// Why it ended.
        finish: Finish,
        /// What it took.
        stats: Stats,
    },
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// All text.
    pub text: String,
    /// All tokens.
    pub tokens: Vec<Token>,
    /// Why it ended.
    pub finish: Finish,
    /// What it took.
    pub stats: Stats,
}

/// A generation in flight: an iterator of its events, which ends after `Done`
/// or after the first error. Dropping it earlier cancels it.
#[derive(Debug)]
pub struct Generation {
    id: RequestId,
    link: Arc<Link>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) over: bool,
}

impl Generation {
    pub(crate) fn new(id: RequestId, link: Arc<Link>, mailbox: Arc<Mailbox>) -> Generation {
        Generation { id, link, mailbox, over: false }
    }

    /// The next event within `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the generation running; call again. Any other
    /// error ends it. `Ok(None)` after the end.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Event>, Error> {
        if self.over {
            return Ok(None);
        }
        match self.mailbox.take(Some(timeout)) {
            Ok(Some(message)) => self.event(message).map(Some),
            Ok(None) => Err(Error::Timeout { waited: timeout }),
            Err(error) => {
                self.over = true;
                Err(error)
            }
        }
    }

    /// Asks the daemon to stop within one pass. The events still end with
    /// `Done`, usually with [`Finish::Cancelled`]. Never blocks.
    pub fn cancel(&self) {
        self.link.cancel(self.id);
    }

    /// A handle that cancels from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller { id: self.id, link: Arc::clone(&self.link) }
    }

    /// Waits for the end and returns the whole answer.
    pub fn answer(mut self) -> Result<Answer, Error> {
        let mut text = String::new();
        let mut tokens = Vec::new();
        for event in &mut self {
            match event? {
                Event::Accepted { .. } => {}
                Event::Token(token) => {
                    text.push_str(&token.text);
                    tokens.push(token);
                }
                Event::Done { finish, stats } => {
                    return Ok(Answer { text, tokens, finish, stats });
                }
            }
        }
        Err(Error::Protocol("the events ended without `Done`".into()))
    }

    pub(crate) fn event(&mut self, message: ServerMessage) -> Result<Event, Error> {
        match message {
            ServerMessage::Accepted { queue_position, .. } => Ok(Event::Accepted { queue_position }),
            ServerMessage::Token { token, text, top_logprobs, .. } => {
                Ok(Event::Token(Token { id: token, text, top_logprobs }))
            }
            ServerMessage::Done { finish, stats, .. } => {
                self.over = true;
                Ok(Event::Done { finish, stats: *stats })
            }
            other => {
                self.over = other.is_last();
                let error = unexpected(other, "a generation");
                if !self.over {
                    self.over = true;
                    self.cancel();
                }
                Err(error)
            }
        }
    }
}

impl Iterator for Generation {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Result<Event, Error>> {
        if self.over {
            return None;
        }
        match self.mailbox.take(None) {
            Ok(Some(message)) => Some(self.event(message)),
            // `take` without a timeout returns a message or an error.
            Ok(None) => None,
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.link.close(self.id);
        if !self.over {
            self.link.cancel(self.id);
        }
    }
}

/// Cancels one generation; see [`Generation::canceller`].
#[derive(Debug, Clone)]
pub struct Canceller {
    id: RequestId,
    link: Arc<Link>,
}

impl Canceller {
    /// As [`Generation::cancel`]. After the end it does nothing.
    pub fn cancel(&self) {
        self.link.cancel(self.id);
    }
}

/// The error for a message that does not answer `asked`: the daemon's own
/// failure, or a message out of place.
pub(crate) fn unexpected(message: ServerMessage, asked: &str) -> Error {
    match message {
        ServerMessage::Failed { code, message, retry_after_ms, .. } => Error::Failed {
            code,
            message,
            retry_after: retry_after_ms.map(|millis| Duration::from_millis(millis.into())),
        },
        other => Error::Protocol(format!("{other:?} in answer to {asked}")),
    }
}
