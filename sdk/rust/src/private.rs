//! A daemon that belongs to this process: for command-line tools, tests and demos.
//!
//! It listens on a socket in a folder of its own, holds one end of a pipe whose other end
//! this process keeps, and stops when that end closes, however this process ends.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::Client;
use crate::error::Error;

/// How long a daemon may load its model.
const LOAD_TIME: Duration = Duration::from_secs(300);
/// How long a daemon may take to stop before it is killed.
const STOP_TIME: Duration = Duration::from_secs(20);
/// One attempt to connect; between two of them it is checked whether the daemon lives.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Pause while the socket does not exist yet.
const PAUSE: Duration = Duration::from_millis(5);
/// What is kept of the daemon's log, bytes.
const LOG_BYTES: usize = 64 << 10;

/// Why a private daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// The program cannot be run.
    #[error("cannot start {}: {source}; build it, or put it beside this program or on PATH", program.display())]
    Spawn {
        /// The program tried.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No folder for the socket.
    #[error("cannot make a folder for the private daemon's socket: {0}")]
    Folder(std::io::Error),
    /// The daemon ended by itself.
    #[error("{words}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// What it said last.
        words: String,
    },
    /// The daemon runs and does not take clients.
    #[error("the private daemon took no client within {} s", waited.as_secs())]
    Silent {
        /// The time allowed.
        waited: Duration,
    },
    /// The daemon refused this process.
    #[error(transparent)]
    Connect(#[from] Error),
    /// The daemon did not stop and was killed.
    #[error("the private daemon did not stop within {} s and was killed", waited.as_secs())]
    Killed {
        /// The time allowed.
        waited: Duration,
    },
}

/// How to start a [`PrivateDaemon`].
#[derive(Debug, Clone)]
pub struct PrivateBuilder {
    program: PathBuf,
    arguments: Vec<OsString>,
    app: Option<String>,
}

impl PrivateBuilder {
    /// Adds an argument of `tandemd`.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> PrivateBuilder {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds several.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> PrivateBuilder {
        self.arguments.extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// The name under which the daemon lists this process.
    pub fn app(mut self, app: impl Into<String>) -> PrivateBuilder {
        self.app = Some(app.into());
        self
    }

    /// Starts the daemon, waits until it serves, and connects.
    pub fn start(self) -> Result<(PrivateDaemon, Client), PrivateError> {
        let folder = tempfile::Builder::new().prefix("tandem-").tempdir().map_err(PrivateError::Folder)?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .arg("--socket")
            .arg(folder.path().join(SOCKET))
            .args(["--owner", "0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| PrivateError::Spawn { program: self.program.clone(), source })?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stderr.take().map(|stderr| {
            let log = Arc::clone(&log);
            std::thread::spawn(move || keep(stderr, &log))
        });
        let owner = child.stdin.take();
        let mut daemon = PrivateDaemon {
            child,
            owner,
            socket: folder.path().join(SOCKET),
            log,
            reader,
            folder: Some(folder),
        };
        let client = daemon.connect(self.app)?;
        Ok((daemon, client))
    }
}

const SOCKET: &str = "tandem.sock";

/// A daemon of this process's own. Dropping it stops it and waits for its end.
#[derive(Debug)]
pub struct PrivateDaemon {
    child: Child,
    /// Our end of the pipe: the daemon stops when it closes.
    owner: Option<ChildStdin>,
    socket: PathBuf,
    log: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    folder: Option<TempDir>,
}

impl PrivateDaemon {
    /// A daemon run from `program`.
    pub fn builder(program: impl Into<PathBuf>) -> PrivateBuilder {
        PrivateBuilder { program: program.into(), arguments: Vec::new(), app: None }
    }

    /// The `tandemd` beside this program, else the one on `PATH`.
    pub fn program() -> PathBuf {
        let beside = std::env::current_exe().ok().map(|path| path.with_file_name("tandemd"));
        beside.filter(|path| path.is_file()).unwrap_or_else(|| "tandemd".into())
    }

