//! The client's half of a connection.
//!
//! The daemon is trusted more than a client is, but its memory is read through
//! the same checks: a daemon's fault must not become an app's crash.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, connect, shutdown};

use crate::channel::{Receiver, RecvError, SendError, Sender};
use crate::doorbell::{Ringer, Wake, Watch};
use crate::handshake::{Goodbye, Hello, Notice, Packet, Refusal, recv_packet, send_packet};
use crate::layout::{ABI_VERSION, Direction, WORD, capacity_is_valid, header, region_bytes};
use crate::listener::{RingSizes, seqpacket};
use crate::memfd::size_is_sealed;
use crate::message::{ClientMessage, ServerMessage};
use crate::region::{OwnRegion, Region};
use crate::ring::{Consumer, Producer};
use crate::server::ClientEnds;
use crate::words::Words;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there.
    #[error("no daemon listens on {} ({source}); start tandemd, or check the socket path", path.display())]
    NoDaemon {
        /// The path tried.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The socket file's permissions forbid it.
    #[error("no permission to use {}; add this user to the socket's group", path.display())]
    Permission {
        /// The path tried.
        path: PathBuf,
    },
    /// The daemon said no.
    #[error("the daemon at {} refused: {refusal}", path.display())]
    Refused {
        /// The path tried.
        path: PathBuf,
        /// Its reason.
        refusal: Refusal,
    },
    /// The daemon did not answer in time.
    #[error("the daemon at {} did not answer within {} ms; it may be stuck, see its log", path.display(), timeout.as_millis())]
    Timeout {
        /// The path tried.
        path: PathBuf,
        /// The time allowed.
        timeout: Duration,
    },
    /// What came back is no handshake of ours.
    #[error("the process at {} is no matching daemon: {what}", path.display())]
    BadHandshake {
        /// The path tried.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// The app's name cannot be used.
    #[error("app name of {len} bytes: 1 to 64 bytes without control characters are allowed")]
    AppName {
        /// Its length.
        len: usize,
    },
    /// Any other failure.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The path tried.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl ConnectError {
    /// Whether trying again later may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            ConnectError::NoDaemon { .. } | ConnectError::Timeout { .. } => true,
            ConnectError::Refused { refusal, .. } => refusal.is_retryable(),
            _ => false,
        }
    }
}

/// The daemon ended the connection, or died.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It hung up without a word: it died, or was killed.
    #[error("the daemon is gone; the request may be sent again after a reconnect")]
    DaemonGone,
    /// It said why.
    #[error(transparent)]
    Goodbye(Goodbye),
}

/// Why waiting for a message failed. Each of these ends the connection.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The ring or a message is broken.
    #[error(transparent)]
    Recv(#[from] RecvError),
    /// The daemon is gone, and every message it left has been received.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The wait itself failed.
    #[error("waiting for the daemon: {0}")]
    Io(std::io::Error),
}

/// What does not belong to a ring: the wait, and the life line. Dropping it is
/// the hang-up.
#[derive(Debug)]
pub struct Link {
    watch: Watch,
    life_line: OwnedFd,
}

impl Link {
    /// Waits until the doorbell rings, the daemon hangs up or `timeout` is over.
    /// One thread at a time: a ring wakes one waiter.
    pub fn wait(&self, timeout: Option<Duration>) -> std::io::Result<Wake> {
        self.watch.wait(timeout).map_err(Into::into)
    }

    /// What the daemon left on the life line; `None` while it lives.
    pub fn farewell(&self) -> Option<Lost> {
        match recv_packet::<Notice>(&self.life_line, None, RecvFlags::DONTWAIT) {
            Ok(Packet::NotYet) => None,
            Ok(Packet::Body(Notice::Goodbye(goodbye))) => Some(Lost::Goodbye(goodbye)),
            Ok(_) | Err(_) => Some(Lost::DaemonGone),
        }
    }

    /// Hangs up while another thread may be waiting, which wakes it.
    pub fn hang_up(&self) {
        // Fails only when the daemon hung up first, which is the same thing.
        let _ = shutdown(&self.life_line, Shutdown::Both);
    }
}

impl AsFd for Link {
    /// Readable when the doorbell rang or the daemon hung up: one descriptor
    /// for an event loop. After it was readable, call `wait` with a timeout of
    /// zero to reset it, then receive until `None`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Connection {
    sender: Sender<ClientMessage>,
    receiver: Receiver<ServerMessage>,
    link: Link,
}

