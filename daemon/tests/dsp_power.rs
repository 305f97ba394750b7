//! Releases and submissions through the gate, on the DSP's own program: under emulation, and
//! built for this host. `cargo xtask hexagon` builds both; what is not there is listed as
//! ignored: not run. Seconds by default, with TANDEM_LONG=1 the minute and the 400 cycles.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use libtest_mimic::{Arguments, Trial};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tandem_engine::engine::{Engine, EngineOptions};
use tandem_hexagon::{EmulatorConfig, Hexagon, HexagonConfig};
use tandem_program::{BufferId, DType, Device, DeviceError, Op, Product, Program, Tensor, Votes};
use tandemd::power::{Gate, Gated, Reason};

const COLUMNS: u32 = 2;
const WIDTH: u32 = 32;
const OUTPUTS: u32 = 64;

fn is_long() -> bool {
    std::env::var_os("TANDEM_LONG").is_some()
}

fn device(config: &EmulatorConfig) -> Hexagon {
    let memory = HexagonConfig { memory: 64 << 20, window: 32 << 20 };
    Hexagon::emulated(&memory, config).unwrap()
}

/// A product, which keeps its rounded columns in on-chip memory, on any device.
struct Work {
    device: Box<dyn Device>,
    program: Program,
    out: BufferId,
}

impl Work {
    fn new(mut device: Box<dyn Device>) -> Work {
        // Q8_0: a scale of 1/256 as a half, then 32 signed bytes.
        let blocks = (OUTPUTS * WIDTH / 32) as usize;
        let byte = |i: usize| [0, 0x1c].get(i % 34).copied().unwrap_or((i * 37 % 251) as u8);
        let weight = device.import(Arc::new((0..blocks * 34).map(byte).collect::<Vec<u8>>())).unwrap();
        let x = device.create(u64::from(COLUMNS * WIDTH) * 4).unwrap();
        let out = device.create(u64::from(COLUMNS * OUTPUTS) * 4).unwrap();
        let values = (0..COLUMNS * WIDTH).flat_map(|i| ((i * 97 % 64) as f32 / 9.0 - 3.3).to_le_bytes());
        device.write(x, 0, &values.collect::<Vec<u8>>()).unwrap();
        let tensor =
            |buffer, dtype, rows, width| Tensor { buffer, offset: 0, dtype, rows, width, stride: width };
        let weight = tensor(weight, DType::Q8_0, OUTPUTS, WIDTH);
        let products = vec![Product::new(weight, tensor(out, DType::F32, COLUMNS, OUTPUTS))];
        let ops = vec![Op::MatMul { x: tensor(x, DType::F32, COLUMNS, WIDTH), products }];
        Work { device, program: Program { ops }, out }
    }

