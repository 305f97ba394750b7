//! The client: where to connect, and what can be asked.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tandem_ipc::handshake::MAX_APP_NAME;
use tandem_ipc::message::{ClientMessage, RequestId, ServerMessage};
use tandem_ipc::request::GenerateRequest;

use crate::error::Error;
use crate::generation::{Generation, unexpected};
use crate::link::Link;
use crate::logits::{LogitsRow, Rows};
use crate::mailbox::Mailbox;

/// The system-wide daemon's socket.
const SYSTEM_SOCKET: &str = "/run/tandem/tandem.sock";
/// First pause between two attempts to reconnect; doubles up to the next.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Where the daemon is expected: `$TANDEM_SOCKET` if it is set; otherwise
/// `$XDG_RUNTIME_DIR/tandem.sock` if that exists; otherwise
/// `/run/tandem/tandem.sock`.
pub fn default_socket() -> PathBuf {
    socket_of(
        std::env::var_os("TANDEM_SOCKET").map(PathBuf::from),
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
    )
}

fn socket_of(named: Option<PathBuf>, runtime: Option<PathBuf>) -> PathBuf {
    if let Some(named) = named.filter(|path| !path.as_os_str().is_empty()) {
        return named;
    }
    let of_user = runtime.map(|folder| folder.join("tandem.sock"));
    match of_user.filter(|path| path.exists()) {
        Some(path) => path,
        None => PathBuf::from(SYSTEM_SOCKET),
    }
}

/// Settings of a [`Client`].
#[derive(Debug, Clone)]
pub struct Builder {
    path: PathBuf,
    app: String,
    handshake: Duration,
    reconnect: Duration,
    patience: Duration,
}

impl Builder {
    /// The name under which the daemon lists this app, 1 to 64 bytes. Default:
    /// the executable's file name.
    pub fn app(mut self, app: impl Into<String>) -> Builder {
        self.app = app.into();
        self
    }

    /// How long the daemon may take to answer the handshake. Default 5 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Builder {
        self.handshake = timeout;
        self
    }

    /// How long a request tries to connect again after the daemon went away.
    /// Default 3 s; zero tries once.
    pub fn reconnect_within(mut self, time: Duration) -> Builder {
        self.reconnect = time;
        self
    }

    /// How long a request waits for room in a full request ring, and `status`
    /// and `ping` for their answer. Default 10 s.
    pub fn patience(mut self, time: Duration) -> Builder {
        self.patience = time;
        self
    }

    /// Connects now, one attempt.
    pub fn connect(self) -> Result<Client, Error> {
        let link = Link::connect(&self.path, &self.app, self.handshake)?;
        Ok(Client {
            inner: Arc::new(Inner {
                settings: self,
                link: Mutex::new(Arc::new(link)),
                next: AtomicU64::new(1),
            }),
        })
    }
}

/// A connection to the daemon that renews itself. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Builder,
    link: Mutex<Arc<Link>>,
    next: AtomicU64,
}

