//! The daemon's status board: named shared memory that monitors read, also when no thread of
//! the daemon answers any more. The layout is `tandem_ipc::board`'s.

pub use tandem_ipc::board::Phase;

use std::time::{Duration, Instant};

/// How often the report is put up while there is work.
const EVERY: Duration = Duration::from_millis(250);

/// The status board, or none: a daemon without a name for it, or a system without `/dev/shm`.
#[derive(Debug, Default)]
pub struct StatusBoard {
    #[cfg(not(target_os = "android"))]
    board: Option<tandem_ipc::board::Board<shared::Memory>>,
    #[cfg_attr(target_os = "android", allow(dead_code))]
    posted: Option<Instant>,
}

impl StatusBoard {
    /// The board of this name. Without one the daemon serves all the same, so what is wrong is
    /// logged and there is no board.
    pub fn open(name: Option<&str>) -> Self {
        let Some(name) = name else { return StatusBoard::default() };
        #[cfg(not(target_os = "android"))]
        match shared::Memory::create(name) {
            Ok(memory) => {
                return StatusBoard { board: Some(tandem_ipc::board::Board::new(memory)), posted: None };
            }
            Err(error) => tracing::warn!(board = name, %error, "no status board"),
        }
        #[cfg(target_os = "android")]
        tracing::warn!(board = name, "no status board: Android has no /dev/shm");
        StatusBoard::default()
    }

    /// Tells what the scheduler does from now on.
    pub fn phase(&mut self, phase: Phase) {
        #[cfg(not(target_os = "android"))]
        if let Some(board) = &mut self.board {
            board.phase(phase);
        }
        #[cfg(target_os = "android")]
        let _ = phase;
    }

    /// Puts up a report if one is due: at once when the scheduler has no more work, else four
    /// times a second. False if none was due yet.
    pub fn post(&mut self, idle: bool, report: impl FnOnce() -> String) -> bool {
        #[cfg(not(target_os = "android"))]
        if let Some(board) = &mut self.board {
            if !idle && self.posted.is_some_and(|at| at.elapsed() < EVERY) {
                return false;
            }
            self.posted = Some(Instant::now());
            let report = report();
            if !board.post(&report) {
                tracing::debug!(bytes = report.len(), "the report is longer than the board");
            }
        }
        #[cfg(target_os = "android")]
        let _ = (idle, report, EVERY);
        true
    }
}

/// Named shared memory as words.
#[cfg(not(target_os = "android"))]
mod shared {
    use memmap2::{MmapOptions, MmapRaw};
    use std::fs::{File, OpenOptions, Permissions};
    use std::io::{self, ErrorKind};
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering, fence};
    use tandem_ipc::board::{self, BOARD_BYTES, BoardError};
    use tandem_ipc::words::{Words, WordsMut};

    #[derive(Debug, thiserror::Error)]
    pub(super) enum MemoryError {
        #[error(transparent)]
        Name(#[from] BoardError),
        #[error("process {0} keeps the board of this name; set another `board`")]
        Taken(u32),
        #[error("cannot make {}: {source}; set another `board`", path.display())]
        Make { path: PathBuf, source: io::Error },
    }

    /// [`BOARD_BYTES`] of shared memory under a name, which goes when this is dropped.
    pub(super) struct Memory {
        map: MmapRaw,
        path: PathBuf,
    }

    impl Memory {
        pub(super) fn create(name: &str) -> Result<Self, MemoryError> {
            board::check_name(name)?;
            let path = board::path(name);
            let file = match make(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    // A daemon that was killed leaves its board; a running one keeps it.
                    let keeper =
                        board::read(name).ok().filter(|b| b.pid != std::process::id() && b.is_alive());
                    if let Some(keeper) = keeper {
                        return Err(MemoryError::Taken(keeper.pid));
                    }
                    std::fs::remove_file(&path).and_then(|()| make(&path))
                }
                other => other,
            };
            let map = file.and_then(|file| {
                file.set_len(BOARD_BYTES as u64)?;
                // Whoever may look may read; nobody writes, nor shortens it under the mapping.
                file.set_permissions(Permissions::from_mode(0o444))?;
                MmapOptions::new().len(BOARD_BYTES).map_raw(&file)
            });
            match map {
                Ok(map) => Ok(Memory { map, path }),
                Err(source) => Err(MemoryError::Make { path, source }),
            }
        }

        fn word(&self, at: usize) -> &AtomicU64 {
            assert!(at < self.map.len() / 8, "word {at} of the board");
            // SAFETY: the line above keeps the word inside the mapping, which lives as long as
            // `self`, is aligned to a page, and is used as atomics alone.
            unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(at)) }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // Where it is gone already, all is well.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn make(path: &std::path::Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
    }

    impl std::fmt::Debug for Memory {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_tuple("Memory").field(&self.path).finish()
        }
    }

    impl Words for Memory {
        fn load(&self, at: usize, order: Ordering) -> u64 {
            self.word(at).load(order)
        }
        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    impl WordsMut for Memory {
        fn store(&self, at: usize, value: u64, order: Ordering) {
            self.word(at).store(value, order);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use tandem_ipc::board::{Board, Phase};

        #[test]
        fn a_board_is_read_by_name_and_gone_with_its_daemon() {
            let name = format!("tandem-test-{}", std::process::id());
            let mut board = Board::new(Memory::create(&name).unwrap());
            board.phase(Phase::Idle);
            assert!(board.post("{\"x\":[]}"));
            let reading = board::read(&name).unwrap();
            assert_eq!(reading.report.as_deref(), Some("{\"x\":[]}"));
            assert_eq!(reading.phase, Phase::Idle);
            let mode = std::fs::metadata(board::path(&name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o444);
            drop(board);
            assert!(matches!(board::read(&name), Err(BoardError::Read { .. })));
        }

        #[test]
        fn what_a_killed_daemon_left_is_replaced() {
            let name = format!("tandem-test-stale-{}", std::process::id());
            std::fs::write(board::path(&name), vec![7; 100]).unwrap();
            let memory = Memory::create(&name).unwrap();
            drop(memory);
            assert!(!board::path(&name).exists());
        }
    }
}
