//! Where the daemon is: a running one by its socket, or a private one.

use crate::failure::Failure;
use crate::interrupt;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tandem_sdk::{Client, PrivateDaemon};

/// Options of subcommands that work with a running daemon or start one for themselves.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Daemon (with --socket a running one, otherwise a private one)")]
pub(crate) struct Options {
    /// Socket of a running daemon.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Model file (GGUF) for a private daemon.
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    model: Option<PathBuf>,
    /// Settings file of a private daemon.
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// Device of a private daemon, as `tandemd --help` lists them.
    #[arg(long, value_name = "DEVICE", conflicts_with = "socket")]
    device: Option<String>,
    /// Its worker threads.
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    threads: Option<usize>,
    /// Its tokens of context a client.
    #[arg(long, value_name = "TOKENS", conflicts_with = "socket")]
    context: Option<u32>,
    /// Its placement policy.
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    placement: Option<String>,
    /// Turns a mechanism of a private daemon on or off, or sets its value; repeatable.
    #[arg(long = "set", value_name = "SWITCH=VALUE", conflicts_with = "socket")]
    set: Vec<String>,
}

/// A daemon to ask, with a first connection to it.
#[derive(Debug)]
pub(crate) struct Daemon {
    client: Client,
    socket: PathBuf,
    private: Option<PrivateDaemon>,
}

impl Options {
    /// Whether any option is set.
    pub(crate) fn is_given(&self) -> bool {
        self.socket.is_some() || !self.arguments().is_empty()
    }

    /// Connects, or starts a private daemon.
    pub(crate) fn open(&self, app: &str) -> Result<Daemon, Failure> {
        if let Some(socket) = &self.socket {
            let client = Client::builder(socket).app(app).connect()?;
            return Ok(Daemon { client, socket: socket.clone(), private: None });
        }
        if self.model.is_none() && self.config.is_none() {
            let text =
                "no model: give --model FILE.gguf for a private daemon, or --socket PATH of a running one";
            return Err(Failure::Usage(text.into()));
        }
        let program = PrivateDaemon::program();
        let (private, client) = PrivateDaemon::builder(program).args(self.arguments()).app(app).start()?;
        interrupt::remove_on_signal(private.folder())?;
        Ok(Daemon { client, socket: private.socket().to_owned(), private: Some(private) })
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: Option<OsString>| {
            if let Some(value) = value {
                arguments.extend([flag.into(), value]);
            }
        };
        add("--model", self.model.as_ref().map(Into::into));
        add("--config", self.config.as_ref().map(Into::into));
        add("--device", self.device.as_ref().map(Into::into));
        add("--threads", self.threads.map(|n| n.to_string().into()));
        add("--context", self.context.map(|n| n.to_string().into()));
        add("--placement", self.placement.as_ref().map(Into::into));
        for pair in &self.set {
            add("--set", Some(pair.into()));
        }
        arguments
    }
}

impl Daemon {
    /// The connection made by [`Options::open`].
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Where further clients connect.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs `work`, then stops a private daemon. If the work failed because the daemon died,
    /// the error is what the daemon said.
    pub(crate) fn run(self, work: impl FnOnce(&Daemon) -> Result<(), Failure>) -> Result<(), Failure> {
        let result = work(&self);
        let Daemon { client, private, .. } = self;
        let Some(private) = private else { return result };
        drop(client);
        let stopped = private.stop().map_err(Failure::from);
        match result {
            Err(error) if error.is_daemon_gone() => stopped.and(Err(error)),
            result => result.and(stopped),
        }
    }
}
