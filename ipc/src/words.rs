//! What a ring needs of shared memory: 64-bit words, and nothing else.
//!
//! The rings are written against these two traits. `Region`
//! is the implementation on mapped memory; the loom model
//! (`tests/ring_model.rs`) supplies one on loom's atomics, so the very code
//! that runs in production is the code whose orderings are model-checked.

use std::sync::atomic::Ordering;

use crate::layout::WORD;

/// Shared words that may be read. The other side may change any of them at any
/// time, so a value is loaded once and checked before use.
pub trait Words {
    /// Loads word `at`.
    ///
    /// # Panics
    /// When `at` lies outside the region: callers index by layout constants or
    /// by a position reduced modulo the capacity that the region was made for.
    fn load(&self, at: usize, order: Ordering) -> u64;

    /// A sequentially consistent fence, for the sleep protocol.
    fn fence(&self);

    /// Copies `out.len()` bytes starting at word `at`, which must lie inside the
    /// region (checked once for the whole copy).
    fn copy_out(&self, at: usize, out: &mut [u8]) {
        for (index, chunk) in out.chunks_mut(WORD).enumerate() {
            let word = self.load(at + index, Ordering::Relaxed).to_ne_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Shared words that this side owns and may write.
pub trait WordsMut: Words {
    /// Stores word `at`. Panics as [`Words::load`] does.
    fn store(&self, at: usize, value: u64, order: Ordering);

    /// Copies `bytes` to word `at` onwards, the last word padded with zeros.
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(WORD).enumerate() {
            self.store(at + index, padded_word(chunk), Ordering::Relaxed);
        }
    }
}

/// Up to eight bytes as a word, missing ones zero.
pub(crate) fn padded_word(chunk: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..chunk.len()].copy_from_slice(chunk);
    u64::from_ne_bytes(word)
}
