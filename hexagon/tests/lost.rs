//! A DSP that dies or hangs at any moment: the session says so, a new device works, and nothing
//! of the old one is left: descriptors, maps, processes. Runs what `cargo xtask hexagon` has
//! built; without it the tests are listed as ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

mod built;
mod session;

use built::built;
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal, kill_process};
use session::{belongings, work};
use std::time::Duration;
use tandem_hexagon::{Emulator, EmulatorConfig, Hexagon, HexagonConfig, Shared};
use tandem_program::DeviceError;

const MEMORY: HexagonConfig = HexagonConfig { memory: 64 << 20, window: 32 << 20 };

/// A device, and the number of its process.
fn device(config: &EmulatorConfig) -> (Hexagon, Pid) {
    let shared = Shared::new(MEMORY.memory).unwrap();
    let link = Emulator::start(config, &shared).unwrap();
    let process = Pid::from_raw(i32::try_from(link.process()).unwrap()).unwrap();
    (Hexagon::new(&MEMORY, shared, Box::new(link)).unwrap(), process)
}

/// Sends `signal` at a moment that differs from round to round.
fn disturbed(config: &EmulatorConfig, signal: Signal, rounds: u64) {
    let before = belongings("tandem-dsp");
    let mut lost = 0;
    for round in 0..rounds {
        let (mut device, process) = device(config);
        let disturber = std::thread::spawn(move || {
            // Any spread will do: 0 to 20 ms in steps that do not repeat.
            std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
            kill_process(process, signal)
        });
        let error = work(&mut device, u32::MAX).unwrap_err();
        assert!(matches!(&error, DeviceError::Lost(_)), "round {round}: {error}");
        // It stays lost, and says so instead of waiting again.
        assert!(matches!(work(&mut device, 1), Err(DeviceError::Lost(_))), "round {round}");
        lost += 1;
        disturber.join().unwrap().unwrap();
    }
    assert_eq!(lost, rounds);
    let (mut device, _) = device(config);
    work(&mut device, 3).unwrap();
    drop(device);
    assert_eq!(before, belongings("tandem-dsp"), "descriptors, maps, processes");
}

fn main() {
    let folder = built();
    let emulated = EmulatorConfig::in_folder(&folder);
    let host = folder.join("tandem-dsp-host");
    if emulated.is_err() || !host.exists() {
        eprintln!("note: {} lacks what `cargo xtask hexagon` builds; NOT RUN", folder.display());
    }
    let host = host.exists().then(|| EmulatorConfig::new(host, None));
    let mut trials = Vec::new();
    for (name, config) in [("v73", emulated.ok()), ("host", host)] {
        // A stopped process is given up after its budget, which has to do for a start on a busy
        // machine; so fewer rounds, but in a long run.
        let stops = if std::env::var_os("TANDEM_LONG").is_some() { 100 } else { 3 };
        let cases = [("killed", Signal::KILL, 100, 600), ("stopped", Signal::STOP, stops, 2)];
        for (what, signal, rounds, seconds) in cases {
            let here = config.is_some();
            let config = config.clone();
            let name = format!("{name}::{what}_at_any_moment_is_lost_and_leaves_nothing");
            let trial = Trial::test(name, move || {
                let budget = Duration::from_secs(seconds);
                let config = EmulatorConfig { budget, ..config.ok_or("not built")? };
                disturbed(&config, signal, rounds);
                Ok(())
            });
            trials.push(trial.with_ignored_flag(!here));
        }
    }
    // One at a time: they count this process's descriptors.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}
