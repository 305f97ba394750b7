//! Developer tasks: `cargo xtask demo | test | ci | policies | hexagon | bench`.

mod ahead;
mod bench;
mod cargo;
mod demo;
mod hardening;
mod hexagon;
mod need;
mod policies;
mod portability;
mod screen;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Developer tasks of Tandem.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Bench(bench::Args),
    Demo(demo::Args),
    Test(test::Args),
    /// As `test`, with the settings of a CI machine: the locked dependencies, no incremental
    /// builds.
    Ci(test::Args),
    Policies(policies::Args),
    Hexagon(hexagon::Args),
    /// What `test` does on the side.
    #[command(hide = true)]
    Ahead(ahead::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Bench(args) => bench::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args, false),
        Task::Ci(args) => test::run(&args, true),
        Task::Policies(args) => policies::run(&args),
        Task::Hexagon(args) => hexagon::run(&args),
        Task::Ahead(args) => ahead::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
