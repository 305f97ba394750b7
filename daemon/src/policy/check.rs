//! Contract tests of a plugin, for its author: does it answer everything that
//! the daemon may ask, within its limits, and the same every time?

use super::bench::bench;
use super::call::{Failed, run};
use super::placement::{call_evict, call_observe, call_place};
use super::plugin::{Live, Plugin};
use super::runtime::CALL_FUEL;
use serde::Serialize;
use tandem_policy::{Boundary, BoundaryKind, Cost, Kept, MAX_BOUNDARIES, Observation, PlaceRequest};

/// One test and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// What was asked.
    pub name: &'static str,
    /// Why it failed; `None` when it passed.
    pub failure: Option<String>,
    /// Positions that the host had to drop.
    pub clamped: u64,
}

/// All tests of a plugin.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The tests.
    pub cases: Vec<Case>,
    /// Most fuel that a call took, of [`CALL_FUEL`].
    pub most_fuel: u64,
    /// Fuel a call has.
    pub fuel_limit: u64,
    /// Time of a `place` call on an everyday request, in microseconds; `None` where it fails.
    pub place_us: Option<f64>,
}

impl CheckReport {
    /// True when nothing failed.
    pub fn passed(&self) -> bool {
        self.cases.iter().all(|c| c.failure.is_none())
    }
}

/// A request of the tests; the rest is as the phone has it.
#[derive(Clone)]
pub(super) struct Ask {
    prompt: u32,
    shared: u32,
    restored: u32,
    kept: Vec<Kept>,
    boundaries: Vec<Boundary>,
    saves: u32,
    cap: u32,
    cost: Cost,
}

impl Ask {
    fn new(prompt: u32, shared: u32, restored: u32) -> Self {
        Self {
            prompt,
            shared,
            restored,
            kept: Vec::new(),
            boundaries: lines(prompt, 12),
            saves: 6,
            cap: 8,
            cost: Cost::PHONE,
        }
    }

    pub(super) fn request(&self) -> PlaceRequest<'_> {
        PlaceRequest {
            prompt: self.prompt,
            shared: self.shared,
            restored: self.restored,
            kept: &self.kept,
            cap: self.cap,
            bytes_left: u64::from(self.cap) << 26,
            checkpoint_bytes: 50 << 20,
            cost: self.cost,
            pass_limit: 512,
            max_saves: self.saves,
            boundaries: &self.boundaries,
        }
    }
}

impl Ask {
    pub(super) fn prompt(&self) -> u32 {
        self.prompt
    }

    /// Tokens to process.
    pub(super) fn new_tokens(&self) -> u32 {
        self.prompt.saturating_sub(self.restored)
    }

    /// Checkpoints of a full slot.
    pub(super) fn full(&self) -> Vec<Kept> {
        kept(&[40, 90, 150, 210, 260, 300, 320, 333])
    }
}

/// What comes of a request, as the tests tell it.
pub(super) fn observation<'a>(ask: &Ask, saved: &'a [u32]) -> Observation<'a> {
    Observation { prompt: ask.prompt, shared: ask.shared, restored: ask.restored, answer: 14, saved }
}

fn lines(prompt: u32, every: u32) -> Vec<Boundary> {
    let kinds = [BoundaryKind::USER, BoundaryKind::LINE, BoundaryKind::LINE, BoundaryKind::MESSAGE];
    (1..prompt)
        .step_by(every as usize)
        .take(MAX_BOUNDARIES)
        .enumerate()
        .map(|(i, token)| Boundary { token, kind: kinds[i % kinds.len()] })
        .collect()
}

fn kept(positions: &[u32]) -> Vec<Kept> {
    let describe = |(i, &position): (usize, &u32)| Kept { position, age: i as u32, hits: 1, bytes: 50 << 20 };
    positions.iter().enumerate().map(describe).collect()
}

/// An agent's requests: the rules are shared, the rest is new.
pub(super) fn everyday() -> Vec<Ask> {
    (0..80u32)
        .map(|i| {
            let mut ask = Ask::new(600 + i * 37 % 300, if i == 0 { 0 } else { 340 + i * 7 % 40 }, 0);
            if i > 0 {
                ask.restored = 320;
                ask.kept = kept(&[100, 320]);
            }
            ask
        })
        .collect()
}

