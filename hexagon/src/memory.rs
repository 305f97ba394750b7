//! Memory that the host and the DSP both see, handed out in pages: in emulation parts of one
//! anonymous file, on the phone buffers that its driver makes, each a file of its own.

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::{BTreeMap, HashMap};
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
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A driver's buffer: whole pages, readable and writable until it is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    /// What the DSP knows it by.
    pub(crate) file: u32,
    pub(crate) memory: NonNull<u8>,
}

/// A driver that makes buffers.
pub(crate) trait Buffers: Send {
    /// Makes a buffer of whole pages; `None` where the driver refuses. No two that exist at once
    /// have a file or a byte in common.
    fn make(&mut self, bytes: u64) -> Option<Buffer>;

    /// Takes back what [`Buffers::make`] made with this size.
    fn free(&mut self, buffer: Buffer, bytes: u64);
}

/// Shared memory.
///
/// The DSP writes the same memory, so nothing here is ever a reference to bytes: they are
/// copied in and out, and only while no batch is in flight that would touch them.
pub struct Shared {
    source: Source,
    bytes: u64,
}

enum Source {
    File(File),
    Buffers {
        driver: Box<dyn Buffers>,
        /// Those that exist, by file.
        made: HashMap<u32, (Buffer, u64)>,
        used: u64,
    },
}

/// One file, sparse, mapped whole on the host. Pages take room once they are written.
struct File {
    file: OwnedFd,
    base: NonNull<c_void>,
    bytes: u64,
    /// Free extents by offset; neighbours are merged.
    free: BTreeMap<u64, u64>,
}

// SAFETY: the mappings belong to this value alone, and are only touched through `&mut self` or by copies.
unsafe impl Send for Shared {}

impl Shared {
    /// `bytes` of address space of one file, rounded up to pages.
    pub fn new(bytes: u64) -> Result<Shared, SharedError> {
        let bytes = bytes.next_multiple_of(PAGE);
        Ok(Shared { source: Source::File(File::new(bytes)?), bytes })
    }

    /// At most `bytes` of a driver's buffers.
    pub(crate) fn of_driver(bytes: u64, driver: Box<dyn Buffers>) -> Shared {
        Shared { source: Source::Buffers { driver, made: HashMap::new(), used: 0 }, bytes }
    }

