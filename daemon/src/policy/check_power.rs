//! Contract tests of a power policy, for its author.

use super::call::{Failed, run};
use super::check::{Case, CheckReport};
use super::plugin::Plugin;
use super::power::call_event;
use super::runtime::CALL_FUEL;
use super::world::power::Power as PowerWorld;
use tandem_policy::{PowerDecision, PowerEvent, PowerEventKind};

fn event(kind: PowerEventKind, now: u64) -> PowerEvent {
    PowerEvent {
        clients: 1,
        held_power: 890_000,
        released_power: 420_000,
        restore_time: 20_000,
        ..PowerEvent::new(kind, now)
    }
}

/// An agent's day: work of a second or two, then a pause of 50 ms to a minute, with what the
/// daemon tells of it. The wake-ups are the daemon's, whatever the policy asked for.
fn everyday() -> Vec<PowerEvent> {
    let (mut events, mut now, mut seed) = (vec![event(PowerEventKind::STARTED, 7)], 7u64, 3u64);
    for _ in 0..300 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        now += 800 + (seed >> 40) % 1500;
        events.push(event(PowerEventKind::IDLE, now));
        let pause = 50 << ((seed >> 33) % 11);
        if pause > 3000 {
            events.push(event(PowerEventKind::WAKE, now + 2999));
            events.push(event(PowerEventKind::RELEASED, now + 3000));
        }
        now += pause;
        if pause > 3000 {
            events.push(event(PowerEventKind::RESTORED, now));
        }
        events.push(event(PowerEventKind::SUBMITTED, now));
    }
    events
}

fn cases() -> Vec<(&'static str, Vec<PowerEvent>)> {
    let all = |now: u64| (0..=7).map(move |kind| event(PowerEventKind(kind), now));
    let most = |kind: u8| PowerEvent {
        kind: PowerEventKind(kind),
        now: u64::MAX,
        queued: u32::MAX,
        clients: u32::MAX,
        held_power: u32::MAX,
        released_power: u32::MAX,
        restore_time: u32::MAX,
        restore_energy: u32::MAX,
    };
    let unknown = |kind: u8| PowerEvent {
        held_power: 0,
        released_power: 0,
        restore_time: 0,
        ..event(PowerEventKind(kind), 5000)
    };
    vec![
        ("an agent's everyday pauses", everyday()),
        ("events before any start", vec![event(PowerEventKind::WAKE, 0), event(PowerEventKind::RELEASED, 0)]),
        ("every event at once", all(0).chain(all(0)).collect()),
        ("events that do not exist yet", (8..=255).map(|kind| event(PowerEventKind(kind), 1000)).collect()),
        ("a clock that goes back", all(100_000).chain(all(5)).chain(all(0)).collect()),
        ("nothing known of power", (0..=7).chain(0..=7).map(unknown).collect()),
        ("a release that costs more than it saves", {
            let costly = |e: PowerEvent| PowerEvent { held_power: 1, released_power: 9_000_000, ..e };
            everyday().into_iter().map(costly).collect()
        }),
        ("the greatest numbers there are", (0..=7).chain(0..=7).map(most).collect()),
        ("ten thousand wake-ups in one pause", {
            let wakes = (0..10_000).map(|i| event(PowerEventKind::WAKE, 1000 + i));
            [event(PowerEventKind::IDLE, 1000)].into_iter().chain(wakes).collect()
        }),
    ]
}

/// Runs all tests, each on a fresh instance.
pub fn check_power(plugin: &Plugin<PowerWorld>) -> CheckReport {
    let mut most_fuel = 0;
    let mut cases: Vec<Case> = cases()
        .into_iter()
        .map(|(name, events)| {
            let failure = play(plugin, &events, &mut most_fuel).err().map(|failed| failed.reason);
            Case { name, failure, clamped: 0 }
        })
        .collect();
    let mut twice = || -> Result<(), String> {
        let mut answers = || play(plugin, &everyday(), &mut most_fuel).map_err(|failed| failed.reason);
        let same = answers()? == answers()?;
        same.then_some(()).ok_or_else(|| "two instances that were told the same answered differently".into())
    };
    cases.push(Case { name: "the same answers from a second instance", failure: twice().err(), clamped: 0 });
    CheckReport { cases, most_fuel, fuel_limit: CALL_FUEL, place_us: None }
}

/// Tells a fresh instance the events and returns its answers.
fn play(
    plugin: &Plugin<PowerWorld>,
    events: &[PowerEvent],
    fuel: &mut u64,
) -> Result<Vec<PowerDecision>, Failed> {
    let mut live = plugin.start().map_err(Failed::from)?;
    let mut answers = Vec::with_capacity(events.len());
    for event in events {
        answers.push(run(plugin, &mut live, |live| call_event(live, event))?);
        let left = live.store.get_fuel().unwrap_or(CALL_FUEL);
        *fuel = (*fuel).max(CALL_FUEL.saturating_sub(left));
    }
    Ok(answers)
}
