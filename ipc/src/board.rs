//! The status board: a page of shared memory that the daemon writes and monitors read, also
//! while the daemon is stuck and answers nobody.
//!
//! ```text
//! word 0  magic, with the layout's version
//!      1  turn: odd while the report is being written
//!      2  process id            3  daemon's start, seconds since 1970
//!      4  phase                 5  when it began, CLOCK_BOOTTIME milliseconds
//!      6  passes begun          7  bytes of the report
//!      8  the report: JSON as `tandem status --json` prints it, padded to words
//! ```
//!
//! Words 4 to 6 are stored alone and mean something alone; the report is read again when its
//! turn changed meanwhile. The reader maps nothing: it copies the file and looks at the copy.
//! Linux hosts only: Android has no `/dev/shm`.

use crate::words::WordsMut;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Size of a board, bytes.
pub const BOARD_BYTES: usize = 64 << 10;
/// Longest name of a board, bytes.
pub const MAX_NAME: usize = 64;
/// Longest report that fits, bytes.
pub const MAX_REPORT: usize = BOARD_BYTES - REPORT * 8;

const MAGIC: u64 = u64::from_le_bytes(*b"TANDEMB1");
const TURN: usize = 1;
const PID: usize = 2;
const STARTED: usize = 3;
const PHASE: usize = 4;
const SINCE: usize = 5;
const PASSES: usize = 6;
const LENGTH: usize = 7;
const REPORT: usize = 8;

/// How often a reader looks again at a report that is being written, 1 ms apart.
const TRIES: u32 = 50;

/// What the scheduler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Loads the model.
    Starting,
    /// Waits for work.
    Idle,
    /// Runs a pass on the device.
    Pass,
    /// Ends.
    Stopping,
}

const PHASES: [(Phase, &str); 4] = [
    (Phase::Starting, "starting"),
    (Phase::Idle, "idle"),
    (Phase::Pass, "in a pass"),
    (Phase::Stopping, "stopping"),
];

impl Phase {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        PHASES[self as usize].1
    }
}

/// Milliseconds of `CLOCK_BOOTTIME`: they count on in suspend and are the same in every process.
pub fn boot_ms() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec to be written. The clock is there since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut t) };
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

/// The daemon's side of a board.
#[derive(Debug)]
pub struct Board<W> {
    words: W,
    turn: u64,
    passes: u64,
}

impl<W: WordsMut> Board<W> {
    /// A board on `words`, at least [`BOARD_BYTES`] of zeros.
    pub fn new(words: W) -> Self {
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        words.store(PID, std::process::id().into(), Ordering::Relaxed);
        words.store(STARTED, started.map_or(0, |d| d.as_secs()), Ordering::Relaxed);
        let board = Board { words, turn: 0, passes: 0 };
        board.set(Phase::Starting);
        // Last: a reader that sees it sees the rest.
        board.words.store(0, MAGIC, Ordering::Release);
        board
    }

    fn set(&self, phase: Phase) {
        self.words.store(SINCE, boot_ms(), Ordering::Relaxed);
        self.words.store(PHASE, phase as u64, Ordering::Release);
    }

    /// Tells what the scheduler does from now on.
    pub fn phase(&mut self, phase: Phase) {
        if phase == Phase::Pass {
            self.passes += 1;
            self.words.store(PASSES, self.passes, Ordering::Relaxed);
        }
        self.set(phase);
    }

    /// Puts a report up. One longer than [`MAX_REPORT`] leaves the old one; false then.
    pub fn post(&mut self, report: &str) -> bool {
        if report.len() > MAX_REPORT {
            return false;
        }
        self.turn += 2;
        self.words.store(TURN, self.turn - 1, Ordering::Relaxed);
        self.words.fence();
        self.words.store(LENGTH, report.len() as u64, Ordering::Relaxed);
        self.words.copy_in(REPORT, report.as_bytes());
        self.words.store(TURN, self.turn, Ordering::Release);
        true
    }
}

/// What a monitor reads off a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The daemon's process, which may be gone.
    pub pid: u32,
    /// When it started, seconds since 1970.
    pub started: u64,
    /// What it does.
    pub phase: Phase,
    /// For how long.
    pub since: Duration,
    /// Passes begun.
    pub passes: u64,
    /// Its last report; none if it has made none or died while it wrote one.
    pub report: Option<String>,
}

impl Reading {
    /// Whether a process of the daemon's id runs.
    pub fn is_alive(&self) -> bool {
        std::path::Path::new("/proc").join(self.pid.to_string()).exists()
    }
}

