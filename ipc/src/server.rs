//! The daemon's half of a connection.
//!
//! ```text
//! Listener --accept--> Handshake --poll--> Hello --accept--> Connection
//!                                             \--refuse--> (typed message, closed)
//! ```
//!
//! Nothing here blocks except [`Connection::wait`]. The descriptors to register:
//!
//! | descriptor | interest | when ready |
//! | --- | --- | --- |
//! | `Listener` | readable | `accept` until `None` |
//! | `Handshake` | readable | `poll`; give up on it after a deadline |
//! | `Connection::doorbell` | readable, edge-triggered | `recv` until `None`; retry sends that were full |
//! | `Connection::life_line` | `EPOLLRDHUP`, edge-triggered | `check_alive` |
//!
//! With level triggering, call `clear_doorbell` first. A client may send as fast
//! as it is read: take a bounded number of messages a turn and come back to it
//! after the others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};

use crate::channel::{Receiver, RecvError, SendError, Sender};
use crate::doorbell::{self, Watch};
use crate::handshake::{Goodbye, Hello, Notice, Packet, Refusal, recv_packet, send_packet};
use crate::layout::{ABI_VERSION, Direction};
use crate::memfd::Regions;
use crate::message::{ClientMessage, ServerMessage};
use crate::peer::PeerCredentials;
use crate::ring::{Consumer, Producer};

pub use crate::doorbell::Wake;
pub use crate::listener::{AcceptError, ListenError, Listener, ListenerConfig, RingSizes};

/// Why a client that connected did not become a connection. It has been told,
/// where it still listens.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// It hung up first.
    #[error("the client hung up during the handshake")]
    HangUp,
    /// It was refused for its first packet.
    #[error("refused a client: {0}")]
    Refused(Refusal),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

fn io(what: &'static str) -> impl Fn(Errno) -> HandshakeError {
    move |errno| HandshakeError::Io { what, source: errno.into() }
}

/// A client that connected and has not been accepted yet.
#[derive(Debug)]
pub struct Handshake {
    socket: OwnedFd,
    peer: PeerCredentials,
    rings: RingSizes,
    hello: Option<Hello>,
}

impl Handshake {
    pub(crate) fn new(socket: OwnedFd, rings: RingSizes) -> std::io::Result<Handshake> {
        let peer = PeerCredentials::of(&socket)?;
        Ok(Handshake { socket, peer, rings, hello: None })
    }

    /// Who connected, according to the kernel.
    pub fn peer(&self) -> PeerCredentials {
        self.peer
    }

    /// The client's hello, or `None` while it has not come. A client of another
    /// version, or one that speaks nonsense, is refused here.
    pub fn poll(&mut self) -> Result<Option<&Hello>, HandshakeError> {
        if self.hello.is_some() {
            return Ok(self.hello.as_ref());
        }
        let packet = recv_packet::<Hello>(&self.socket, None, RecvFlags::DONTWAIT)
            .map_err(io("reading a client's hello"))?;
        let refusal = match packet {
            Packet::NotYet => return Ok(None),
            Packet::HangUp => return Err(HandshakeError::HangUp),
            Packet::Body(hello) if Hello::name_is_valid(&hello.app) => {
                self.hello = Some(hello);
                return Ok(self.hello.as_ref());
            }
            Packet::Body(hello) => Refusal::Malformed {
                reason: format!(
                    "app name of {} bytes; 1 to {} bytes without control characters are allowed",
                    hello.app.len(),
                    crate::handshake::MAX_APP_NAME
                ),
            },
            Packet::OtherVersion { version, .. } => Refusal::Version { daemon: ABI_VERSION, client: version },
            Packet::Malformed(reason) => Refusal::Malformed { reason },
        };
        self.send_refusal(refusal.clone());
        Err(HandshakeError::Refused(refusal))
    }

    /// Turns the client away with a reason.
    pub fn refuse(self, refusal: Refusal) {
        self.send_refusal(refusal);
    }

    fn send_refusal(&self, refusal: Refusal) {
        // A client that is gone already needs no reason.
        let notice = Notice::Refused(refusal.bounded());
        let _ = send_packet(&self.socket, &notice, &[], SendFlags::DONTWAIT);
    }

    /// Makes the rings and hands the client its ends. Call after
    /// [`poll`](Handshake::poll) returned the hello.
    pub fn accept(self) -> Result<Connection, HandshakeError> {
        let Some(hello) = self.hello else {
            return Err(HandshakeError::Io {
                what: "accepting a client before its hello",
                source: Errno::INVAL.into(),
            });
        };
        let (connection, ends) = match Connection::create(self.peer, hello.app, self.socket, self.rings) {
            Ok(made) => made,
            Err((socket, source)) => {
                let refusal = Refusal::Unavailable {
                    reason: format!("making its rings: {source}"),
                    retry_after_ms: Some(1000),
                };
                let notice = Notice::Refused(refusal.bounded());
                let _ = send_packet(&socket, &notice, &[], SendFlags::DONTWAIT);
                return Err(HandshakeError::Io { what: "making a client's rings", source });
            }
        };
        let fds = [
            ends.request.as_fd(),
            ends.response.as_fd(),
            ends.request_bell.as_fd(),
            ends.response_bell.as_fd(),
        ];
        let welcome = Notice::Welcome {
            request_capacity: self.rings.request as u64,
            response_capacity: self.rings.response as u64,
        };
        match send_packet(&connection.link.life_line, &welcome, &fds, SendFlags::DONTWAIT) {
            Ok(()) => Ok(connection),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(HandshakeError::HangUp),
            Err(other) => Err(io("sending a client its descriptors")(other)),
        }
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The client's four descriptors, in the order in which they are passed.
#[derive(Debug)]
pub struct ClientEnds {
    /// memfd of the request region: the client writes it.
    pub request: OwnedFd,
    /// memfd of the response region: the client can only read it.
    pub response: OwnedFd,
    /// eventfd that the client rings.
    pub request_bell: OwnedFd,
    /// epoll that watches the daemon's eventfd.
    pub response_bell: OwnedFd,
}

/// The client is gone, or broke the silence of the life line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// It closed its end or died.
    #[error("the client hung up")]
    HangUp,
    /// It wrote to the socket after the handshake, which no client does.
    #[error("the client wrote to its life line, which carries nothing after the handshake")]
    Spoke,
}

/// What does not belong to a ring: the two descriptors and the client's name.
/// Dropping it is the hang-up.
#[derive(Debug)]
pub struct Link {
    life_line: OwnedFd,
    bell: OwnedFd,
    peer: PeerCredentials,
    app: String,
}

impl Link {
    /// Who the client is, according to the kernel.
    pub fn peer(&self) -> PeerCredentials {
        self.peer
    }