impl Connection {
    /// Connects to the daemon at `path` as `app`. `timeout` bounds each step of
    /// the handshake.
    pub fn connect(path: impl AsRef<Path>, app: &str, timeout: Duration) -> Result<Connection, ConnectError> {
        let path = path.as_ref();
        if !Hello::name_is_valid(app) {
            return Err(ConnectError::AppName { len: app.len() });
        }
        let socket = dial(path, timeout)?;
        let hello = Hello { app: app.to_owned() };
        match send_packet(&socket, &hello, &[], SendFlags::empty()) {
            // After EPIPE a refusal may still be waiting to be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(other) => return Err(io(path, "greeting the daemon at", other)),
        }
        let (ends, rings) = receive_welcome(&socket, path, timeout)?;
        Connection::from_ends(socket, ends, rings)
            .map_err(|what| ConnectError::BadHandshake { path: path.to_owned(), what })
    }

    /// Makes a connection of descriptors that came by another way (Binder on
    /// Android); the counterpart of `server::Connection::create`.
    ///
    /// # Errors
    /// What was wrong with the descriptors.
    pub fn from_ends(life_line: OwnedFd, ends: ClientEnds, rings: RingSizes) -> Result<Connection, String> {
        check_region(&ends.request, Direction::Request, rings.request)?;
        check_region(&ends.response, Direction::Response, rings.response)?;
        let system = |errno: Errno| format!("mapping its rings: {errno}");
        let own = Arc::new(OwnRegion::map(&ends.request, region_bytes(rings.request)).map_err(system)?);
        let peers = Arc::new(Region::map(&ends.response, region_bytes(rings.response)).map_err(system)?);
        let watch = Watch::new(ends.response_bell, &life_line)
            .map_err(|errno| format!("watching its doorbell: {errno}"))?;
        let ringer = Arc::new(Ringer::new(ends.request_bell));
        let producer = Producer::new(Direction::Request, rings.request, Arc::clone(&own), Arc::clone(&peers));
        let consumer = Consumer::new(Direction::Response, rings.response, own, peers);
        Ok(Connection {
            sender: Sender::new(producer, Arc::clone(&ringer)),
            receiver: Receiver::new(consumer, ringer),
            link: Link { watch, life_line },
        })
    }

    /// Sends a message; see [`Sender::send`]. Never blocks.
    pub fn send(&mut self, message: &ClientMessage) -> Result<(), SendError> {
        self.sender.send(message)
    }

    /// The next message that is there already; see [`Receiver::recv`].
    pub fn recv(&mut self) -> Result<Option<ServerMessage>, RecvError> {
        self.receiver.recv()
    }

    /// Waits for the next message, at most `timeout` (`None`: until it comes or
    /// the daemon is gone). `Ok(None)` means that the time is over.
    pub fn recv_wait(&mut self, timeout: Option<Duration>) -> Result<Option<ServerMessage>, WaitError> {
        recv_wait(&mut self.receiver, &self.link, timeout, || {})
    }

    /// The wait and the life line.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The parts, for threads of their own.
    pub fn split(self) -> (Sender<ClientMessage>, Receiver<ServerMessage>, Link) {
        (self.sender, self.receiver, self.link)
    }
}

/// [`Connection::recv_wait`] on the parts of a connection. `on_bell` is called
/// whenever the doorbell rang, which may also mean that there is room to send.
pub fn recv_wait(
    receiver: &mut Receiver<ServerMessage>,
    link: &Link,
    timeout: Option<Duration>,
    mut on_bell: impl FnMut(),
) -> Result<Option<ServerMessage>, WaitError> {
    let start = Instant::now();
    loop {
        if let Some(message) = receiver.take()? {
            return Ok(Some(message));
        }
        if receiver.settle() {
            continue;
        }
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        match link.wait(left).map_err(WaitError::Io)? {
            Wake::Bell => on_bell(),
            Wake::Timeout => return Ok(receiver.take()?),
            Wake::LifeLine => {
                // What it sent before it went still counts, and comes first.
                if let Some(message) = receiver.take()? {
                    return Ok(Some(message));
                }
                if let Some(lost) = link.farewell() {
                    return Err(lost.into());
                }
            }
        }
    }
}

fn io(path: &Path, what: &'static str, errno: Errno) -> ConnectError {
    ConnectError::Io { what, path: path.to_owned(), source: errno.into() }
}

