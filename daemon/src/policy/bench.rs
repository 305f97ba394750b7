//! What calls of a plugin cost, fuel and all.

use super::call::{Failed, run};
use super::check::{Ask, everyday, observation};
use super::placement::{call_evict, call_observe, call_place};
use super::plugin::{Live, Plugin};
use super::runtime::CALL_FUEL;
use serde::Serialize;
use std::time::{Duration, Instant};
use tandem_engine::bench::Figure;
use tandem_policy::Cost;

/// Times every request is asked in a run.
const ROUNDS: u32 = 10;
/// Measured runs, after one warm-up.
const RUNS: usize = 9;

/// What calls of a plugin cost on an agent's everyday requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CallTimes {
    /// A `place` call, in microseconds.
    pub place_us: Figure,
    /// An `evict` call.
    pub evict_us: Figure,
    /// An `observe` call.
    pub observe_us: Figure,
    /// Mean fuel of a `place` call.
    pub place_fuel: f64,
    /// The calls of a request (one of each) beside what its prompt takes on the paper's phone.
    pub share_of_step: f64,
}

#[derive(Default)]
struct Sums {
    place: Duration,
    evict: Duration,
    observe: Duration,
    fuel: u64,
    calls: u32,
}

/// Measures on a fresh instance. The error says how a call failed.
pub fn bench(plugin: &Plugin) -> Result<CallTimes, String> {
    let asks = everyday();
    let mut live = plugin.start().map_err(|e| e.root_cause().to_string())?;
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut fuel = 0.0;
    for r in 0..=RUNS {
        let sums = measure(plugin, &mut live, &asks).map_err(|failed| failed.reason)?;
        let us = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(sums.calls);
        if r > 0 {
            for (times, time) in times.iter_mut().zip([sums.place, sums.evict, sums.observe]) {
                times.push(us(time));
            }
            fuel = sums.fuel as f64 / f64::from(sums.calls);
        }
    }
    let [place_us, evict_us, observe_us] = times.map(Figure::of);
    let request_us = place_us.median + evict_us.median + observe_us.median;
    Ok(CallTimes {
        place_us,
        evict_us,
        observe_us,
        place_fuel: fuel,
        share_of_step: request_us / step_us(&asks),
    })
}

fn measure(plugin: &Plugin, live: &mut Live, asks: &[Ask]) -> Result<Sums, Failed> {
    let mut sums = Sums::default();
    for ask in asks.iter().cycle().take(asks.len() * ROUNDS as usize) {
        let begun = Instant::now();
        let mut positions = run(plugin, live, |l| call_place(l, &ask.request()))?;
        sums.place += begun.elapsed();
        sums.fuel += CALL_FUEL - live.store.get_fuel().unwrap_or(CALL_FUEL);
        positions.clamp(&ask.request());
        let begun = Instant::now();
        run(plugin, live, |l| call_evict(l, &ask.full(), ask.prompt()))?;
        sums.evict += begun.elapsed();
        let seen = observation(ask, positions.as_slice());
        let begun = Instant::now();
        run(plugin, live, |l| call_observe(l, &seen))?;
        sums.observe += begun.elapsed();
        sums.calls += 1;
    }
    Ok(sums)
}

/// What the prompts take on the paper's phone, a request, in microseconds.
fn step_us(asks: &[Ask]) -> f64 {
    let cost = Cost::PHONE;
    let step = |ask: &Ask| {
        let new = ask.new_tokens();
        u64::from(new) * cost.per_token + u64::from(new.div_ceil(512)) * cost.per_pass
    };
    asks.iter().map(step).sum::<u64>() as f64 / 1e3 / asks.len() as f64
}
