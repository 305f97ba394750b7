//! Row kernels: norms, activations, rotary embedding, conversions.
//!
//! In place where the op allows it: every lane is read before it is written, and depends only
//! on itself and on sums taken before the first write. Hence the raw pointers.

use super::elementary::{load_some, sigmoid, silu, store_some};
use super::float::dot_f32;
use super::simd::{Simd, WIDTH};

/// A function of the lanes of `N` rows.
trait Lanes<const N: usize> {
    unsafe fn at<S: Simd>(&self, v: [S::F; N]) -> S::F;
}

#[inline(always)]
unsafe fn map<S: Simd, const N: usize>(f: impl Lanes<N>, inputs: [*const f32; N], out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats each and `i` stays below `n`.
    unsafe {
        let mut v = [S::splat(0.0); N];
        let mut i = 0;
        while i + WIDTH <= n {
            for (v, p) in v.iter_mut().zip(&inputs) {
                *v = S::load(p.add(i));
            }
            S::store(out.add(i), f.at::<S>(v));
            i += WIDTH;
        }
        if i < n {
            for (v, p) in v.iter_mut().zip(&inputs) {
                *v = load_some::<S>(p.add(i), n - i);
            }
            store_some::<S>(out.add(i), f.at::<S>(v), n - i);
        }
    }
}

macro_rules! lanes {
    ($name:ident { $($field:ident),* } [$n:literal] |$s:ident, $v:ident| $body:expr) => {
        struct $name { $($field: f32),* }
        impl Lanes<$n> for $name {
            #[inline(always)]
            unsafe fn at<$s: Simd>(&self, $v: [$s::F; $n]) -> $s::F {
                $(let $field = self.$field;)*
                // SAFETY: arithmetic only; the caller vouches for the instruction set.
                unsafe { $body }
            }
        }
    };
}

lanes!(Normed { s }[2] | S, v | S::mul(S::mul(v[0], S::splat(s)), v[1]));
lanes!(GatedNormed { s }[3] | S, v | S::mul(S::mul(S::mul(v[0], S::splat(s)), v[1]), silu::<S>(v[2])));
lanes!(Scaled { s }[1] | S, v | S::mul(v[0], S::splat(s)));
lanes!(Divided { s }[1] | S, v | S::div(v[0], S::splat(s)));
lanes!(SiluMul {}[2] | S, v | S::mul(silu::<S>(v[0]), v[1]));
lanes!(SigmoidMul {}[2] | S, v | S::mul(v[0], sigmoid::<S>(v[1])));
lanes!(Sum {}[2] | S, v | S::add(v[0], v[1]));

/// `scalar::norm::rms_norm`.
#[inline(always)]
pub(super) unsafe fn rms_norm<S: Simd>(x: *const f32, weight: *const f32, eps: f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe {
        let s = 1.0 / (dot_f32::<S>(x, x, n) / n as f32 + eps).sqrt();
        map::<S, 2>(Normed { s }, [x, weight], out, n);
    }
}

/// `scalar::norm::l2_norm`.
#[inline(always)]
pub(super) unsafe fn l2_norm<S: Simd>(x: *const f32, eps: f32, scale: f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe {
        let s = scale / (dot_f32::<S>(x, x, n) + eps).sqrt();
        map::<S, 1>(Scaled { s }, [x], out, n);
    }
}

/// `scalar::norm::gated_norm`.
#[inline(always)]
pub(super) unsafe fn gated_norm<S: Simd>(
    x: *const f32,
    z: *const f32,
    weight: *const f32,
    eps: f32,
    out: *mut f32,
    n: usize,
) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe {
        let s = 1.0 / (dot_f32::<S>(x, x, n) / n as f32 + eps).sqrt();
        map::<S, 3>(GatedNormed { s }, [x, weight, z], out, n);
    }
}

/// `out = silu(gate) * up`.
#[inline(always)]
pub(super) unsafe fn silu_mul<S: Simd>(gate: *const f32, up: *const f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe { map::<S, 2>(SiluMul {}, [gate, up], out, n) }
}

/// `out = x * sigmoid(gate)`.
#[inline(always)]
pub(super) unsafe fn sigmoid_mul<S: Simd>(x: *const f32, gate: *const f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe { map::<S, 2>(SigmoidMul {}, [x, gate], out, n) }
}

/// `out = a + b`.
#[inline(always)]
pub(super) unsafe fn add<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe { map::<S, 2>(Sum {}, [a, b], out, n) }
}

