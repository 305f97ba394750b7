//! Repacked weights: eight rows of a quantized matrix, interleaved for the kernels.
//!
//! ```text
//! stored, a row:     │ scale │ values 0-3 │ values 4-7 │ … │          a block of the format
//! repacked, a group: │ scale of rows 0..8 │ values 0-3 of rows 0..8 │ values 4-7 of rows 0..8 │ … │
//! ```
//!
//! What a block has at byte `at`, the eight blocks have at byte `8 * at`, row by row, in cells
//! of four bytes, or of two for a scale of its own. So a vector of a lane a row is one load,
//! eight rows are one stream, and the whole is as large as what it was made from. Both the
//! kernels for a few columns and those for many read it ([`super::tile`]).

use super::simd::{Simd, WIDTH};
use tandem_program::DType;

/// Where the weights of eight rows are read from; `at` counts bytes from a block's start.
pub(super) trait Source: Copy {
    /// A float of two bytes.
    unsafe fn half<S: Simd>(self, at: usize) -> S::F;
    /// A float of two bytes that ends the block; four bytes may be read from `at - 2`.
    unsafe fn last_half<S: Simd>(self, at: usize) -> S::F;
    /// Four bytes.
    unsafe fn dwords<S: Simd>(self, at: usize) -> S::I;
    /// Sixteen bytes, as four vectors.
    unsafe fn four<S: Simd>(self, at: usize) -> [S::I; 4];
    /// Goes on by `bytes` of each row.
    fn skip(&mut self, bytes: usize);
    /// Asks for the bytes at `at`, there or not.
    unsafe fn prefetch<S: Simd>(self, at: usize);
}

/// Rows as the model file stores them.
#[derive(Clone, Copy)]
pub(super) struct Rows(pub(super) [*const u8; WIDTH]);

/// Repacked rows.
#[derive(Clone, Copy)]
pub(super) struct Interleaved(pub(super) *const u8);

impl Source for Rows {
    #[inline(always)]
    unsafe fn half<S: Simd>(self, at: usize) -> S::F {
        // SAFETY: the caller's blocks go on behind a scale that is not their last.
        unsafe { S::low_f16(S::dwords(&self.0, at)) }
    }
    #[inline(always)]
    unsafe fn last_half<S: Simd>(self, at: usize) -> S::F {
        // SAFETY: the caller's blocks hold the two bytes before it too.
        unsafe { S::low_f16(S::shr::<16>(S::dwords(&self.0, at - 2))) }
    }
    #[inline(always)]
    unsafe fn dwords<S: Simd>(self, at: usize) -> S::I {
        // SAFETY: the caller's blocks hold four bytes there.
        unsafe { S::dwords(&self.0, at) }
    }
    #[inline(always)]
    unsafe fn four<S: Simd>(self, at: usize) -> [S::I; 4] {
        // SAFETY: the caller's blocks hold sixteen bytes there.
        unsafe { S::transpose(&self.0, at) }
    }
    #[inline(always)]
    fn skip(&mut self, bytes: usize) {
        for row in &mut self.0 {
            *row = row.wrapping_add(bytes);
        }
    }
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, at: usize) {
        for row in self.0 {
            // SAFETY: any address will do.
            unsafe { S::prefetch(row.wrapping_add(at)) };
        }
    }
}

impl Source for Interleaved {
    #[inline(always)]
    unsafe fn half<S: Simd>(self, at: usize) -> S::F {
        // SAFETY: the caller's eight blocks hold two bytes each there.
        unsafe { S::load_f16(self.0.add(WIDTH * at).cast()) }
    }
    #[inline(always)]
    unsafe fn last_half<S: Simd>(self, at: usize) -> S::F {
        // SAFETY: the caller's contract, passed on.
        unsafe { self.half::<S>(at) }
    }
    #[inline(always)]
    unsafe fn dwords<S: Simd>(self, at: usize) -> S::I {
        // SAFETY: the caller's eight blocks hold four bytes each there.
        unsafe { S::load_i(self.0.add(WIDTH * at).cast()) }
    }
    #[inline(always)]
    unsafe fn four<S: Simd>(self, at: usize) -> [S::I; 4] {
        // SAFETY: the caller's eight blocks hold sixteen bytes each there.
        unsafe {
            [
                self.dwords::<S>(at),
                self.dwords::<S>(at + 4),
                self.dwords::<S>(at + 8),
                self.dwords::<S>(at + 12),
            ]
        }
    }
    #[inline(always)]
    fn skip(&mut self, bytes: usize) {
        self.0 = self.0.wrapping_add(WIDTH * bytes);
    }
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, at: usize) {
        // Eight lines a line of a row.
        for line in 0..WIDTH {
            // SAFETY: any address will do.
            unsafe { S::prefetch(self.0.wrapping_add(WIDTH * at + 64 * line)) };
        }
    }
}

