//! A session with the DSP: its process, our library in it, the queue.

use super::driver::{ARCH_VER, Driver, Mapped, Queue, UNSIGNED_PD};
use super::error::{FastrpcError, code, start_failure};
use super::methods::{self, Start, Started};
use super::notice::Notice;
use super::{FastrpcConfig, library};
use crate::abi::{self, MESSAGE, POWER_MESSAGE, PowerReply, PowerRequest};
use crate::memory::{Buffer, Buffers};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tandem_program::{DeviceError, Power, Votes};

/// How long a message may find the queue full.
const WRITE_WAIT: Duration = Duration::from_secs(1);
/// How often a wait looks whether the DSP's process is still there: at first, and in the end.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Codes that say that somebody else has the DSP.
const BUSY: [i32; 2] = [0x20, 0x8a];

/// Shared by the queue's owner, its memory and the power handler.
pub(super) struct Session {
    driver: Driver,
    /// `None` once it has ended. Calls into the DSP hold it for reading.
    open: RwLock<Option<Open>>,
    notice: Arc<Notice>,
    lost: Mutex<Option<String>>,
    /// What a call past the queue may take.
    budget: Duration,
}

struct Open {
    handle: u64,
    queue: Queue,
}

impl Session {
    /// Opens the session that the settings describe, and says what the library found.
    pub(super) fn open(config: &FastrpcConfig) -> Result<(Session, Started), FastrpcError> {
        let driver = Driver::load(&config.driver)?;
        let reported = driver.capability(ARCH_VER).map_err(FastrpcError::Unknown)?;
        let arch = library::version_for(reported)?;
        // A driver that does not say whether it does may do.
        if driver.capability(UNSIGNED_PD) == Ok(0) {
            return Err(FastrpcError::Unsigned(None));
        }
        library::place(arch, &config.folder)?;
        driver.allow_unsigned().map_err(|code| FastrpcError::Unsigned(Some(code)))?;
        let notice = Notice::new();
        // Without it a dead process shows by its silence.
        let _ = driver.watch(notice.number());
        let module = format!("file:///{}?tandem_skel_handle_invoke&_modver=1.0", library::file_name(arch));
        let handle = driver.open(&driver.uri(&module)).map_err(|failure| {
            if BUSY.contains(&(failure & 0x3ff)) {
                FastrpcError::Busy(failure)
            } else {
                FastrpcError::Load { library: library::file_name(arch), arch, failure }
            }
        })?;
        let queue = driver.queue(notice.number()).map_err(|failure| {
            driver.close(handle);
            FastrpcError::Queue { what: "dspqueue_create", failure }
        })?;
        let session = Session {
            driver,
            open: RwLock::new(Some(Open { handle, queue })),
            notice,
            lost: Mutex::new(None),
            budget: config.budget,
        };
        let started = session.start(config)?;
        session.try_memory()?;
        Ok((session, started))
    }

