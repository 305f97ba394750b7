//! From settings to a running daemon, and its clean end.

use crate::board::StatusBoard;
use crate::config::{Config, DeviceKind, Fallback};
use crate::front::{Admission, Front};
use crate::log::{self, Log};
use crate::policy::{PolicyError, PolicyHost};
use crate::power::Manager;
use crate::private_folder;
use crate::scheduler::{Command, Parts, Scheduler};
use crate::session::{Make, Sessions, Terms};
use crate::status::Facts;
use crate::supervisor;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use tandem_cpu::{Cpu, CpuConfig, CpuError};
use tandem_engine::engine::LoadError;
#[cfg(feature = "hexagon")]
use tandem_hexagon::{EmulatorConfig, FastrpcConfig, Hexagon, HexagonConfig, HexagonError};
use tandem_ipc::server::{ListenError, Listener, ListenerConfig};
use tandem_program::Device;
use tandem_program::reference::Reference;

/// Why the daemon did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The model.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The CPU device.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The device's power votes.
    #[error(transparent)]
    Device(#[from] tandem_program::DeviceError),
    /// The Hexagon device.
    #[cfg(feature = "hexagon")]
    #[error(transparent)]
    Hexagon(#[from] HexagonError),
    /// The placement policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A folder for the socket.
    #[error("cannot make the socket's folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: std::path::PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Threads, signals, epoll.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

/// Makes a device of a kind, as the settings have it.
fn device(config: &Config, kind: DeviceKind) -> Result<Box<dyn Device>, ServeError> {
    Ok(match kind {
        DeviceKind::Cpu => {
            let folder = config.weight_cache.as_deref();
            let cache = folder.and_then(|folder| private_folder::open(folder, "repacked weights"));
            Box::new(Cpu::new(CpuConfig { threads: config.threads, cache, ..CpuConfig::default() })?)
        }
        DeviceKind::Reference => Box::new(Reference::new()),
        #[cfg(feature = "hexagon")]
        DeviceKind::Emulator => {
            let mut emulator = EmulatorConfig::find()?;
            emulator.budget = config.session.budget().unwrap_or(emulator.budget);
            Box::new(Hexagon::emulated(&HexagonConfig::default(), &emulator)?)
        }
        #[cfg(feature = "hexagon")]
        DeviceKind::Hexagon => {
            let mut phone = FastrpcConfig::find();
            phone.budget = config.session.budget().unwrap_or(phone.budget);
            Box::new(Hexagon::fastrpc(&HexagonConfig::default(), &phone)?)
        }
    })
}

/// How the device's sessions are made, the first and those after it.
pub(crate) fn terms(config: &Config) -> Terms {
    let make = |kind: DeviceKind| -> Make {
        let config = config.clone();
        Box::new(move || device(&config, kind))
    };
    let falls_back = config.session.fallback == Fallback::Cpu && config.device != DeviceKind::Cpu;
    Terms {
        wanted: config.device.as_str().into(),
        make: make(config.device),
        fallback: falls_back.then(|| make(DeviceKind::Cpu)),
        tries: config.session.tries,
    }
}

/// Loads the model, listens, and serves until SIGTERM or SIGINT. `inherited` is a socket that a
/// supervisor has made; without one the socket of the settings is bound.
pub fn serve(config: &Config, inherited: Option<OwnedFd>, log: &Log) -> Result<(), ServeError> {
    let started = Instant::now();
    if !config.core_dumps {
        forbid_core_dumps();
    }
    // Before the model, so that a second daemon ends at once.
    let listener = listen(config, inherited)?;
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(system("cannot watch signals"))?;
    let board = StatusBoard::open(config.board.as_deref());
    let policies = match &config.policy_cache {
        Some(folder) => PolicyHost::with_cache(folder)?,
        None => PolicyHost::new()?,
    };
    // Before the model: a plugin that cannot be loaded is told at once.
    policies.placement(&config.placement)?;
    policies.check_power(&config.power.policy)?;
    let policies = Arc::new(policies);
    let power = Manager::start(&config.power, &policies).map_err(system("power"))?;
    let mut sessions = Sessions::new(terms(config), Arc::clone(power.handle().gate()));
    let engine = sessions.open(&config.model, config.engine.clone())?;
    let info = engine.executor().device();
    tracing::info!(
        model = %config.model.display(),
        device = info.name,
        detail = info.detail,
        ms = started.elapsed().as_millis() as u64,
        "model loaded"
    );
    let (commands, inbox) = mpsc::channel();
    let admission =
        Admission { clients: config.limits.clients, clients_per_user: config.limits.clients_per_user };
    let (front, orders) =
        Front::new(listener, admission, commands.clone(), power.handle()).map_err(system("epoll"))?;
    let facts =
        Facts { model: config.model.clone(), placement: config.placement.clone(), started: Instant::now() };
    let scheduler = Scheduler::new(Parts {
        engine,
        sessions,
        policies: policies.clone(),
        commands: inbox,
        orders: orders.clone(),
        facts,
        unload_after: config.unload_after,
        board,
        power: power.handle(),
        votes: config.power.clone(),
    });
    let end = commands.clone();
    let handle = signals.handle();
    let waiter = watch_signals(signals, commands.clone(), config.clone(), log.clone(), policies)?;
    supervisor::start_watchdog(commands.clone(), orders).map_err(system("cannot start a thread"))?;
    if let Some(fd) = config.flags.owner {
        watch_owner(fd, commands)?;
    }
    let front = std::thread::Builder::new()
        .name("front".into())
        .spawn(move || {
            let _stop = StopAtEnd(end);
            front.run()
        })
        .map_err(system("cannot start a thread"))?;
    tracing::info!(socket = %config.socket.display(), "serving");
    supervisor::ready("serving");
    scheduler.run();
    let ended = front.join();
    handle.close();
    // The thread has nothing that can fail.
    let _ = waiter.join();
    match ended {
        Ok(result) => result.map_err(system("waiting for clients")),
        Err(_) => Err(system("the front thread")(std::io::Error::other("it panicked; see the log"))),
    }
}

fn listen(config: &Config, inherited: Option<OwnedFd>) -> Result<Listener, ServeError> {
    let settings = ListenerConfig { mode: config.limits.socket_mode, ..ListenerConfig::default() };
    if let Some(socket) = inherited {
        return Ok(Listener::from_fd(socket, settings)?);
    }
    if let Some(folder) = config.socket.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|source| ServeError::Folder { path: folder.into(), source })?;
    }
    Ok(Listener::bind(&config.socket, settings)?)
}