/// Why a board cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// No such name can be.
    #[error(
        "{0:?} is no name of a board: 1 to {MAX_NAME} letters, digits, '-', '_' or '.', the first not '.'"
    )]
    Name(String),
    /// The file.
    #[error("cannot read board {}: {source}; is `board` set in the daemon's settings?", path.display())]
    Read {
        /// The file tried.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Not a board of this version.
    #[error("{} is no status board of this version ({what})", path.display())]
    Foreign {
        /// The file read.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
}

/// Whether `name` can name a board: a plain file name.
pub fn check_name(name: &str) -> Result<(), BoardError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good =
        !name.is_empty() && name.len() <= MAX_NAME && !name.starts_with('.') && name.chars().all(plain);
    if good { Ok(()) } else { Err(BoardError::Name(name.into())) }
}

/// Where the board of this name lies.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(name)
}

/// Reads the board of this name.
pub fn read(name: &str) -> Result<Reading, BoardError> {
    check_name(name)?;
    let path = path(name);
    let io = |source| BoardError::Read { path: path.clone(), source };
    let foreign = |what| BoardError::Foreign { path: path.clone(), what };
    let file = File::open(&path).map_err(io)?;
    let mut copy = vec![0; BOARD_BYTES];
    for attempt in 1.. {
        file.read_exact_at(&mut copy, 0).map_err(io)?;
        let mut turn = [0; 8];
        file.read_exact_at(&mut turn, (TURN * 8) as u64).map_err(io)?;
        let whole = u64::from_ne_bytes(turn) == word(&copy, TURN) && word(&copy, TURN).is_multiple_of(2);
        if whole || attempt == TRIES {
            return parse(&copy, whole, boot_ms()).map_err(foreign);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    unreachable!("the loop ends at its last attempt")
}

fn word(copy: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&copy[at * 8..at * 8 + 8]);
    u64::from_ne_bytes(word)
}

fn parse(copy: &[u8], whole: bool, now: u64) -> Result<Reading, &'static str> {
    if word(copy, 0) != MAGIC {
        return Err("its first word is another");
    }
    let phase = usize::try_from(word(copy, PHASE)).ok().and_then(|p| PHASES.get(p));
    let length = word(copy, LENGTH);
    if length > MAX_REPORT as u64 {
        return Err("its report is longer than the board");
    }
    let bytes = &copy[REPORT * 8..REPORT * 8 + length as usize];
    let text = whole.then(|| String::from_utf8(bytes.to_vec()).ok()).flatten();
    Ok(Reading {
        pid: u32::try_from(word(copy, PID)).map_err(|_| "its process id is none")?,
        started: word(copy, STARTED),
        phase: phase.ok_or("its phase is none")?.0,
        since: Duration::from_millis(now.saturating_sub(word(copy, SINCE))),
        passes: word(copy, PASSES),
        report: text.filter(|t| !t.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Words;
    use std::sync::atomic::AtomicU64;

    #[derive(Debug)]
    struct Plain(Vec<AtomicU64>);

    impl Words for &Plain {
        fn load(&self, at: usize, order: Ordering) -> u64 {
            self.0[at].load(order)
        }
        fn fence(&self) {
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    impl WordsMut for &Plain {
        fn store(&self, at: usize, value: u64, order: Ordering) {
            self.0[at].store(value, order);
        }
    }

    fn bytes(memory: &Plain) -> Vec<u8> {
        memory.0.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    fn memory() -> Plain {
        Plain((0..BOARD_BYTES / 8).map(|_| AtomicU64::new(0)).collect())
    }

    #[test]
    fn what_is_posted_is_read() {
        let memory = memory();
        let mut board = Board::new(&memory);
        assert!(board.post("{\"a\":1}"));
        board.phase(Phase::Pass);
        let reading = parse(&bytes(&memory), true, boot_ms()).unwrap();
        assert_eq!(reading.report.as_deref(), Some("{\"a\":1}"));
        assert_eq!((reading.phase, reading.passes, reading.pid), (Phase::Pass, 1, std::process::id()));
        assert!(!board.post(&"x".repeat(MAX_REPORT + 1)));
        assert!(board.post(&"x".repeat(MAX_REPORT)));
        assert_eq!(
            parse(&bytes(&memory), true, boot_ms()).unwrap().report.map(|r| r.len()),
            Some(MAX_REPORT)
        );
    }

    #[test]
    fn foreign_memory_is_an_error_and_a_torn_report_is_none() {
        let memory = memory();
        assert!(parse(&bytes(&memory), true, 0).is_err());
        let mut board = Board::new(&memory);
        assert!(board.post("{}"));
        assert_eq!(parse(&bytes(&memory), false, 0).unwrap().report, None);
        for (at, value) in [(PHASE, 5), (PHASE, u64::MAX), (LENGTH, MAX_REPORT as u64 + 1), (PID, 1 << 32)] {
            let before = memory.0[at].swap(value, Ordering::Relaxed);
            assert!(parse(&bytes(&memory), true, 0).is_err(), "word {at} = {value}");
            memory.0[at].store(before, Ordering::Relaxed);
        }
    }

    #[test]
    fn names_are_plain_file_names() {
        for bad in ["", ".", "..", "../x", "a/b", "a b", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("tandem").is_ok());
    }
}
