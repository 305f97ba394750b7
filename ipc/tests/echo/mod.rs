//! A small daemon for tests: one thread, one epoll, the real `Listener`. It
//! "answers" a prompt with the prompt's own words, one token each.
//!
//! | prompt (`Input::Text`) | answer |
//! | --- | --- |
//! | `hold` | accepted, then nothing until it is cancelled |
//! | `fail` | `Failed(QueueFull)`, retry after 5 ms |
//! | `count N` | N tokens `0`, `1`, ... |
//! | `die` | drops the connection without a word |
//! | anything else | its words |

// Each test file uses a part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use tandem_ipc::handshake::{Goodbye, Refusal};
use tandem_ipc::message::{
    ClientMessage, FailureCode, Finish, MAX_LOGITS_VALUES, RequestId, ServerMessage, Stats,
};
use tandem_ipc::request::Input;
use tandem_ipc::server::{Connection, Handshake, HandshakeError, Listener, ListenerConfig};

/// What happened to a client, told to the test.
#[derive(Debug)]
pub(crate) enum Seen {
    Connected { app: String, pid: i32, uid: u32 },
    NotConnected(HandshakeError),
    Dropped { app: String, reason: String },
    Gone { app: String },
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EchoConfig {
    pub(crate) listener: ListenerConfig,
    /// Connections allowed; 0 is no limit.
    pub(crate) limit: u32,
    /// Width of a row of logits.
    pub(crate) vocabulary: u32,
}

pub(crate) struct EchoDaemon {
    pub(crate) path: PathBuf,
    pub(crate) seen: Receiver<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EchoDaemon {
    pub(crate) fn start(path: impl AsRef<Path>, config: EchoConfig) -> EchoDaemon {
        let path = path.as_ref().to_owned();
        let listener = Listener::bind(&path, config.listener).unwrap();
        EchoDaemon::serve(path, listener, config)
    }

    pub(crate) fn serve(path: PathBuf, listener: Listener, config: EchoConfig) -> EchoDaemon {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, seen) = mpsc::channel();
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || Echo::new(listener, config, tell).run(&stop))
        };
        EchoDaemon { path, seen, stop, thread: Some(thread) }
    }

    /// The next event that `wanted` accepts; others are passed over.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&Seen) -> bool) -> Seen {
        loop {
            let seen =
                self.seen.recv_timeout(Duration::from_secs(60)).expect("the daemon tells what happened");
            if wanted(&seen) {
                return seen;
            }
        }
    }
}

impl Drop for EchoDaemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

struct Served {
    connection: Connection,
    backlog: VecDeque<ServerMessage>,
    held: BTreeMap<RequestId, ()>,
}

const LISTENER: u64 = 0;

struct Echo {
    listener: Listener,
    config: EchoConfig,
    tell: Sender<Seen>,
    epoll: OwnedFd,
    next: u64,
    greeting: HashMap<u64, Handshake>,
    served: HashMap<u64, Served>,
}

impl Echo {
    fn new(listener: Listener, config: EchoConfig, tell: Sender<Seen>) -> Echo {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        watch(&epoll, listener.as_fd(), LISTENER, epoll::EventFlags::IN);
        Echo { listener, config, tell, epoll, next: 1, greeting: HashMap::new(), served: HashMap::new() }
    }

    fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let mut events = [const { MaybeUninit::uninit() }; 64];
            let tick = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let ready: Vec<u64> = match epoll::wait(&self.epoll, &mut events[..], Some(&tick)) {
                Ok((ready, _)) => ready.iter().map(|event| { event.data }.u64()).collect(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(other) => panic!("epoll: {other}"),
            };
            for token in ready {
                if token == LISTENER {
                    self.accept();
                } else if self.greeting.contains_key(&token) {
                    self.greet(token);
                } else if self.served.contains_key(&token) {
                    self.serve(token);
                }
            }
        }
        for (_, served) in self.served.drain() {
            served.connection.close(Goodbye::ShuttingDown { retry_after_ms: Some(1) });
        }
    }

    fn accept(&mut self) {
        while let Ok(Some(handshake)) = self.listener.accept() {
            let token = self.next;
            self.next += 1;
            watch(&self.epoll, handshake.as_fd(), token, epoll::EventFlags::IN);
            self.greeting.insert(token, handshake);
        }
    }

    fn greet(&mut self, token: u64) {
        let mut handshake = self.greeting.remove(&token).unwrap();
        match handshake.poll() {
            Ok(None) => {
                self.greeting.insert(token, handshake);
                return;
            }
            Ok(Some(_)) => {}
            Err(error) => return self.tell(Seen::NotConnected(error)),
        }
        let in_use = self.served.len() as u32;
        if self.config.limit != 0 && in_use >= self.config.limit {
            return handshake.refuse(Refusal::Quota {
                limit: self.config.limit,
                in_use,
                retry_after_ms: Some(5),
            });
        }
        epoll::delete(&self.epoll, &handshake).unwrap();
        match handshake.accept() {
            Ok(connection) => {
                let link = connection.link();
                let edge = epoll::EventFlags::ET;
                let bell = epoll::EventFlags::IN | edge;
                watch(&self.epoll, link.doorbell(), token, bell);
                let hang_up = epoll::EventFlags::RDHUP | edge;
                watch(&self.epoll, link.life_line(), token, hang_up);
                self.tell(Seen::Connected {
                    app: link.app().to_owned(),
                    pid: link.peer().pid,
                    uid: link.peer().uid,
                });
                self.served
                    .insert(token, Served { connection, backlog: VecDeque::new(), held: BTreeMap::new() });
                // A request may have come before the doorbell was watched.
                self.serve(token);
            }
            Err(error) => self.tell(Seen::NotConnected(error)),
        }
    }

    fn serve(&mut self, token: u64) {
        let served = self.served.get_mut(&token).unwrap();
        let app = served.connection.link().app().to_owned();
        let end = served.step(self.config.vocabulary);
        let served = match end {
            Ok(()) => return,
            Err(_) => self.served.remove(&token).unwrap(),
        };
        match end {
            Ok(()) => {}
            Err(End::Gone) => {
                // Before telling: the test counts what is left.
                drop(served);
                self.tell(Seen::Gone { app });
            }
            Err(End::Die) => drop(served),
            Err(End::Broken(reason)) => {
                served.connection.close(Goodbye::Protocol { detail: reason.clone() });
                self.tell(Seen::Dropped { app, reason });
            }
        }
    }

    fn tell(&self, seen: Seen) {
        // A test that does not listen any more is fine.
        let _ = self.tell.send(seen);
    }
}

