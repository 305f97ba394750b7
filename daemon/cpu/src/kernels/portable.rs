//! Any CPU: arrays of eight, vectorised by the compiler as the build's target allows.

use super::simd::{Piece, Simd, Vectors, WIDTH};
use half::f16;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn zip<T: Copy, U: Copy + Default>(a: [T; 8], b: [T; 8], f: impl Fn(T, T) -> U) -> [U; 8] {
    let mut out = [U::default(); 8];
    for i in 0..8 {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn map<T: Copy, U: Copy + Default>(a: [T; 8], f: impl Fn(T) -> U) -> [U; 8] {
    zip(a, a, |x, _| f(x))
}

impl Simd for Portable {
    type F = [f32; 8];
    type I = [i32; 8];

    unsafe fn outline<P: Piece>(piece: P) {
        #[inline(never)]
        unsafe fn apart<P: Piece>(piece: P) {
            // SAFETY: the caller's contract, passed on.
            unsafe { piece.run::<Portable>() }
        }
        // SAFETY: the caller's contract, passed on.
        unsafe { apart(piece) }
    }

    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller's pointer is valid for eight floats.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: the caller's pointer is valid for eight floats.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> Self::F {
        [v; 8]
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn neg(a: Self::F) -> Self::F {
        map(a, |a| -a)
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    #[inline(always)]
    unsafe fn floor(a: Self::F) -> Self::F {
        // Baseline x86-64 has no rounding instruction; this form vectorises. Saturation
        // of the cast is harmless: arguments lie within i32.
        map(a, |x| {
            let t = x as i32 as f32;
            if x.is_nan() {
                x
            } else if t > x {
                t - 1.0
            } else {
                t
            }
        })
    }
    #[inline(always)]
    unsafe fn fold(a: Self::F) -> f32 {
        let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
        (b[0] + b[2]) + (b[1] + b[3])
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: the caller's pointer is valid for eight halves.
        let bits = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        map(bits, |b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        let bits = map(v, |v| f16::from_f32(v).to_bits());
        // SAFETY: the caller's pointer is valid for eight halves.
        unsafe { p.cast::<[u16; 8]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> Self::I {
        // SAFETY: the caller's pointer is valid for eight integers.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut i32, v: Self::I) {
        // SAFETY: the caller's pointer is valid for eight integers.
        unsafe { p.cast::<Self::I>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> Self::I {
        [v; 8]
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    unsafe fn shl<const N: i32>(a: Self::I) -> Self::I {
        map(a, |a| a << N)
    }
    #[inline(always)]
    unsafe fn shr<const N: i32>(a: Self::I) -> Self::I {
        map(a, |a| ((a as u32) >> N) as i32)
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn total(a: Self::I) -> i32 {
        let mut sum = 0i32;
        for v in a {
            sum = sum.wrapping_add(v);
        }
        sum
    }
    #[inline(always)]
    unsafe fn to_float(a: Self::I) -> Self::F {
        map(a, |a| a as f32)
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::I {
        // Adding 1.5 * 2^23 leaves no fraction bits, and the addition rounds to nearest even.
        const SHIFT: f32 = 12_582_912.0;
        map(a, |a| ((a + SHIFT) - SHIFT) as i32)
    }
    #[inline(always)]
    unsafe fn bits(a: Self::I) -> Self::F {
        map(a, |a| f32::from_bits(a as u32))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut i8, v: [Self::I; 4]) {
        let bytes = v.map(|v| map(v, |v| v as i8));
        // SAFETY: the caller's pointer is valid for 32 bytes.
        unsafe { p.cast::<[[i8; 8]; 4]>().write_unaligned(bytes) }
    }
    #[inline(always)]
    unsafe fn low_f16(a: Self::I) -> Self::F {
        map(a, |a| f16::from_bits(a as u16).to_f32())
    }
    #[inline(always)]
    unsafe fn bytes_as_pair<const A: u32, const B: u32>(v: Self::I) -> Self::I {
        map(v, |v| {
            let byte = |i: u32| i32::from((v >> (8 * i)) as i8);
            (byte(A) & 0xffff) | (byte(B) << 16)
        })
    }
    #[inline(always)]
    unsafe fn madd(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| {
            let low = i32::from(a as i16).wrapping_mul(i32::from(b as i16));
            low.wrapping_add((a >> 16).wrapping_mul(b >> 16))
        })
    }

    #[inline(always)]
    unsafe fn dwords(rows: &[*const u8; WIDTH], at: usize) -> Self::I {
        let mut out = [0; 8];
        for (o, row) in out.iter_mut().zip(rows) {
            // SAFETY: the caller's rows hold four bytes at `at`.
            *o = i32::from_le(unsafe { row.add(at).cast::<i32>().read_unaligned() });
        }
        out
    }
    #[inline(always)]
    unsafe fn transpose(rows: &[*const u8; WIDTH], at: usize) -> [Self::I; 4] {
        // SAFETY: the caller's rows hold sixteen bytes at `at`.
        unsafe {
            [
                Self::dwords(rows, at),
                Self::dwords(rows, at + 4),
                Self::dwords(rows, at + 8),
                Self::dwords(rows, at + 12),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot<const DWORDS: usize, const BITS: u32, const SCALED: bool, const C: usize>(
        w: impl Vectors<Self>,
        x: &[*const i8; C],
        scale: Self::I,
    ) -> [Self::I; C] {
        let mut out = [[0i32; 8]; C];
        let mut panel = [[0u8; 32]; DWORDS];
        for (j, vector) in panel.iter_mut().enumerate() {
            // SAFETY: the caller's weights hold `DWORDS` vectors; lanes are bytes in order.
            unsafe { Self::store_i(vector.as_mut_ptr().cast(), w.at(j)) };
        }
        for (out, x) in out.iter_mut().zip(x) {
            // SAFETY: the caller's columns hold `DWORDS` dwords.
            let x = unsafe { std::slice::from_raw_parts(x.cast::<[i8; 4]>(), DWORDS) };
            *out = dot_column(&panel, x);
            if SCALED {
                *out = zip(*out, scale, |o, s| o.wrapping_mul(i32::from(s as i16)));
            }
        }
        out
    }
}

/// Eight rows with one column. A function of its own: unrolled into every format's kernel it
/// would cost more to compile than it gains.
#[inline(never)]
fn dot_column(panel: &[[u8; 32]], x: &[[i8; 4]]) -> [i32; 8] {
    let mut out = [0i32; 8];
    for (w, x) in panel.iter().zip(x) {
        let x = x.map(i16::from);
        let mut products = [0i16; 32];
        for i in 0..32 {
            products[i] = i16::from(w[i]).wrapping_mul(x[i % 4]);
        }
        for (o, p) in out.iter_mut().zip(products.as_chunks::<4>().0) {
            let halves = [p[0].wrapping_add(p[1]), p[2].wrapping_add(p[3])].map(i32::from);
            *o = o.wrapping_add(halves[0].wrapping_add(halves[1]));
        }
    }
    out
}

super::table!(Portable, []);
