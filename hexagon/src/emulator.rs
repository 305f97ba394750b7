//! The DSP's program as a process: under `qemu-hexagon`, or natively where it was built for
//! this host.
//!
//! Requests and replies go over a socket, memory is a file both sides map. The process ends
//! when the socket closes, so it does not outlive a daemon that is killed; the socket tells
//! this side when the process has died.

use crate::Link;
use crate::abi::{MESSAGE, Reply, Request};
use crate::device::HexagonError;
use crate::memory::Shared;
use crate::power::PowerSocket;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tandem_program::{Exactness, Power};

/// Environment variable that names the folder of `cargo xtask hexagon`.
const FOLDER: &str = "TANDEM_HEXAGON";
const PROGRAM: &str = "tandem-dsp-v73";
const QEMU: &str = "qemu/usr/bin/qemu-hexagon";

/// How to start the program.
#[derive(Clone, Debug)]
pub struct EmulatorConfig {
    /// The DSP's program.
    pub program: PathBuf,
    /// `qemu-hexagon`, from version 10 on; `None` runs the program natively.
    pub qemu: Option<PathBuf>,
    /// Worker threads of the DSP, 1 to 8. Default 2.
    pub workers: u32,
    /// On-chip memory in bytes, a multiple of 4096. Default 8 MiB, as the phones have.
    pub vtcm_bytes: u32,
    /// A batch that takes longer ends the session. Default ten minutes: soft float is slow.
    pub budget: Duration,
    /// An answer to power votes that takes longer means that the session is gone. Default ten
    /// seconds: whoever votes may hold up a submission.
    pub power_budget: Duration,
    /// The DSP's threads yield or sleep some microseconds at moments that this number picks.
    /// Default `None`: they do not.
    pub perturb: Option<u64>,
}

impl EmulatorConfig {
    /// The program under this emulator, all else by default.
    pub fn new(program: PathBuf, qemu: Option<PathBuf>) -> Self {
        EmulatorConfig {
            program,
            qemu,
            workers: 2,
            vtcm_bytes: 8 << 20,
            budget: Duration::from_secs(600),
            power_budget: Duration::from_secs(10),
            perturb: None,
        }
    }

    /// What `cargo xtask hexagon` has built: in the folder that the environment's
    /// `TANDEM_HEXAGON` names, else in `hexagon` beside the folder of this executable, which is
    /// where cargo's target folder has it.
    ///
    /// # Errors
    ///
    /// [`HexagonError::Absent`] names what is missing and where it was looked for.
    pub fn find() -> Result<Self, HexagonError> {
        let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("hexagon"));
        let named = std::env::var_os(FOLDER).filter(|name| !name.is_empty()).map(PathBuf::from);
        Self::in_folder(&named.or_else(beside).unwrap_or_default())
    }

    /// What `cargo xtask hexagon` has built into this folder.
    ///
    /// # Errors
    ///
    /// As [`EmulatorConfig::find`].
    pub fn in_folder(folder: &Path) -> Result<Self, HexagonError> {
        let (program, qemu) = (folder.join(PROGRAM), folder.join(QEMU));
        for file in [&program, &qemu] {
            if !file.exists() {
                return Err(HexagonError::Absent { file: file.clone() });
            }
        }
        Ok(Self::new(program, Some(qemu)))
    }
}

/// Why the program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The system refused the process.
    #[error(
        "cannot start {program}: {source} (`cargo xtask hexagon` builds the DSP's program and fetches qemu-hexagon)"
    )]
    Spawn {
        /// What was started.
        program: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system refused a socket or a descriptor.
    #[error("cannot set up the emulator's socket: {0}")]
    Socket(#[source] std::io::Error),
}

/// A running program.
pub struct Emulator {
    child: Child,
    socket: UnixStream,
    power: Arc<PowerSocket>,
    budget: Duration,
    lost: Option<String>,
}

impl Emulator {
    /// Starts the program on this memory.
    pub fn start(config: &EmulatorConfig, shared: &Shared) -> Result<Emulator, EmulatorError> {
        let (socket, theirs) = UnixStream::pair().map_err(EmulatorError::Socket)?;
        socket.set_read_timeout(Some(config.budget)).map_err(EmulatorError::Socket)?;
        let file = shared.file().ok_or_else(|| std::io::Error::from(ErrorKind::Unsupported));
        let memory = file.and_then(|file| file.try_clone_to_owned()).map_err(EmulatorError::Socket)?;
        let mut command = match &config.qemu {
            Some(qemu) => {
                let mut command = Command::new(qemu);
                command.args(["-cpu", "v73"]).arg(&config.program);
                command
            }
            None => Command::new(&config.program),
        };
        command
            .arg(config.workers.to_string())
            .arg(config.vtcm_bytes.to_string())
            .args(config.perturb.map(|seed| seed.to_string()))
            .stdin(Stdio::from(memory))
            .stdout(Stdio::from(OwnedFd::from(theirs)));
        let (power, their_power) = UnixStream::pair().map_err(EmulatorError::Socket)?;
        power.set_read_timeout(Some(config.power_budget)).map_err(EmulatorError::Socket)?;
        // Last of what may fail: a child that nobody waits for stays.
        let child = command.spawn().map_err(|source| EmulatorError::Spawn {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        let power = Arc::new(PowerSocket::new(power));
        let emulator = Emulator { child, socket, power, budget: config.budget, lost: None };
        // A process that is gone already says why when the first reply is waited for.
        let _ = hand_over(&emulator.socket, &their_power);
        Ok(emulator)
    }

    /// The process's number, for tests that disturb it.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process and remembers why.
    fn lose(&mut self, why: String) -> String {
        let _ = self.child.kill();
        let status = self.child.wait();
        let ended = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        let text = format!("{why}; the DSP's process ended with {ended}");
        self.lost = Some(text.clone());
        text
    }
}

/// Sends one byte that carries a descriptor.
fn hand_over(socket: &UnixStream, descriptor: &UnixStream) -> rustix::io::Result<usize> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(b"p")], &mut control, SendFlags::NOSIGNAL)
}

impl Link for Emulator {
    fn name(&self) -> &str {
        "emulator"
    }

    /// The soft float of these builds rounds as the reference does.
    fn exactness(&self) -> Exactness {
        Exactness::Bits
    }

    fn power(&self) -> Option<Arc<dyn Power>> {
        Some(self.power.clone())
    }

    fn send(&mut self, request: &Request) -> Result<(), String> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        match self.socket.write_all(&request.to_bytes()) {
            Ok(()) => Ok(()),
            Err(e) => Err(self.lose(format!("a request could not be sent: {e}"))),
        }
    }

    fn receive(&mut self) -> Result<Reply, String> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let mut bytes = [0; MESSAGE];
        match self.socket.read_exact(&mut bytes) {
            Ok(()) => Ok(Reply::from_bytes(&bytes)),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let budget = self.budget;
                Err(self.lose(format!("a batch made no progress for {budget:?}")))
            }
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                // It has closed its end: let it say how it ended before it is killed.
                self.settle();
                Err(self.lose("the DSP's process died".into()))
            }
            Err(e) => Err(self.lose(format!("a reply could not be read: {e}"))),
        }
    }
}

impl Emulator {
    /// Gives the process a moment to end by itself.
    fn settle(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // The program ends when the socket does.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.settle();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
