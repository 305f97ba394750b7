//! What travels on the Unix socket: the handshake, and the farewell.
//!
//! ```text
//! client                                   daemon
//!   Hello { app }                    ->
//!                                    <-    Welcome { ring sizes } + 4 descriptors
//!                                          or Refused(why)
//!   ... the rings carry everything; the open socket is the life line ...
//!                                    <-    Goodbye(why), then hang-up
//! ```
//!
//! Every packet starts with a magic and the sender's ABI version, so that two
//! versions can refuse each other in words. `Hello`, `Refused` and `Goodbye`
//! keep their form in every ABI version.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::layout::ABI_VERSION;
use crate::message::{DecodeError, Message};

/// First bytes of every packet.
const MAGIC: [u8; 8] = *b"TANDEMhs";
/// Bytes before the postcard body: magic and ABI version.
const ENVELOPE: usize = 12;
/// Largest packet either side accepts, bytes.
const MAX_PACKET: usize = 1024;
/// Longest text inside a packet, bytes, so that it always fits.
const MAX_TEXT: usize = 512;
/// Longest app name, bytes.
pub const MAX_APP_NAME: usize = 64;

/// The client's first packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The app's name for status and logs; says nothing about its rights.
    /// 1 to [`MAX_APP_NAME`] bytes without control characters.
    pub app: String,
}

impl Hello {
    /// Whether `app` may be an app's name.
    pub fn name_is_valid(app: &str) -> bool {
        (1..=MAX_APP_NAME).contains(&app.len()) && !app.chars().any(char::is_control)
    }
}

/// Why the daemon refuses a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The two sides were built with different layouts or messages.
    #[error("the daemon speaks ABI version {daemon}, this client {client}; update the older one")]
    Version {
        /// The daemon's number.
        daemon: u32,
        /// The client's number.
        client: u32,
    },
    /// The user has as many connections as it may have.
    #[error("{in_use} of {limit} connections allowed to this user are in use; close one, or retry later")]
    Quota {
        /// Connections allowed.
        limit: u32,
        /// Connections open.
        in_use: u32,
        /// When a retry makes sense, milliseconds.
        retry_after_ms: Option<u32>,
    },
    /// This user or app may not use the daemon.
    #[error("access denied: {reason}")]
    Forbidden {
        /// What rule refused it.
        reason: String,
    },
    /// The daemon cannot take a client now (stopping, out of descriptors).
    #[error("the daemon takes no new client now: {reason}")]
    Unavailable {
        /// What is short.
        reason: String,
        /// When a retry makes sense, milliseconds.
        retry_after_ms: Option<u32>,
    },
    /// The first packet was no hello.
    #[error("the first packet was not understood: {reason}")]
    Malformed {
        /// What was wrong with it.
        reason: String,
    },
}

impl Refusal {
    /// Whether the same client may be taken later.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Refusal::Quota { .. } | Refusal::Unavailable { .. })
    }
}

/// Why the daemon ends a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Goodbye {
    /// The client broke the ring's or the messages' rules.
    #[error("the daemon dropped this client: {detail}")]
    Protocol {
        /// Which rule, with the values.
        detail: String,
    },
    /// The client's response ring stayed full.
    #[error("the daemon dropped this client because it did not read its answers")]
    TooSlow,
    /// The daemon stops.
    #[error("the daemon is stopping; reconnect later")]
    ShuttingDown {
        /// When a retry makes sense, milliseconds.
        retry_after_ms: Option<u32>,
    },
    /// An operator's rule or limit ended it.
    #[error("the daemon ended this connection: {reason}")]
    Evicted {
        /// Which rule.
        reason: String,
    },
}

impl Goodbye {
    /// Whether a new connection may go better.
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Goodbye::Protocol { .. })
    }
}

/// The daemon's packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// Accepted; four descriptors come with it: request memfd, response memfd,
    /// request doorbell, response doorbell.
    Welcome {
        request_capacity: u64,
        response_capacity: u64,
    },
    Refused(Refusal),
    Goodbye(Goodbye),
}

impl Message for Hello {
    const NAME: &'static str = "hello";
}

impl Message for Notice {
    const NAME: &'static str = "daemon's notice";
}

/// A packet taken from the socket.
#[derive(Debug)]
pub(crate) enum Packet<T> {
    /// A packet in our version.
    Body(T),
    /// A packet in another version, whose body may still be readable.
    OtherVersion { version: u32, body: Option<T> },
    /// A packet that is none.
    Malformed(String),
    /// Nothing yet.
    NotYet,
    /// The peer hung up.
    HangUp,
}

