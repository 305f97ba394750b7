//! The front: one thread that takes clients in and copies their messages out of shared
//! memory. It never waits for a client, and hands everything to the scheduler.

use crate::scheduler::{ClientId, Command};
use crate::supervisor::Pulse;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tandem_ipc::channel::Receiver;
use tandem_ipc::handshake::{Goodbye, Refusal};
use tandem_ipc::message::ClientMessage;
use tandem_ipc::server::{Gone, Handshake, HandshakeError, Link, Listener};

/// Messages of one client that may wait for the scheduler; past that its ring is not read.
const WAITING_MESSAGES: u32 = 64;
/// How long a client may take to say hello.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// How long no connection is accepted after one could not be.
const ACCEPT_REST: Duration = Duration::from_millis(200);
/// Handshakes under way at a time; further connections wait in the socket's backlog.
const HANDSHAKES: usize = 64;

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// Tokens from here on: an id times four, plus what the descriptor is.
const FIRST: u64 = 4;
const DOORBELL: u64 = 0;
const LIFE_LINE: u64 = 1;
const HANDSHAKE: u64 = 2;

/// What the scheduler asks of the front.
#[derive(Debug)]
pub enum Order {
    /// Read this client's ring again.
    Resume(ClientId),
    /// Say goodbye and hang up.
    Close(ClientId, Goodbye),
    /// Take in clients by these limits from now on.
    Admit(Admission),
    /// Answer with this beat.
    Pulse(Arc<Pulse>, u64),
    /// Take nobody in any more, say goodbye to all, end.
    Stop,
}

/// Flags that the front and the scheduler share about a client.
#[derive(Debug, Default)]
pub struct Shared {
    /// Messages handed over and not yet looked at.
    pub waiting: AtomicU32,
    /// The front stopped reading until told to resume.
    pub paused: AtomicBool,
    /// The scheduler wants to hear the doorbell: a send found the ring full.
    pub blocked: AtomicBool,
}