    fn start(&self, config: &FastrpcConfig) -> Result<Started, FastrpcError> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Open { handle, queue }) = &*open else {
            return Err(FastrpcError::Start { what: "the session has ended".into() });
        };
        let exported = self.driver.export(queue);
        let queue = exported.map_err(|failure| FastrpcError::Queue { what: "dspqueue_export", failure })?;
        let start =
            Start { queue, version: abi::VERSION, workers: config.workers, vtcm_bytes: config.vtcm_bytes };
        let mut answer = [0; 32];
        self.driver
            .invoke(*handle, methods::METHOD_START, Some(&start.to_bytes()), Some(&mut answer))
            .map_err(|failure| FastrpcError::Call { what: "start", failure })?;
        let started = Started::from_bytes(&answer);
        match started.at {
            methods::AT_NOTHING => Ok(started),
            methods::AT_VERSION => Err(FastrpcError::Version { ours: abi::VERSION, theirs: started.version }),
            at => Err(FastrpcError::Start { what: start_failure(at, started.code) }),
        }
    }

    /// A page there and back, so that a driver that gives no memory is told apart from a full one.
    fn try_memory(&self) -> Result<(), FastrpcError> {
        let bytes = abi::PAGE as usize;
        let made = self.driver.make(bytes);
        let buffer = made.map_err(|(what, failure)| FastrpcError::Memory { what, failure })?;
        self.driver.free(buffer, bytes);
        Ok(())
    }

    /// Remembers why the session is over, and ends the DSP's process.
    fn lose(&self, why: String) -> String {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = &*lost {
            return before.clone();
        }
        let why = self.notice.end().map_or(why.clone(), |end| format!("{why}; {end}"));
        *lost = Some(why.clone());
        drop(lost);
        self.driver.kill();
        why
    }

    fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `call` on the open session; text for [`DeviceError::Lost`] where there is none, or
    /// the call fails.
    fn with<T>(&self, what: &str, call: impl FnOnce(&Driver, &Open) -> Result<T, i32>) -> Result<T, String> {
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = &*open else { return Err("the session with the DSP has ended".into()) };
        let called = call(&self.driver, opened);
        // Losing ends calls of other threads, which hold this lock too: not while we do.
        drop(open);
        called.map_err(|failure| self.lose(format!("{what} failed ({})", code(failure))))
    }

    /// Hands over a message.
    pub(super) fn send(&self, message: &[u8; MESSAGE]) -> Result<(), String> {
        self.with("dspqueue_write", |driver, open| driver.write(&open.queue, message, WRITE_WAIT))
    }

    /// Waits for a message within `budget`.
    pub(super) fn receive(&self, budget: Duration) -> Result<[u8; MESSAGE], String> {
        let (start, mut look) = (Instant::now(), FIRST_LOOK);
        loop {
            let mut message = [0; MESSAGE];
            let wait = look.min(budget.saturating_sub(start.elapsed()));
            let got = self.with("dspqueue_read", |driver, open| {
                match driver.read(&open.queue, &mut message, wait) {
                    Err(super::driver::EXPIRED) => Ok(None),
                    other => other.map(Some),
                }
            })?;
            match got {
                Some(MESSAGE) => return Ok(message),
                Some(bytes) => {
                    return Err(self.lose(format!(
                        "a reply of {bytes} bytes came where {MESSAGE} were due: the DSP's library is not ours"
                    )));
                }
                None if self.notice.end().is_some() => {
                    return Err(self.lose("a batch is not answered".into()));
                }
                None if start.elapsed() >= budget => {
                    return Err(self.lose(format!("a batch made no progress for {budget:?}")));
                }
                None => look = (look * 2).min(LAST_LOOK),
            }
        }
    }

    /// Ends the session; calls into it fail from now on.
    pub(super) fn end(&self) {
        let lost = self.lost().is_some() || self.notice.end().is_some();
        if lost {
            // Calls of other threads come back, and let go of the lock.
            self.driver.kill();
        }
        let open = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Open { handle, queue }) = open {
            if !lost {
                let stop = || self.driver.invoke(handle, methods::METHOD_STOP, None, None);
                let _ = bounded(&self.driver, self.budget, stop);
            }
            self.driver.close_queue(queue);
            self.driver.close(handle);
        }
    }
}

/// A call into the DSP, which has no time limit of its own: one that takes longer than `budget`
/// comes back because the DSP's process is ended.
fn bounded<T>(driver: &Driver, budget: Duration, call: impl FnOnce() -> T) -> T {
    let (done, waiting) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = move || {
            if waiting.recv_timeout(budget) == Err(RecvTimeoutError::Timeout) {
                driver.kill();
            }
        };
        // Without a thread to be had it is a call without a limit.
        let _ = std::thread::Builder::new().name("tandem-dsp-watch".into()).spawn_scoped(scope, watch);
        let result = call();
        drop(done);
        result
    })
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

/// Buffers of a session.
pub(super) struct SessionMemory(pub(super) Arc<Session>);

impl Buffers for SessionMemory {
    fn make(&mut self, bytes: u64) -> Option<Buffer> {
        let made = self.0.driver.make(usize::try_from(bytes).ok()?).ok()?;
        Some(Buffer { file: made.file as u32, memory: made.memory })
    }

    fn free(&mut self, buffer: Buffer, bytes: u64) {
        self.0.driver.free(Mapped { memory: buffer.memory, file: buffer.file as i32 }, bytes as usize);
    }
}

/// A session's power handler: a call of its own, which does not wait for the queue.
pub(super) struct SessionPower(pub(super) Arc<Session>);

impl Power for SessionPower {
    fn apply(&self, votes: &Votes) -> Result<(), DeviceError> {
        let asked = PowerRequest::from(votes).to_bytes();
        let mut answer = [0; POWER_MESSAGE];
        self.0
            .with("the call for power votes", |driver, open| {
                let invoke =
                    || driver.invoke(open.handle, methods::METHOD_POWER, Some(&asked), Some(&mut answer));
                bounded(driver, self.0.budget, invoke)
            })
            .map_err(DeviceError::Lost)?;
        PowerReply::from_bytes(&answer).verdict()
    }
}
