//! The scheduler: the thread that owns the engine and with it the device.
//!
//! It takes commands between passes, so a cancel or a new client waits for one pass at most.

mod translation;

use crate::board::{Phase, StatusBoard};
use crate::config::Config;
use crate::front::{Admission, Order, Orders, Shared};
use crate::policy::PolicyHost;
use crate::power;
use crate::session::{Mended, Sessions};
use crate::status;
use crate::supervisor::{self, Pulse};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tandem_engine::engine::{Engine, SlotId};
use tandem_engine::request::{Event, JobId};
use tandem_ipc::channel::Sender;
use tandem_ipc::handshake::Goodbye;
use tandem_ipc::message::{self, ClientMessage, FailureCode, MAX_LOGITS_VALUES, RequestId, ServerMessage};
use tandem_ipc::peer::PeerCredentials;
use tandem_ipc::request::GenerateRequest;
use translation::{code, down, failed, finish_of, stats_of, translate};

/// Messages that may wait for room in a client's ring before it counts as too slow. The
/// rows of one pass of the numeric door may be more; their number is bounded by the pass.
const OUTBOX: usize = 4096;

/// Commands obeyed between two passes while there is work.
const COMMANDS_A_PASS: u32 = 64;

/// A client of this daemon. Never reused while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// What the front tells the scheduler.
#[derive(Debug)]
pub enum Command {
    /// A client was taken in.
    Connected {
        /// Its id.
        client: ClientId,
        /// What it calls itself.
        app: String,
        /// Who it is.
        peer: PeerCredentials,
        /// Its response ring.
        sender: Sender<ServerMessage>,
        /// Flags shared with the front.
        shared: Arc<Shared>,
    },
    /// A client's message, copied and decoded.
    Message(ClientId, ClientMessage),
    /// A client's ring has room again.
    Room(ClientId),
    /// A client is gone.
    Gone(ClientId),
    /// Settings that were read again.
    Reload(Box<Config>),
    /// Answer with this beat.
    Pulse(Arc<Pulse>, u64),
    /// Stop: requests in flight get a retryable error.
    Stop,
}

/// One client, as status shows it.
pub(crate) struct Client {
    pub(crate) app: String,
    pub(crate) peer: PeerCredentials,
    pub(crate) slot: SlotId,
    sender: Sender<ServerMessage>,
    shared: Arc<Shared>,
    outbox: VecDeque<ServerMessage>,
    pub(crate) jobs: HashMap<JobId, Running>,
    probes: VecDeque<Probe>,
    pub(crate) requests: u64,
}

pub(crate) struct Running {
    id: RequestId,
    deadline: Option<Instant>,
}

struct Probe {
    id: RequestId,
    prompts: VecDeque<Vec<u32>>,
    next: u32,
    all_positions: bool,
}

/// What a [`Scheduler`] works with.
pub struct Parts {
    /// The engine, on the first session's device.
    pub engine: Engine,
    /// What made that session, and makes those that follow it.
    pub sessions: Sessions,
    /// The policies; that of new slots is named by `facts`.
    pub policies: Arc<PolicyHost>,
    /// What the front tells.
    pub commands: mpsc::Receiver<Command>,
    /// What the front is told.
    pub orders: Orders,
    /// For the status report.
    pub facts: status::Facts,
    /// Time without work after which everything but the file mapping is given back.
    pub unload_after: Option<Duration>,
    /// The status board.
    pub board: StatusBoard,
    /// The power votes.
    pub power: power::Handle,
    /// How they are managed.
    pub votes: power::Options,
}

/// See the module.
pub struct Scheduler {
    engine: Engine,
    sessions: Sessions,
    policies: Arc<PolicyHost>,
    commands: mpsc::Receiver<Command>,
    orders: Orders,
    clients: BTreeMap<ClientId, Client>,
    by_slot: HashMap<SlotId, ClientId>,
    next_job: u64,
    facts: status::Facts,
    unload_after: Option<Duration>,
    unload_at: Option<Instant>,
    board: StatusBoard,
    power: power::Handle,
    votes: power::Options,
    /// Something happened since the last report on the board.
    news: bool,
}

