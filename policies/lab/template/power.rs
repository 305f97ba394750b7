//! `NAME`: a power policy for Tandem.
//!
//! It lets go of the votes after as long a pause as a release and a restore must last to pay, and
//! after three seconds where that is not known. Change `event` to try an idea.
#![no_std]

use tandem_policy::{PauseClock, Power, PowerDecision, PowerEvent};

/// Milliseconds of pause where the daemon knows nothing of costs.
const UNKNOWN_MS: u64 = 3000;

/// The policy's state. There is one, for the device.
#[derive(Debug, Default)]
pub struct Policy {
    pause: PauseClock,
}

impl Power for Policy {
    fn event(&mut self, event: &PowerEvent) -> PowerDecision {
        // Gives the length of a pause when one ends: what a policy would learn from.
        let _over = self.pause.note(event);
        let saved = u64::from(event.held_power.saturating_sub(event.released_power));
        // Microjoules over microwatts are seconds.
        let pays = (u64::from(event.restore_energy) * 1000).checked_div(saved).filter(|ms| *ms > 0);
        self.pause.decide(event, pays.unwrap_or(UNKNOWN_MS))
    }
}

tandem_policy::export_power!(Policy);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::{PowerAction, PowerEventKind};

    #[test]
    fn releases_when_the_pause_has_lasted() {
        let event = |kind, now| PowerEvent {
            kind,
            now,
            queued: 0,
            clients: 1,
            held_power: 900_000,
            released_power: 400_000,
            restore_time: 0,
            restore_energy: 250_000,
        };
        let mut policy = Policy::default();
        let asked = policy.event(&event(PowerEventKind::IDLE, 1000));
        assert_eq!((asked.action, asked.wake_after), (PowerAction::HOLD, 500));
        assert_eq!(policy.event(&event(PowerEventKind::WAKE, 1500)).action, PowerAction::RELEASE);
    }
}
