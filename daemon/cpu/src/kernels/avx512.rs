//! x86-64 with AVX-512 VNNI, in 256-bit registers (AVX-512VL): as AVX2 but for the byte
//! products, which go straight to 32 bits.

use super::avx2::Avx2;
use super::simd::{Piece, Simd, Vectors, WIDTH};
use std::arch::x86_64::*;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni;

/// Methods that are those of AVX2.
macro_rules! as_avx2 {
    ($($(<const $n:ident>)? $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name $(<const $n: i32>)? ($($arg: $type),*) $(-> $ret)? {
                // SAFETY: this level's features include AVX2 and F16C; else passed on.
                unsafe { <Avx2 as Simd>::$name $(::<$n>)? ($($arg),*) }
            }
        )*
    };
}

impl Simd for Avx512Vnni {
    type F = __m256;
    type I = __m256i;

    unsafe fn outline<P: Piece>(piece: P) {
        #[target_feature(enable = "avx2,f16c,avx512f,avx512vl,avx512vnni")]
        #[inline(never)]
        unsafe fn apart<P: Piece>(piece: P) {
            // SAFETY: the caller's contract, passed on.
            unsafe { piece.run::<Avx512Vnni>() }
        }
        // SAFETY: only this level's kernels get here, with its features.
        unsafe { apart(piece) }
    }

    as_avx2! {
        prefetch(p: *const u8);
        load(p: *const f32) -> __m256;
        store(p: *mut f32, v: __m256);
        stream(p: *mut f32, v: __m256);
        splat(v: f32) -> __m256;
        add(a: __m256, b: __m256) -> __m256;
        sub(a: __m256, b: __m256) -> __m256;
        mul(a: __m256, b: __m256) -> __m256;
        div(a: __m256, b: __m256) -> __m256;
        min(a: __m256, b: __m256) -> __m256;
        max(a: __m256, b: __m256) -> __m256;
        neg(a: __m256) -> __m256;
        abs(a: __m256) -> __m256;
        floor(a: __m256) -> __m256;
        fold(a: __m256) -> f32;
        load_f16(p: *const u16) -> __m256;
        store_f16(p: *mut u16, v: __m256);
        load_i(p: *const i32) -> __m256i;
        store_i(p: *mut i32, v: __m256i);
        splat_i(v: i32) -> __m256i;
        and(a: __m256i, b: __m256i) -> __m256i;
        or(a: __m256i, b: __m256i) -> __m256i;
        xor(a: __m256i, b: __m256i) -> __m256i;
        <const N> shl(a: __m256i) -> __m256i;
        <const N> shr(a: __m256i) -> __m256i;
        add_i(a: __m256i, b: __m256i) -> __m256i;
        sub_i(a: __m256i, b: __m256i) -> __m256i;
        total(a: __m256i) -> i32;
        to_float(a: __m256i) -> __m256;
        round(a: __m256) -> __m256i;
        bits(a: __m256i) -> __m256;
        store_bytes(p: *mut i8, v: [__m256i; 4]);
        low_f16(a: __m256i) -> __m256;
        madd(a: __m256i, b: __m256i) -> __m256i;
        dwords(rows: &[*const u8; WIDTH], at: usize) -> __m256i;
        transpose(rows: &[*const u8; WIDTH], at: usize) -> [__m256i; 4];
    }

    #[inline(always)]
    unsafe fn bytes_as_pair<const A: u32, const B: u32>(v: __m256i) -> __m256i {
        // SAFETY: this level's features include AVX2.
        unsafe { <Avx2 as Simd>::bytes_as_pair::<A, B>(v) }
    }

    #[inline(always)]
    unsafe fn dot<const DWORDS: usize, const BITS: u32, const SCALED: bool, const C: usize>(
        w: impl Vectors<Self>,
        x: &[*const i8; C],
        scale: Self::I,
    ) -> [Self::I; C] {
        // SAFETY: the trait's contract; the kernels that inline this are compiled for
        // AVX-512 VNNI and VL and handed out by `IsaLevel::kernels` after detection.
        unsafe {
            let mut out = [_mm256_setzero_si256(); C];
            for j in 0..DWORDS {
                let w = w.at(j);
                for c in 0..C {
                    let x = x[c].add(4 * j).cast::<i32>().read_unaligned();
                    out[c] = _mm256_dpbusd_epi32(out[c], w, _mm256_set1_epi32(x));
                }
            }
            if SCALED {
                // The factor as 32 bits: its upper copy, sign and all.
                let scale = _mm256_srai_epi32::<16>(scale);
                for out in &mut out {
                    *out = _mm256_mullo_epi32(*out, scale);
                }
            }
            out
        }
    }
}

super::table!(
    Avx512Vnni,
    [#[target_feature(enable = "avx2,f16c,avx512f,avx512vl,avx512vnni")]]
);
