//! The elementary functions of `tandem_program::scalar::float`, eight at a time.

use super::simd::{Simd, WIDTH};
use tandem_program::scalar::float::{EXP_C1, EXP_C2, EXP_MAX, EXP_MIN, EXP_P};

/// `scalar::exp`.
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the instruction set.
    unsafe {
        let x = S::min(S::splat(EXP_MAX), S::max(S::splat(EXP_MIN), x));
        let n = S::floor(S::add(S::mul(x, S::splat(std::f32::consts::LOG2_E)), S::splat(0.5)));
        let r = S::sub(S::sub(x, S::mul(n, S::splat(EXP_C1))), S::mul(n, S::splat(EXP_C2)));
        let mut p = S::splat(EXP_P[0]);
        for c in &EXP_P[1..] {
            p = S::add(S::mul(p, r), S::splat(*c));
        }
        let y = S::add(S::add(S::mul(p, S::mul(r, r)), r), S::splat(1.0));
        let power = S::shl::<23>(S::add_i(S::round(n), S::splat_i(127)));
        S::mul(y, S::bits(power))
    }
}

/// `1 + e^-x`, the divisor of sigmoid and SiLU.
#[inline(always)]
unsafe fn divisor<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the instruction set.
    unsafe { S::add(S::splat(1.0), exp::<S>(S::neg(x))) }
}

/// `scalar::silu`.
#[inline(always)]
pub(super) unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the instruction set.
    unsafe { S::div(x, divisor::<S>(x)) }
}

/// `scalar::sigmoid`.
#[inline(always)]
pub(super) unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: arithmetic only; the caller vouches for the instruction set.
    unsafe { S::div(S::splat(1.0), divisor::<S>(x)) }
}

/// The first `n` of eight floats, the rest zero.
#[inline(always)]
pub(super) unsafe fn load_some<S: Simd>(p: *const f32, n: usize) -> S::F {
    let mut lanes = [0.0f32; WIDTH];
    // SAFETY: the caller's pointer is valid for `n < WIDTH` floats.
    unsafe {
        std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
        S::load(lanes.as_ptr())
    }
}

/// Stores the first `n` lanes.
#[inline(always)]
pub(super) unsafe fn store_some<S: Simd>(p: *mut f32, v: S::F, n: usize) {
    let mut lanes = [0.0f32; WIDTH];
    // SAFETY: the caller's pointer is valid for `n < WIDTH` floats.
    unsafe {
        S::store(lanes.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
    }
}