/// Sends one packet, with `fds` if there are any.
pub(crate) fn send_packet<T: Message>(
    socket: impl AsFd,
    body: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    send_packet_as(socket, ABI_VERSION, body, fds, flags)
}

pub(crate) fn send_packet_as<T: Message>(
    socket: impl AsFd,
    version: u32,
    body: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    body.encode(&mut bytes).map_err(|_| Errno::INVAL)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOMANYREFS);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(other) => return Err(other),
        }
    }
}

/// Takes one packet and the descriptors that came with it. Descriptors are
/// accepted only when `fds` is given; otherwise the kernel closes them.
pub(crate) fn recv_packet<T: Message>(
    socket: impl AsFd,
    fds: Option<&mut Vec<OwnedFd>>,
    flags: RecvFlags,
) -> Result<Packet<T>, Errno> {
    let mut bytes = [0u8; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = match fds {
        Some(_) => RecvAncillaryBuffer::new(&mut space),
        None => RecvAncillaryBuffer::default(),
    };
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut parts, &mut ancillary, flags) {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Packet::NotYet),
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Packet::HangUp),
            Err(other) => return Err(other),
        }
    };
    if let Some(fds) = fds {
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
    }
    if message.bytes == 0 {
        return Ok(Packet::HangUp);
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Packet::Malformed(format!("a packet longer than {MAX_PACKET} bytes")));
    }
    Ok(parse(&bytes[..message.bytes.min(MAX_PACKET)]))
}

fn parse<T: Message>(bytes: &[u8]) -> Packet<T> {
    let Some((envelope, body)) = bytes.split_at_checked(ENVELOPE) else {
        let len = bytes.len();
        return Packet::Malformed(format!("{len} bytes, at least {ENVELOPE} needed"));
    };
    let (magic, version) = envelope.split_at(MAGIC.len());
    if magic != MAGIC {
        return Packet::Malformed("it does not start with TANDEMhs".into());
    }
    let mut number = [0; 4];
    number.copy_from_slice(version);
    let version = u32::from_le_bytes(number);
    let body: Result<T, DecodeError> = T::decode(body);
    if version != ABI_VERSION {
        return Packet::OtherVersion { version, body: body.ok() };
    }
    match body {
        Ok(body) => Packet::Body(body),
        Err(error) => Packet::Malformed(error.to_string()),
    }
}

/// Cuts a text so that the packet it goes into stays below the limit.
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let cut = (0..=MAX_TEXT).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(cut.unwrap_or(0));
    }
    text
}

impl Refusal {
    pub(crate) fn bounded(self) -> Refusal {
        match self {
            Refusal::Forbidden { reason } => Refusal::Forbidden { reason: bounded(reason) },
            Refusal::Unavailable { reason, retry_after_ms } => {
                Refusal::Unavailable { reason: bounded(reason), retry_after_ms }
            }
            Refusal::Malformed { reason } => Refusal::Malformed { reason: bounded(reason) },
            short @ (Refusal::Version { .. } | Refusal::Quota { .. }) => short,
        }
    }
}

impl Goodbye {
    pub(crate) fn bounded(self) -> Goodbye {
        match self {
            Goodbye::Protocol { detail } => Goodbye::Protocol { detail: bounded(detail) },
            Goodbye::Evicted { reason } => Goodbye::Evicted { reason: bounded(reason) },
            short @ (Goodbye::TooSlow | Goodbye::ShuttingDown { .. }) => short,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_texts_fit_a_packet() {
        let long = "é".repeat(10_000);
        let notice = Notice::Goodbye(Goodbye::Protocol { detail: long }.bounded());
        let mut bytes = Vec::new();
        notice.encode(&mut bytes).unwrap();
        assert!(bytes.len() + ENVELOPE <= MAX_PACKET);
    }

    #[test]
    fn a_name_with_control_characters_is_no_name() {
        assert!(Hello::name_is_valid("com.example.agent"));
        for bad in ["", "a\nb", "\u{1b}[31m", &"x".repeat(65)] {
            assert!(!Hello::name_is_valid(bad), "{bad:?}");
        }
    }

    #[test]
    fn garbage_is_malformed_and_says_why() {
        for bytes in [&b"x"[..], b"GET / HTTP/1.1", b"TANDEMhs\x01\0\0\0\xff\xff"] {
            assert!(matches!(parse::<Hello>(bytes), Packet::Malformed(_)), "{bytes:?}");
        }
    }
}
