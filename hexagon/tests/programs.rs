//! The DSP's own test programs: soft floats (`dsp/test/floats.c`), the queue
//! (`dsp/test/queue.c`), hostile packets (`dsp/test/packets.c`). What `cargo xtask hexagon` has not built is listed as
//! ignored: not run, and never counted as passed.

mod built;

use built::built;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::{Command, Output};

type Verdict = fn(&Output) -> bool;

fn passes(output: &Output) -> bool {
    output.status.success()
}

/// The variant that reads job and index apart has to be caught, not to crash.
fn is_caught(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.code() == Some(1) && text.contains("ran 2 times") && text.contains("ran 0 times")
}

fn main() {
    let built = built();
    let qemu = built.join("qemu/usr/bin/qemu-hexagon");
    let programs: [(&str, &str, bool, &[&str], Verdict); 11] = [
        ("soft_floats_are_this_machines", "floats", false, &["50000"], passes),
        ("soft_floats_are_the_scalar_units::v73", "floats-v73", true, &["3000"], passes),
        ("products_through_tiles_are_plain_sums", "tiles", false, &[], passes),
        ("products_through_tiles_are_plain_sums::v73", "tiles-v73", true, &[], passes),
        ("the_librarys_own_arithmetic_is_this_machines", "arithmetic", false, &[], passes),
        ("every_task_of_the_queue_runs_once", "queue", false, &[], passes),
        ("every_task_of_the_queue_runs_once::tsan", "queue-tsan", false, &[], passes),
        ("a_queue_that_reads_job_and_index_apart_is_caught", "queue-torn", false, &[], is_caught),
        ("hostile_packets_are_answered", "packets", false, &["20000"], passes),
        ("hostile_packets_are_answered::asan", "packets-asan", false, &["20000"], passes),
        ("hostile_packets_are_answered::v73", "packets-v73", true, &["2000"], passes),
    ];
    let mut trials = Vec::new();
    for (name, program, emulated, arguments, verdict) in programs {
        let program = built.join(program);
        let here = program.exists() && (!emulated || qemu.exists());
        if !here {
            eprintln!("note: {} is not built; {name} is NOT RUN", program.display());
        }
        let mut command = if emulated { Command::new(&qemu) } else { Command::new(&program) };
        if emulated {
            command.args(["-cpu", "v73"]).arg(&program);
        }
        command.args(arguments);
        let trial = Trial::test(name, move || {
            let output = command.output()?;
            if verdict(&output) {
                return Ok(());
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            Err(Failed::from(format!("{}\n{out}\n{err}", output.status)))
        });
        trials.push(trial.with_ignored_flag(!here));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
