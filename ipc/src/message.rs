//! The messages, and their bytes: postcard, one message a frame.
//!
//! Variants are only ever appended within one [`ABI_VERSION`](crate::layout::ABI_VERSION);
//! any other change raises it, and the handshake refuses unequal numbers.
//! Decoding never trusts a length: the frame's size bounds the input, serde caps
//! what it reserves, and bytes left over are an error.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::request::GenerateRequest;

/// Names one request of one connection. The client chooses it and uses each
/// number once; the daemon echoes it.
pub type RequestId = u64;

/// Most `f32` values in one [`ServerMessage::LogitsRows`]: 64 KiB less the
/// message's own fields.
pub const MAX_LOGITS_VALUES: usize = 16_000;

/// Most prompts in one [`ClientMessage::Logits`].
pub const MAX_LOGITS_PROMPTS: usize = 4096;

/// What a client sends.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum ClientMessage {
    /// Starts a generation. Answered by `Accepted`, `Token`s and `Done`, or `Failed`.
    Generate {
        /// The client's number for it.
        id: RequestId,
        /// What to generate. Boxed: it is far larger than the other variants.
        request: Box<GenerateRequest>,
    },
    /// Stops the generation `id` within one pass; it still ends with `Done`
    /// (`cancelled`), or with what it had reached. Unknown ids are ignored.
    Cancel {
        /// The generation to stop.
        id: RequestId,
    },
    /// Asks what the daemon does now. Answered by `Status`.
    Status {
        /// The client's number for it.
        id: RequestId,
    },
    /// The numeric door: logits of prompts given as token ids. Answered by
    /// `LogitsRows`, in order, and `LogitsDone`, or `Failed`.
    Logits {
        /// The client's number for it.
        id: RequestId,
        /// Token ids of each prompt, 1 to [`MAX_LOGITS_PROMPTS`] prompts.
        prompts: Vec<Vec<u32>>,
        /// One row a position instead of the last position's only.
        all_positions: bool,
    },
    /// Asks for a `Pong`.
    Ping {
        /// Echoed.
        id: RequestId,
    },
}

/// What the daemon sends.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// The generation is in the queue.
    Accepted {
        /// The request.
        id: RequestId,
        /// Requests ahead of it.
        queue_position: u32,
    },
    /// One token of the answer.
    Token {
        /// The request.
        id: RequestId,
        /// The token's id in the vocabulary.
        token: u32,
        /// Text that became complete with this token: whole UTF-8 characters
        /// only, so it may be empty or finish characters of earlier tokens.
        text: String,
        /// `(token, its text, natural log of its probability)`, likeliest first,
        /// when the request asked for it.
        top_logprobs: Option<Vec<(u32, String, f32)>>,
    },
    /// The generation ended; nothing more comes for `id`.
    Done {
        /// The request.
        id: RequestId,
        /// Why it ended.
        finish: Finish,
        /// What it took.
        stats: Box<Stats>,
    },
    /// The request failed; nothing more comes for `id`.
    Failed {
        /// The request.
        id: RequestId,
        /// What kind of failure.
        code: FailureCode,
        /// What was tried, the value, the limit, what to do. No prompt text.
        message: String,
        /// When a retry makes sense, milliseconds.
        retry_after_ms: Option<u32>,
    },
    /// The answer to `Status`.
    Status {
        /// The request.
        id: RequestId,
        /// One JSON object.
        json: String,
    },
    /// A piece of one row of logits.
    LogitsRows {
        /// The request.
        id: RequestId,
        /// Index of the prompt in the request.
        prompt: u32,
        /// Position in the prompt, from 0.
        position: u32,
        /// Index of `values[0]` in the row.
        offset: u32,
        /// At most [`MAX_LOGITS_VALUES`] values.
        values: Vec<f32>,
    },
    /// All rows of a `Logits` request were sent.
    LogitsDone {
        /// The request.
        id: RequestId,
    },
    /// The answer to `Ping`.
    Pong {
        /// The request.
        id: RequestId,
    },
}