    /// Its socket, for further clients.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The folder that holds the socket; nothing else is in it.
    pub fn folder(&self) -> &Path {
        self.socket.parent().unwrap_or(&self.socket)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        // Every change to the log is one step, so it is whole after a panic too.
        let log = self.log.lock().unwrap_or_else(|held| held.into_inner());
        String::from_utf8_lossy(&log).into_owned()
    }

    /// An error that says how the daemon ended, if it has.
    pub fn ended(&mut self) -> Option<PrivateError> {
        let status = self.child.try_wait().ok()??;
        // All that it wrote is in the log once the pipe is at its end.
        if let Some(reader) = self.reader.take() {
            // A panic in it was printed.
            let _ = reader.join();
        }
        Some(PrivateError::Ended { status, words: last_words(&self.log(), status) })
    }

    /// Stops the daemon and waits for its end.
    ///
    /// # Errors
    /// [`PrivateError::Ended`] if it did not end well, [`PrivateError::Killed`] if it did not
    /// end by itself.
    pub fn stop(mut self) -> Result<(), PrivateError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), PrivateError> {
        self.owner = None;
        let start = Instant::now();
        loop {
            match self.ended() {
                Some(PrivateError::Ended { status, .. }) if status.success() => return Ok(()),
                Some(error) => return Err(error),
                None if start.elapsed() > STOP_TIME => {
                    // Fails only where it has just ended.
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Err(PrivateError::Killed { waited: STOP_TIME });
                }
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    fn connect(&mut self, app: Option<String>) -> Result<Client, PrivateError> {
        let start = Instant::now();
        loop {
            let mut builder = Client::builder(&self.socket).handshake_timeout(ATTEMPT);
            if let Some(app) = &app {
                builder = builder.app(app);
            }
            match builder.connect() {
                Ok(client) => return Ok(client),
                Err(error) => {
                    if let Some(ended) = self.ended() {
                        return Err(ended);
                    }
                    if !error.is_retryable() {
                        return Err(error.into());
                    }
                }
            }
            if start.elapsed() > LOAD_TIME {
                return Err(PrivateError::Silent { waited: LOAD_TIME });
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        // After `stop` the daemon has ended and this does nothing.
        let _ = self.end();
        drop(self.folder.take());
    }
}

/// Reads the daemon's log to its end and keeps the last part.
fn keep(mut stderr: ChildStderr, log: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    loop {
        match stderr.read(&mut piece) {
            Ok(0) => return,
            Ok(n) => {
                let mut log = log.lock().unwrap_or_else(|held| held.into_inner());
                log.extend_from_slice(&piece[..n]);
                let extra = log.len().saturating_sub(LOG_BYTES);
                log.drain(..extra);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// The daemon's own error line; where there is none, all that it said.
fn last_words(log: &str, status: ExitStatus) -> String {
    let own = log.lines().filter_map(|line| line.strip_prefix("tandemd: ")).next_back();
    match own {
        Some(line) => line.to_owned(),
        None if log.trim().is_empty() => format!("the private daemon ended without a word ({status})"),
        None => format!("the private daemon ended ({status}):\n{}", log.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = PrivateDaemon::builder("/nowhere/tandemd").start().unwrap_err();
        assert!(matches!(error, PrivateError::Spawn { .. }));
        assert!(error.to_string().contains("/nowhere/tandemd"), "{error}");
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported_with_its_last_words() {
        let script = "echo one log line >&2; echo 'tandemd: no model' >&2; exit 2";
        let error = PrivateDaemon::builder("sh").args(["-c", script]).start().unwrap_err();
        let PrivateError::Ended { status, words } = error else { panic!("{error}") };
        assert_eq!((status.code(), words.as_str()), (Some(2), "no model"));
    }

    #[test]
    fn without_an_error_line_the_whole_log_is_shown() {
        let words = last_words("thread panicked\nat x.rs\n", ExitStatus::from_raw(101 << 8));
        assert!(words.contains("panicked") && words.contains("101"), "{words}");
        assert!(last_words("", ExitStatus::from_raw(9)).contains("signal: 9"));
    }
}