/// `out = s * x`.
#[inline(always)]
pub(super) unsafe fn scale<S: Simd>(x: *const f32, s: f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe { map::<S, 1>(Scaled { s }, [x], out, n) }
}

/// `out = x / s`.
#[inline(always)]
pub(super) unsafe fn divide<S: Simd>(x: *const f32, s: f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` floats.
    unsafe { map::<S, 1>(Divided { s }, [x], out, n) }
}

/// The turned pairs of `scalar::norm::rope`; the caller copies the rest of the row.
#[inline(always)]
pub(super) unsafe fn rope<S: Simd>(x: *const f32, table: *const f32, half: usize, out: *mut f32) {
    // SAFETY: the caller's rows hold `2 * half` floats and `i` stays below `half`.
    unsafe {
        let mut i = 0;
        while i < half {
            let rest = half - i;
            macro_rules! load {
                ($p:expr) => {
                    if rest >= WIDTH { S::load($p) } else { load_some::<S>($p, rest) }
                };
            }
            let (a, b) = (load!(x.add(i)), load!(x.add(i + half)));
            let (cos, sin) = (load!(table.add(i)), load!(table.add(i + half)));
            let first = S::sub(S::mul(a, cos), S::mul(b, sin));
            let second = S::add(S::mul(a, sin), S::mul(b, cos));
            if rest >= WIDTH {
                S::store(out.add(i), first);
                S::store(out.add(i + half), second);
            } else {
                store_some::<S>(out.add(i), first, rest);
                store_some::<S>(out.add(i + half), second, rest);
            }
            i += WIDTH;
        }
    }
}

/// Rounds a row to IEEE halves.
#[inline(always)]
pub(super) unsafe fn to_f16<S: Simd>(x: *const f32, out: *mut u16, n: usize) {
    // SAFETY: the caller's rows hold `n` values and `i` stays below `n`.
    unsafe {
        let mut i = 0;
        while i + WIDTH <= n {
            S::store_f16(out.add(i), S::load(x.add(i)));
            i += WIDTH;
        }
        if i < n {
            let mut halves = [0u16; WIDTH];
            S::store_f16(halves.as_mut_ptr(), load_some::<S>(x.add(i), n - i));
            std::ptr::copy_nonoverlapping(halves.as_ptr(), out.add(i), n - i);
        }
    }
}

/// The values of a row of IEEE halves.
#[inline(always)]
pub(super) unsafe fn from_f16<S: Simd>(x: *const u16, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` values and `i` stays below `n`.
    unsafe {
        let mut i = 0;
        while i + WIDTH <= n {
            S::store(out.add(i), S::load_f16(x.add(i)));
            i += WIDTH;
        }
        if i < n {
            let mut halves = [0u16; WIDTH];
            std::ptr::copy_nonoverlapping(x.add(i), halves.as_mut_ptr(), n - i);
            store_some::<S>(out.add(i), S::load_f16(halves.as_ptr()), n - i);
        }
    }
}

/// Rounds a row to IEEE halves and back.
#[inline(always)]
pub(super) unsafe fn round_f16<S: Simd>(x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` values and `i` stays below `n`.
    unsafe {
        let mut halves = [0u16; WIDTH];
        let mut i = 0;
        while i < n {
            let count = WIDTH.min(n - i);
            to_f16::<S>(x.add(i), halves.as_mut_ptr(), count);
            from_f16::<S>(halves.as_ptr(), out.add(i), count);
            i += WIDTH;
        }
    }
}

/// Turns scores into weights `exp(score - maximum)` and returns their sum.
#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(scores: *mut f32, n: usize) -> f32 {
    // SAFETY: the caller's row holds `n` floats and `i` stays below `n`.
    unsafe {
        let mut top = f32::NEG_INFINITY;
        let mut tops = S::splat(top);
        let mut i = 0;
        while i + WIDTH <= n {
            tops = S::max(S::load(scores.add(i)), tops);
            i += WIDTH;
        }
        let mut lanes = [0.0f32; WIDTH];
        S::store(lanes.as_mut_ptr(), tops);
        for v in lanes {
            top = top.max(v);
        }
        while i < n {
            top = top.max(*scores.add(i));
            i += 1;
        }
        map::<S, 1>(Weight { top }, [scores.cast_const()], scores, n);
        super::float::sum::<S>(scores, n)
    }
}

lanes!(Weight { top }[1] | S, v | super::elementary::exp::<S>(S::sub(v[0], S::splat(top))));