/// Sends [`Order`]s and wakes the front.
#[derive(Clone, Debug)]
pub struct Orders {
    queue: mpsc::Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Orders {
    /// Gives an order. A front that has ended takes none, which is as good.
    pub fn give(&self, order: Order) {
        if self.queue.send(order).is_ok() {
            // A full counter means that the front is awake already.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// Who may connect.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Clients at a time.
    pub clients: u32,
    /// Clients at a time of one user.
    pub clients_per_user: u32,
}

struct Client {
    receiver: Receiver<ClientMessage>,
    link: Link,
    shared: Arc<Shared>,
}

struct Greeting {
    handshake: Handshake,
    deadline: Instant,
}

/// See the module.
pub struct Front {
    listener: Listener,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    orders: mpsc::Receiver<Order>,
    commands: mpsc::Sender<Command>,
    power: crate::power::Handle,
    admission: Admission,
    clients: HashMap<u64, Client>,
    greetings: HashMap<u64, Greeting>,
    next: u64,
    /// Whether the listener is watched; not while too many greetings are under way, or until
    /// `rest_until` after descriptors ran out.
    listening: bool,
    rest_until: Option<Instant>,
}

impl Front {
    /// A front for a listening socket, and the way to give it orders.
    pub fn new(
        listener: Listener,
        admission: Admission,
        commands: mpsc::Sender<Command>,
        power: crate::power::Handle,
    ) -> std::io::Result<(Self, Orders)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (queue, orders) = mpsc::channel();
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, listener.as_fd(), data(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &*wake, data(WAKE), epoll::EventFlags::IN)?;
        let front = Front {
            listener,
            epoll,
            wake: Arc::clone(&wake),
            orders,
            commands,
            power,
            admission,
            clients: HashMap::new(),
            greetings: HashMap::new(),
            next: FIRST,
            listening: true,
            rest_until: None,
        };
        Ok((front, Orders { queue, wake }))
    }

    /// Serves until [`Order::Stop`], or until the scheduler is gone.
    pub fn run(mut self) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self.next_deadline().map(|d| {
                let left = d.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
            });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => {
                        if self.obey() {
                            return Ok(());
                        }
                    }
                    token => self.ready(token),
                }
            }
            self.drop_silent_greetings();
            self.watch_listener()?;
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.greetings.values().map(|g| g.deadline).chain(self.rest_until).min()
    }

    /// Watches the listener only while a connection could be taken in: it is level-triggered
    /// and would wake the thread without end.
    fn watch_listener(&mut self) -> std::io::Result<()> {
        self.rest_until = self.rest_until.filter(|at| *at > Instant::now());
        let wanted = self.greetings.len() < HANDSHAKES && self.rest_until.is_none();
        if wanted == self.listening {
            return Ok(());
        }
        if wanted {
            self.register(self.listener.as_fd(), LISTENER, epoll::EventFlags::IN)?;
        } else {
            epoll::delete(&self.epoll, self.listener.as_fd())?;
        }
        self.listening = wanted;
        Ok(())
    }

    fn register(&self, fd: BorrowedFd<'_>, token: u64, flags: epoll::EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    fn accept(&mut self) {
        while self.greetings.len() < HANDSHAKES {
            match self.listener.accept() {
                Ok(Some(handshake)) => {
                    let id = self.next;
                    self.next += 4;
                    let registered = self.register(handshake.as_fd(), id + HANDSHAKE, epoll::EventFlags::IN);
                    if let Err(errno) = registered {
                        tracing::warn!(%errno, "cannot watch a new connection");
                        continue;
                    }
                    self.greetings.insert(id, Greeting { handshake, deadline: Instant::now() + HELLO_TIME });
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; resting");
                    self.rest_until = Some(Instant::now() + ACCEPT_REST);
                    return;
                }
            }
        }
    }

    fn drop_silent_greetings(&mut self) {
        let now = Instant::now();
        let late: Vec<u64> =
            self.greetings.iter().filter(|(_, g)| g.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(greeting) = self.greetings.remove(&id) {
                let reason = format!("no hello within {} s", HELLO_TIME.as_secs());
                greeting.handshake.refuse(Refusal::Malformed { reason });
            }
        }
    }

    /// Orders of the scheduler. True to end.
    fn obey(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Resume(id) => self.read(id.0),
                Order::Close(id, goodbye) => {
                    if let Some(client) = self.clients.remove(&id.0) {
                        client.link.close(goodbye);
                    }
                }
                Order::Admit(admission) => self.admission = admission,
                Order::Pulse(pulse, beat) => pulse.front.store(beat, Ordering::Release),
                Order::Stop => {
                    for (_, client) in self.clients.drain() {
                        client.link.close(Goodbye::ShuttingDown { retry_after_ms: Some(1000) });
                    }
                    for (_, greeting) in self.greetings.drain() {
                        let reason = "it is stopping".into();
                        greeting
                            .handshake
                            .refuse(Refusal::Unavailable { reason, retry_after_ms: Some(1000) });
                    }
                    return true;
                }
            }
        }
        false
    }

    fn ready(&mut self, token: u64) {
        let id = token / 4 * 4;
        match token - id {
            HANDSHAKE => self.greet(id),
            DOORBELL => {
                if let Some(client) = self.clients.get(&id)
                    && client.shared.blocked.swap(false, Ordering::AcqRel)
                {
                    self.tell(Command::Room(ClientId(id)));
                }
                self.read(id);
            }
            LIFE_LINE => {
                if let Some(Err(gone)) = self.clients.get(&id).map(|c| c.link.check_alive()) {
                    self.part(id, gone);
                }
            }
            _ => {}
        }
    }

    fn part(&mut self, id: u64, gone: Gone) {
        // What the client wrote before it went may hold a whole last message, but nobody is
        // left to read an answer.
        self.clients.remove(&id);
        tracing::info!(client = id, reason = %gone, "client left");
        self.tell(Command::Gone(ClientId(id)));
    }

    fn greet(&mut self, id: u64) {
        let Some(greeting) = self.greetings.get_mut(&id) else { return };
        match greeting.handshake.poll() {
            Ok(None) => return,
            Ok(Some(_)) => {}
            Err(HandshakeError::HangUp) => {
                self.greetings.remove(&id);
                return;
            }
            Err(error) => {
                tracing::info!(%error, "handshake failed");
                self.greetings.remove(&id);
                return;
            }
        }
        let Some(Greeting { handshake, .. }) = self.greetings.remove(&id) else { return };
        let peer = handshake.peer();
        if let Some(refusal) = self.refusal(peer.uid) {
            tracing::info!(uid = peer.uid, pid = peer.pid, %refusal, "refused a client");
            handshake.refuse(refusal);
            return;
        }
        // The handshake's registration goes with its last descriptor only, and the
        // connection keeps that descriptor.
        let _ = epoll::delete(&self.epoll, handshake.as_fd());
        let connection = match handshake.accept() {
            Ok(connection) => connection,
            Err(error) => {
                tracing::info!(%error, "handshake failed");
                return;
            }
        };
        let (sender, receiver, link) = connection.split();
        let edge = epoll::EventFlags::ET;
        let watched = self
            .register(link.doorbell(), id + DOORBELL, epoll::EventFlags::IN | edge)
            .and_then(|()| self.register(link.life_line(), id + LIFE_LINE, epoll::EventFlags::RDHUP | edge));
        if let Err(errno) = watched {
            tracing::warn!(%errno, "cannot watch a new client");
            return;
        }
        tracing::info!(client = id, uid = peer.uid, pid = peer.pid, app = link.app(), "client connected");
        let shared = Arc::new(Shared::default());
        self.tell(Command::Connected {
            client: ClientId(id),
            app: link.app().to_owned(),
            peer,
            sender,
            shared: Arc::clone(&shared),
        });
        self.clients.insert(id, Client { receiver, link, shared });
        // It may have written or gone before its descriptors were watched.
        self.read(id);
        if let Some(Err(gone)) = self.clients.get(&id).map(|c| c.link.check_alive()) {
            self.part(id, gone);
        }
    }

    fn refusal(&self, uid: u32) -> Option<Refusal> {
        let quota = |limit, in_use| Refusal::Quota { limit, in_use, retry_after_ms: Some(1000) };
        let all = self.clients.len() as u32;
        if all >= self.admission.clients {
            let reason = format!("all {} places are taken", self.admission.clients);
            return Some(Refusal::Unavailable { reason, retry_after_ms: Some(1000) });
        }
        let own = self.clients.values().filter(|c| c.link.peer().uid == uid).count() as u32;
        (own >= self.admission.clients_per_user).then(|| quota(self.admission.clients_per_user, own))
    }

    /// Reads a client's ring until it is empty or the scheduler has enough of its messages.
    fn read(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        loop {
            if client.shared.waiting.load(Ordering::Acquire) >= WAITING_MESSAGES {
                client.shared.paused.store(true, Ordering::Release);
                // The scheduler may have caught up between the two lines above.
                if client.shared.waiting.load(Ordering::Acquire) >= WAITING_MESSAGES {
                    return;
                }
                client.shared.paused.store(false, Ordering::Release);
            }
            match client.receiver.recv() {
                Ok(None) => return,
                Ok(Some(message)) => {
                    client.shared.waiting.fetch_add(1, Ordering::AcqRel);
                    if matches!(message, ClientMessage::Generate { .. }) {
                        // Votes come back while the prompt is rendered and tokenized.
                        self.power.expect();
                    }
                    if self.commands.send(Command::Message(ClientId(id), message)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(client = id, %error, "dropping a client that broke the protocol");
                    if let Some(client) = self.clients.remove(&id) {
                        client.link.close(Goodbye::Protocol { detail: error.to_string() });
                    }
                    self.tell(Command::Gone(ClientId(id)));
                    return;
                }
            }
        }
    }

    fn tell(&self, command: Command) {
        // A scheduler that is gone ends the daemon; there is nobody left to tell.
        let _ = self.commands.send(command);
    }
}
