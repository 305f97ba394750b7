//! Memory that the host and the DSP both see: one anonymous file, sparse, handed out in pages.

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Granularity of the DSP's maps (qemu-hexagon's pages).
const PAGE: u64 = crate::abi::PAGE as u64;

/// Why there is no shared memory.
#[derive(Debug, thiserror::Error)]
#[error("could not {what} {bytes} bytes of shared memory: {source}")]
pub struct SharedError {
    what: &'static str,
    bytes: u64,
    source: rustix::io::Errno,
}

/// A part of [`Shared`]; whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The file, mapped whole on the host. Pages take room once they are written.
///
/// The DSP writes the same memory, so nothing here is ever a reference to bytes: they are
/// copied in and out, and only while no batch is in flight that would touch them.
pub struct Shared {
    file: OwnedFd,
    base: NonNull<c_void>,
    bytes: u64,
    /// Free extents by offset; neighbours are merged.
    free: BTreeMap<u64, u64>,
}

// SAFETY: the mapping belongs to this value alone, and is only touched through `&mut self` or by copies.
unsafe impl Send for Shared {}

impl Shared {
    /// `bytes` of address space, rounded up to pages.
    pub fn new(bytes: u64) -> Result<Shared, SharedError> {
        let bytes = bytes.next_multiple_of(PAGE);
        let fail = |what| move |source| SharedError { what, bytes, source };
        let file = memfd_create("tandem-dsp", MemfdFlags::CLOEXEC).map_err(fail("make a file for"))?;
        ftruncate(&file, bytes).map_err(fail("reserve"))?;
        let len = usize::try_from(bytes).map_err(|_| fail("address")(rustix::io::Errno::NOMEM))?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the system's choice replaces nothing.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, access, flags, &file, 0) }.map_err(fail("map"))?;
        let base = NonNull::new(base).ok_or_else(|| fail("map")(rustix::io::Errno::NOMEM))?;
        Ok(Shared { file, base, bytes, free: BTreeMap::from([(0, bytes)]) })
    }

    /// The file, for the other side.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Size of the whole.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes zeroed pages for `bytes`; `None` where no gap is large enough.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<Extent> {
        let need = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let (&offset, &size) = self.free.iter().find(|(_, size)| **size >= need)?;
        self.free.remove(&offset);
        if size > need {
            self.free.insert(offset + need, size - need);
        }
        Some(Extent { offset, bytes: need })
    }

    /// Gives pages back. They read as zero from now on.
    pub(crate) fn release(&mut self, extent: Extent) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, hole, extent.offset, extent.bytes).is_err() {
            // No holes in this file system: zeros have to be written.
            self.fill(extent.offset, extent.bytes as usize);
        }
        let (mut offset, mut bytes) = (extent.offset, extent.bytes);
        if let Some((&before, &size)) = self.free.range(..offset).next_back()
            && before + size == offset
        {
            self.free.remove(&before);
            (offset, bytes) = (before, bytes + size);
        }
        if let Some(size) = self.free.remove(&(offset + bytes)) {
            bytes += size;
        }
        self.free.insert(offset, bytes);
    }

    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{len} bytes at {offset} of {}", self.bytes);
        // SAFETY: the assertion above keeps within the mapping.
        unsafe { self.base.as_ptr().cast::<u8>().add(offset as usize) }
    }

    fn fill(&mut self, offset: u64, len: usize) {
        // SAFETY: `at` checked the range; `&mut self` keeps other copies away.
        unsafe { std::ptr::write_bytes(self.at(offset, len), 0, len) }
    }

    /// Copies in. The caller keeps within an [`Extent`] it holds.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        // SAFETY: `at` checked the range; `bytes` is no part of the mapping, of which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) }
    }

    /// Copies out.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        // SAFETY: as in `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(offset, bytes.len()), bytes.as_mut_ptr(), bytes.len())
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this size, and nothing points into it.
        let _ = unsafe { munmap(self.base.as_ptr(), self.bytes as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_given_back_are_zero_and_merge() {
        let mut shared = Shared::new(4 * PAGE).unwrap();
        let extents: Vec<Extent> = (0..4).map(|_| shared.allocate(PAGE).unwrap()).collect();
        assert_eq!(shared.allocate(1), None);
        shared.write(extents[1].offset, &[7; 100]);
        for i in [1, 3, 2, 0] {
            shared.release(extents[i]);
        }
        let whole = shared.allocate(4 * PAGE).unwrap();
        assert_eq!(whole, Extent { offset: 0, bytes: 4 * PAGE });
        let mut bytes = [1; 100];
        shared.read(extents[1].offset, &mut bytes);
        assert_eq!(bytes, [0; 100]);
    }

    #[test]
    fn sizes_beyond_everything_are_refused() {
        let mut shared = Shared::new(PAGE).unwrap();
        assert_eq!(shared.allocate(u64::MAX), None);
        assert_eq!(shared.allocate(2 * PAGE), None);
        assert!(shared.allocate(0).is_some());
    }
}
