//! Power policies in Wasm: the built-in ones decide as their native twins do, and a plugin that
//! fails costs its own decisions, which the built-in timer then makes.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use tandem_lab::component::encode_world;
use tandem_lab::scaffold::WIT;
use tandem_policy::{Power, PowerAction, PowerDecision, PowerEvent, PowerEventKind};
use tandemd::policy::{PolicyError, PolicyHost, PolicyStatus, PowerPlugin, Runtime, check_power};

fn event(kind: PowerEventKind, now: u64) -> PowerEvent {
    PowerEvent { clients: 1, ..PowerEvent::new(kind, now) }
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) % below
}

/// Plays pauses as the daemon would: wake-ups come when the policy asked, a release is heeded.
/// Gives every event with its decision.
fn play(policy: &mut dyn Power, pauses: &[(u64, PowerEvent)]) -> Vec<(PowerEvent, PowerDecision)> {
    let mut told = Vec::new();
    let mut now = 1000;
    let mut tell = |policy: &mut dyn Power, event: PowerEvent| {
        let decision = policy.event(&event);
        told.push((event, decision));
        decision
    };
    tell(policy, PowerEvent { now, ..event(PowerEventKind::STARTED, 0) });
    tell(policy, PowerEvent { now, ..event(PowerEventKind::SUBMITTED, 0) });
    for (pause, costs) in pauses {
        now += 1500;
        let at = |kind, now| PowerEvent { kind, now, ..*costs };
        let mut decision = tell(policy, at(PowerEventKind::IDLE, now));
        let (end, mut held) = (now + pause, true);
        loop {
            if decision.action == PowerAction::RELEASE && held {
                held = false;
                decision = tell(policy, at(PowerEventKind::RELEASED, now));
                continue;
            }
            let wake = now + u64::from(decision.wake_after);
            if decision.wake_after == 0 || wake >= end {
                break;
            }
            now = wake;
            decision = tell(policy, at(PowerEventKind::WAKE, now));
        }
        now = end;
        if !held {
            tell(policy, at(PowerEventKind::RESTORED, now));
        }
        tell(policy, at(PowerEventKind::SUBMITTED, now));
    }
    told
}

/// Pauses of an agent's sessions: of one length, of two in turn, random over four magnitudes, with
/// costs that are unknown, the phone's, or random.
fn sequences() -> Vec<Vec<(u64, PowerEvent)>> {
    let mut seed = 7;
    let unknown = event(PowerEventKind::IDLE, 0);
    let phone = PowerEvent { held_power: 890_000, released_power: 420_000, restore_time: 20_000, ..unknown };
    let mut all = Vec::new();
    for costs in [unknown, phone] {
        for pause in [1, 499, 3000, 3001, 60_000] {
            all.push(vec![(pause, costs); 90]);
        }
        all.push((0..200).map(|i| (if i / 16 % 2 == 0 { 700 } else { 9000 }, costs)).collect());
    }
    for _ in 0..20 {
        let mut random = |below| random(&mut seed, below);
        let pauses = (0..150).map(|_| {
            let pause = 10u64.pow(1 + random(4) as u32) + random(5000);
            let costs = PowerEvent {
                held_power: random(2_000_000) as u32,
                released_power: random(1_000_000) as u32,
                restore_time: random(100_000) as u32,
                restore_energy: random(2_000_000) as u32,
                queued: random(3) as u32,
                ..unknown
            };
            (pause, costs)
        });
        all.push(pauses.collect());
    }
    all
}

#[test]
fn the_built_in_ones_decide_in_wasm_as_they_do_natively() {
    let host = PolicyHost::new().unwrap();
    let mut releases = 0;
    for built_in in tandem_policies::POWERS {
        for (i, pauses) in sequences().iter().enumerate() {
            let native = play(&mut *(built_in.native)(), pauses);
            let wasm = play(&mut *host.power(built_in.name).unwrap(), pauses);
            assert_eq!(native.len(), wasm.len(), "{} on sequence {i}", built_in.name);
            for (native, wasm) in native.iter().zip(&wasm) {
                assert_eq!(native, wasm, "{} on sequence {i}", built_in.name);
            }
            releases += native.iter().filter(|(_, d)| d.action == PowerAction::RELEASE).count();
        }
    }
    assert!(releases > 1000, "only {releases} releases: the sequences ask for nothing");
    for status in host.status() {
        assert_eq!((status.stood_in, status.traps, status.nonsense), (0, 0, 0), "{status:?}");
        assert!(status.calls > 10_000, "{status:?}");
    }
}

#[test]
fn the_built_in_ones_pass_their_own_check() {
    let runtime = Runtime::new().unwrap();
    for built_in in tandem_policies::POWERS {
        let plugin = PowerPlugin::from_bytes(&runtime, built_in.name, built_in.component).unwrap();
        let report = check_power(&plugin);
        println!("{}: most fuel {} of {}", built_in.name, report.most_fuel, report.fuel_limit);
        assert!(report.passed(), "{}: {report:#?}", built_in.name);
    }
}