impl ServerMessage {
    /// The request that the message belongs to.
    pub fn id(&self) -> RequestId {
        match self {
            ServerMessage::Accepted { id, .. }
            | ServerMessage::Token { id, .. }
            | ServerMessage::Done { id, .. }
            | ServerMessage::Failed { id, .. }
            | ServerMessage::Status { id, .. }
            | ServerMessage::LogitsRows { id, .. }
            | ServerMessage::LogitsDone { id }
            | ServerMessage::Pong { id } => *id,
        }
    }

    /// Whether nothing more comes for the request after this message.
    pub fn is_last(&self) -> bool {
        !matches!(
            self,
            ServerMessage::Accepted { .. } | ServerMessage::Token { .. } | ServerMessage::LogitsRows { .. }
        )
    }
}

impl ClientMessage {
    /// The request that the message belongs to.
    pub fn id(&self) -> RequestId {
        match self {
            ClientMessage::Generate { id, .. }
            | ClientMessage::Cancel { id }
            | ClientMessage::Status { id }
            | ClientMessage::Logits { id, .. }
            | ClientMessage::Ping { id } => *id,
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Finish {
    /// The model's end token, or a stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The JSON schema is complete.
    Schema,
    /// The client cancelled.
    Cancelled,
}

impl Finish {
    /// The word that `--json` output uses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Schema => "schema",
            Finish::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Kinds of failure of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureCode {
    /// A field is out of range or does not parse.
    InvalidRequest,
    /// The schema does not parse or uses a keyword that is not supported.
    InvalidSchema,
    /// The prompt (with its images) does not fit the context.
    PromptTooLong,
    /// A token id is not in the vocabulary.
    InvalidToken,
    /// The id is in use by another request of this connection.
    DuplicateId,
    /// This daemon or model cannot do it (images without a vision file, ...).
    Unsupported,
    /// The client's or user's quota is used up. Retryable.
    QuotaExceeded,
    /// The queue is full. Retryable.
    QueueFull,
    /// The deadline passed before the answer was complete.
    DeadlineExceeded,
    /// The client did not read its answer: its response ring stayed full. Retryable.
    ClientTooSlow,
    /// The daemon is stopping or reloading. Retryable.
    ShuttingDown,
    /// The device failed or was reset under this request. Retryable.
    DeviceFailed,
    /// A fault in the daemon; its log says more.
    Internal,
}

impl FailureCode {
    /// Whether the same request may succeed later, unchanged.
    pub const fn is_retryable(self) -> bool {
        match self {
            FailureCode::QuotaExceeded
            | FailureCode::QueueFull
            | FailureCode::ClientTooSlow
            | FailureCode::ShuttingDown
            | FailureCode::DeviceFailed => true,
            FailureCode::InvalidRequest
            | FailureCode::InvalidSchema
            | FailureCode::PromptTooLong
            | FailureCode::InvalidToken
            | FailureCode::DuplicateId
            | FailureCode::Unsupported
            | FailureCode::DeadlineExceeded
            | FailureCode::Internal => false,
        }
    }

    /// The code's name in `--json` output and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailureCode::InvalidRequest => "invalid_request",
            FailureCode::InvalidSchema => "invalid_schema",
            FailureCode::PromptTooLong => "prompt_too_long",
            FailureCode::InvalidToken => "invalid_token",
            FailureCode::DuplicateId => "duplicate_id",
            FailureCode::Unsupported => "unsupported",
            FailureCode::QuotaExceeded => "quota_exceeded",
            FailureCode::QueueFull => "queue_full",
            FailureCode::DeadlineExceeded => "deadline_exceeded",
            FailureCode::ClientTooSlow => "client_too_slow",
            FailureCode::ShuttingDown => "shutting_down",
            FailureCode::DeviceFailed => "device_failed",
            FailureCode::Internal => "internal",
        }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Draft tokens of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftCounts {
    /// Tokens proposed.
    pub drafted: u32,
    /// Tokens that the target chose too.
    pub accepted: u32,
}

/// Draft tokens by where they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftsByKind {
    /// Forced by the JSON schema.
    pub schema: DraftCounts,
    /// Copied from the prompt (n-gram lookup).
    pub lookup: DraftCounts,
    /// From the MTP head.
    pub mtp: DraftCounts,
}

/// What one generation took. Counts are tokens or passes, times milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens shared with what the slot had cached (`L`).
    pub shared: u32,
    /// Position of the checkpoint that was restored (`R`).
    pub restored: u32,
    /// Prompt tokens computed (`prompt - restored`).
    pub new: u32,
    /// Prefill passes.
    pub passes: u32,
    /// Checkpoints saved.
    pub saves: u32,
    /// Tokens of the answer.
    pub decode_tokens: u32,
    /// Decode passes.
    pub decode_passes: u32,
    /// Draft tokens proposed, all kinds.
    pub drafted: u32,
    /// Draft tokens accepted, all kinds.
    pub accepted: u32,
    /// The same by kind.
    pub drafts: DraftsByKind,
    /// Time in prefill.
    pub prefill_ms: f64,
    /// Time in decode.
    pub decode_ms: f64,
    /// From acceptance to the end, waiting included.
    pub ms: f64,
}

/// Why a frame is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not what postcard expects.
    #[error("frame of {len} bytes is no {what}: {reason}; both sides must run the same ABI version")]
    Malformed {
        /// `client message`, `server message` or a handshake's name.
        what: &'static str,
        /// Bytes of the frame.
        len: usize,
        /// postcard's reason.
        reason: postcard::Error,
    },
    /// A message followed by more bytes.
    #[error("frame of {len} bytes holds a {what} and {extra} bytes more")]
    TrailingBytes {
        /// As above.
        what: &'static str,
        /// Bytes of the frame.
        len: usize,
        /// Bytes left over.
        extra: usize,
    },
}

/// A message that travels in a frame.
pub trait Message: Serialize + for<'de> Deserialize<'de> {
    /// Its name in error texts.
    const NAME: &'static str;