fn dial(path: &Path, timeout: Duration) -> Result<OwnedFd, ConnectError> {
    let socket = seqpacket(SocketFlags::empty()).map_err(|errno| io(path, "creating a socket for", errno))?;
    for direction in [Timeout::Recv, Timeout::Send] {
        // A zero timeout would mean none.
        let limit = timeout.max(Duration::from_millis(1));
        set_socket_timeout(&socket, direction, Some(limit))
            .map_err(|errno| io(path, "setting a timeout for", errno))?;
    }
    let address = SocketAddrUnix::new(path).map_err(|errno| io(path, "connecting to", errno))?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(errno @ (Errno::NOENT | Errno::CONNREFUSED)) => {
                return Err(ConnectError::NoDaemon { path: path.to_owned(), source: errno.into() });
            }
            Err(Errno::ACCESS | Errno::PERM) => {
                return Err(ConnectError::Permission { path: path.to_owned() });
            }
            Err(Errno::AGAIN) => {
                return Err(ConnectError::Timeout { path: path.to_owned(), timeout });
            }
            Err(Errno::PROTOTYPE) => {
                return Err(ConnectError::BadHandshake {
                    path: path.to_owned(),
                    what: "its socket is not of type SEQPACKET".into(),
                });
            }
            Err(other) => return Err(io(path, "connecting to", other)),
        }
    }
}

fn receive_welcome(
    socket: &OwnedFd,
    path: &Path,
    timeout: Duration,
) -> Result<(ClientEnds, RingSizes), ConnectError> {
    let bad = |what: String| ConnectError::BadHandshake { path: path.to_owned(), what };
    let mut fds = Vec::new();
    let packet = recv_packet::<Notice>(socket, Some(&mut fds), RecvFlags::empty())
        .map_err(|errno| io(path, "waiting for the daemon at", errno))?;
    let (request, response) = match packet {
        Packet::Body(Notice::Welcome { request_capacity, response_capacity }) => {
            (request_capacity, response_capacity)
        }
        Packet::Body(Notice::Refused(refusal))
        | Packet::OtherVersion { body: Some(Notice::Refused(refusal)), .. } => {
            return Err(ConnectError::Refused { path: path.to_owned(), refusal });
        }
        Packet::Body(Notice::Goodbye(goodbye)) => return Err(bad(goodbye.to_string())),
        Packet::OtherVersion { version, .. } => {
            return Err(ConnectError::Refused {
                path: path.to_owned(),
                refusal: Refusal::Version { daemon: version, client: ABI_VERSION },
            });
        }
        Packet::Malformed(reason) => return Err(bad(reason)),
        Packet::HangUp => {
            return Err(ConnectError::NoDaemon { path: path.to_owned(), source: Errno::CONNRESET.into() });
        }
        Packet::NotYet => {
            return Err(ConnectError::Timeout { path: path.to_owned(), timeout });
        }
    };
    let count = fds.len();
    let Ok([request_fd, response_fd, request_bell, response_bell]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err(bad(format!(
            "it passed {count} descriptors of 4; this process may be out of descriptors"
        )));
    };
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Ok((
        ClientEnds { request: request_fd, response: response_fd, request_bell, response_bell },
        RingSizes { request: size(request), response: size(response) },
    ))
}

fn check_region(fd: &OwnedFd, direction: Direction, capacity: usize) -> Result<(), String> {
    let ring = direction.name();
    if !capacity_is_valid(capacity) {
        return Err(format!("its {ring} ring has a size of {capacity} bytes"));
    }
    let system = |errno: Errno| format!("looking at its {ring} ring: {errno}");
    let bytes = region_bytes(capacity);
    let found = fstat(fd).map_err(system)?.st_size;
    if u64::try_from(found).unwrap_or(0) < bytes as u64 {
        return Err(format!("its {ring} ring has {found} bytes of {bytes}"));
    }
    if !size_is_sealed(fd).map_err(system)? {
        return Err(format!("its {ring} ring is not sealed against shrinking"));
    }
    let expected = header(direction, capacity);
    let region = Region::map(fd, expected.len() * WORD).map_err(system)?;
    for (at, expected) in expected.into_iter().enumerate() {
        let word = region.load(at, std::sync::atomic::Ordering::Relaxed);
        if word != expected {
            return Err(format!("word {at} of its {ring} ring is {word:#x}, expected {expected:#x}"));
        }
    }
    Ok(())
}
