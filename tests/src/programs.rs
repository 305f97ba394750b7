//! The programs under test.

use crate::files::root;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tandem_sdk::{Client, PrivateDaemon};

/// When a state that a test waits for counts as never reached. Generous: other work may
/// have the machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where the programs are.
#[derive(Debug)]
pub struct Programs {
    /// The command.
    pub tandem: PathBuf,
    /// The daemon.
    pub tandemd: PathBuf,
}

/// The programs, built from this checkout in the profile of the test.
///
/// # Panics
/// If they do not build.
pub fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        // A test runs from target/PROFILE/deps.
        let own = std::env::current_exe().unwrap_or_else(|e| panic!("where is this test? {e}"));
        let folder = own.ancestors().nth(2).unwrap_or(&own).to_owned();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // All targets: then dependencies have the features of a test run of the workspace,
        // and are not built a second time for the programs.
        build.args(["build", "--quiet", "--workspace", "--all-targets"]).current_dir(root());
        if folder.file_name() == Some(OsStr::new("release")) {
            build.arg("--release");
        }
        let status = build.status().unwrap_or_else(|e| panic!("cannot run cargo: {e}"));
        assert!(status.success(), "tandemd and tandem do not build");
        Programs { tandem: folder.join("tandem"), tandemd: folder.join("tandemd") }
    })
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Finished {
    /// The output as JSON.
    ///
    /// # Panics
    /// If the program failed or the output is no JSON.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("no JSON ({e}): {}", self.out))
    }

    /// Checks the exit code, that the error is one text with the program's name, and that
    /// every word is in it.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.err, self.out);
        assert!(self.err.starts_with("tandem"), "no program name: {}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }
}

fn finish(command: &mut Command) -> Finished {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    Finished {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `tandem` to its end.
pub fn tandem<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Finished {
    finish(Command::new(&programs().tandem).args(arguments))
}

/// Runs `tandemd` to its end.
pub fn tandemd<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Finished {
    finish(Command::new(&programs().tandemd).args(arguments))
}

/// Starts `tandem` with its output in pipes.
///
/// # Panics
/// If it does not start.
pub fn start<S: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = S>,
    adjust: impl FnOnce(&mut Command),
) -> Child {
    let mut command = Command::new(&programs().tandem);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    adjust(&mut command);
    command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// A daemon that ends with the test.
///
/// # Panics
/// If it does not serve.
pub fn daemon<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> (PrivateDaemon, Client) {
    let started = PrivateDaemon::builder(&programs().tandemd).args(arguments).app("test").start();
    started.unwrap_or_else(|e| panic!("the daemon does not serve: {e}"))
}

/// Sends a signal to a process.
///
/// # Panics
/// If there is no such process.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.unwrap_or_else(|| panic!("no process id"));
    rustix::process::kill_process(pid, signal).unwrap_or_else(|e| panic!("{signal:?}: {e}"));
}

/// Looks until something holds.
///
/// # Panics
/// If it does not for minutes.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
