//! The conformance suite at every instruction set of the host, with one thread on weights as
//! stored and with several on repacked ones. A harness of its own, so that instruction sets this host lacks are listed as
//! ignored: not run, and never counted as passed.

use libtest_mimic::{Arguments, Trial};
use tandem_cpu::{Cpu, CpuConfig, IsaLevel};
use tandem_program::conformance::CHECKS;

fn main() {
    let mut trials = Vec::new();
    for level in IsaLevel::ALL {
        let available = level.is_available();
        if !available {
            eprintln!("note: {level} is not available on this host; its checks are NOT RUN");
        }
        for (threads, repack) in [(1, false), (3, true)] {
            let weights = if repack { "repacked" } else { "stored" };
            for check in CHECKS {
                let name = format!("{level:?}::{threads}_threads::{weights}::{}", check.name);
                let run = check.run;
                let trial = Trial::test(name, move || {
                    run(&|| {
                        let config =
                            CpuConfig { threads, level: Some(level), repack, ..CpuConfig::default() };
                        Box::new(Cpu::new(config).expect("available levels can be made"))
                    });
                    Ok(())
                });
                trials.push(trial.with_ignored_flag(!available));
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
