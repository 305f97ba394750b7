//! The unsafe crates under AddressSanitizer, and in a long run the fuzz targets under libFuzzer.

use crate::cargo::{self, TaskError};
use crate::need;
use crate::test::Run;
use std::path::PathBuf;
use std::process::Command;

/// Crates whose unsafe code outside input reaches.
const UNSAFE_CRATES: [&str; 1] = ["tandem-ipc"];

/// Crates whose unsafe code only our own programs reach; minutes to build, so in a long run.
const UNSAFE_KERNELS: [&str; 1] = ["tandem-cpu"];

/// The fuzz targets, and the longest input of each in bytes.
const FUZZ: [(&str, u32); 4] = [("gguf", 16384), ("frame", 4096), ("ring", 4096), ("schema", 2048)];

/// Seconds a target runs.
const FUZZ_SECONDS: u32 = 300;

/// What makes libFuzzer see which branches an input took.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                        -Cllvm-args=-sanitizer-coverage-pc-table \
                        -Cllvm-args=-sanitizer-coverage-trace-compares --cfg=fuzzing -Ccodegen-units=1";

/// A nightly cargo with AddressSanitizer, and a target folder of its own: its flags would
/// have everything else built anew.
fn nightly(flags: &str, run: Run) -> (Command, String) {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new("cargo");
    command.arg("+nightly").current_dir(cargo::root());
    command.env("RUSTFLAGS", format!("-Zsanitizer=address {flags}"));
    // Xtask itself is run by cargo, which says which toolchain and target folder are its own.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
    command.env("CARGO_TARGET_DIR", folder());
    if run.ci {
        command.env("CARGO_INCREMENTAL", "0");
    }
    (command, host)
}

fn folder() -> PathBuf {
    cargo::target().join("sanitizer")
}

/// Builds the tests of the unsafe crates for AddressSanitizer.
pub(crate) fn build(run: Run) -> Result<(), TaskError> {
    cargo::run(sanitized(run).arg("--no-run"))
}

/// Runs the tests of the unsafe crates under AddressSanitizer.
pub(crate) fn sanitize(run: Run) -> Result<(), TaskError> {
    need::ensure([&need::NIGHTLY])?;
    let mut command = sanitized(run);
    println!("{}", cargo::typed(&command));
    cargo::run(&mut command)
}

fn sanitized(run: Run) -> Command {
    let (mut command, host) = nightly("", run);
    command.args(["test", "--tests", "--locked", "--target", &host]);
    // Off in other runs, where they make every load of a kernel slow.
    command.args(["--config", "profile.dev.package.tandem-cpu.debug-assertions=true"]);
    let kernels = if run.long { &UNSAFE_KERNELS[..] } else { &[] };
    for name in UNSAFE_CRATES.iter().chain(kernels) {
        command.args(["-p", name]);
    }
    // The model of the rings runs on stacks that leak when a run is cut short; what clients
    // leave behind is counted by a test of its own.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command
}

/// In a long run, builds the fuzz targets for libFuzzer and runs each on its seeds and what it
/// makes of them. The build takes minutes, so otherwise the tests' bounded mutations must do.
pub(crate) fn fuzz(run: Run) -> Result<(), TaskError> {
    if !run.long {
        println!("with --long only; the tests have tried the targets on seeds and mutations (tests/fuzz)");
        return Ok(());
    }
    need::ensure([&need::NIGHTLY])?;
    let (mut command, host) = nightly(COVERAGE, run);
    command.args([
        "build",
        "--locked",
        "--release",
        "--target",
        &host,
        "--manifest-path",
        "tests/fuzz/libfuzzer/Cargo.toml",
    ]);
    println!("{}", cargo::typed(&command));
    cargo::run(&mut command)?;
    let programs = folder().join(host).join("release");
    for (name, longest) in FUZZ {
        let seeds = cargo::root().join("tests/fuzz/seeds").join(name);
        let found = folder().join("found").join(name);
        std::fs::create_dir_all(&found)
            .map_err(|source| TaskError::Run { program: format!("mkdir {}", found.display()), source })?;
        let mut command = Command::new(programs.join(name));
        command.arg(format!("-max_total_time={FUZZ_SECONDS}")).arg(format!("-max_len={longest}"));
        // An input that takes longer, or more memory, is a finding too.
        command.args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]);
        command.arg(format!("-artifact_prefix={}/", folder().display())).arg(&found);
        if seeds.exists() {
            command.arg(&seeds);
        }
        println!("{}", cargo::typed(&command));
        cargo::run(&mut command)?;
    }
    Ok(())
}