/// Asks for the `bytes` bytes that lie `ahead` of those at `at`. Repacked groups follow each
/// other, so that is what this call or the next comes to. A kernel that reads its blocks in
/// order needs it little; one that jumps about inside a block, as that of `Q6_K` does, leaves the
/// hardware's own prefetcher nothing to follow, and without it waits for every line.
#[inline(always)]
pub(super) unsafe fn ask_ahead<S: Simd>(at: *const u8, ahead: usize, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: any address will do.
        unsafe { S::prefetch(at.wrapping_add(ahead + 64 * line)) };
    }
}

/// Where a format's blocks have their scale of two bytes: before all else or behind it.
fn scale_at(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => Some(0),
        DType::Q6_K => Some(dtype.block_bytes() - 2),
        // A scale and a minimum, one cell of four bytes.
        _ => None,
    }
}

/// Repacks eight rows, which lie one after the other in `from`. Both slices have
/// the same length, whole blocks of `dtype` for every row.
pub(crate) fn interleave(dtype: DType, from: &[u8], to: &mut [u8]) {
    let block = dtype.block_bytes();
    let row_bytes = from.len() / WIDTH;
    let scale = scale_at(dtype);
    let start = if scale == Some(0) { 2 } else { 0 };
    let cells = block / 4;
    for (lane, row) in from.chunks_exact(row_bytes).enumerate() {
        for (block_from, block_to) in row.chunks_exact(block).zip(to.chunks_exact_mut(WIDTH * block)) {
            if let Some(at) = scale {
                let cell = WIDTH * at + 2 * lane;
                block_to[cell..cell + 2].copy_from_slice(&block_from[at..at + 2]);
            }
            let (from, _) = block_from[start..start + 4 * cells].as_chunks::<4>();
            let (to, _) = block_to[WIDTH * start..].as_chunks_mut::<4>();
            for (from, to) in from.iter().zip(to[lane..].iter_mut().step_by(WIDTH)) {
                *to = *from;
            }
        }
    }
}

/// The blocks of row `lane` of a repacked group, as the model file stores them: [`interleave`]
/// turned round. `to` is as long as an eighth of `group`, whole blocks of `dtype`.
pub(crate) fn deinterleave(dtype: DType, group: &[u8], lane: usize, to: &mut [u8]) {
    let block = dtype.block_bytes();
    let scale = scale_at(dtype);
    let start = if scale == Some(0) { 2 } else { 0 };
    for (from, to) in group.chunks_exact(WIDTH * block).zip(to.chunks_exact_mut(block)) {
        if let Some(at) = scale {
            let cell = WIDTH * at + 2 * lane;
            to[at..at + 2].copy_from_slice(&from[cell..cell + 2]);
        }
        let (from, _) = from[WIDTH * start..].as_chunks::<4>();
        let (to, _) = to[start..].as_chunks_mut::<4>();
        for (from, to) in from[lane..].iter().step_by(WIDTH).zip(to) {
            *to = *from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_their_group_as_they_were() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
            let row = 3 * dtype.block_bytes();
            let from: Vec<u8> = (0..WIDTH * row).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut group = vec![0; from.len()];
            interleave(dtype, &from, &mut group);
            for (lane, want) in from.chunks_exact(row).enumerate() {
                let mut back = vec![0; row];
                deinterleave(dtype, &group, lane, &mut back);
                assert_eq!(back, want, "{dtype}: row {lane}");
            }
        }
    }

    #[test]
    fn what_a_block_has_at_a_byte_eight_blocks_have_at_eight_times_that() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
            let (block, blocks) = (dtype.block_bytes(), 3);
            let from: Vec<u8> = (0..WIDTH * blocks * block).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut to = vec![0; from.len()];
            interleave(dtype, &from, &mut to);
            let cell_of = |at: usize| match scale_at(dtype) {
                Some(scale) if at / 2 == scale / 2 => (scale, 2),
                Some(0) => (2 + (at - 2) / 4 * 4, 4),
                _ => (at / 4 * 4, 4),
            };
            for (i, byte) in from.iter().enumerate() {
                let (row, b, at) = (i / (blocks * block), i / block % blocks, i % block);
                let (cell, size) = cell_of(at);
                let there = WIDTH * (b * block + cell) + row * size + (at - cell);
                assert_eq!(to[there], *byte, "{dtype}: byte {at} of block {b} of row {row}");
            }
        }
    }
}