impl Scheduler {
    /// A scheduler for a loaded engine.
    pub fn new(parts: Parts) -> Self {
        let Parts { engine, sessions, policies, commands, orders, facts, unload_after, board, power, votes } =
            parts;
        Scheduler {
            engine,
            sessions,
            policies,
            commands,
            orders,
            clients: BTreeMap::new(),
            by_slot: HashMap::new(),
            next_job: 0,
            facts,
            unload_after,
            unload_at: None,
            board,
            power,
            votes,
            news: true,
        }
    }

    /// Serves until [`Command::Stop`], or until the front is gone.
    pub fn run(mut self) {
        let mut events = Vec::new();
        let mut commands = 0;
        loop {
            self.mend(&mut events);
            let able = !self.sessions.is_gap();
            let busy = able && (self.engine.has_work() || self.clients.values().any(Client::may_probe));
            let wake = if busy { None } else { self.next_wake() };
            self.power.busy(busy);
            self.report(busy);
            let command = match (busy, wake) {
                // A flood of messages must not keep the device from its work.
                (true, _) if commands >= COMMANDS_A_PASS => Err(false),
                (true, _) => self.commands.try_recv().map_err(|e| e == mpsc::TryRecvError::Disconnected),
                (false, None) => self.commands.recv().map_err(|_| true),
                (false, Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.commands.recv_timeout(left).map_err(|e| e == mpsc::RecvTimeoutError::Disconnected)
                }
            };
            match command {
                Ok(Command::Stop) | Err(true) => break,
                Ok(command) => {
                    commands += 1;
                    self.news |= !matches!(command, Command::Pulse(..));
                    self.obey(command);
                    continue;
                }
                Err(false) => commands = 0,
            }
            self.expire();
            if !able {
                continue;
            }
            if busy {
                self.unload_at = self.unload_after.map(|after| Instant::now() + after);
            } else {
                self.unload_when_idle();
            }
            self.step(&mut events);
            self.deliver(&mut events);
            self.probe();
        }
        self.stop();
    }

    /// Looks after the device's session: one that was lost is ended, its requests are told, and
    /// another is made.
    fn mend(&mut self, events: &mut Vec<(SlotId, JobId, Event)>) {
        if self.sessions.mend(&mut self.engine, events) == Mended::Nothing {
            return;
        }
        self.news = true;
        self.deliver(events);
        let Some(why) = self.sessions.down().map(down) else { return };
        let probes = |(id, c): (&ClientId, &mut Client)| (*id, c.probes.drain(..).collect::<Vec<_>>());
        let waiting: Vec<(ClientId, Vec<Probe>)> = self.clients.iter_mut().map(probes).collect();
        for (id, probes) in waiting {
            for probe in probes {
                self.send(id, failed(probe.id, FailureCode::DeviceFailed, why.clone()));
            }
        }
    }

    /// Refuses a request that no device is there for, nor soon will be.
    fn refuse_when_down(&mut self, id: ClientId, request: RequestId) -> bool {
        let Some(why) = self.sessions.down().map(down) else { return false };
        self.send(id, failed(request, FailureCode::DeviceFailed, why));
        true
    }

    /// One pass. A fault in the engine costs the requests that run, not the daemon.
    fn step(&mut self, events: &mut Vec<(SlotId, JobId, Event)>) {
        if self.engine.has_work() {
            self.board.phase(Phase::Pass);
            self.news = true;
        }
        // The engine is put back into a known state below, so what a panic left is not seen.
        let done = catch_unwind(AssertUnwindSafe(|| self.engine.step(events)));
        if done.is_err() {
            tracing::error!("a pass panicked; its requests fail, their slots are emptied");
            self.engine.abandon(events);
        }
    }

    /// Puts what happened on the board: when the work is done, and from time to time before.
    fn report(&mut self, busy: bool) {
        if !busy {
            self.board.phase(Phase::Idle);
        }
        if std::mem::take(&mut self.news) {
            let Scheduler { board, facts, engine, clients, policies, power, votes, sessions, .. } = self;
            let posted = board.post(!busy, || {
                let (policies, power) = (policies.status(), power.status(votes, engine.counters().answered));
                status::report(facts, engine, clients, &policies, power, sessions.status()).to_string()
            });
            self.news = !posted;
        }
    }

