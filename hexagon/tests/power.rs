//! Power votes that bite: without them nothing runs, a release takes on-chip memory with it, and
//! neither is seen in any result. Runs what `cargo xtask hexagon` has built; without it the
//! tests are listed as ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

mod built;

use built::built;
use libtest_mimic::{Arguments, Trial};
use std::sync::Arc;
use tandem_hexagon::{EmulatorConfig, Hexagon, HexagonConfig};
use tandem_program::{
    Act, BufferId, Corner, DType, Device, DeviceError, Op, Power, Product, Program, Tensor, Votes,
};

const MEMORY: HexagonConfig = HexagonConfig { memory: 64 << 20, window: 32 << 20 };
const COLUMNS: u32 = 3;
const WIDTH: u32 = 64;
const OUTPUTS: u32 = 96;

/// A device with a product, a SwiGLU and an addition on it: what on-chip memory is used for.
struct Work {
    device: Hexagon,
    power: Arc<dyn Power>,
    program: Program,
    x: BufferId,
    out: BufferId,
}

fn floats(values: impl Iterator<Item = u32>) -> Vec<u8> {
    // Any spread of values will do.
    values.flat_map(|i| ((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 9000.0 - 3.6).to_le_bytes()).collect()
}

impl Work {
    fn new(config: &EmulatorConfig) -> Work {
        let mut device = Hexagon::emulated(&MEMORY, config).unwrap();
        let blocks = (OUTPUTS * WIDTH / 32) as usize;
        // Q8_0: a scale of 1/256 as a half, then 32 signed bytes.
        let weights: Vec<u8> = (0..blocks * 34)
            .map(|i| [0, 0x1c].get(i % 34).copied().unwrap_or((i * 37 % 251) as u8))
            .collect();
        let weight = device.import(Arc::new(weights)).unwrap();
        let x = device.create(u64::from(COLUMNS * WIDTH) * 4).unwrap();
        let out = device.create(u64::from(COLUMNS * OUTPUTS) * 8).unwrap();
        device.write(x, 0, &floats(0..COLUMNS * WIDTH)).unwrap();
        let tensor =
            |buffer, offset, dtype, rows, width| Tensor { buffer, offset, dtype, rows, width, stride: width };
        let input = tensor(x, 0, DType::F32, COLUMNS, WIDTH);
        let weight = tensor(weight, 0, DType::Q8_0, OUTPUTS, WIDTH);
        let first = tensor(out, 0, DType::F32, COLUMNS, OUTPUTS);
        let second = tensor(out, u64::from(COLUMNS * OUTPUTS) * 4, DType::F32, COLUMNS, OUTPUTS);
        let ops = vec![
            Op::MatMul { x: input, products: vec![Product::new(weight, first)] },
            Op::SwiGlu {
                x: input,
                gate: weight,
                up: weight,
                acts: Act::for_weights([weight; 2]),
                out: second,
            },
            Op::Add { a: first, b: second, out: first },
        ];
        let power = device.power().unwrap();
        Work { device, power, program: Program { ops }, x, out }
    }

    /// Runs once; the results' bytes.
    fn run(&mut self) -> Result<Vec<u8>, DeviceError> {
        let ticket = self.device.submit(&self.program)?;
        self.device.wait(ticket)?;
        let mut bytes = vec![0; (COLUMNS * OUTPUTS * 8) as usize];
        self.device.read(self.out, 0, &mut bytes)?;
        Ok(bytes)
    }
}

fn nothing_runs_without_votes(config: &EmulatorConfig) {
    let mut work = Work::new(config);
    let expected = work.run().unwrap();
    assert!(expected.iter().any(|byte| *byte != 0));
    work.power.apply(&Votes::RELEASED).unwrap();
    let before = work.device.counters();
    let error = work.run().unwrap_err();
    assert!(matches!(&error, DeviceError::Votes(_)), "{error}");
    assert!(error.to_string().contains("vote before submitting"), "{error}");
    assert_eq!(work.device.counters(), before, "a refused batch was counted");
    // All but batches goes on without them.
    work.device.write(work.x, 0, &floats(0..COLUMNS * WIDTH)).unwrap();
    let extra = work.device.create(1 << 20).unwrap();
    work.device.destroy(extra).unwrap();
    // Anything but a stopped clock is enough to compute.
    let low = Votes { clock: Corner::Low, bus: Corner::Off, ddr: false, hmx: false, sleep: true };
    for votes in [Votes::HELD, low] {
        work.power.apply(&votes).unwrap();
        assert!(work.run().unwrap() == expected, "other results after {votes:?}");
    }
}

fn four_hundred_releases_change_no_bit_and_lose_no_batch(config: &EmulatorConfig) {
    let mut work = Work::new(config);
    let expected = work.run().unwrap();
    for cycle in 1..=400 {
        work.power.apply(&Votes::RELEASED).unwrap();
        if cycle % 10 == 0 {
            assert!(matches!(work.run(), Err(DeviceError::Votes(_))), "cycle {cycle}");
        }
        work.power.apply(&Votes::HELD).unwrap();
        assert!(work.run().unwrap() == expected, "cycle {cycle}: other results");
        // Equal to what the DSP says, or the device would be lost by now.
        assert_eq!(work.device.counters().batches, cycle + 1);
    }
}

/// The handler answers while a batch runs, and does not take the clock away from under it.
fn a_release_under_a_batch_is_refused(config: &EmulatorConfig) {
    let mut work = Work::new(config);
    let expected = work.run().unwrap();
    // A batch that lasts: the same again, many times over.
    let ops = std::iter::repeat_n(&work.program.ops, 1000).flatten();
    let long = Program { ops: ops.cloned().collect() };
    let ticket = work.device.submit(&long).unwrap();
    let mut refused = 0;
    let mut released = false;
    while !released && refused < 20 {
        match work.power.apply(&Votes::RELEASED) {
            Ok(()) => released = true,
            Err(DeviceError::Votes(text)) => {
                assert!(text.contains("wait for the batch"), "{text}");
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    // Either the votes went before the batch was taken, and it is refused, or it runs to its end.
    let done = work.device.wait(ticket);
    match done {
        Err(DeviceError::Votes(_)) => assert!(released),
        other => {
            other.unwrap();
            assert!(refused > 0, "the batch ended before the first question: it has to be longer");
        }
    }
    work.power.apply(&Votes::HELD).unwrap();
    assert!(work.run().unwrap() == expected);
}

type Check = fn(&EmulatorConfig);

fn main() {
    let folder = built();
    let qemu = folder.join("qemu/usr/bin/qemu-hexagon");
    let checks: [(&str, Check); 3] = [
        ("nothing_runs_without_votes", nothing_runs_without_votes),
        (
            "four_hundred_releases_change_no_bit_and_lose_no_batch",
            four_hundred_releases_change_no_bit_and_lose_no_batch,
        ),
        ("a_release_under_a_batch_is_refused", a_release_under_a_batch_is_refused),
    ];
    let programs = [
        ("v73", "tandem-dsp-v73", Some(qemu)),
        ("host", "tandem-dsp-host", None),
        ("tsan", "tandem-dsp-tsan", None),
    ];
    let mut trials = Vec::new();
    for (name, program, qemu) in programs {
        let program = folder.join(program);
        let here = program.exists() && qemu.as_ref().is_none_or(|qemu| qemu.exists());
        if !here {
            eprintln!("note: no {} (`cargo xtask hexagon` builds it); NOT RUN", program.display());
        }
        let config = EmulatorConfig { vtcm_bytes: 128 << 10, ..EmulatorConfig::new(program, qemu) };
        for (what, check) in checks {
            let config = config.clone();
            let trial = Trial::test(format!("{name}::{what}"), move || {
                check(&config);
                Ok(())
            });
            trials.push(trial.with_ignored_flag(!here));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
