//! `tandem`: parses, runs one subcommand, and maps errors to exit codes.
//!
//! A file a subcommand. What they share: where the daemon is ([`daemon`]), how a run fails
//! ([`failure`]), and the numbers of one request ([`numbers`]).

mod bench;
mod daemon;
mod failure;
mod generate;
mod interrupt;
mod logits;
mod man;
mod model;
mod numbers;
mod peer;
mod policy;
mod replay;
mod report;
mod schema;
mod status;
mod top;
mod trace;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::Write;
use std::process::ExitCode;

/// Talks to tandemd: asks the model, replays traces, shows what the daemon does.
#[derive(Debug, Parser)]
#[command(
    name = "tandem",
    version,
    after_help = "Exit codes: 0 done; 1 the daemon failed the request; 2 the command line or a file it \
                  names cannot be used, or the model cannot; 3 no daemon."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(Box<generate::Args>),
    Replay(replay::Args),
    Bench(bench::Args),
    Model(model::Args),
    Policy(policy::Args),
    Status(status::Args),
    Top(top::Args),
    Man(man::Args),
}

fn run(cli: &Cli, out: &mut dyn Write) -> Result<(), Failure> {
    match &cli.command {
        Command::Generate(args) => generate::run(args, out),
        Command::Replay(args) => replay::run(args, out),
        Command::Bench(args) => bench::run(args, out),
        Command::Model(args) => model::run(args, out),
        Command::Policy(args) => policy::run(args, out),
        Command::Status(args) => status::run(args, out),
        Command::Top(args) => top::run(args, out),
        Command::Man(args) => man::run::<Cli>(args, out),
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help or version. A reader that has gone away has seen enough.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.render().to_string();
            eprint!("tandem: {}", text.strip_prefix("error: ").unwrap_or(&text));
            return ExitCode::from(failure::USAGE);
        }
    };
    let mut out = std::io::stdout().lock();
    let done = run(&cli, &mut out).and_then(|()| Ok(out.flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tandem: {error}");
            ExitCode::from(error.exit_code())
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
