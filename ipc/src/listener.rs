//! The daemon's socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, lstat, open, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, shutdown, socket_with,
};

use crate::handshake::{Notice, Refusal, send_packet};
use crate::layout::{MAX_CAPACITY, MIN_CAPACITY, capacity_is_valid};
use crate::server::Handshake;

/// Longest socket path, bytes (`sun_path` less its terminator).
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// How long two daemons that start at once wait for each other's bind.
const BIND_WAIT: Duration = Duration::from_secs(2);

/// Data bytes of a connection's two rings. Memory is committed as it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSizes {
    /// Client to daemon. Default 4 MiB: a message up to 2 MiB.
    pub request: usize,
    /// Daemon to client. Default 1 MiB.
    pub response: usize,
}

impl Default for RingSizes {
    fn default() -> Self {
        RingSizes { request: 4 << 20, response: 1 << 20 }
    }
}

impl RingSizes {
    /// Checks that both are powers of two in range.
    pub fn validate(self) -> Result<(), ListenError> {
        for (ring, bytes) in [("request", self.request), ("response", self.response)] {
            if !capacity_is_valid(bytes) {
                return Err(ListenError::RingSize { ring, bytes });
            }
        }
        Ok(())
    }
}

/// Settings of a listener.
#[derive(Debug, Clone, Copy)]
pub struct ListenerConfig {
    /// Ring sizes of every connection.
    pub rings: RingSizes,
    /// Permission bits of the socket file. Default 0o660. Not used with
    /// [`Listener::from_fd`].
    pub mode: u32,
    /// Connections that may wait to be accepted. Default 128.
    pub backlog: i32,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        ListenerConfig { rings: RingSizes::default(), mode: 0o660, backlog: 128 }
    }
}

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A live daemon answers there.
    #[error("socket {} is in use by another daemon; stop it, or choose another --socket", path.display())]
    InUse {
        /// The path asked for.
        path: PathBuf,
    },
    /// Something else is there, and it is not deleted.
    #[error("{} exists and is no socket; remove it, or choose another --socket", path.display())]
    NotASocket {
        /// The path asked for.
        path: PathBuf,
    },
    /// The kernel's limit on socket paths.
    #[error("socket path {} has {len} bytes, at most {MAX_SOCKET_PATH} are possible; choose a shorter --socket", path.display())]
    PathTooLong {
        /// The path asked for.
        path: PathBuf,
        /// Its length.
        len: usize,
    },
    /// Another process keeps the socket's folder locked.
    #[error("folder {} stayed locked for 2 s while another daemon starts there; try again", path.display())]
    FolderLocked {
        /// The folder.
        path: PathBuf,
    },
    /// A ring size that cannot be.
    #[error("{ring} ring of {bytes} bytes: must be a power of two from {MIN_CAPACITY} to {MAX_CAPACITY}")]
    RingSize {
        /// Which ring.
        ring: &'static str,
        /// The size asked for.
        bytes: usize,
    },
    /// A descriptor that is not a listening SEQPACKET Unix socket.
    #[error("the inherited descriptor is no listening Unix SEQPACKET socket ({what}); fix the socket unit")]
    WrongDescriptor {
        /// What was found.
        what: String,
    },
    /// Any other failure.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Why no connection was accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// Out of descriptors or memory. One waiting client was told so; accept
    /// again after a while, or raise `RLIMIT_NOFILE`.
    #[error("no descriptors left for a new client ({0}); raise RLIMIT_NOFILE or lower the client limit")]
    Exhausted(std::io::Error),
    /// Any other failure of `accept`.
    #[error("accepting a client: {0}")]
    Io(std::io::Error),
}

/// The listening socket. Non-blocking: wait for it to be readable, then
/// [`accept`](Listener::accept) until `None`.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    rings: RingSizes,
    /// The file to remove at the end: its path, device and inode.
    file: Option<(PathBuf, u64, u64)>,
    /// Given up for a moment to tell a client that descriptors are exhausted.
    spare: Mutex<Option<OwnedFd>>,
}

impl Listener {
    /// Creates the socket file at `path` and listens. A socket file that no
    /// process listens on is replaced.
    pub fn bind(path: impl AsRef<Path>, config: ListenerConfig) -> Result<Listener, ListenError> {
        let path = path.as_ref();
        config.rings.validate()?;
        let io =
            |what| move |errno: Errno| ListenError::Io { what, path: path.to_owned(), source: errno.into() };
        let address = address(path)?;
        let socket = seqpacket(SocketFlags::NONBLOCK).map_err(io("creating socket"))?;
        // Probe, removal and bind must not interleave with another daemon's.
        let _lock = lock_folder(path)?;
        remove_stale(path, &address)?;
        bind(&socket, &address).map_err(io("binding socket"))?;
        let mode = Mode::from_raw_mode(config.mode & 0o777);
        rustix::fs::chmod(path, mode).map_err(io("setting the mode of socket"))?;
        let found = lstat(path).map_err(io("reading back socket"))?;
        listen(&socket, config.backlog).map_err(io("listening on socket"))?;
        let file = Some((path.to_owned(), found.st_dev, found.st_ino));
        Ok(Listener::new(socket, config.rings, file))
    }

