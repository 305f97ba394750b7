//! Repacked weights on disk, so that a start need not make them again.
//!
//! ```text
//! FOLDER/IDENTITY-OFFSET-TYPE-ROWSxWIDTH.VERSION.repacked     │ repacked groups │ sum of them, 8 bytes │
//! ```
//!
//! A weight that is found is mapped, not read: its pages are clean and shared with the system's
//! page cache, which may drop them when memory is short and has them again from the file. What
//! the file holds is trusted as the model file is; the folder is therefore one that only this user
//! can write to, and the sum finds what a torn write or a bad block left behind.

use crate::memory::View;
use memmap2::Mmap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Changes with the order that [`interleave`](crate::kernels::interleave) writes.
const VERSION: u32 = 1;

/// Smaller weights are made again sooner than their file is opened.
const SMALLEST: usize = 64 * 1024;

const SUM_BYTES: usize = 8;

/// A folder of repacked weights.
pub(crate) struct Cache {
    folder: PathBuf,
    /// Contents that are in use.
    seen: Vec<u64>,
    /// Whether what is kept of others has been removed.
    cleared: bool,
}

/// Tells the unfinished files of this process apart.
static PARTIALS: AtomicU64 = AtomicU64::new(0);

/// One weight's place in the cache.
pub(crate) struct Entry {
    path: PathBuf,
    identity: u64,
}

/// A weight from the cache.
pub(crate) struct Kept {
    map: Mmap,
}

impl Kept {
    /// The repacked groups.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map[..self.map.len() - SUM_BYTES]
    }
}

impl Cache {
    /// `folder` is there and belongs to this user alone.
    pub(crate) fn new(folder: &Path) -> Self {
        Cache { folder: folder.to_owned(), seen: Vec::new(), cleared: false }
    }

    /// Where a weight of `bytes` bytes that begins at `offset` of these contents is kept; none where
    /// it is too small to be.
    pub(crate) fn entry(&self, identity: u64, offset: u64, weight: &View, bytes: usize) -> Option<Entry> {
        let View { dtype, rows, width, .. } = weight;
        let name = format!("{identity:016x}-{offset:x}-{dtype}-{rows}x{width}.{VERSION}.repacked");
        (bytes >= SMALLEST).then(|| Entry { path: self.folder.join(name), identity })
    }

    /// The repacked weight of an entry, `bytes` long.
    pub(crate) fn find(&mut self, entry: &Entry, bytes: usize) -> Option<Kept> {
        if !self.seen.contains(&entry.identity) {
            self.seen.push(entry.identity);
        }
        let file = File::open(&entry.path).ok()?;
        if file.metadata().ok()?.len() != (bytes + SUM_BYTES) as u64 {
            return None;
        }
        // SAFETY: the mapping is read-only, and its folder is one that only this user's daemon
        // writes to, which replaces a file by renaming another over it.
        let map = unsafe { Mmap::map(&file) }.ok()?;
        let kept = Kept { map };
        (kept.map[bytes..] == sum(kept.bytes()).to_le_bytes()).then_some(kept)
    }

    /// Writes a repacked weight and maps it; none where the system refuses, and the cache goes
    /// without it. What is kept of other models, or of this one before it was replaced, goes.
    pub(crate) fn keep(&mut self, entry: &Entry, bytes: &[u8]) -> Option<Kept> {
        if !std::mem::replace(&mut self.cleared, true) {
            self.forget_others();
        }
        let number = PARTIALS.fetch_add(1, Ordering::Relaxed);
        let partial = entry.path.with_extension(format!("partial-{}-{number}", std::process::id()));
        let written = || -> std::io::Result<()> {
            let mut file = File::create(&partial)?;
            file.write_all(bytes)?;
            // Not waited for until it is on the disk: after a power cut the sum tells.
            file.write_all(&sum(bytes).to_le_bytes())?;
            std::fs::rename(&partial, &entry.path)
        };
        if written().is_err() {
            let _ = std::fs::remove_file(&partial);
            return None;
        }
        self.find(entry, bytes.len())
    }

    fn forget_others(&self) {
        let ours: Vec<String> = self.seen.iter().map(|identity| format!("{identity:016x}-")).collect();
        let own = format!(".partial-{}-", std::process::id());
        for file in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let stale = name.ends_with(".repacked") && !ours.iter().any(|own| name.starts_with(own));
            // One that another device of this process writes has its number.
            let left = name.contains(".partial-") && !name.contains(&own);
            if stale || left {
                // One that stays takes room, nothing else.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

/// A sum that differs where a word or the order of two differs, as fast as memory is read.
fn sum(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (lanes, rest) = bytes.as_chunks::<32>();
    let mut sums = [1u64, 2, 3, 4];
    for lane in lanes {
        for (sum, word) in sums.iter_mut().zip(lane.as_chunks::<8>().0) {
            *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
        }
    }
    let rest = rest.iter().fold(bytes.len() as u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(ODD));
    sums.into_iter().fold(rest, |all, sum| (all ^ sum).wrapping_mul(ODD).rotate_left(31))
}
