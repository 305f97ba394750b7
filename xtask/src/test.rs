//! `cargo xtask test` and `cargo xtask ci`: all that must hold before a change goes in.

use crate::ahead::Ahead;
use crate::cargo::{self, TaskError};
use crate::hardening;
use crate::hexagon;
use crate::need;
use crate::portability;
use std::process::Command;
use std::time::Instant;

/// Runs every check: the DSP's program built, formatting, lints, all tests (doc tests and whole-system tests on the
/// demo model included), the documentation, the unsafe crates under AddressSanitizer, aarch64
/// under emulation, Android; in a long run the fuzz targets under libFuzzer. Meanwhile programs of
/// later steps are built at the lowest priority.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the slow exhaustive forms of tests too (TANDEM_LONG=1, ignored tests included).
    #[arg(long)]
    long: bool,
    /// Run only steps whose name contains this.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Takes `--locked`.
    locks: bool,
    /// Takes `--include-ignored` in a long run.
    ignores: bool,
    environment: &'static [(&'static str, &'static str)],
}

/// How a run was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The slow exhaustive forms too.
    pub(crate) long: bool,
    /// As CI runs it.
    pub(crate) ci: bool,
}

type Task = fn(Run) -> Result<(), TaskError>;

/// Steps before the others: the tests run what they build.
const BUILDS: [(&str, Task); 1] = [("hexagon", hexagon::built)];

/// Steps that are more than one call of cargo, after the others.
const TASKS: [(&str, Task); 4] = [
    ("sanitizer", hardening::sanitize),
    ("fuzz", hardening::fuzz),
    ("aarch64", portability::emulated),
    ("android", portability::checked),
];

const STEPS: [Step; 5] = [
    Step {
        name: "format",
        arguments: &["fmt", "--all", "--check"],
        locks: false,
        ignores: false,
        environment: &[],
    },
    Step {
        name: "lints",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        locks: true,
        ignores: false,
        environment: &[],
    },
    // The whole-system tests drive the programs. Built with all targets, so that their
    // dependencies have the features of the test run and are not built twice.
    Step {
        name: "programs",
        arguments: &["build", "--workspace", "--all-targets"],
        locks: true,
        ignores: false,
        environment: &[],
    },
    // The SDK has its optional features here; without them it is tested on aarch64.
    Step {
        name: "tests",
        arguments: &["test", "--workspace", "--no-fail-fast"],
        locks: true,
        ignores: true,
        environment: &[],
    },
    Step {
        name: "documentation",
        arguments: &["doc", "--workspace", "--no-deps"],
        locks: true,
        ignores: false,
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
];

impl Step {
    fn command(&self, args: &Args, ci: bool) -> Command {
        let mut command = cargo::cargo();
        let (before, after) = match self.arguments.iter().position(|word| *word == "--") {
            Some(at) => self.arguments.split_at(at),
            None => (self.arguments, &[][..]),
        };
        command.args(before);
        if ci && self.locks {
            command.arg("--locked");
        }
        command.args(after);
        if args.long && self.ignores {
            command.args(["--", "--include-ignored"]);
        }
        command.envs(self.environment.iter().copied());
        if args.long {
            command.env("TANDEM_LONG", "1");
        }
        if ci {
            // Nothing is built twice there, and the cache is smaller without.
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
    }
}

/// Runs all steps, goes on after one that fails, and sums up.
pub(crate) fn run(args: &Args, ci: bool) -> Result<(), TaskError> {
    let start = Instant::now();
    let mode = Run { long: args.long, ci };
    need::ensure(need::TOOLCHAIN.iter().chain(&need::SYSTEM))?;
    let mut ahead = None;
    // One step alone takes the rest when it needs it.
    if args.only.is_none() {
        let rest = hexagon::NEEDS.iter().chain(&portability::CROSS).chain([&need::PYTHON, &need::NIGHTLY]);
        // One step each needs these; it asks again, and fails alone.
        match need::ensure(rest) {
            Ok(()) => ahead = Ahead::start(mode).ok(),
            Err(error) => println!("xtask: {error}"),
        }
    }
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut done = Vec::new();
    let mut step = |name: &'static str, work: &mut dyn FnMut() -> Result<(), TaskError>| {
        let began = Instant::now();
        let result = work();
        if let Err(error) = &result {
            println!("xtask: {error}");
        }
        done.push((name, result.is_ok(), began.elapsed().as_secs()));
    };
    for (name, task) in BUILDS.iter().filter(|(name, _)| wanted(name)) {
        println!("\n== {name}");
        step(name, &mut || task(mode));
    }
    for each in STEPS.iter().filter(|each| wanted(each.name)) {
        let mut command = each.command(args, ci);
        println!("\n== {}: {}", each.name, cargo::typed(&command));
        step(each.name, &mut || cargo::run(&mut command));
    }
    if let Some(mut ahead) = ahead {
        println!("\n== built ahead: waiting for what has been built meanwhile");
        step("built ahead", &mut || ahead.wait());
    }
    for (name, task) in TASKS.iter().filter(|(name, _)| wanted(name)) {
        println!("\n== {name}");
        step(name, &mut || task(mode));
    }
    println!();
    for (name, ok, seconds) in &done {
        println!("{:6}  {name:14} {seconds:>5} s", if *ok { "ok" } else { "FAILED" });
    }
    println!("{} steps in {} s", done.len(), start.elapsed().as_secs());
    if let Some(only) = args.only.as_ref().filter(|_| done.is_empty()) {
        let tasks = BUILDS.iter().chain(&TASKS).map(|(name, _)| *name);
        let names: Vec<&str> = STEPS.iter().map(|step| step.name).chain(tasks).collect();
        println!("no step's name contains {only:?}; there are: {}", names.join(", "));
    }
    let failed: Vec<String> =
        done.iter().filter(|(_, ok, _)| !ok).map(|(name, ..)| (*name).to_owned()).collect();
    if failed.is_empty() && !done.is_empty() {
        return Ok(());
    }
    Err(TaskError::Steps { failed, all: done.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(name: &str, long: bool, ci: bool) -> String {
        let step = STEPS.iter().find(|step| step.name == name).unwrap();
        cargo::typed(&step.command(&Args { long, only: None }, ci))
    }

    #[test]
    fn settings_go_before_the_arguments_of_the_program_behind_cargo() {
        let lints = typed("lints", false, true);
        assert!(lints.ends_with("clippy --workspace --all-targets --locked -- -D warnings"), "{lints}");
        let tests = typed("tests", true, true);
        assert!(tests.ends_with("test --workspace --no-fail-fast --locked -- --include-ignored"), "{tests}");
        assert!(typed("format", false, true).ends_with("fmt --all --check"));
    }
}
