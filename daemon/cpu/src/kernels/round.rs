//! Activation rounding: `tandem_program::scalar::quant`, with the sums laid out for the
//! product kernels.

use super::simd::{Simd, WIDTH};

/// Pointers to one column's bytes, scales and sums.
#[derive(Clone, Copy)]
pub(crate) struct RoundedOut {
    /// A byte a value.
    pub(crate) bytes: *mut i8,
    /// A scale a block.
    pub(crate) scales: *mut f32,
    /// Blocks of 32 only: an `i32` a block.
    pub(crate) sums: *mut i32,
    /// Pairs of `i16`. Blocks of 32: -4 times the sum, twice. Blocks of 256: for every 16 values
    /// -32 times the sums over the first two of every four and over the others.
    pub(crate) starts: *mut i32,
    /// Blocks of 256 only: pairs of `i16`, the sums over 32.
    pub(crate) wide_sums: *mut i32,
}

/// `scalar::quant::q8_32` of a row of `n` values, whole blocks.
#[inline(always)]
pub(super) unsafe fn round_32<S: Simd>(x: *const f32, n: usize, out: RoundedOut) {
    // SAFETY: the caller's row holds `n` values and `out` room for `n / 32` blocks.
    unsafe {
        for b in 0..n / 32 {
            let mut v = [S::splat(0.0); 4];
            let mut tops = S::splat(0.0);
            for (i, v) in v.iter_mut().enumerate() {
                *v = S::load(x.add(b * 32 + i * WIDTH));
                tops = S::max(S::abs(*v), tops);
            }
            let d = largest::<S>(tops) / 127.0;
            let mut q = [S::splat_i(0); 4];
            if d != 0.0 {
                for (q, v) in q.iter_mut().zip(v) {
                    *q = to_byte::<S>(v, d);
                }
            }
            S::store_bytes(out.bytes.add(b * 32), q);
            *out.scales.add(b) = half::f16::from_f32(d).to_f32();
            let sum = S::total(S::add_i(S::add_i(q[0], q[1]), S::add_i(q[2], q[3])));
            *out.sums.add(b) = sum;
            *out.starts.add(b) = pair(-4 * sum, -4 * sum);
        }
    }
}

/// `scalar::quant::q8k_256` of a row of `n` values, whole blocks.
#[inline(always)]
pub(super) unsafe fn round_256<S: Simd>(x: *const f32, n: usize, out: RoundedOut) {
    // SAFETY: the caller's row holds `n` values and `out` room for `n / 256` blocks.
    unsafe {
        for b in 0..n / 256 {
            let x = x.add(b * 256);
            let mut tops = S::splat(0.0);
            for i in 0..256 / WIDTH {
                tops = S::max(S::abs(S::load(x.add(i * WIDTH))), tops);
            }
            let d = largest::<S>(tops) / 127.0;
            *out.scales.add(b) = d;
            let mut wide = [0i32; 8];
            for u in 0..8 {
                let mut q = [S::splat_i(0); 4];
                if d != 0.0 {
                    for (i, q) in q.iter_mut().enumerate() {
                        *q = to_byte::<S>(S::load(x.add(u * 32 + i * WIDTH)), d);
                    }
                }
                S::store_bytes(out.bytes.add(b * 256 + u * 32), q);
                for half in 0..2 {
                    let mut lanes = [0i32; WIDTH];
                    S::store_i(lanes.as_mut_ptr(), S::add_i(q[2 * half], q[2 * half + 1]));
                    let first = lanes[0] + lanes[1] + lanes[4] + lanes[5];
                    let other = lanes[2] + lanes[3] + lanes[6] + lanes[7];
                    *out.starts.add(b * 16 + 2 * u + half) = pair(-32 * first, -32 * other);
                    wide[u] += first + other;
                }
            }
            for p in 0..4 {
                *out.wide_sums.add(b * 4 + p) = pair(wide[2 * p], wide[2 * p + 1]);
            }
        }
    }
}

/// Two values as `i16`, the first in the lower half.
fn pair(first: i32, second: i32) -> i32 {
    (first & 0xffff) | (second << 16)
}

/// `x / d` to the nearest integer within -127 to 127.
#[inline(always)]
unsafe fn to_byte<S: Simd>(x: S::F, d: f32) -> S::I {
    // SAFETY: arithmetic only; the caller vouches for the instruction set.
    unsafe {
        let v = S::div(x, S::splat(d));
        S::round(S::min(S::splat(127.0), S::max(S::splat(-127.0), v)))
    }
}

#[inline(always)]
unsafe fn largest<S: Simd>(v: S::F) -> f32 {
    let mut lanes = [0.0f32; WIDTH];
    // SAFETY: the array is eight lanes long.
    unsafe { S::store(lanes.as_mut_ptr(), v) };
    lanes.iter().fold(0.0, |m: f32, v| m.max(*v))
}
