//! `idle-timer`, the paper's rule: the votes go when nothing ran for three seconds.
#![no_std]

use tandem_policy::{Power, PowerAction, PowerDecision, PowerEvent, PowerEventKind};

/// Idle milliseconds after which the votes are dropped.
pub const TIMEOUT_MS: u32 = 3000;

/// Releases after [`TIMEOUT_MS`] without work.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdleTimer {
    idle_since: Option<u64>,
}

impl Power for IdleTimer {
    fn event(&mut self, event: &PowerEvent) -> PowerDecision {
        match event.kind {
            PowerEventKind::SUBMITTED => self.idle_since = None,
            PowerEventKind::STARTED | PowerEventKind::IDLE => self.idle_since = Some(event.now),
            _ => {}
        }
        let Some(since) = self.idle_since else { return PowerDecision::default() };
        if event.kind == PowerEventKind::RELEASED {
            return PowerDecision::default();
        }
        let waited = event.now.saturating_sub(since);
        match u64::from(TIMEOUT_MS).checked_sub(waited) {
            None | Some(0) => PowerDecision { action: PowerAction::RELEASE, wake_after: 0 },
            // At most TIMEOUT_MS, so it fits.
            Some(left) => PowerDecision { action: PowerAction::HOLD, wake_after: left as u32 },
        }
    }
}

tandem_policy::export_power!(IdleTimer);

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: PowerEventKind, now: u64) -> PowerEvent {
        PowerEvent {
            kind,
            now,
            queued: 0,
            clients: 1,
            held_power: 0,
            released_power: 0,
            restore_time: 0,
            restore_energy: 0,
        }
    }

    #[test]
    fn releases_three_seconds_after_the_last_work_and_not_before() {
        let mut policy = IdleTimer::default();
        let asked = policy.event(&event(PowerEventKind::IDLE, 1000));
        assert_eq!(asked, PowerDecision { action: PowerAction::HOLD, wake_after: 3000 });
        let early = policy.event(&event(PowerEventKind::WAKE, 3999));
        assert_eq!(early, PowerDecision { action: PowerAction::HOLD, wake_after: 1 });
        assert_eq!(policy.event(&event(PowerEventKind::WAKE, 4000)).action, PowerAction::RELEASE);
    }

    #[test]
    fn work_stops_the_clock() {
        let mut policy = IdleTimer::default();
        policy.event(&event(PowerEventKind::IDLE, 0));
        policy.event(&event(PowerEventKind::SUBMITTED, 2000));
        assert_eq!(policy.event(&event(PowerEventKind::WAKE, 9000)), PowerDecision::default());
    }
}