    /// Appends the message's bytes to `out`.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), postcard::Error> {
        let buffer = std::mem::take(out);
        *out = postcard::to_extend(self, buffer)?;
        Ok(())
    }

    /// Reads a message that takes up all of `frame`.
    fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let len = frame.len();
        match postcard::take_from_bytes(frame) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(DecodeError::TrailingBytes { what: Self::NAME, len, extra: rest.len() }),
            Err(reason) => Err(DecodeError::Malformed { what: Self::NAME, len, reason }),
        }
    }
}

impl Message for ClientMessage {
    const NAME: &'static str = "client message";
}

impl Message for ServerMessage {
    const NAME: &'static str = "server message";
}

// As in `request.rs`: Debug output never holds prompt or answer text.

impl fmt::Debug for ClientMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientMessage::Generate { id, request } => {
                f.debug_struct("Generate").field("id", id).field("request", request).finish()
            }
            ClientMessage::Cancel { id } => write!(f, "Cancel {{ id: {id} }}"),
            ClientMessage::Status { id } => write!(f, "Status {{ id: {id} }}"),
            ClientMessage::Logits { id, prompts, all_positions } => {
                write!(f, "Logits {{ id: {id}, prompts: {}, all_positions: {all_positions} }}", prompts.len())
            }
            ClientMessage::Ping { id } => write!(f, "Ping {{ id: {id} }}"),
        }
    }
}

