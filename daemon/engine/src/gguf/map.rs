//! The shared mapping of a model file.

use std::fs::{self, File};
use std::path::Path;

use memmap2::{Mmap, MmapMut};

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
        Ok(Self { bytes })
    }

    /// A mapping of anonymous memory that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<Self, GgufError> {
        let fail = |source| GgufError::Open { path: "(memory)".into(), source };
        let mut copy = MmapMut::map_anon(bytes.len()).map_err(fail)?;
        copy.copy_from_slice(bytes);
        Ok(Self { bytes: copy.make_read_only().map_err(fail)? })
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
