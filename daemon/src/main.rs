//! `tandemd`: parses, wires, and maps errors to exit codes.
//!
//! Exit codes: 0 stopped on request, 1 failed while serving, 2 settings or model unusable,
//! 3 the socket is in use.

use clap::Parser;
use std::process::ExitCode;
use tandem_ipc::server::ListenError;
use tandemd::config::{Config, Flags};
use tandemd::serve::{ServeError, serve};

fn main() -> ExitCode {
    let flags = Flags::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("TANDEM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A log that cannot be written (its reader is gone) must not stop a thread.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let config = match Config::resolve(&flags) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("tandemd: {error}");
            return ExitCode::from(2);
        }
    };
    match serve(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tandemd: {error}");
            ExitCode::from(match error {
                ServeError::Listen(ListenError::InUse { .. }) => 3,
                ServeError::Load(_)
                | ServeError::Cpu(_)
                | ServeError::Listen(_)
                | ServeError::Folder { .. } => 2,
                ServeError::System { .. } => 1,
            })
        }
    }
}