/// A core file would hold prompts and answers.
fn forbid_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Where the supervisor has forbidden them already, it may have forbidden this call too.
    if getrlimit(Resource::Core).maximum == Some(0) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
        tracing::warn!(%error, "cannot forbid core dumps, which would hold prompts and answers");
    }
}

/// SIGHUP reads the settings again, SIGTERM and SIGINT stop.
fn watch_signals(
    mut signals: Signals,
    commands: mpsc::Sender<Command>,
    mut config: Config,
    log: Log,
    policies: Arc<PolicyHost>,
) -> Result<std::thread::JoinHandle<()>, ServeError> {
    let watch = move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                supervisor::reloading();
                match reload(&config, &log, &policies) {
                    Ok(new) => {
                        config = new.clone();
                        // A scheduler that has ended needs no telling, here and below.
                        let _ = commands.send(Command::Reload(Box::new(new)));
                    }
                    Err(error) => {
                        tracing::error!(%error, "the settings cannot be used; the old ones stay");
                        supervisor::ready("serving; the new settings cannot be used, see the log");
                    }
                }
            } else {
                let _ = commands.send(Command::Stop);
                tracing::info!(signal, "stopping");
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(system("cannot start a thread"))
}

fn reload(old: &Config, log: &Log, policies: &PolicyHost) -> Result<Config, crate::config::ConfigError> {
    let new = Config::resolve(&old.flags)?;
    let filter = log::filter(&new.log)?;
    // Compiled here, so that the engine does not wait for it. What cannot be loaded again
    // stays as it is; a policy named for the first time must load.
    for error in policies.reload() {
        tracing::error!(%error, "a policy cannot be loaded again; the old one stays");
    }
    policies.placement(&new.placement)?;
    policies.check_power(&new.power.policy)?;
    let waits = old.needs_restart(&new);
    if !waits.is_empty() {
        tracing::warn!(settings = waits.join(", "), "changed, but take effect at a restart only");
    }
    log.set(filter);
    Ok(new)
}

/// Stops the scheduler when the front ends, however it does: without it no client could come
/// or go.
struct StopAtEnd(mpsc::Sender<Command>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        // A scheduler that has ended needs no telling.
        let _ = self.0.send(Command::Stop);
    }
}

/// Stops the daemon when the process that started it is gone: its end of the pipe closes.
fn watch_owner(fd: i32, commands: mpsc::Sender<Command>) -> Result<(), ServeError> {
    let path = format!("/proc/self/fd/{fd}");
    let mut pipe = std::fs::File::open(path).map_err(system("cannot open the owner's descriptor"))?;
    std::thread::Builder::new()
        .name("owner".into())
        .spawn(move || {
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
            let _ = commands.send(Command::Stop);
            tracing::info!("the owner is gone; stopping");
        })
        .map(drop)
        .map_err(system("cannot start a thread"))
}
