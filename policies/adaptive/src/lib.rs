//! `adaptive`: rent or buy, on the pauses that it has seen.
//!
//! Holding the votes through a pause is renting; releasing and restoring them is buying. Where
//! nothing is known of the pauses, releasing after the break-even time costs at most twice what
//! hindsight would. With eight pauses seen, the timeout is the one that would have cost least
//! over the last 64, but never outside a quarter to four times the break-even time, so a change
//! of habit costs at most five times hindsight's price.
#![no_std]

use tandem_policy::{PauseClock, Power, PowerDecision, PowerEvent, PowerEventKind};

/// Break-even time where the host knows nothing of costs: the paper's timer.
const UNKNOWN_MS: u64 = 3000;
/// A millisecond that a request waits counts like this many of held votes.
const WAIT_WEIGHT: u64 = 100;
/// Pauses that are remembered, and how many must be known.
const REMEMBERED: usize = 64;
const ENOUGH: usize = 8;
/// How far the timeout may lie from the break-even time, as a factor.
const TRUST: u64 = 4;

/// See the crate.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    pauses: [u32; REMEMBERED],
    seen: usize,
    pause: PauseClock,
    timeout: u64,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { pauses: [0; REMEMBERED], seen: 0, pause: PauseClock::default(), timeout: UNKNOWN_MS }
    }
}

/// How long held votes cost as much as one release and restore, in milliseconds.
fn break_even(event: &PowerEvent) -> u64 {
    let saved = u64::from(event.held_power.saturating_sub(event.released_power));
    // Microjoules over microwatts are seconds.
    let energy = (u64::from(event.restore_energy) * 1000).checked_div(saved).unwrap_or(0);
    let waiting = u64::from(event.restore_time) * WAIT_WEIGHT / 1000;
    match energy + waiting {
        0 => UNKNOWN_MS,
        known => known.clamp(50, 60_000),
    }
}

impl Adaptive {
    fn remember(&mut self, pause: u64) {
        self.pauses[self.seen % REMEMBERED] = u32::try_from(pause).unwrap_or(u32::MAX);
        self.seen += 1;
    }

    /// What the remembered pauses would have cost, in milliseconds of held votes.
    fn cost(&self, timeout: u64, break_even: u64) -> u64 {
        let cost = |pause: &u32| match u64::from(*pause) {
            pause if pause <= timeout => pause,
            _ => timeout + break_even,
        };
        self.known().iter().map(cost).sum()
    }

    fn known(&self) -> &[u32] {
        &self.pauses[..self.seen.min(REMEMBERED)]
    }

    fn choose(&self, break_even: u64) -> u64 {
        let (mut best, mut least) = (break_even, self.cost(break_even, break_even));
        if self.known().len() < ENOUGH {
            return best;
        }
        let range = (break_even / TRUST).max(1)..=break_even * TRUST;
        let ends = [*range.start(), *range.end()];
        // The cost changes its course at a pause's length only.
        for timeout in ends.into_iter().chain(self.known().iter().map(|p| u64::from(*p))) {
            let cost = self.cost(timeout, break_even);
            if range.contains(&timeout) && (cost < least || cost == least && timeout < best) {
                (best, least) = (timeout, cost);
            }
        }
        best
    }
}

impl Power for Adaptive {
    fn event(&mut self, event: &PowerEvent) -> PowerDecision {
        if let Some(pause) = self.pause.note(event) {
            self.remember(pause);
        }
        if matches!(event.kind, PowerEventKind::STARTED | PowerEventKind::IDLE) {
            self.timeout = self.choose(break_even(event));
        }
        self.pause.decide(event, self.timeout)
    }
}

tandem_policy::export_power!(Adaptive);

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::PowerAction;

    /// A restore that keeps a request waiting 20 ms: two seconds of held votes.
    fn event(kind: PowerEventKind, now: u64) -> PowerEvent {
        PowerEvent {
            clients: 1,
            held_power: 890_000,
            released_power: 420_000,
            restore_time: 20_000,
            ..PowerEvent::new(kind, now)
        }
    }

    /// What a run of pauses costs, and what hindsight would have paid.
    fn run(policy: &mut Adaptive, pauses: impl Iterator<Item = u64>) -> (u64, u64) {
        let (mut now, mut paid, mut hindsight) = (0, 0, 0);
        for pause in pauses {
            let decision = policy.event(&event(PowerEventKind::IDLE, now));
            let timeout = u64::from(decision.wake_after);
            if pause > timeout {
                let woken = policy.event(&event(PowerEventKind::WAKE, now + timeout));
                assert_eq!(woken.action, PowerAction::RELEASE);
                policy.event(&event(PowerEventKind::RELEASED, now + timeout));
            }
            paid += if pause <= timeout { pause } else { timeout + 2000 };
            hindsight += pause.min(2000);
            now += pause;
            policy.event(&event(PowerEventKind::SUBMITTED, now));
            now += 1500;
        }
        (paid, hindsight)
    }

    #[test]
    fn without_data_it_pays_at_most_twice_what_hindsight_would() {
        for pause in [1, 500, 1999, 2000, 2001, 2500, 8000, 1 << 40] {
            let (paid, hindsight) = run(&mut Adaptive::default(), [pause].into_iter());
            assert!(paid <= 2 * hindsight, "a pause of {pause}: {paid} against {hindsight}");
        }
    }

    #[test]
    fn long_pauses_make_it_release_early_and_short_ones_hold() {
        let mut policy = Adaptive::default();
        run(&mut policy, core::iter::repeat_n(10_000, 20));
        assert_eq!(policy.event(&event(PowerEventKind::IDLE, 1 << 30)).wake_after, 500);
        let mut policy = Adaptive::default();
        run(&mut policy, core::iter::repeat_n(2500, 20));
        let held = policy.event(&event(PowerEventKind::IDLE, 1 << 30)).wake_after;
        assert_eq!(held, 500, "even 2.5 s are better bought than rented at 2 s");
        let mut policy = Adaptive::default();
        run(&mut policy, core::iter::repeat_n(1200, 20));
        assert!(policy.event(&event(PowerEventKind::IDLE, 1 << 30)).wake_after >= 1200);
    }

    #[test]
    fn whatever_the_pauses_it_pays_at_most_five_times_hindsight() {
        let mut seed = 1u64;
        for scale in [50, 800, 3000, 20_000] {
            let mut policy = Adaptive::default();
            let pauses = (0..400).map(|i| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Habits that change as soon as they are learnt.
                if i / 16 % 2 == 0 { 1 + (seed >> 33) % scale } else { 501 }
            });
            let (paid, hindsight) = run(&mut policy, pauses);
            assert!(paid <= 5 * hindsight, "{paid} against {hindsight}");
        }
    }
}
