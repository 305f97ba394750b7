//! From settings to a running daemon, and its clean end.

use crate::config::{Config, DeviceKind};
use crate::front::{Admission, Front};
use crate::scheduler::{Command, Scheduler};
use crate::status::Facts;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc;
use std::time::Instant;
use tandem_cpu::{Cpu, CpuConfig, CpuError};
use tandem_engine::engine::{Engine, LoadError};
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

fn device(config: &Config) -> Result<Box<dyn Device>, ServeError> {
    Ok(match config.device {
        DeviceKind::Cpu => Box::new(Cpu::new(CpuConfig { threads: config.threads, ..CpuConfig::default() })?),
        DeviceKind::Reference => Box::new(Reference::new()),
    })
}

/// Loads the model, listens, and serves until SIGTERM or SIGINT.
pub fn serve(config: &Config) -> Result<(), ServeError> {
    let started = Instant::now();
    if let Some(folder) = config.socket.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|source| ServeError::Folder { path: folder.into(), source })?;
    }
    // Before the model, so that a second daemon ends at once.
    let listener_config = ListenerConfig { mode: config.limits.socket_mode, ..ListenerConfig::default() };
    let listener = Listener::bind(&config.socket, listener_config)?;
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(system("cannot watch signals"))?;
    let engine = Engine::open(&config.model, device(config)?, config.engine.clone())?;
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
    let (front, orders) = Front::new(listener, admission, commands.clone()).map_err(system("epoll"))?;
    let facts =
        Facts { model: config.model.clone(), placement: config.placement.clone(), started: Instant::now() };
    let scheduler =
        Scheduler::new(engine, config.placement.clone(), inbox, orders, facts, config.unload_after);
    let (stop, end) = (commands.clone(), commands.clone());
    let handle = signals.handle();
    let waiter = std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // A scheduler that has ended needs no telling.
                let _ = stop.send(Command::Stop);
                tracing::info!(signal, "stopping");
            }
        })
        .map_err(system("cannot start a thread"))?;
    if let Some(fd) = config.owner {
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