impl fmt::Debug for ServerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerMessage::Accepted { id, queue_position } => {
                write!(f, "Accepted {{ id: {id}, queue_position: {queue_position} }}")
            }
            ServerMessage::Token { id, text, .. } => {
                write!(f, "Token {{ id: {id}, bytes: {} }}", text.len())
            }
            ServerMessage::Done { id, finish, stats } => {
                f.debug_struct("Done").field("id", id).field("finish", finish).field("stats", stats).finish()
            }
            ServerMessage::Failed { id, code, message, retry_after_ms } => f
                .debug_struct("Failed")
                .field("id", id)
                .field("code", code)
                .field("message", message)
                .field("retry_after_ms", retry_after_ms)
                .finish(),
            ServerMessage::Status { id, json } => {
                write!(f, "Status {{ id: {id}, bytes: {} }}", json.len())
            }
            ServerMessage::LogitsRows { id, prompt, position, offset, values } => write!(
                f,
                "LogitsRows {{ id: {id}, prompt: {prompt}, position: {position}, offset: {offset}, values: {} }}",
                values.len()
            ),
            ServerMessage::LogitsDone { id } => write!(f, "LogitsDone {{ id: {id} }}"),
            ServerMessage::Pong { id } => write!(f, "Pong {{ id: {id} }}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Input;

    fn bytes(message: &impl Message) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(&mut out).unwrap();
        out
    }

    #[test]
    fn messages_survive_the_round_trip() {
        let request = Box::new(GenerateRequest::new(Input::Tokens(vec![1, 2, u32::MAX])));
        for message in [
            ClientMessage::Generate { id: 1, request },
            ClientMessage::Logits { id: u64::MAX, prompts: vec![vec![], vec![7]], all_positions: true },
            ClientMessage::Cancel { id: 3 },
        ] {
            assert_eq!(ClientMessage::decode(&bytes(&message)), Ok(message));
        }
        let token = ServerMessage::Token {
            id: 9,
            token: 4,
            text: "é".into(),
            top_logprobs: Some(vec![(4, "é".into(), -0.25)]),
        };
        assert_eq!(ServerMessage::decode(&bytes(&token)), Ok(token));
    }

    #[test]
    fn the_first_bytes_of_the_wire_form_are_fixed() {
        // A golden: changing it means raising ABI_VERSION.
        assert_eq!(bytes(&ClientMessage::Ping { id: 300 }), [4, 0xac, 0x02]);
        let rows = ServerMessage::LogitsRows { id: 1, prompt: 2, position: 3, offset: 4, values: vec![1.0] };
        assert_eq!(bytes(&rows), [5, 1, 2, 3, 4, 1, 0, 0, 0x80, 0x3f]);
    }

    #[test]
    fn a_length_larger_than_the_frame_is_an_error_not_an_allocation() {
        // Logits, id 1, then 2^63 prompts.
        let mut frame = vec![3, 1];
        frame.extend([0xff; 9]);
        frame.push(0x01);
        assert!(matches!(ClientMessage::decode(&frame), Err(DecodeError::Malformed { len: 12, .. })));
    }

    #[test]
    fn every_truncation_and_every_trailing_byte_is_an_error() {
        let request = Box::new(GenerateRequest::new(Input::Text("abc".into())));
        let whole = bytes(&ClientMessage::Generate { id: 5, request });
        for cut in 0..whole.len() {
            assert!(ClientMessage::decode(&whole[..cut]).is_err(), "{cut} bytes");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(matches!(ClientMessage::decode(&longer), Err(DecodeError::TrailingBytes { extra: 1, .. })));
    }

    #[test]
    fn a_full_logits_chunk_stays_within_64_kib() {
        let rows = ServerMessage::LogitsRows {
            id: u64::MAX,
            prompt: u32::MAX,
            position: u32::MAX,
            offset: u32::MAX,
            values: vec![0.0; MAX_LOGITS_VALUES],
        };
        assert!(bytes(&rows).len() <= 64 * 1024);
    }

    #[test]
    fn debug_output_holds_no_text() {
        let message = ServerMessage::Token {
            id: 1,
            token: 2,
            text: "canary".into(),
            top_logprobs: Some(vec![(2, "canary".into(), 0.0)]),
        };
        assert!(!format!("{message:?}").contains("canary"));
    }
}