    /// Adopts a socket that is listening already (systemd's `LISTEN_FDS`,
    /// Android's `socket` option). Its file is left alone at the end.
    pub fn from_fd(socket: OwnedFd, config: ListenerConfig) -> Result<Listener, ListenError> {
        use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
        config.rings.validate()?;
        let wrong = |what: String| ListenError::WrongDescriptor { what };
        let io = |errno: Errno| wrong(errno.to_string());
        if socket_domain(&socket).map_err(io)? != AddressFamily::UNIX {
            return Err(wrong("not a Unix socket".into()));
        }
        if socket_type(&socket).map_err(io)? != SocketType::SEQPACKET {
            return Err(wrong("not SEQPACKET".into()));
        }
        if !socket_acceptconn(&socket).map_err(io)? {
            return Err(wrong("not listening".into()));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(io)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(io)?;
        Ok(Listener::new(socket, config.rings, None))
    }

    fn new(socket: OwnedFd, rings: RingSizes, file: Option<(PathBuf, u64, u64)>) -> Listener {
        Listener { socket, rings, file, spare: Mutex::new(spare_descriptor()) }
    }

    /// The next client that wants to connect, or `None`. Never blocks.
    pub fn accept(&self) -> Result<Option<Handshake>, AcceptError> {
        loop {
            match accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    return Handshake::new(socket, self.rings).map(Some).map_err(AcceptError::Io);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    self.refuse_one();
                    return Err(AcceptError::Exhausted(errno.into()));
                }
                Err(other) => return Err(AcceptError::Io(other.into())),
            }
        }
    }

    /// Uses the spare descriptor to tell one waiting client why it gets none.
    fn refuse_one(&self) {
        let mut spare = self.spare.lock().unwrap_or_else(|held| held.into_inner());
        *spare = None;
        if let Ok(socket) = accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            // Closing a socket with unread packets would discard ours: refuse
            // further ones, drop those that came. All of it is best effort for
            // a client that is being turned away.
            let _ = shutdown(&socket, Shutdown::Read);
            let mut scratch = [0u8; 16];
            let _ = recv(&socket, &mut scratch[..], RecvFlags::DONTWAIT);
            let refusal = Refusal::Unavailable {
                reason: "the daemon has no descriptors left".into(),
                retry_after_ms: Some(1000),
            };
            let _ = send_packet(&socket, &Notice::Refused(refusal), &[], SendFlags::DONTWAIT);
        }
        *spare = spare_descriptor();
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, device, inode)) = &self.file else {
            return;
        };
        // Another daemon's socket may have taken the path since.
        if lstat(path).is_ok_and(|found| found.st_dev == *device && found.st_ino == *inode) {
            // A file that stays behind is replaced by the next daemon.
            let _ = unlink(path);
        }
    }
}

pub(crate) fn seqpacket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

fn address(path: &Path) -> Result<SocketAddrUnix, ListenError> {
    let len = path.as_os_str().len();
    if len > MAX_SOCKET_PATH {
        return Err(ListenError::PathTooLong { path: path.to_owned(), len });
    }
    SocketAddrUnix::new(path).map_err(|errno| ListenError::Io {
        what: "using as a socket path",
        path: path.to_owned(),
        source: errno.into(),
    })
}

/// Locks the folder of `path` until the value is dropped.
fn lock_folder(path: &Path) -> Result<OwnedFd, ListenError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let io =
        |what| move |errno: Errno| ListenError::Io { what, path: folder.to_owned(), source: errno.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = open(folder, flags, Mode::empty()).map_err(io("opening the socket's folder"))?;
    let start = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if start.elapsed() < BIND_WAIT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(ListenError::FolderLocked { path: folder.to_owned() });
            }
            Err(other) => return Err(io("locking the socket's folder")(other)),
        }
    }
}

/// Removes a socket file that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let io = |what| move |errno: Errno| ListenError::Io { what, path: path.to_owned(), source: errno.into() };
    let in_use = || ListenError::InUse { path: path.to_owned() };
    match lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(other) => return Err(io("looking for socket")(other)),
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
            return Err(ListenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let probe = seqpacket(SocketFlags::NONBLOCK).map_err(io("creating socket"))?;
    match connect(&probe, address) {
        // A full backlog (AGAIN) or another socket type (PROTOTYPE) is alive too.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(in_use()),
        Err(Errno::CONNREFUSED) => unlink(path).map_err(io("removing stale socket")),
        Err(Errno::NOENT) => Ok(()),
        Err(other) => Err(io("probing socket")(other)),
    }
}

fn spare_descriptor() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    open("/dev/null", flags, Mode::empty()).ok()
}