impl Client {
    /// Connects to the daemon at `path` with default settings.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, Error> {
        Client::builder(path).connect()
    }

    /// Connects to the daemon at [`default_socket`].
    pub fn connect_default() -> Result<Client, Error> {
        Client::connect(default_socket())
    }

    /// Settings for a client of the daemon at `path`.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder {
            path: path.as_ref().to_owned(),
            app: name_of_this_program(),
            handshake: Duration::from_secs(5),
            reconnect: Duration::from_secs(3),
            patience: Duration::from_secs(10),
        }
    }

    /// Starts a generation. Several may be in flight at once.
    ///
    /// Returns when the request is in the ring; connects again first if the
    /// daemon went away.
    pub fn generate(&self, request: impl Into<GenerateRequest>) -> Result<Generation, Error> {
        let request: GenerateRequest = request.into();
        request.validate()?;
        let request = Box::new(request);
        let (id, link, mailbox) = self.ask(|id| ClientMessage::Generate { id, request })?;
        Ok(Generation::new(id, link, mailbox))
    }

    /// What the daemon does now: device, model, clients, memory, counters.
    pub fn status(&self) -> Result<serde_json::Value, Error> {
        match self.ask_for_one(|id| ClientMessage::Status { id })? {
            ServerMessage::Status { json, .. } => serde_json::from_str(&json)
                .map_err(|error| Error::Protocol(format!("the status is no JSON: {error}"))),
            other => Err(unexpected(other, "a status request")),
        }
    }

    /// Asks for a sign of life.
    pub fn ping(&self) -> Result<(), Error> {
        match self.ask_for_one(|id| ClientMessage::Ping { id })? {
            ServerMessage::Pong { .. } => Ok(()),
            other => Err(unexpected(other, "a ping")),
        }
    }

    /// Logits of each prompt, given as token ids: of the last position, or one
    /// row a position. Rows come in order of prompt and position.
    pub fn logits(&self, prompts: Vec<Vec<u32>>, all_positions: bool) -> Result<Vec<LogitsRow>, Error> {
        let (id, link, mailbox) = self.ask(|id| ClientMessage::Logits { id, prompts, all_positions })?;
        let mut rows = Rows::default();
        loop {
            let Some(message) = mailbox.take(None)? else {
                continue;
            };
            match rows.add(message) {
                Ok(true) => return Ok(rows.into_rows()),
                Ok(false) => {}
                Err(error) => {
                    link.close(id);
                    return Err(error);
                }
            }
        }
    }

    /// Whether the connection stands. A request made while it does not connects
    /// again.
    pub fn is_connected(&self) -> bool {
        self.lock_link().is_alive()
    }

    fn lock_link(&self) -> std::sync::MutexGuard<'_, Arc<Link>> {
        // The content is replaced in one step, so it is whole after a panic too.
        let link = self.inner.link.lock();
        link.unwrap_or_else(|held| held.into_inner())
    }

    /// The live connection, made anew if necessary.
    fn link(&self) -> Result<Arc<Link>, Error> {
        let mut link = self.lock_link();
        if link.is_alive() {
            return Ok(Arc::clone(&link));
        }
        let settings = &self.inner.settings;
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match Link::connect(&settings.path, &settings.app, settings.handshake) {
                Ok(new) => {
                    *link = Arc::new(new);
                    return Ok(Arc::clone(&link));
                }
                Err(error) if !error.is_retryable() => return Err(error.into()),
                Err(error) if start.elapsed() + pause > settings.reconnect => {
                    return Err(error.into());
                }
                Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn ask(
        &self,
        message: impl FnOnce(RequestId) -> ClientMessage,
    ) -> Result<(RequestId, Arc<Link>, Arc<Mailbox>), Error> {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let link = self.link()?;
        let mailbox = link.open(id)?;
        if let Err(error) = link.send(&message(id), self.inner.settings.patience) {
            link.close(id);
            return Err(error);
        }
        Ok((id, link, mailbox))
    }

    fn ask_for_one(&self, message: impl FnOnce(RequestId) -> ClientMessage) -> Result<ServerMessage, Error> {
        let patience = self.inner.settings.patience;
        let (id, link, mailbox) = self.ask(message)?;
        let answer = mailbox.take(Some(patience));
        link.close(id);
        answer?.ok_or(Error::Timeout { waited: patience })
    }
}

fn name_of_this_program() -> String {
    let name = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default();
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    match (0..=MAX_APP_NAME.min(name.len())).rev().find(|&at| name.is_char_boundary(at)) {
        Some(end) if end > 0 => name[..end].to_owned(),
        _ => "unnamed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_socket_wins_then_the_users_then_the_systems() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Some(folder.path().to_owned());
        assert_eq!(socket_of(Some("/x".into()), runtime.clone()), Path::new("/x"));
        assert_eq!(
            socket_of(None, runtime.clone()),
            Path::new(SYSTEM_SOCKET),
            "the user's socket does not exist"
        );
        std::fs::write(folder.path().join("tandem.sock"), "").unwrap();
        assert_eq!(socket_of(Some("".into()), runtime), folder.path().join("tandem.sock"));
    }

    #[test]
    fn this_programs_name_is_a_valid_app_name() {
        let name = name_of_this_program();
        assert!(tandem_ipc::handshake::Hello::name_is_valid(&name), "{name}");
    }
}
