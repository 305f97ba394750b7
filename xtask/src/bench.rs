//! `cargo xtask bench`: what the mechanisms are worth, on this machine.

mod peer;
mod speculation;

use crate::cargo::TaskError;

/// Measures.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Peer(peer::Args),
    Speculation(speculation::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), TaskError> {
    match &args.what {
        What::Peer(args) => peer::run(args),
        What::Speculation(args) => speculation::run(args),
    }
}
