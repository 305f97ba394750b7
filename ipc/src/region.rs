//! The only type that touches shared memory.
//!
//! Two rules, kept by this file alone:
//! 1. No reference into the mapping ever exists. Every access is an atomic load
//!    or store of an aligned word through a raw pointer, so the other side's
//!    concurrent writes are races the language defines.
//! 2. Every access is inside the mapping: [`Mapping::word`] or
//!    [`Mapping::span`] checks it, once per word or once per copy.
//!
//! The memfd behind a mapping is sealed against shrinking before it is shared
//! (`memfd.rs`) or checked to be (`client.rs`), so an access inside the mapping
//! cannot raise SIGBUS.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::layout::WORD;
use crate::words::{Words, WordsMut, padded_word};

/// A mapped region whose owner is the other side: it can only be read.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
}

/// A mapped region that this side owns.
#[derive(Debug)]
pub(crate) struct OwnRegion {
    region: Region,
}

#[derive(Debug)]
struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is owned by this value until drop, is not tied to a
// thread, and is only accessed through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` offers atomic accesses only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: impl AsFd, bytes: usize, prot: ProtFlags) -> rustix::io::Result<Mapping> {
        // SAFETY: a null hint lets the kernel choose an address, so no memory
        // of ours is replaced; the result is owned by the value made below.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, 0)? };
        let Some(base) = NonNull::new(base.cast()) else {
            return Err(rustix::io::Errno::NOMEM);
        };
        Ok(Mapping { base, words: bytes / WORD })
    }

    fn word(&self, at: usize) -> *const AtomicU64 {
        assert!(at < self.words, "word {at} of {} shared words", self.words);
        // SAFETY: `at` is inside the mapping by the line above.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// The first word of a copy of `bytes` bytes, all of it inside the mapping.
    fn span(&self, at: usize, bytes: usize) -> *const AtomicU64 {
        let count = bytes.div_ceil(WORD);
        assert!(
            at <= self.words && count <= self.words - at,
            "{count} words from {at} of {} shared words",
            self.words
        );
        // SAFETY: `at` is inside the mapping, or one past its end for an empty
        // copy, by the line above.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly these bytes, nothing outlives this value
        // (no reference into the mapping exists, rule 1).
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.words * WORD) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

impl Region {
    /// Maps the first `bytes` bytes of `fd`, read-only. `bytes` must not exceed
    /// the file's size and must be a multiple of eight.
    pub(crate) fn map(fd: impl AsFd, bytes: usize) -> rustix::io::Result<Region> {
        Mapping::new(fd, bytes, ProtFlags::READ).map(|mapping| Region { mapping })
    }
}

impl OwnRegion {
    /// Maps the first `bytes` bytes of `fd`, readable and writable. `bytes` must
    /// not exceed the file's size and must be a multiple of eight.
    pub(crate) fn map(fd: impl AsFd, bytes: usize) -> rustix::io::Result<OwnRegion> {
        let mapping = Mapping::new(fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(OwnRegion { region: Region { mapping } })
    }
}

impl Words for Region {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        // SAFETY: `word` checked the index; the mapping is page-aligned, so the
        // word is aligned; the atomic makes the other side's stores defined.
        unsafe { (*self.mapping.word(at)).load(order) }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn copy_out(&self, at: usize, out: &mut [u8]) {
        let mut word = self.mapping.span(at, out.len());
        for chunk in out.chunks_mut(WORD) {
            // SAFETY: `span` checked the `out.len().div_ceil(8)` words that this
            // loop visits, one a chunk.
            let value = unsafe {
                let value = (*word).load(Ordering::Relaxed);
                word = word.add(1);
                value
            };
            chunk.copy_from_slice(&value.to_ne_bytes()[..chunk.len()]);
        }
    }
}

impl Words for OwnRegion {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.region.load(at, order)
    }

    fn fence(&self) {
        self.region.fence();
    }

    fn copy_out(&self, at: usize, out: &mut [u8]) {
        self.region.copy_out(at, out);
    }
}

impl WordsMut for OwnRegion {
    fn store(&self, at: usize, value: u64, order: Ordering) {
        // SAFETY: `word` checked the index; an `OwnRegion` is mapped writable.
        unsafe { (*self.region.mapping.word(at)).store(value, order) }
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        let mut word = self.region.mapping.span(at, bytes.len());
        for chunk in bytes.chunks(WORD) {
            let value = match <[u8; WORD]>::try_from(chunk) {
                Ok(whole) => u64::from_ne_bytes(whole),
                Err(_) => padded_word(chunk),
            };
            // SAFETY: `span` checked the `bytes.len().div_ceil(8)` words that
            // this loop visits; an `OwnRegion` is mapped writable.
            unsafe {
                (*word).store(value, Ordering::Relaxed);
                word = word.add(1);
            }
        }
    }
}
