//! The conformance suite on the DSP's program: on v73 code under qemu-hexagon, and on the same
//! sources built for this host, plain and under AddressSanitizer and ThreadSanitizer. `cargo xtask hexagon`
//! builds the programs; what is not there is listed as ignored: not run, and never counted as
//! passed. So are the slow ones, which run with `cargo xtask test --long`.

mod built;

use built::built;
use libtest_mimic::{Arguments, Trial};
use tandem_hexagon::{EmulatorConfig, Hexagon, HexagonConfig};
use tandem_program::conformance::CHECKS;

/// What takes most of the time in emulation, where floats are soft: the chunked delta rule, which
/// two episodes of the demo trace run on v73 every time (the daemon's own tests).
const SLOW: [&str; 3] =
    ["delta_chunked", "a_saved_state_is_the_end_state_of_a_shorter_run", "saves_change_nothing_else"];

/// Half a minute each that every run of the tests would pay: left to the long run, which includes
/// ignored tests. The other builds run these checks every time.
fn is_slow(program: &str, check: &str) -> bool {
    match program {
        "tsan" => true,
        "v73" => SLOW.contains(&check),
        _ => program == "tight" && check == "saves_change_nothing_else",
    }
}

fn main() {
    let built = built();
    let qemu = built.join("qemu/usr/bin/qemu-hexagon");
    let programs = [
        ("v73", "tandem-dsp-v73", Some(qemu), 2, 8 << 20),
        ("host", "tandem-dsp-host", None, 3, 8 << 20),
        // Little on-chip memory: columns in groups, weights in place, pieces of rows and columns.
        ("tight", "tandem-dsp-host", None, 1, 64 << 10),
        ("asan", "tandem-dsp-asan", None, 3, 1 << 20),
        ("tsan", "tandem-dsp-tsan", None, 3, 1 << 20),
    ];
    let mut trials = Vec::new();
    for (name, program, qemu, workers, vtcm_bytes) in programs {
        let program = built.join(program);
        let here = program.exists() && qemu.as_ref().is_none_or(|qemu| qemu.exists());
        if !here {
            eprintln!(
                "note: no {} (`cargo xtask hexagon` builds it); its checks are NOT RUN",
                program.display()
            );
        }
        let config = EmulatorConfig { workers, vtcm_bytes, ..EmulatorConfig::new(program, qemu) };
        for check in CHECKS {
            let (config, run) = (config.clone(), check.run);
            let trial = Trial::test(format!("{name}::{}", check.name), move || {
                run(&|| {
                    let device = Hexagon::emulated(&HexagonConfig::default(), &config);
                    Box::new(device.unwrap_or_else(|e| panic!("{e}")))
                });
                Ok(())
            });
            trials.push(trial.with_ignored_flag(!here || is_slow(name, check.name)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
