//! The power contract: when an idle device's votes are dropped.

/// What happened. A code, not an enum: later hosts may add values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerEventKind(pub u8);

impl PowerEventKind {
    /// The policy begins; votes are held.
    pub const STARTED: Self = Self(0);
    /// Work was handed to the device.
    pub const SUBMITTED: Self = Self(1);
    /// The last work in flight is done.
    pub const IDLE: Self = Self(2);
    /// The wake-up that the last decision asked for.
    pub const WAKE: Self = Self(3);
    /// The votes were dropped.
    pub const RELEASED: Self = Self(4);
    /// The votes are back.
    pub const RESTORED: Self = Self(5);
    /// The screen was turned on.
    pub const SCREEN_ON: Self = Self(6);
    /// The screen was turned off.
    pub const SCREEN_OFF: Self = Self(7);
}

/// One event, with what a decision may rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerEvent {
    /// What happened.
    pub kind: PowerEventKind,
    /// Milliseconds on a clock that counts suspend.
    pub now: u64,
    /// Requests that wait for the device.
    pub queued: u32,
    /// Clients connected.
    pub clients: u32,
    /// Microwatts drawn while votes are held and nothing runs; 0 is unknown.
    pub held_power: u32,
    /// Microwatts drawn when votes are released; 0 is unknown.
    pub released_power: u32,
    /// Microseconds that restoring the votes delays the next request.
    pub restore_time: u32,
    /// Microjoules that one release and restore costs; 0 is unknown.
    pub restore_energy: u32,
}

impl PowerEvent {
    /// An event of which nothing else is known.
    #[must_use]
    pub fn new(kind: PowerEventKind, now: u64) -> Self {
        Self {
            kind,
            now,
            queued: 0,
            clients: 0,
            held_power: 0,
            released_power: 0,
            restore_time: 0,
            restore_energy: 0,
        }
    }
}

/// Hold or release. A code, not an enum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerAction(pub u8);

impl PowerAction {
    /// Keep the votes.
    pub const HOLD: Self = Self(0);
    /// Drop the votes.
    pub const RELEASE: Self = Self(1);
}

/// The answer to one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerDecision {
    /// Hold or release.
    pub action: PowerAction,
    /// Ask again after this many milliseconds; 0 is not before the next event.
    pub wake_after: u32,
}

/// Decides when an idle device's power votes are dropped.
pub trait Power {
    /// Asked at every event. A release is only heeded while nothing is queued or running.
    fn event(&mut self, event: &PowerEvent) -> PowerDecision;
}

/// The clock of a pause, for policies that release after a timeout.
#[derive(Clone, Copy, Debug, Default)]
pub struct PauseClock {
    since: Option<u64>,
}

impl PauseClock {
    /// Takes note of an event. The length of the pause that it ends, in milliseconds.
    pub fn note(&mut self, event: &PowerEvent) -> Option<u64> {
        match event.kind {
            PowerEventKind::SUBMITTED => {
                return self.since.take().map(|since| event.now.saturating_sub(since));
            }
            PowerEventKind::STARTED | PowerEventKind::IDLE => self.since = Some(event.now),
            _ => {}
        }
        None
    }

    /// What follows from a timeout of so many milliseconds after the pause began. Nothing is
    /// asked for outside of a pause, nor after the release.
    #[must_use]
    pub fn decide(&self, event: &PowerEvent, timeout: u64) -> PowerDecision {
        let Some(since) = self.since else { return PowerDecision::default() };
        if event.kind == PowerEventKind::RELEASED {
            return PowerDecision::default();
        }
        match timeout.checked_sub(event.now.saturating_sub(since)) {
            None | Some(0) => PowerDecision { action: PowerAction::RELEASE, wake_after: 0 },
            Some(left) => PowerDecision {
                action: PowerAction::HOLD,
                wake_after: u32::try_from(left).unwrap_or(u32::MAX),
            },
        }
    }
}
