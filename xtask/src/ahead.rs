//! `cargo xtask ahead`: what the last steps of `cargo xtask test` run, built while the first ones
//! wait for the network, for a linker, or in a test.
//!
//! At the lowest priority, in target folders of its own, and only built: nothing is run that a busy
//! machine could make fail. What fails here fails again, with its words, in the step it is for.

use crate::cargo::{TaskError, typed};
use crate::hardening;
use crate::portability;
use crate::test::Run;
use std::process::{Child, Command, Stdio};

/// Builds what the last steps of a test run run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For a long run.
    #[arg(long)]
    long: bool,
    /// As CI builds.
    #[arg(long)]
    ci: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), TaskError> {
    let mode = Run { long: args.long, ci: args.ci };
    let builds = [portability::build_emulated(mode), portability::checked(mode), hardening::build(mode)];
    builds.into_iter().collect()
}

/// The process that builds ahead.
#[derive(Debug)]
pub(crate) struct Ahead(Child);

impl Ahead {
    /// Starts it. What it takes of the system has to be there: two processes cannot install at once.
    pub(crate) fn start(mode: Run) -> Result<Ahead, TaskError> {
        let own = std::env::current_exe()
            .map_err(|source| TaskError::Run { program: "this program again".into(), source })?;
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(own).arg("ahead");
        command.args(mode.long.then_some("--long")).args(mode.ci.then_some("--ci"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|source| TaskError::Run { program: typed(&command), source })?;
        Ok(Ahead(child))
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<(), TaskError> {
        // Whatever it could not build, the step it is for builds, and says why not.
        self.0.wait().map_err(|source| TaskError::Run { program: "cargo xtask ahead".into(), source })?;
        Ok(())
    }
}