    /// Takes over settings that were read again. Limits of slots hold for new clients.
    fn reload(&mut self, config: &Config) {
        let limits = &config.limits;
        self.orders.give(Order::Admit(Admission {
            clients: limits.clients,
            clients_per_user: limits.clients_per_user,
        }));
        self.engine.set_limits(&config.engine);
        self.unload_after = config.unload_after;
        self.power.set(&config.power);
        self.votes = config.power.clone();
        if self.facts.placement != config.placement {
            self.facts.placement.clone_from(&config.placement);
            for client in self.clients.values() {
                let placed = match self.policies.placement(&self.facts.placement) {
                    Ok(placement) => {
                        self.engine.set_placement(client.slot, placement).map_err(|e| e.to_string())
                    }
                    Err(error) => Err(error.to_string()),
                };
                if let Err(error) = placed {
                    tracing::error!(error, "cannot change a slot's placement policy");
                }
            }
        }
        tracing::info!(placement = self.facts.placement, clients = limits.clients, "settings read again");
        supervisor::ready("serving");
    }

    /// When there is something to do without a command: a deadline, or the unload.
    fn next_wake(&self) -> Option<Instant> {
        let deadlines = self.clients.values().flat_map(|c| c.jobs.values().filter_map(|j| j.deadline));
        let unload = self.unload_at.filter(|_| !self.sessions.is_gap());
        deadlines.chain(unload).chain(self.sessions.due()).min()
    }

    /// Gives memory back after the idle time.
    fn unload_when_idle(&mut self) {
        if self.unload_at.is_some_and(|at| at <= Instant::now()) {
            self.unload_at = None;
            match self.engine.unload() {
                Ok(()) => tracing::info!("idle: states and caches unloaded"),
                Err(error) => tracing::error!(%error, "cannot unload"),
            }
        }
    }

