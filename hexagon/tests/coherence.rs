//! States on their way through DMA and the processor's caches: what one wrote the other has to
//! see. The emulator's caches never show anything by chance, so the two builds that leave out
//! one half of the maintenance have to be caught. Runs what `cargo xtask hexagon` has built;
//! without it the tests are listed as ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

mod built;

use built::built;
use libtest_mimic::{Arguments, Trial};
use tandem_hexagon::{EmulatorConfig, Hexagon, HexagonConfig};
use tandem_program::reference::Reference;
use tandem_program::{DType, DeltaForm, Device, Op, Program, StateOut, Tensor};

const MEMORY: HexagonConfig = HexagonConfig { memory: 64 << 20, window: 32 << 20 };
const HEADS: u32 = 2;
const DIM: u32 = 32;
const COLUMNS: u32 = 5;

fn tensor(device: &mut dyn Device, dtype: DType, rows: u32, width: u32) -> Tensor {
    let bytes = dtype.bytes_of(u64::from(width)).unwrap() * u64::from(rows);
    let buffer = device.create(bytes).unwrap();
    Tensor { buffer, offset: 0, dtype, rows, width, stride: width }
}

/// A recurrent layer, its state saved as halves, moved, restored, and the layer again from
/// there; for two inputs after each other, as two layers of a small batch would have it. All
/// that was computed, named.
fn states(device: &mut dyn Device, form: DeltaForm) -> Vec<(&'static str, Vec<u8>)> {
    let f32s = |device: &mut dyn Device, rows, width| tensor(device, DType::F32, rows, width);
    let [q, k, v, out, again] = [0; 5].map(|_| f32s(device, COLUMNS, HEADS * DIM));
    let [decay, beta] = [0; 2].map(|_| f32s(device, COLUMNS, HEADS));
    let [start, state, restored, end] = [0; 4].map(|_| f32s(device, HEADS * DIM, DIM));
    let [saved, moved] = [0; 2].map(|_| tensor(device, DType::F16, HEADS * DIM, DIM));
    let delta = |state: Tensor, to: Tensor, out: Tensor| {
        let states = vec![StateOut { after: COLUMNS - 1, to }];
        Op::GatedDelta { form, q, k, v, decay, beta, heads: HEADS, key_heads: HEADS, state, out, states }
    };
    let program = Program {
        ops: vec![
            delta(start, state, out),
            // Narrowed by the processor what DMA wrote ...
            Op::Copy { x: state, out: saved },
            // ... carried by DMA what the processor wrote ...
            Op::Copy { x: saved, out: moved },
            // ... and so on.
            Op::Copy { x: moved, out: restored },
            delta(restored, end, again),
            Op::Add { a: out, b: again, out },
        ],
    };
    let mut results = Vec::new();
    for layer in 0..2u32 {
        for (input, scale) in [(q, 0.02), (k, 0.03), (v, 0.5), (beta, 0.01), (decay, -0.01)] {
            let values = (0..input.rows * input.width).map(|i| ((i * 37 + layer * 11) % 53) as f32 * scale);
            device.write(input.buffer, 0, &values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
        }
        let ticket = device.submit(&program).unwrap();
        device.wait(ticket).unwrap();
        let read =
            [("state", state), ("saved", saved), ("moved", moved), ("restored", restored), ("out", out)];
        for (name, tensor) in read {
            let value = tensor.dtype.bytes_of(u64::from(tensor.width)).unwrap();
            let mut bytes = vec![0; (value * u64::from(tensor.rows)) as usize];
            device.read(tensor.buffer, 0, &mut bytes).unwrap();
            results.push((name, bytes));
        }
    }
    results
}

/// Names of the results that are not the reference device's.
fn wrong(config: &EmulatorConfig, form: DeltaForm) -> Vec<&'static str> {
    let expected = states(&mut Reference::new(), form);
    let found = states(&mut Hexagon::emulated(&MEMORY, config).unwrap(), form);
    let pairs = expected.into_iter().zip(found);
    pairs.filter(|(expected, found)| expected != found).map(|(expected, _)| expected.0).collect()
}

const FORMS: [DeltaForm; 2] = [DeltaForm::PerToken, DeltaForm::Chunked { position: 62 }];

fn states_are_what_was_written(config: &EmulatorConfig) {
    for form in FORMS {
        assert_eq!(wrong(config, form), [""; 0], "{form:?}");
    }
}

/// Without cleaning DMA carries what was there before.
fn a_copy_of_what_was_not_cleaned_is_caught(config: &EmulatorConfig) {
    for form in FORMS {
        let wrong = wrong(config, form);
        assert!(wrong.contains(&"moved") && wrong.contains(&"out"), "{form:?}: only {wrong:?}");
    }
}

/// Without invalidating the processor saves the state of the layer before.
fn a_copy_of_what_was_not_invalidated_is_caught(config: &EmulatorConfig) {
    for form in FORMS {
        let wrong = wrong(config, form);
        assert!(wrong.contains(&"saved") && wrong.contains(&"restored"), "{form:?}: only {wrong:?}");
        // What DMA wrote is in memory, and right: it is the copy that is not.
        assert_eq!(
            wrong.iter().position(|name| *name == "state"),
            None,
            "{form:?}: the first state is wrong"
        );
    }
}

type Check = fn(&EmulatorConfig);

fn main() {
    let folder = built();
    let qemu = folder.join("qemu/usr/bin/qemu-hexagon");
    let good: Check = states_are_what_was_written;
    let checks: [(&str, &str, Option<_>, Check); 5] = [
        ("states_are_what_was_written::v73", "tandem-dsp-v73", Some(qemu), good),
        ("states_are_what_was_written::host", "tandem-dsp-host", None, good),
        ("states_are_what_was_written::asan", "tandem-dsp-asan", None, good),
        (
            "a_copy_of_what_was_not_cleaned_is_caught",
            "tandem-dsp-unclean",
            None,
            a_copy_of_what_was_not_cleaned_is_caught,
        ),
        (
            "a_copy_of_what_was_not_invalidated_is_caught",
            "tandem-dsp-stale",
            None,
            a_copy_of_what_was_not_invalidated_is_caught,
        ),
    ];
    let mut trials = Vec::new();
    for (name, program, qemu, check) in checks {
        let program = folder.join(program);
        let here = program.exists() && qemu.as_ref().is_none_or(|qemu| qemu.exists());
        if !here {
            eprintln!("note: no {} (`cargo xtask hexagon` builds it); NOT RUN", program.display());
        }
        let config = EmulatorConfig::new(program, qemu);
        let trial = Trial::test(name, move || {
            check(&config);
            Ok(())
        });
        trials.push(trial.with_ignored_flag(!here));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
