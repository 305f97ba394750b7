//! `tandem policy`: the policy author's bench.

mod build;
mod calibrate;
mod check;
mod new;
mod simulate;

use crate::failure::Failure;
use clap::Subcommand;
use std::io::Write;

/// Makes, tests and scores policies: where state is saved, and when power votes go.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    New(new::Args),
    Build(build::Args),
    Check(check::Args),
    Simulate(Box<simulate::Args>),
    Calibrate(calibrate::Args),
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    match &args.command {
        Command::New(args) => new::run(args, out),
        Command::Build(args) => build::run(args, out),
        Command::Check(args) => check::run(args, out),
        Command::Simulate(args) => simulate::run(args, out),
        Command::Calibrate(args) => calibrate::run(args, out),
    }
}

/// An error of the bench, whose text already says what to do.
fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::Usage(error.to_string())
}