enum End {
    Gone,
    Die,
    Broken(String),
}

impl Served {
    fn step(&mut self, vocabulary: u32) -> Result<(), End> {
        self.flush()?;
        loop {
            match self.connection.recv() {
                Ok(Some(message)) => self.answer(message, vocabulary)?,
                Ok(None) => break,
                Err(error) => return Err(End::Broken(error.to_string())),
            }
        }
        match self.connection.link().check_alive() {
            Ok(()) => Ok(()),
            Err(tandem_ipc::server::Gone::HangUp) => Err(End::Gone),
            Err(spoke) => Err(End::Broken(spoke.to_string())),
        }
    }

    fn flush(&mut self) -> Result<(), End> {
        while let Some(message) = self.backlog.front() {
            match self.connection.send(message) {
                Ok(()) => {
                    self.backlog.pop_front();
                }
                Err(error) if error.is_full() => return Ok(()),
                Err(error) => return Err(End::Broken(error.to_string())),
            }
        }
        Ok(())
    }

    fn send(&mut self, message: ServerMessage) -> Result<(), End> {
        self.backlog.push_back(message);
        self.flush()
    }

    fn answer(&mut self, message: ClientMessage, vocabulary: u32) -> Result<(), End> {
        match message {
            ClientMessage::Ping { id } => self.send(ServerMessage::Pong { id }),
            ClientMessage::Status { id } => {
                self.send(ServerMessage::Status { id, json: r#"{"device":"echo"}"#.into() })
            }
            ClientMessage::Cancel { id } => match self.held.remove(&id) {
                Some(()) => self.done(id, Finish::Cancelled, 0),
                None => Ok(()),
            },
            ClientMessage::Logits { id, prompts, .. } => {
                for (prompt, tokens) in prompts.iter().enumerate() {
                    self.row(id, prompt as u32, tokens.len() as u32 - 1, vocabulary)?;
                }
                self.send(ServerMessage::LogitsDone { id })
            }
            ClientMessage::Generate { id, request } => {
                if let Err(error) = request.validate() {
                    return self.fail(id, FailureCode::InvalidRequest, error.to_string());
                }
                let Input::Text(text) = &request.input else {
                    let what = format!("{:?}", request.input);
                    return self.fail(id, FailureCode::Unsupported, what);
                };
                self.generate(id, text)
            }
        }
    }

    fn generate(&mut self, id: RequestId, text: &str) -> Result<(), End> {
        if text == "fail" {
            return self.fail(id, FailureCode::QueueFull, "the queue holds 0 of 0".into());
        }
        if text == "die" {
            return Err(End::Die);
        }
        self.send(ServerMessage::Accepted { id, queue_position: 0 })?;
        if text == "hold" {
            self.held.insert(id, ());
            return Ok(());
        }
        let words: Vec<String> = match text.strip_prefix("count ") {
            Some(count) => (0..count.parse().unwrap()).map(|word: u32| word.to_string()).collect(),
            None => text.split_whitespace().map(str::to_owned).collect(),
        };
        let count = words.len() as u32;
        for (token, text) in words.into_iter().enumerate() {
            self.send(ServerMessage::Token { id, token: token as u32, text, top_logprobs: None })?;
        }
        self.done(id, Finish::Stop, count)
    }

    fn done(&mut self, id: RequestId, finish: Finish, decode_tokens: u32) -> Result<(), End> {
        let stats = Box::new(Stats { decode_tokens, ..Stats::default() });
        self.send(ServerMessage::Done { id, finish, stats })
    }

    fn fail(&mut self, id: RequestId, code: FailureCode, message: String) -> Result<(), End> {
        self.send(ServerMessage::Failed {
            id,
            code,
            message,
            retry_after_ms: code.is_retryable().then_some(5),
        })
    }

    /// A row whose value at `v` is `prompt + v`.
    fn row(&mut self, id: RequestId, prompt: u32, position: u32, width: u32) -> Result<(), End> {
        let values: Vec<f32> = (0..width).map(|v| (prompt + v) as f32).collect();
        for (chunk, values) in values.chunks(MAX_LOGITS_VALUES).enumerate() {
            self.send(ServerMessage::LogitsRows {
                id,
                prompt,
                position,
                offset: (chunk * MAX_LOGITS_VALUES) as u32,
                values: values.to_vec(),
            })?;
        }
        Ok(())
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64, flags: epoll::EventFlags) {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token), flags).unwrap();
}