/// A component of the power world by hand. `body` leaves the address of (action, wake-up); its
/// parameters are $kind, $now, $queued, $clients, $held, $released, $time, $energy.
fn component(fields: &str, body: &str) -> Vec<u8> {
    let text = format!(
        "(module
           (memory (export \"memory\") 1)
           {fields}
           (func (export \"event\") (param $kind i32) (param $now i64) (param $queued i32) (param $clients i32)
             (param $held i32) (param $released i32) (param $time i32) (param $energy i32) (result i32)
             {body}))"
    );
    let core = wat::parse_str(text).unwrap();
    encode_world(&core, WIT, "power").unwrap()
}

/// A folder with a component in it.
struct File(tempfile::TempDir);

impl File {
    fn new(component: &[u8]) -> Self {
        let file = File(tempfile::tempdir().unwrap());
        std::fs::write(file.path(), component).unwrap();
        file
    }
    fn path(&self) -> PathBuf {
        self.0.path().join("policy.wasm")
    }
    fn name(&self) -> String {
        self.path().display().to_string()
    }
}

/// Holds for 77 ms, whatever happens.
const HOLDS: &str = "(i32.store (i32.const 12) (i32.const 77)) i32.const 8";

/// The decision of a plugin on an event on which it fails, then on one on which it does not.
fn failing(body: &str) -> (PowerDecision, PowerDecision, PolicyStatus) {
    // Only when votes were released: kind 4.
    let body = format!("(if (i32.eq (local.get $kind) (i32.const 4)) (then {body})) {HOLDS}");
    let file = File::new(&component("", &body));
    let host = PolicyHost::new().unwrap();
    let mut policy = host.power(&file.name()).unwrap();
    policy.event(&event(PowerEventKind::IDLE, 1000));
    let failed = policy.event(&event(PowerEventKind::RELEASED, 2000));
    let after = policy.event(&event(PowerEventKind::WAKE, 3500));
    (failed, after, host.status().remove(0))
}

const HOLD_77: PowerDecision = PowerDecision { action: PowerAction::HOLD, wake_after: 77 };

#[test]
fn a_call_that_fails_is_answered_by_the_timer_and_the_next_by_a_fresh_instance() {
    let nonsense = "(i32.store8 (i32.const 8) (i32.const 9)) (return (i32.const 8))";
    let hog = "(loop (drop (memory.grow (i32.const 1))) (br 0))";
    // traps, timeouts, nonsense
    let cases = [
        ("unreachable", (1, 0, 0)),
        ("(loop (br 0))", (0, 1, 0)),
        (hog, (1, 0, 0)),
        ("(drop (i32.load (i32.const 9999999)))", (1, 0, 0)),
        ("(return (i32.const 9999999))", (1, 0, 0)),
        (nonsense, (0, 0, 1)),
    ];
    for (body, counts) in cases {
        let (failed, after, status) = failing(body);
        assert_eq!(failed, PowerDecision::default(), "{body}: the timer asks for nothing once released");
        assert_eq!(after, HOLD_77, "{body}");
        assert_eq!((status.traps, status.timeouts, status.nonsense), counts, "{body}");
        assert_eq!((status.calls, status.stood_in, status.quarantined), (3, 1, false), "{body}");
    }
}

#[test]
fn the_timer_that_stands_in_has_heard_everything() {
    let file = File::new(&component("", "unreachable"));
    let host = PolicyHost::new().unwrap();
    let mut policy = host.power(&file.name()).unwrap();
    let told = |p: &mut dyn Power, kind, now| p.event(&event(kind, now));
    assert_eq!(told(&mut *policy, PowerEventKind::IDLE, 1000).wake_after, 3000);
    assert_eq!(told(&mut *policy, PowerEventKind::WAKE, 3999).wake_after, 1);
    for now in [4000, 4001, 4002] {
        assert_eq!(told(&mut *policy, PowerEventKind::WAKE, now).action, PowerAction::RELEASE);
    }
    let status = host.status().remove(0);
    // Four failures in a row, then it is not asked any more.
    assert_eq!((status.calls, status.traps, status.stood_in, status.quarantined), (4, 4, 5, true));
    // A reload gives it another chance.
    std::fs::write(file.path(), component("", HOLDS)).unwrap();
    assert!(host.reload().is_empty());
    assert_eq!(told(&mut *policy, PowerEventKind::WAKE, 5000), HOLD_77);
}

#[test]
fn a_fresh_instance_is_told_what_the_last_one_knew() {
    // Counts its calls; traps on a release of its own making, kind 4.
    let counting = "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
        (if (i32.eq (local.get $kind) (i32.const 4)) (then unreachable))
        (i32.store (i32.const 12) (global.get $calls)) i32.const 8";
    let file = File::new(&component("(global $calls (mut i32) (i32.const 0))", counting));
    let host = PolicyHost::new().unwrap();
    let mut policy = host.power(&file.name()).unwrap();
    for calls in 1..=5 {
        assert_eq!(policy.event(&event(PowerEventKind::WAKE, 10)).wake_after, calls);
    }
    policy.event(&event(PowerEventKind::RELEASED, 20));
    // Five were told again, but not the one that it failed on.
    assert_eq!(policy.event(&event(PowerEventKind::WAKE, 30)).wake_after, 6);
}

#[test]
fn what_is_no_power_policy_is_refused_by_name() {
    let host = PolicyHost::new().unwrap();
    let text = |name: &str| host.check_power(name).unwrap_err().to_string();
    assert!(text("fastest").contains("idle-timer, adaptive"), "{}", text("fastest"));
    assert!(text("/nonexistent/policy.wasm").contains("/nonexistent/policy.wasm"));
    let placement = File::new(tandem_policies::PLACEMENTS[0].component);
    let error = host.check_power(&placement.name()).unwrap_err();
    assert!(matches!(error, PolicyError::Import { .. } | PolicyError::MissingExport { .. }), "{error}");
    assert!(error.to_string().contains("`power`"), "{error}");
    let power = File::new(tandem_policies::POWERS[0].component);
    let error = host.placement(&power.name()).err().unwrap();
    assert!(error.to_string().contains("`placement`"), "{error}");
    assert!(host.check_power(&power.name()).is_ok());
    assert!(host.check_power("adaptive").is_ok() && host.check_power("anchor").is_err());
}