    /// What the client calls itself. Not a proof of anything.
    pub fn app(&self) -> &str {
        &self.app
    }

    /// Becomes readable when the client rings.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Hangs up when the client is gone.
    pub fn life_line(&self) -> BorrowedFd<'_> {
        self.life_line.as_fd()
    }

    /// Resets the doorbell; needed with level-triggered waiting only. Call it
    /// before `recv`, never after.
    pub fn clear_doorbell(&self) -> std::io::Result<()> {
        doorbell::clear(&self.bell).map_err(Into::into)
    }

    /// Whether the client still holds its end.
    pub fn check_alive(&self) -> Result<(), Gone> {
        let mut byte = [0u8; 1];
        match recv(&self.life_line, &mut byte[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok((_, 0)) | Err(_) => Err(Gone::HangUp),
            Ok(_) => Err(Gone::Spoke),
        }
    }

    /// Tells the client why the connection ends, and hangs up.
    pub fn close(self, goodbye: Goodbye) {
        // Best effort: a client that is gone, or whose socket is full, sees the
        // hang-up alone.
        let notice = Notice::Goodbye(goodbye.bounded());
        let _ = send_packet(&self.life_line, &notice, &[], SendFlags::DONTWAIT);
    }
}

/// One client, as the daemon sees it.
#[derive(Debug)]
pub struct Connection {
    sender: Sender<ServerMessage>,
    receiver: Receiver<ClientMessage>,
    link: Link,
    /// Made by the first `wait`.
    watch: Option<Watch>,
}

impl Connection {
    /// Makes a connection without a handshake of ours, for a transport that
    /// brings its own (Binder on Android): `life_line` is one end of a
    /// socketpair whose other end the client gets with the [`ClientEnds`].
    ///
    /// # Errors
    /// Gives the life line back with the system's reason.
    pub fn create(
        peer: PeerCredentials,
        app: String,
        life_line: OwnedFd,
        rings: RingSizes,
    ) -> Result<(Connection, ClientEnds), (OwnedFd, std::io::Error)> {
        let made = rings.validate().map_err(|_| Errno::INVAL).and_then(|()| {
            let regions = Regions::create(rings.request, rings.response)?;
            let bell = doorbell::request_bell()?;
            let request_bell = rustix::io::fcntl_dupfd_cloexec(&bell, 0)?;
            let (ringer, response_bell) = doorbell::response_bell()?;
            Ok((regions, bell, request_bell, ringer, response_bell))
        });
        let (regions, bell, request_bell, ringer, response_bell) = match made {
            Ok(made) => made,
            Err(errno) => return Err((life_line, errno.into())),
        };
        let own = Arc::new(regions.response);
        let peers = Arc::new(regions.request);
        let ringer = Arc::new(ringer);
        let producer =
            Producer::new(Direction::Response, rings.response, Arc::clone(&own), Arc::clone(&peers));
        let consumer = Consumer::new(Direction::Request, rings.request, own, peers);
        let connection = Connection {
            sender: Sender::new(producer, Arc::clone(&ringer)),
            receiver: Receiver::new(consumer, ringer),
            link: Link { life_line, bell, peer, app },
            watch: None,
        };
        let ends = ClientEnds {
            request: regions.request_fd,
            response: regions.response_fd,
            request_bell,
            response_bell,
        };
        Ok((connection, ends))
    }

    /// Who the client is, and the descriptors to wait for.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The next message; see [`Receiver::recv`]. Any error means: drop this
    /// client, no other is concerned.
    pub fn recv(&mut self) -> Result<Option<ClientMessage>, RecvError> {
        self.receiver.recv()
    }

    /// Sends a message; see [`Sender::send`].
    pub fn send(&mut self, message: &ServerMessage) -> Result<(), SendError> {
        self.sender.send(message)
    }

    /// Waits for the client to ring or to go, at most `timeout` (`None`: no
    /// limit). For a thread that serves this client alone.
    pub fn wait(&mut self, timeout: Option<Duration>) -> std::io::Result<Wake> {
        if self.receiver.settle() {
            return Ok(Wake::Bell);
        }
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none => none.insert(Watch::over(&self.link.bell, &self.link.life_line)?),
        };
        watch.wait(timeout).map_err(Into::into)
    }

    /// Tells the client why the connection ends, and hangs up.
    pub fn close(self, goodbye: Goodbye) {
        self.link.close(goodbye);
    }

    /// The parts, for threads of their own.
    pub fn split(self) -> (Sender<ServerMessage>, Receiver<ClientMessage>, Link) {
        (self.sender, self.receiver, self.link)
    }
}