fn cases() -> Vec<(&'static str, Vec<Ask>)> {
    let most = u32::MAX;
    let with = |mut ask: Ask, change: fn(&mut Ask)| {
        change(&mut ask);
        ask
    };
    vec![
        ("everyday requests of an agent", everyday()),
        ("a prompt of one token", vec![Ask::new(1, 0, 0), Ask::new(1, 0, 0)]),
        ("the same prompt again", vec![Ask::new(500, 0, 0), Ask::new(500, 499, 499)]),
        ("no boundaries", vec![with(Ask::new(500, 0, 0), |a| a.boundaries.clear()); 3]),
        ("4,096 boundaries", {
            let mut ask = Ask::new(40_000, 20_000, 0);
            ask.boundaries = lines(40_000, 9);
            vec![ask; 4]
        }),
        ("kinds of boundary that do not exist yet", {
            let mut ask = Ask::new(500, 200, 0);
            ask.boundaries.iter_mut().for_each(|b| b.kind = BoundaryKind(200));
            vec![ask; 3]
        }),
        (
            "boundaries past the prompt",
            vec![with(Ask::new(500, 200, 0), |a| a.boundaries = lines(900, 7)); 3],
        ),
        (
            "a full slot",
            vec![with(Ask::new(700, 600, 599), |a| a.kept = kept(&[1, 2, 3, 50, 99, 300, 598, 599])); 3],
        ),
        ("no saves allowed", vec![with(Ask::new(700, 300, 0), |a| a.saves = 0); 3]),
        ("no checkpoints allowed", vec![with(Ask::new(700, 300, 0), |a| a.cap = 0); 3]),
        ("a device that costs nothing", vec![with(Ask::new(700, 300, 0), |a| a.cost = Cost::default()); 3]),
        ("a device that costs the most there is", {
            vec![
                with(Ask::new(700, 300, 0), |a| {
                    a.cost = Cost { per_token: u64::MAX, per_pass: u64::MAX, per_save: u64::MAX };
                });
                3
            ]
        }),
        ("the greatest numbers there are", {
            let mut ask = Ask::new(0, most, most);
            ask.prompt = most;
            ask.boundaries = vec![Boundary { token: most, kind: BoundaryKind::LINE }; 64];
            ask.kept = kept(&[most; 8]);
            (ask.saves, ask.cap) = (most, most);
            vec![ask.clone(), ask]
        }),
        ("1,000 requests", {
            let ask = |i: u32| Ask::new(400 + i * 13 % 700, i * 29 % 400, 0);
            (0..1000).map(ask).collect()
        }),
    ]
}

/// Runs all tests, each on a fresh instance.
pub fn check(plugin: &Plugin) -> CheckReport {
    let mut most_fuel = 0;
    let mut cases: Vec<Case> = cases()
        .into_iter()
        .map(|(name, asks)| {
            let mut clamped = 0;
            let failure = play(plugin, &asks, &mut clamped, &mut most_fuel).err();
            Case { name, failure: failure.map(|f| f.reason), clamped }
        })
        .collect();
    cases.push(Case {
        name: "the same answers from a second instance",
        failure: twice(plugin).err(),
        clamped: 0,
    });
    CheckReport {
        cases,
        most_fuel,
        fuel_limit: CALL_FUEL,
        place_us: bench(plugin).ok().map(|times| times.place_us.median),
    }
}

/// Plays requests on a fresh instance and returns all answers.
fn play(plugin: &Plugin, asks: &[Ask], clamped: &mut u64, fuel: &mut u64) -> Result<Vec<u32>, Failed> {
    let mut live = plugin.start().map_err(Failed::from)?;
    let mut answers = Vec::new();
    for ask in asks {
        let request = ask.request();
        let mut positions = metered(plugin, &mut live, fuel, |l| call_place(l, &request))?;
        *clamped += positions.clamp(&request) as u64;
        answers.extend_from_slice(positions.as_slice());
        if !ask.kept.is_empty() {
            for incoming in [0, ask.restored.saturating_add(1), ask.prompt] {
                let index = metered(plugin, &mut live, fuel, |l| call_evict(l, &ask.kept, incoming))?;
                answers.push(index as u32);
            }
        }
        let seen = observation(ask, positions.as_slice());
        metered(plugin, &mut live, fuel, |l| call_observe(l, &seen))?;
    }
    Ok(answers)
}

fn metered<R>(
    plugin: &Plugin,
    live: &mut Live,
    most: &mut u64,
    call: impl FnOnce(&mut Live) -> Result<R, Failed>,
) -> Result<R, Failed> {
    let answer = run(plugin, live, call)?;
    let left = live.store.get_fuel().unwrap_or(CALL_FUEL);
    *most = (*most).max(CALL_FUEL.saturating_sub(left));
    Ok(answer)
}

fn twice(plugin: &Plugin) -> Result<(), String> {
    let (mut clamped, mut fuel) = (0, 0);
    let mut answers = || play(plugin, &everyday(), &mut clamped, &mut fuel).map_err(|f| f.reason);
    if answers()? == answers()? {
        Ok(())
    } else {
        Err("two instances that were asked the same answered differently".to_owned())
    }
}
