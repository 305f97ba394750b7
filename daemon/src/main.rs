//! `tandemd`: parses, wires, and maps errors to exit codes.
//!
//! Exit codes: 0 stopped on request, 1 failed while serving, 2 settings or model unusable,
//! 3 the socket is in use.

use clap::Parser;
use std::process::ExitCode;
use tandem_ipc::server::ListenError;
use tandemd::check;
use tandemd::config::{Config, Flags, Verb};
use tandemd::log::{self, Log};
use tandemd::serve::{ServeError, serve};
use tandemd::supervisor;

fn main() -> ExitCode {
    let flags = Flags::parse();
    let inherited = supervisor::inherited_socket();
    let config = Config::resolve(&flags).and_then(|config| Ok((log::filter(&config.log)?, config)));
    let (filter, config) = match config {
        Ok(settings) => settings,
        Err(error) => return unusable(&error),
    };
    #[cfg(feature = "hexagon")]
    if config.device == tandemd::config::DeviceKind::Hexagon {
        let phone = tandem_hexagon::FastrpcConfig::find();
        // SAFETY: nothing above starts a thread, so this is the only one.
        unsafe { tandem_hexagon::fastrpc::set_library_path(&phone) };
    }
    let log = Log::start(filter);
    log::panics();
    let done = match flags.verb {
        Some(Verb::Check) => check::check(&config, &mut std::io::stdout().lock()),
        None => serve(&config, inherited, &log),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = unusable(&error);
            match error {
                ServeError::Listen(ListenError::InUse { .. }) => ExitCode::from(3),
                ServeError::System { .. } => ExitCode::FAILURE,
                _ => code,
            }
        }
    }
}

fn unusable(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("tandemd: {error}");
    ExitCode::from(2)
}
