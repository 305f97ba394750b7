//! What starts the daemon and watches it: systemd or Android's init. Sockets it hands over,
//! states it is told, and the watchdog that it kept alive only while both threads answer.

use crate::front::{Order, Orders};
use crate::scheduler::Command;
use sd_notify::NotifyState;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The socket that the supervisor made for us, taken out of the environment. Call once,
/// before there are threads.
pub fn inherited_socket() -> Option<OwnedFd> {
    let fds = sd_notify::listen_fds().ok().into_iter().flatten();
    // Android's init names the descriptor after the socket of the .rc file.
    let android = std::env::var("ANDROID_SOCKET_tandemd").ok().and_then(|fd| fd.parse().ok());
    let fd = fds.chain(android).next().filter(|fd| *fd > 2)?;
    // SAFETY: the supervisor opened this descriptor for this process (LISTEN_PID was checked by
    // the library, init sets the other variable), and nothing else takes it: this runs once.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Tells the supervisor, if there is one.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot tell the supervisor");
    }
}

/// The daemon serves.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The settings are being read again; [`ready`] follows.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// The daemon ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Beats that the two threads have answered.
#[derive(Debug, Default)]
pub struct Pulse {
    /// The scheduler's last.
    pub scheduler: AtomicU64,
    /// The front's last.
    pub front: AtomicU64,
}

/// Asks both threads for a sign of life in half the supervisor's time, and passes it on. A
/// thread that does not answer (a pass that never ends) lets the watchdog bite: the supervisor
/// ends and restarts the daemon.
pub fn start_watchdog(commands: mpsc::Sender<Command>, orders: Orders) -> std::io::Result<()> {
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let pulse = Arc::new(Pulse::default());
    let rest = limit / 4;
    tracing::info!(limit_ms = limit.as_millis() as u64, "watchdog");
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        for beat in 1.. {
            orders.give(Order::Pulse(Arc::clone(&pulse), beat));
            if commands.send(Command::Pulse(Arc::clone(&pulse), beat)).is_err() {
                return;
            }
            if !answered(&pulse, beat, rest) {
                tracing::warn!(
                    scheduler = pulse.scheduler.load(Ordering::Acquire) == beat,
                    front = pulse.front.load(Ordering::Acquire) == beat,
                    "a thread does not answer; the watchdog is not told"
                );
                // A beat at a time: the thread answers them all when it is back.
                while !answered(&pulse, beat, rest) {}
            }
            tell(&[NotifyState::Watchdog]);
            std::thread::sleep(rest);
        }
    })?;
    Ok(())
}

fn answered(pulse: &Pulse, beat: u64, within: Duration) -> bool {
    const STEP: Duration = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    loop {
        let both = pulse.scheduler.load(Ordering::Acquire).min(pulse.front.load(Ordering::Acquire));
        if both >= beat {
            return true;
        }
        if waited >= within {
            return false;
        }
        std::thread::sleep(STEP);
        waited += STEP;
    }
}