    fn run(&mut self) -> Result<Vec<u8>, DeviceError> {
        let ticket = self.device.submit(&self.program)?;
        self.device.wait(ticket)?;
        let mut bytes = vec![0; (COLUMNS * OUTPUTS * 4) as usize];
        self.device.read(self.out, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Two threads release whenever the gate lets them, one submits; the DSP's own threads come
/// late at random. It refuses a batch without votes and a release under a batch, and counts.
fn submission_racing_release_never_meets_a_dsp_without_votes(config: &EmulatorConfig) {
    let time = Duration::from_secs(if is_long() { 60 } else { 2 });
    // Little on-chip memory, for every release fills it.
    let config = EmulatorConfig { perturb: Some(20_261_130), vtcm_bytes: 64 << 10, ..config.clone() };
    let gate = Arc::new(Gate::new(Box::new(|| 0)));
    let mut work = Work::new(Gated::around(Box::new(device(&config)), &gate).unwrap());
    let expected = work.run().unwrap();
    let stop = AtomicBool::new(false);
    let mut rounds = 1;
    std::thread::scope(|threads| {
        for perturbed in [false, true] {
            let (gate, stop) = (&gate, &stop);
            threads.spawn(move || {
                let mut seed = 1u64;
                while !stop.load(Ordering::Relaxed) {
                    let batches = gate.totals().batches;
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    // Between the look and the release, where a batch may come.
                    let pause = if perturbed { seed >> 55 } else { seed >> 59 };
                    std::thread::sleep(Duration::from_micros(pause));
                    if let Err(error) = gate.release(batches, Reason::Stop) {
                        stop.store(true, Ordering::Relaxed);
                        panic!("a release the gate allowed: {error}");
                    }
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < time && !stop.load(Ordering::Relaxed) {
            let result = work.run();
            let same = result.as_ref().is_ok_and(|bytes| *bytes == expected);
            if !same {
                stop.store(true, Ordering::Relaxed);
            }
            assert!(
                same,
                "round {rounds}: {}",
                result.map_or_else(|e| e.to_string(), |_| "other results".into())
            );
            rounds += 1;
            // So that a release has its chance: nothing is in flight now.
            while rounds % 4 == 0 && gate.totals().held && !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The device compares its count with the DSP's after every batch.
    let totals = gate.totals();
    assert_eq!((totals.batches, totals.in_flight), (rounds, 0));
    assert!(totals.wakeups >= rounds / 5, "only {} wake-ups: the race was not run", totals.wakeups);
    eprintln!("{rounds} batches, {} releases, {} wake-ups", totals.releases, totals.wakeups);
}

/// The same race past the gate: what the DSP refuses is seen.
fn without_the_gate_the_race_is_caught(config: &EmulatorConfig) {
    let config = EmulatorConfig { perturb: Some(7), vtcm_bytes: 64 << 10, ..config.clone() };
    let device = device(&config);
    let power = device.power().unwrap();
    let mut work = Work::new(Box::new(device));
    let expected = work.run().unwrap();
    let stop = AtomicBool::new(false);
    let (mut refused_batches, refused_releases) = (0, AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Err(DeviceError::Votes(_)) = power.apply(&Votes::RELEASED) {
                    refused_releases.store(true, Ordering::Relaxed);
                }
                // A release that is refused has to be followed by a vote as well: this one is lost.
                let _ = power.apply(&Votes::HELD);
            }
        });
        // A race that is never seen ends with the run's own limit.
        while refused_batches == 0 || !refused_releases.load(Ordering::Relaxed) {
            match work.run() {
                Ok(bytes) => assert!(bytes == expected),
                Err(DeviceError::Votes(_)) => refused_batches += 1,
                Err(other) => panic!("{other}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A model's logits, its device released before every request.
fn releases_between_requests_change_no_logit(config: &EmulatorConfig, cycles: u64) {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/model/demo.gguf");
    let gate = Arc::new(Gate::new(Box::new(|| 0)));
    let hexagon = Hexagon::emulated(&HexagonConfig::default(), config).unwrap();
    let device = Gated::around(Box::new(hexagon), &gate).unwrap();
    let mut engine = Engine::open(&model, device, EngineOptions::default()).unwrap();
    let mut rows = || {
        let mut bits = Vec::new();
        let mut take = |_, row: &[f32]| bits.extend(row.iter().map(|v| v.to_bits()));
        engine.probe(&[5, 6, 7], false, &mut take).unwrap();
        bits
    };
    let expected = rows();
    let before = gate.totals().batches;
    let mut each = None;
    for cycle in 0..cycles {
        let batches = gate.totals().batches;
        assert!(gate.release(batches, Reason::Stop).unwrap(), "cycle {cycle}: not released");
        assert!(rows() == expected, "cycle {cycle}: other logits");
        let now = gate.totals().batches - batches;
        assert_eq!(*each.get_or_insert(now), now, "cycle {cycle}: batches lost or doubled");
    }
    let totals = gate.totals();
    assert_eq!((totals.releases, totals.wakeups, totals.in_flight), (cycles, cycles, 0));
    assert_eq!(totals.batches, before + cycles * each.unwrap_or(0));
}

/// What is done on a device made as the settings say.
type Check = Box<dyn Fn(&EmulatorConfig) + Send>;

fn main() {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let folder = target.join("hexagon");
    let emulated = EmulatorConfig::in_folder(&folder).ok();
    let host = folder.join("tandem-dsp-host");
    let host = host.exists().then(|| EmulatorConfig::new(host, None));
    if emulated.is_none() || host.is_none() {
        eprintln!("note: {} lacks what `cargo xtask hexagon` builds; NOT RUN", folder.display());
    }
    let mut trials = Vec::new();
    for (name, config, cycles) in [("v73", emulated, 1), ("host", host, 40)] {
        let cycles = if is_long() { 400 } else { cycles };
        let race = submission_racing_release_never_meets_a_dsp_without_votes;
        let checks: [(&str, Check); 3] = [
            ("submission_racing_release_never_meets_a_dsp_without_votes", Box::new(race)),
            ("without_the_gate_the_race_is_caught", Box::new(without_the_gate_the_race_is_caught)),
            (
                "releases_between_requests_change_no_logit",
                Box::new(move |config| releases_between_requests_change_no_logit(config, cycles)),
            ),
        ];
        for (what, check) in checks {
            let config = config.clone();
            let here = config.is_some();
            let trial = Trial::test(format!("{name}::{what}"), move || {
                check(&config.ok_or("not built")?);
                Ok(())
            });
            trials.push(trial.with_ignored_flag(!here));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