    /// The one file, for the other side; `None` where a driver makes buffers.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::File(file) => Some(file.file.as_fd()),
            Source::Buffers { .. } => None,
        }
    }

    /// Size of the whole.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes zeroed pages for `bytes`; `None` where there is no room.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<Extent> {
        let need = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let extent = match &mut self.source {
            Source::File(file) => return file.allocate(need),
            Source::Buffers { driver, made, used } => {
                if need > self.bytes - *used {
                    return None;
                }
                let buffer = driver.make(need)?;
                made.insert(buffer.file, (buffer, need));
                *used += need;
                Extent { file: buffer.file, offset: 0, bytes: need }
            }
        };
        // A driver's pages need not be zero.
        // SAFETY: `at` checked the range; `&mut self` keeps other copies away.
        unsafe { std::ptr::write_bytes(self.at(extent, 0, need as usize), 0, need as usize) };
        Some(extent)
    }

    /// Gives pages back.
    pub(crate) fn release(&mut self, extent: Extent) {
        match &mut self.source {
            Source::File(file) => file.release(extent),
            Source::Buffers { driver, made, used } => {
                if let Some((buffer, bytes)) = made.remove(&extent.file) {
                    driver.free(buffer, bytes);
                    *used -= bytes;
                }
            }
        }
    }

    /// Where byte `start` of an extent lies, with `len` bytes inside it.
    fn at(&self, extent: Extent, start: u64, len: usize) -> *mut u8 {
        let end = start.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= extent.bytes), "{len} bytes at {start} of {}", extent.bytes);
        let (memory, bytes) = match &self.source {
            Source::File(file) => (Some(file.base.cast()), file.bytes),
            Source::Buffers { made, .. } => match made.get(&extent.file) {
                Some((buffer, bytes)) => (Some(buffer.memory), *bytes),
                None => (None, 0),
            },
        };
        let inside = extent.offset.checked_add(extent.bytes).is_some_and(|end| end <= bytes);
        let Some(memory) = memory.filter(|_| inside) else { panic!("{extent:?} is not of this memory") };
        // SAFETY: the two checks above keep within the mapping.
        unsafe { memory.as_ptr().add((extent.offset + start) as usize) }
    }

    /// Copies into an extent, from byte `start` on.
    pub(crate) fn write(&mut self, extent: Extent, start: u64, bytes: &[u8]) {
        let to = self.at(extent, start, bytes.len());
        // SAFETY: `at` checked the range; `bytes` is no part of the mapping, of which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies out.
    pub(crate) fn read(&self, extent: Extent, start: u64, bytes: &mut [u8]) {
        let from = self.at(extent, start, bytes.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Source::Buffers { driver, made, .. } = &mut self.source {
            for (_, (buffer, bytes)) in made.drain() {
                driver.free(buffer, bytes);
            }
        }
    }
}

impl File {
    fn new(bytes: u64) -> Result<File, SharedError> {
        let fail = |what| move |source| SharedError { what, bytes, source };
        let file = memfd_create("tandem-dsp", MemfdFlags::CLOEXEC).map_err(fail("make a file for"))?;
        ftruncate(&file, bytes).map_err(fail("reserve"))?;
        let len = usize::try_from(bytes).map_err(|_| fail("address")(rustix::io::Errno::NOMEM))?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the system's choice replaces nothing.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, access, flags, &file, 0) }.map_err(fail("map"))?;
        let base = NonNull::new(base).ok_or_else(|| fail("map")(rustix::io::Errno::NOMEM))?;
        Ok(File { file, base, bytes, free: BTreeMap::from([(0, bytes)]) })
    }

    fn allocate(&mut self, need: u64) -> Option<Extent> {
        let (&offset, &size) = self.free.iter().find(|(_, size)| **size >= need)?;
        self.free.remove(&offset);
        if size > need {
            self.free.insert(offset + need, size - need);
        }
        Some(Extent { file: 0, offset, bytes: need })
    }

    /// Gives pages back. They read as zero from now on.
    fn release(&mut self, extent: Extent) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, hole, extent.offset, extent.bytes).is_err() {
            // No holes in this file system: zeros have to be written.
            self.clear(extent);
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

    fn clear(&mut self, extent: Extent) {
        assert!(extent.offset.checked_add(extent.bytes).is_some_and(|end| end <= self.bytes));
        let base = self.base.as_ptr().cast::<u8>();
        // SAFETY: the assertion above keeps within the mapping; `&mut self` keeps copies away.
        unsafe { std::ptr::write_bytes(base.add(extent.offset as usize), 0, extent.bytes as usize) }
    }
}

impl Drop for File {
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
        shared.write(extents[1], 0, &[7; 100]);
        for i in [1, 3, 2, 0] {
            shared.release(extents[i]);
        }
        let whole = shared.allocate(4 * PAGE).unwrap();
        assert_eq!(whole, Extent { file: 0, offset: 0, bytes: 4 * PAGE });
        let mut bytes = [1; 100];
        shared.read(whole, extents[1].offset, &mut bytes);
        assert_eq!(bytes, [0; 100]);
    }

    #[test]
    fn sizes_beyond_everything_are_refused() {
        let mut shared = Shared::new(PAGE).unwrap();
        assert_eq!(shared.allocate(u64::MAX), None);
        assert_eq!(shared.allocate(2 * PAGE), None);
        assert!(shared.allocate(0).is_some());
    }

    /// Makes buffers full of ones and keeps count.
    struct Dirty(std::sync::Arc<std::sync::Mutex<Vec<u32>>>, u32);

    impl Buffers for Dirty {
        fn make(&mut self, bytes: u64) -> Option<Buffer> {
            self.1 += 1;
            self.0.lock().unwrap().push(self.1);
            let memory = Box::leak(vec![1_u8; bytes as usize].into_boxed_slice());
            Some(Buffer { file: self.1, memory: NonNull::from(memory).cast() })
        }

        fn free(&mut self, buffer: Buffer, bytes: u64) {
            self.0.lock().unwrap().retain(|file| *file != buffer.file);
            let memory = std::ptr::slice_from_raw_parts_mut(buffer.memory.as_ptr(), bytes as usize);
            // SAFETY: `make` leaked a box of this size, and it is given back once.
            drop(unsafe { Box::from_raw(memory) });
        }
    }

    #[test]
    fn a_drivers_buffers_are_zeroed_counted_and_all_given_back() {
        let made = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut shared = Shared::of_driver(3 * PAGE, Box::new(Dirty(made.clone(), 6)));
        let first = shared.allocate(PAGE).unwrap();
        let second = shared.allocate(PAGE + 1).unwrap();
        assert_eq!(second, Extent { file: 8, offset: 0, bytes: 2 * PAGE });
        assert_eq!(shared.allocate(1), None, "the limit holds");
        let mut bytes = [1; 100];
        shared.read(second, PAGE, &mut bytes);
        assert_eq!(bytes, [0; 100]);
        shared.write(second, 5, &[9]);
        shared.read(second, 5, &mut bytes[..1]);
        assert_eq!(bytes[0], 9);
        shared.release(first);
        assert_eq!(*made.lock().unwrap(), [8]);
        assert!(shared.allocate(1).is_some());
        drop(shared);
        assert!(made.lock().unwrap().is_empty());
    }
}
