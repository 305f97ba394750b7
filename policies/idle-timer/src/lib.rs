//! `idle-timer`, the paper's rule: the votes go when nothing ran for three seconds.
#![no_std]

use tandem_policy::{PauseClock, Power, PowerDecision, PowerEvent};

/// Idle milliseconds after which the votes are dropped.
pub const TIMEOUT_MS: u32 = 3000;

/// Releases after [`TIMEOUT_MS`] without work.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdleTimer {
    pause: PauseClock,
}

impl Power for IdleTimer {
    fn event(&mut self, event: &PowerEvent) -> PowerDecision {
        self.pause.note(event);
        self.pause.decide(event, u64::from(TIMEOUT_MS))
    }
}

tandem_policy::export_power!(IdleTimer);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::{PowerAction, PowerEventKind};

    fn event(kind: PowerEventKind, now: u64) -> PowerEvent {
        PowerEvent { clients: 1, ..PowerEvent::new(kind, now) }
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
