//! Doorbells: an eventfd each way, which the writer rings only when the reader
//! said it sleeps (`ring.rs`).
//!
//! The two are not alike, because `O_NONBLOCK` belongs to the open file that
//! both processes share. A client that holds the daemon's eventfd could clear
//! the flag, fill the counter, and the daemon's next `write` would block for as
//! long as the client likes. So:
//!
//! - *Request doorbell* (client rings, daemon waits): a plain eventfd that the
//!   client writes. The daemon never uses a call that can block on it: it waits
//!   edge-triggered and has nothing to read, or reads with `RWF_NOWAIT`.
//! - *Response doorbell* (daemon rings, client waits): the daemon keeps the
//!   eventfd to itself. The client gets an epoll descriptor that watches it,
//!   edge-triggered, so the client can wait for the bell and never touch it.
//!   The client adds its life line to the same epoll and waits for one thing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::{Errno, write};

use crate::nowait::read_word;

/// Who woke the waiter: the bell.
const BELL: u64 = 0;
/// Who woke the waiter: the life line.
const LIFE_LINE: u64 = 1;

/// The right to ring one doorbell.
#[derive(Debug)]
pub(crate) struct Ringer {
    eventfd: OwnedFd,
}

impl Ringer {
    pub(crate) fn new(eventfd: OwnedFd) -> Ringer {
        Ringer { eventfd }
    }

    /// Wakes the reader. Never blocks (see the module's text); a counter that is
    /// full has been rung already.
    pub(crate) fn ring(&self) -> rustix::io::Result<()> {
        loop {
            match write(&self.eventfd, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(other) => return Err(other),
            }
        }
    }
}

/// An eventfd for the request direction.
pub(crate) fn request_bell() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Resets a request doorbell that became readable.
pub(crate) fn clear(bell: impl AsFd) -> rustix::io::Result<()> {
    match read_word(bell) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(other) => Err(other),
    }
}

/// The daemon's ringer of a response doorbell, and the descriptor for the client.
pub(crate) fn response_bell() -> rustix::io::Result<(Ringer, OwnedFd)> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let watch = watching(&bell)?;
    Ok((Ringer::new(bell), watch))
}

/// An epoll that becomes readable at each ring of `bell`.
fn watching(bell: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&watch, bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    Ok(watch)
}

/// A timeout as the kernel takes it.
fn timespec(timeout: Duration) -> Timespec {
    Timespec { tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64, tv_nsec: timeout.subsec_nanos().into() }
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The doorbell rang: look at the ring (and retry what did not fit).
    Bell,
    /// The life line has something to say: the peer is going or gone.
    LifeLine,
    /// The time is over.
    Timeout,
}

/// A doorbell and a life line, waited for together.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    /// Adds the life line to the epoll the daemon made.
    pub(crate) fn new(epoll: OwnedFd, life_line: &OwnedFd) -> rustix::io::Result<Watch> {
        epoll::add(
            &epoll,
            life_line,
            epoll::EventData::new_u64(LIFE_LINE),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        )?;
        Ok(Watch { epoll })
    }

    /// A wait of the daemon's for one client.
    pub(crate) fn over(bell: &OwnedFd, life_line: &OwnedFd) -> rustix::io::Result<Watch> {
        Watch::new(watching(bell)?, life_line)
    }

    /// Waits for the bell or the life line, at most `timeout` (`None`: until one
    /// of them speaks, which the kernel does for a peer that dies).
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> rustix::io::Result<Wake> {
        let limit = timeout.map(timespec);
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        let (ready, _) = match epoll::wait(&self.epoll, &mut events[..], limit.as_ref()) {
            // A signal is a spurious bell: the caller looks and waits again.
            Err(Errno::INTR) => return Ok(Wake::Bell),
            other => other?,
        };
        let mut wake = Wake::Timeout;
        for event in ready {
            let data = event.data;
            if data.u64() == BELL {
                // Frames first: the answer may have come before the hang-up.
                return Ok(Wake::Bell);
            }
            wake = Wake::LifeLine;
        }
        Ok(wake)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn readable(fd: impl AsFd) -> bool {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_ring_wakes_the_client_once() {
        let (ringer, watch) = response_bell().unwrap();
        let (ours, _theirs) = pair();
        let watch = Watch::new(watch, &ours).unwrap();
        let now = Some(Duration::ZERO);
        assert_eq!(watch.wait(now).unwrap(), Wake::Timeout);
        for _ in 0..2 {
            ringer.ring().unwrap();
            assert!(readable(watch.as_fd()));
            assert_eq!(watch.wait(now).unwrap(), Wake::Bell);
            assert!(!readable(watch.as_fd()));
            assert_eq!(watch.wait(now).unwrap(), Wake::Timeout);
        }
    }

    #[test]
    fn a_hang_up_wakes_the_client() {
        let (_ringer, watch) = response_bell().unwrap();
        let (ours, theirs) = pair();
        let watch = Watch::new(watch, &ours).unwrap();
        drop(theirs);
        assert_eq!(watch.wait(None).unwrap(), Wake::LifeLine);
    }

    #[test]
    fn clearing_a_bell_that_a_client_made_blocking_does_not_block() {
        let bell = request_bell().unwrap();
        let client = bell.try_clone().unwrap();
        fcntl_setfl(&client, OFlags::empty()).unwrap();
        clear(&bell).unwrap();
        write(&client, &1u64.to_ne_bytes()).unwrap();
        assert!(readable(&bell));
        clear(&bell).unwrap();
        assert!(!readable(&bell));
    }

    #[test]
    fn ringing_a_full_counter_counts_as_rung() {
        let bell = request_bell().unwrap();
        write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        Ringer::new(bell.try_clone().unwrap()).ring().unwrap();
        assert!(readable(&bell));
    }
}
