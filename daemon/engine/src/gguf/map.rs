//! The shared mapping of a model file.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memmap2::{Mmap, MmapMut, UncheckedAdvice};
use tandem_program::Bytes;

use super::GgufError;

/// A read-only mapping of a model file, page-aligned.
///
/// If another process truncates the file while it is mapped, touching a page past
/// the new end raises SIGBUS and kills the process; if it rewrites the file, weights
/// change under way. Neither can be detected from here, so a model file belongs on a
/// read-only partition or in a folder only its installer can write. Replace a model
/// by renaming a new file over it: an open mapping keeps the old one.
#[derive(Debug)]
pub struct Mapping {
    bytes: Mmap,
    /// Whether the bytes come from a file, which has them again after [`Bytes::release`].
    file: bool,
    /// Hash of the file's place, size and time of change.
    identity: Option<u64>,
}

impl Mapping {
    /// Maps the regular file at `path`.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let fail = |source| GgufError::Open { path: path.to_owned(), source };
        // Looked at before opening: opening a pipe would wait for its writer.
        if !fs::metadata(path).map_err(fail)?.is_file() {
            return Err(GgufError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(fail)?;
        // SAFETY: the mapping is read-only and private to this struct; what another
        // process may do to the file is the caller's contract, stated on the type.
        // The reader trusts no byte twice: text is checked as UTF-8 on each access.
        let bytes = unsafe { Mmap::map(&file) }.map_err(fail)?;
        let data = file.metadata().map_err(fail)?;
        let mut hasher = DefaultHasher::new();
        (data.dev(), data.ino(), data.len(), data.mtime(), data.mtime_nsec()).hash(&mut hasher);
        // Also changes when the time of a file with other contents is set back.
        (data.ctime(), data.ctime_nsec()).hash(&mut hasher);
        Ok(Self { bytes, file: true, identity: Some(hasher.finish()) })
    }

    /// A mapping of anonymous memory that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<Self, GgufError> {
        let fail = |source| GgufError::Open { path: "(memory)".into(), source };
        let mut copy = MmapMut::map_anon(bytes.len()).map_err(fail)?;
        copy.copy_from_slice(bytes);
        Ok(Self { bytes: copy.make_read_only().map_err(fail)?, file: false, identity: None })
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Of a page at least, on every system.
const PAGE: usize = 64 * 1024;

impl Bytes for Mapping {
    fn identity(&self) -> Option<u64> {
        self.identity
    }

    fn release(&self, range: std::ops::Range<usize>) {
        // Whole pages inside the range: what lies around it may be in use.
        let (start, end) =
            (range.start.next_multiple_of(PAGE), range.end.min(self.bytes.len()) / PAGE * PAGE);
        if !self.file || start >= end {
            return;
        }
        // SAFETY: the mapping is shared, read-only and of a file, so a page that was let go of
        // comes back from the file when it is touched, with the same bytes.
        let advised =
            unsafe { self.bytes.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        // A system that does not take the advice keeps the pages: memory, never an answer.
        drop(advised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_of_reads_the_same() {
        let bytes: Vec<u8> = (0..5 * PAGE + 3).map(|i| (i / 251) as u8).collect();
        let path = std::env::temp_dir().join(format!("tandem-mapping-{}", std::process::id()));
        fs::write(&path, &bytes).unwrap();
        let of_file = Mapping::open(&path);
        fs::remove_file(&path).unwrap();
        for mapping in [of_file.unwrap(), Mapping::copy_of(&bytes).unwrap()] {
            for range in [0..bytes.len(), 1..2 * PAGE + 1, 0..usize::MAX, 7..8, 9 * PAGE..10 * PAGE] {
                mapping.release(range);
                assert_eq!(mapping.as_ref(), bytes);
            }
        }
    }
}
