//! Who is at the other end of a socket, as the kernel tells it.

use std::os::fd::{AsFd, AsRawFd};

/// The credentials a client had when it connected (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerCredentials {
    /// Process id; 0 when the peer lives in a pid namespace we cannot see.
    pub pid: i32,
    /// Effective user id: the key for quotas.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl PeerCredentials {
    /// Asks the kernel about the peer of `socket`.
    pub fn of(socket: impl AsFd) -> std::io::Result<PeerCredentials> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // rustix's `socket_peercred` has a non-zero pid type, which a peer from
        // a foreign pid namespace (pid 0) would make invalid.
        // SAFETY: `credentials` and `len` are live locals of the sizes passed;
        // `socket` is open for the length of the borrow.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(PeerCredentials { pid: credentials.pid, uid: credentials.uid, gid: credentials.gid })
    }
}