    fn stop(mut self) {
        supervisor::stopping();
        self.board.phase(Phase::Stopping);
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in ids {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let jobs: Vec<RequestId> = client.jobs.drain().map(|(_, j)| j.id).collect();
            let probes: Vec<RequestId> = client.probes.drain(..).map(|p| p.id).collect();
            for request in jobs.into_iter().chain(probes) {
                let text = "the daemon is stopping; send the request again when it is back";
                self.send(id, failed(request, FailureCode::ShuttingDown, text.into()));
            }
        }
        self.power.stop();
        self.orders.give(Order::Stop);
        let c = self.engine.counters();
        tracing::info!(requests = c.requests, answered = c.answered, failed = c.failed, "stopped");
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Connected { client, app, peer, sender, shared } => {
                self.connect(client, app, peer, sender, shared);
            }
            Command::Message(client, message) => self.message(client, message),
            Command::Room(client) => self.flush(client),
            Command::Gone(client) => self.forget(client),
            Command::Reload(config) => self.reload(&config),
            Command::Pulse(pulse, beat) => pulse.scheduler.store(beat, Ordering::Release),
            Command::Stop => {}
        }
    }

    fn connect(
        &mut self,
        id: ClientId,
        app: String,
        peer: PeerCredentials,
        sender: Sender<ServerMessage>,
        shared: Arc<Shared>,
    ) {
        let opened = match self.policies.placement(&self.facts.placement) {
            Ok(placement) => self.engine.open_slot(peer.uid, placement).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match opened {
            Ok(slot) => {
                self.by_slot.insert(slot, id);
                let client = Client {
                    app,
                    peer,
                    slot,
                    sender,
                    shared,
                    outbox: VecDeque::new(),
                    jobs: HashMap::new(),
                    probes: VecDeque::new(),
                    requests: 0,
                };
                self.clients.insert(id, client);
            }
            Err(reason) => {
                tracing::warn!(client = id.0, reason, "cannot open a slot");
                self.orders.give(Order::Close(id, Goodbye::Evicted { reason }));
            }
        }
    }

    fn forget(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.by_slot.remove(&client.slot);
        if let Err(error) = self.engine.close_slot(client.slot) {
            tracing::error!(client = id.0, %error, "cannot free a slot");
        }
    }

    fn message(&mut self, id: ClientId, message: ClientMessage) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        if client.shared.paused.swap(false, Ordering::AcqRel) {
            self.orders.give(Order::Resume(id));
        }
        match message {
            ClientMessage::Generate { id: request, request: body } => self.generate(id, request, &body),
            ClientMessage::Cancel { id: request } => self.cancel(id, request),
            ClientMessage::Status { id: request } => {
                let power = self.power.status(&self.votes, self.engine.counters().answered);
                let policies = self.policies.status();
                let session = self.sessions.status();
                let Scheduler { facts, engine, clients, .. } = &*self;
                let json = status::report(facts, engine, clients, &policies, power, session).to_string();
                self.send(id, ServerMessage::Status { id: request, json });
            }
            ClientMessage::Logits { id: request, prompts, all_positions } => {
                self.accept_probe(id, request, prompts, all_positions);
            }
            ClientMessage::Ping { id: request } => self.send(id, ServerMessage::Pong { id: request }),
        }
    }

    fn generate(&mut self, id: ClientId, request: RequestId, body: &GenerateRequest) {
        if self.refuse_when_down(id, request) {
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.uses(request) {
            let text = format!("request id {request} is in use on this connection; take a new one");
            self.send(id, failed(request, FailureCode::DuplicateId, text));
            return;
        }
        let translated = body.validate().map_err(|e| e.to_string()).and_then(|()| translate(body));
        let translated = match translated {
            Ok(translated) => translated,
            Err(text) => {
                self.send(id, failed(request, FailureCode::InvalidRequest, text));
                return;
            }
        };
        self.next_job += 1;
        let job = JobId(self.next_job);
        let deadline = body.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms.into()));
        match self.engine.submit(client.slot, job, &translated) {
            Ok(ahead) => {
                client.jobs.insert(job, Running { id: request, deadline });
                client.requests += 1;
                self.send(id, ServerMessage::Accepted { id: request, queue_position: ahead as u32 });
            }
            Err(error) => {
                tracing::info!(client = id.0, code = code(&error).as_str(), "refused a request");
                self.send(id, failed(request, code(&error), error.to_string()));
            }
        }
    }

    fn cancel(&mut self, id: ClientId, request: RequestId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let slot = client.slot;
        client.probes.retain(|p| p.id != request);
        let job = client.jobs.iter().find(|(_, j)| j.id == request).map(|(job, _)| *job);
        if let Some(job) = job {
            let mut events = Vec::new();
            self.engine.cancel(slot, job, &mut events);
            self.deliver(&mut events);
        }
    }

    /// Ends requests whose deadline has passed.
    fn expire(&mut self) {
        let now = Instant::now();
        let late: Vec<(ClientId, SlotId, JobId)> = self
            .clients
            .iter()
            .flat_map(|(id, c)| {
                c.jobs.iter().map(move |(job, running)| (*id, c.slot, *job, running.deadline))
            })
            .filter(|(.., deadline)| deadline.is_some_and(|d| d <= now))
            .map(|(id, slot, job, _)| (id, slot, job))
            .collect();
        for (id, slot, job) in late {
            self.engine.cancel(slot, job, &mut Vec::new());
            let running = self.clients.get_mut(&id).and_then(|c| c.jobs.remove(&job));
            if let Some(running) = running {
                let text = "the deadline passed before the answer was complete".into();
                self.send(id, failed(running.id, FailureCode::DeadlineExceeded, text));
            }
        }
    }

    /// Sends the engine's events to the clients that asked.
    fn deliver(&mut self, events: &mut Vec<(SlotId, JobId, Event)>) {
        for (slot, job, event) in events.drain(..) {
            let Some(id) = self.by_slot.get(&slot).copied() else { continue };
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let Some(request) = client.jobs.get(&job).map(|r| r.id) else { continue };
            let message = match event {
                Event::Token(token) => {
                    let text = |id: u32| {
                        String::from_utf8_lossy(self.engine.tokenizer().token_bytes(id)).into_owned()
                    };
                    let top_logprobs =
                        token.top_logprobs.map(|t| t.into_iter().map(|(id, p)| (id, text(id), p)).collect());
                    ServerMessage::Token { id: request, token: token.id, text: token.text, top_logprobs }
                }
                Event::Done { finish, stats } => {
                    client.jobs.remove(&job);
                    ServerMessage::Done {
                        id: request,
                        finish: finish_of(finish),
                        stats: Box::new(stats_of(&stats)),
                    }
                }
                Event::Failed(error) => {
                    client.jobs.remove(&job);
                    tracing::warn!(client = id.0, %error, "a request failed");
                    failed(request, code(&error), error.to_string())
                }
            };
            self.send(id, message);
        }
    }

    fn send(&mut self, id: ClientId, message: ServerMessage) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.outbox.push_back(message);
        self.flush(id);
    }

    /// Writes what waits into the client's ring, as far as there is room.
    fn flush(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        while let Some(message) = client.outbox.front() {
            match client.sender.send(message) {
                Ok(()) => {
                    client.outbox.pop_front();
                }
                Err(error) if error.is_full() => {
                    if !client.shared.blocked.swap(true, Ordering::AcqRel) {
                        // The client may have made room before the flag was up.
                        continue;
                    }
                    if client.outbox.len() > OUTBOX && client.probes.is_empty() {
                        tracing::warn!(client = id.0, "dropping a client that does not read its answers");
                        self.orders.give(Order::Close(id, Goodbye::TooSlow));
                        self.forget(id);
                    }
                    return;
                }
                Err(error) => {
                    tracing::warn!(client = id.0, %error, "cannot answer a client; dropping it");
                    self.orders.give(Order::Close(id, Goodbye::Protocol { detail: error.to_string() }));
                    self.forget(id);
                    return;
                }
            }
        }
    }

    fn accept_probe(
        &mut self,
        id: ClientId,
        request: RequestId,
        prompts: Vec<Vec<u32>>,
        all_positions: bool,
    ) {
        if self.refuse_when_down(id, request) {
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.uses(request) {
            let text = format!("request id {request} is in use on this connection; take a new one");
            self.send(id, failed(request, FailureCode::DuplicateId, text));
        } else if prompts.is_empty() || prompts.len() > message::MAX_LOGITS_PROMPTS {
            let limit = message::MAX_LOGITS_PROMPTS;
            let text = format!("{} prompts; 1 to {limit} are possible", prompts.len());
            self.send(id, failed(request, FailureCode::InvalidRequest, text));
        } else {
            client.probes.push_back(Probe { id: request, prompts: prompts.into(), next: 0, all_positions });
        }
    }

    /// Runs one prompt of the numeric door for a client that has read all it was sent.
    fn probe(&mut self) {
        let Some((id, client)) = self.clients.iter_mut().find(|(_, c)| c.may_probe()) else { return };
        let id = *id;
        let Some(probe) = client.probes.front_mut() else { return };
        let (request, all_positions) = (probe.id, probe.all_positions);
        let Some(prompt) = probe.prompts.pop_front() else {
            client.probes.pop_front();
            self.send(id, ServerMessage::LogitsDone { id: request });
            return;
        };
        let index = probe.next;
        probe.next += 1;
        let mut rows = Vec::new();
        let result = self.engine.probe(&prompt, all_positions, &mut |position, row| {
            for (i, part) in row.chunks(MAX_LOGITS_VALUES).enumerate() {
                let offset = (i * MAX_LOGITS_VALUES) as u32;
                let values = part.to_vec();
                rows.push(ServerMessage::LogitsRows { id: request, prompt: index, position, offset, values });
            }
        });
        if let Err(error) = result {
            if let Some(client) = self.clients.get_mut(&id) {
                client.probes.pop_front();
            }
            self.send(id, failed(request, code(&error), format!("prompt {index}: {error}")));
            return;
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.outbox.extend(rows);
        }
        self.flush(id);
    }
}

impl Client {
    fn uses(&self, request: RequestId) -> bool {
        self.jobs.values().any(|j| j.id == request) || self.probes.iter().any(|p| p.id == request)
    }

    fn may_probe(&self) -> bool {
        !self.probes.is_empty() && self.outbox.is_empty()
    }
}
