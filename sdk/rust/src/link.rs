//! One connection: a sender that all callers share, and a thread that reads
//! the response ring and sorts messages into mailboxes.
//!
//! A thread of its own, because a ring that nobody empties fills up and costs
//! the app its answers: an app may hold a generation without looking at it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tandem_ipc::channel::{Receiver, Sender};
use tandem_ipc::client::{ConnectError, Connection, Link as Wire, Lost, WaitError, recv_wait};
use tandem_ipc::message::{ClientMessage, RequestId, ServerMessage};

use crate::error::{Ending, Error};
use crate::mailbox::Mailbox;

#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    sender: Mutex<Sender<ClientMessage>>,
    wire: Wire,
    routes: Mutex<Routes>,
    /// How often the doorbell rang: it may mean room in the request ring.
    rings: Mutex<u64>,
    rang: Condvar,
    /// Cancellations that found the ring full or the sender taken.
    cancels: Mutex<Vec<RequestId>>,
}

#[derive(Debug, Default)]
struct Routes {
    mailboxes: HashMap<RequestId, Arc<Mailbox>>,
    ending: Option<Ending>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks; if it did, the data is
    // whole, because every change is one step.
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}

impl Link {
    pub(crate) fn connect(path: &Path, app: &str, timeout: Duration) -> Result<Link, ConnectError> {
        let (sender, receiver, wire) = Connection::connect(path, app, timeout)?.split();
        let shared = Arc::new(Shared {
            sender: Mutex::new(sender),
            wire,
            routes: Mutex::default(),
            rings: Mutex::new(0),
            rang: Condvar::new(),
            cancels: Mutex::default(),
        });
        let reader = std::thread::Builder::new()
            .name("tandem-sdk".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.read(receiver)
            })
            .map_err(|source| ConnectError::Io {
                what: "starting a reader thread for",
                path: path.to_owned(),
                source,
            })?;
        Ok(Link { shared, reader: Mutex::new(Some(reader)) })
    }

    pub(crate) fn is_alive(&self) -> bool {
        lock(&self.shared.routes).ending.is_none()
    }

    /// A mailbox for the answers to `id`.
    pub(crate) fn open(&self, id: RequestId) -> Result<Arc<Mailbox>, Error> {
        let mut routes = lock(&self.shared.routes);
        if let Some(ending) = &routes.ending {
            return Err(ending.clone().into());
        }
        let mailbox = Arc::new(Mailbox::default());
        routes.mailboxes.insert(id, Arc::clone(&mailbox));
        Ok(mailbox)
    }

    /// Messages for `id` that still come are dropped from now on.
    pub(crate) fn close(&self, id: RequestId) {
        lock(&self.shared.routes).mailboxes.remove(&id);
    }

    /// Sends a message; waits at most `patience` while the ring is full.
    pub(crate) fn send(&self, message: &ClientMessage, patience: Duration) -> Result<(), Error> {
        self.shared.send(message, patience)
    }

    /// Cancels `id` without ever waiting.
    pub(crate) fn cancel(&self, id: RequestId) {
        lock(&self.shared.cancels).push(id);
        self.shared.send_cancels();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.wire.hang_up();
        let reader = lock(&self.reader).take();
        // A waker that drops the last handle runs on the reader itself.
        if let Some(reader) = reader
            && reader.thread().id() != std::thread::current().id()
        {
            // The reader ends at the hang-up; a panic in it was printed.
            let _ = reader.join();
        }
    }
}

impl Shared {
    fn send(&self, message: &ClientMessage, patience: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let mut sender = lock(&self.sender);
        loop {
            // Read before the attempt, so that a ring after it is not missed.
            let before = *lock(&self.rings);
            let error = match sender.send(message) {
                Ok(()) => break,
                Err(error) => error,
            };
            if let Some(ending) = &lock(&self.routes).ending {
                return Err(ending.clone().into());
            }
            if error.is_too_large() {
                return Err(Error::TooLarge(error.to_string()));
            }
            if !error.is_full() {
                return Err(Error::Protocol(error.to_string()));
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                return Err(Error::Busy { waited: patience });
            };
            let unchanged = |rings: &mut u64| *rings == before;
            drop(self.rang.wait_timeout_while(lock(&self.rings), left, unchanged));
        }
        drop(sender);
        self.send_cancels();
        Ok(())
    }

    fn send_cancels(&self) {
        // Whoever has the sender looks at the list after giving it back.
        let mut sender = match self.sender.try_lock() {
            Ok(sender) => sender,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        loop {
            let Some(id) = lock(&self.cancels).pop() else {
                return;
            };
            match sender.send(&ClientMessage::Cancel { id }) {
                Ok(()) => {}
                Err(error) if error.is_full() => {
                    // The doorbell rings when there is room, and the reader
                    // comes here.
                    lock(&self.cancels).push(id);
                    return;
                }
                // The connection is over, and with it every generation.
                Err(_) => return,
            }
        }
    }

    fn read(&self, mut receiver: Receiver<ServerMessage>) {
        let ending = loop {
            let on_bell = || {
                *lock(&self.rings) += 1;
                self.rang.notify_all();
                self.send_cancels();
            };
            match recv_wait(&mut receiver, &self.wire, None, on_bell) {
                Ok(Some(message)) => self.route(message),
                // Only a timeout gives `None`, and there is none.
                Ok(None) => {}
                Err(WaitError::Lost(Lost::DaemonGone)) => break Ending::Gone,
                Err(WaitError::Lost(Lost::Goodbye(goodbye))) => break Ending::Goodbye(goodbye),
                Err(broken) => break Ending::Protocol(broken.to_string()),
            }
        };
        // After a broken ring the daemon must not go on either.
        self.wire.hang_up();
        let mailboxes = {
            let mut routes = lock(&self.routes);
            routes.ending = Some(ending.clone());
            std::mem::take(&mut routes.mailboxes)
        };
        for mailbox in mailboxes.values() {
            mailbox.end(ending.clone());
        }
        *lock(&self.rings) += 1;
        self.rang.notify_all();
    }

    fn route(&self, message: ServerMessage) {
        let id = message.id();
        let mailbox = {
            let mut routes = lock(&self.routes);
            if message.is_last() { routes.mailboxes.remove(&id) } else { routes.mailboxes.get(&id).cloned() }
        };
        // No mailbox: the caller has dropped the request.
        if let Some(mailbox) = mailbox {
            mailbox.put(message);
        }
    }
}
