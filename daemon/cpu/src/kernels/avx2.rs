//! x86-64 with AVX2 and F16C.

use super::simd::{Piece, Simd, Vectors, WIDTH};
use std::arch::x86_64::*;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Byte products that fit an `i16` lane: pairs of weights below `2^bits` with bytes to 127,
/// `n * 2 * (2^bits - 1) * 127 <= 32767`.
pub(super) const fn chain(bits: u32) -> usize {
    let pair = 2 * ((1 << bits) - 1) * 127;
    let n = i16::MAX as usize / pair;
    // The largest power of two, so that it divides the vectors of a sub-block.
    1 << n.ilog2()
}

const _: () = assert!(chain(4) == 8 && chain(5) == 4 && chain(6) == 2);

/// The one place that vouches for the intrinsics below.
macro_rules! level {
    ($body:expr) => {
        // SAFETY: the trait's contract. The kernels that inline these methods are compiled
        // for this file's features and handed out by `IsaLevel::kernels` after detection;
        // pointers are valid for the lanes named.
        unsafe { $body }
    };
}

impl Simd for Avx2 {
    type F = __m256;
    type I = __m256i;

    unsafe fn outline<P: Piece>(piece: P) {
        #[target_feature(enable = "avx2,f16c")]
        #[inline(never)]
        unsafe fn apart<P: Piece>(piece: P) {
            // SAFETY: the caller's contract, passed on.
            unsafe { piece.run::<Avx2>() }
        }
        // SAFETY: only this level's kernels get here, with its features.
        unsafe { apart(piece) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        level!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        level!(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        level!(_mm256_storeu_ps(p, v))
    }
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: Self::F) {
        level!(_mm256_stream_ps(p, v))
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> Self::F {
        level!(_mm256_set1_ps(v))
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        level!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        level!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        level!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        level!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        level!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        level!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    unsafe fn neg(a: Self::F) -> Self::F {
        level!(_mm256_xor_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        level!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    unsafe fn floor(a: Self::F) -> Self::F {
        level!(_mm256_floor_ps(a))
    }
    #[inline(always)]
    unsafe fn fold(a: Self::F) -> f32 {
        level!({
            let b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let c = _mm_add_ps(b, _mm_movehl_ps(b, b));
            _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)))
        })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        level!(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        level!(_mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)))
    }

    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> Self::I {
        level!(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut i32, v: Self::I) {
        level!(_mm256_storeu_si256(p.cast(), v))
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> Self::I {
        level!(_mm256_set1_epi32(v))
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        level!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        level!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I {
        level!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    unsafe fn shl<const N: i32>(a: Self::I) -> Self::I {
        level!(_mm256_slli_epi32::<N>(a))
    }
    #[inline(always)]
    unsafe fn shr<const N: i32>(a: Self::I) -> Self::I {
        level!(_mm256_srli_epi32::<N>(a))
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        level!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I {
        level!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn total(a: Self::I) -> i32 {
        level!({
            let b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let c = _mm_add_epi32(b, _mm_shuffle_epi32::<0b0100_1110>(b));
            _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32::<0b1011_0001>(c)))
        })
    }
    #[inline(always)]
    unsafe fn to_float(a: Self::I) -> Self::F {
        level!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::I {
        level!({
            let number = _mm256_and_ps(a, _mm256_cmp_ps::<_CMP_ORD_Q>(a, a));
            _mm256_cvtps_epi32(number)
        })
    }
    #[inline(always)]
    unsafe fn bits(a: Self::I) -> Self::F {
        level!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut i8, v: [Self::I; 4]) {
        level!({
            let low = _mm256_packs_epi32(v[0], v[1]);
            let high = _mm256_packs_epi32(v[2], v[3]);
            // The packs interleave 128-bit halves; the permutation puts dwords in order.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
            _mm256_storeu_si256(p.cast(), bytes);
        })
    }
    #[inline(always)]
    unsafe fn low_f16(a: Self::I) -> Self::F {
        level!({
            let low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(low, low));
            _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
        })
    }
    #[inline(always)]
    unsafe fn bytes_as_pair<const A: u32, const B: u32>(v: Self::I) -> Self::I {
        level!({
            // To the upper bytes of the two i16, from where the shift brings the sign along.
            let lane = 0x0080_0080 | (A as i32) << 8 | (B as i32) << 24;
            let order = _mm256_setr_epi32(
                lane,
                lane + 0x0400_0400,
                lane + 0x0800_0800,
                lane + 0x0c00_0c00,
                lane,
                lane + 0x0400_0400,
                lane + 0x0800_0800,
                lane + 0x0c00_0c00,
            );
            _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(v, order))
        })
    }
    #[inline(always)]
    unsafe fn madd(a: Self::I, b: Self::I) -> Self::I {
        level!(_mm256_madd_epi16(a, b))
    }

    #[inline(always)]
    unsafe fn dwords(rows: &[*const u8; WIDTH], at: usize) -> Self::I {
        level!({
            let mut d = [0i32; WIDTH];
            for i in 0..WIDTH {
                d[i] = rows[i].add(at).cast::<i32>().read_unaligned();
            }
            _mm256_setr_epi32(d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7])
        })
    }
    #[inline(always)]
    unsafe fn transpose(rows: &[*const u8; WIDTH], at: usize) -> [Self::I; 4] {
        level!({
            let mut r = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                r[i] = _mm256_inserti128_si256::<1>(
                    _mm256_castsi128_si256(_mm_loadu_si128(rows[i].add(at).cast())),
                    _mm_loadu_si128(rows[i + 4].add(at).cast()),
                );
            }
            let (a, b) = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
            let (c, d) = (_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
            [
                _mm256_unpacklo_epi64(a, c),
                _mm256_unpackhi_epi64(a, c),
                _mm256_unpacklo_epi64(b, d),
                _mm256_unpackhi_epi64(b, d),
            ]
        })
    }

    /// Sums wrap in 16 bits on the way; what they end with fits, and that is all that is asked.
    #[inline(always)]
    unsafe fn dot_from<const DWORDS: usize, const BITS: u32, const SCALED: bool, const C: usize>(
        w: impl Vectors<Self>,
        x: &[*const i8; C],
        starts: &[*const i32; C],
        scale: Self::I,
    ) -> [Self::I; C] {
        level!({
            let mut sums = [_mm256_setzero_si256(); C];
            for c in 0..C {
                sums[c] = _mm256_set1_epi32(*starts[c]);
            }
            for j in 0..DWORDS {
                let w = w.at(j);
                for c in 0..C {
                    let x = x[c].add(4 * j).cast::<i32>().read_unaligned();
                    sums[c] = _mm256_add_epi16(sums[c], _mm256_maddubs_epi16(w, _mm256_set1_epi32(x)));
                }
            }
            let factor = if SCALED { scale } else { _mm256_set1_epi16(1) };
            sums.map(|sums| _mm256_madd_epi16(sums, factor))
        })
    }

    #[inline(always)]
    unsafe fn dot<const DWORDS: usize, const BITS: u32, const SCALED: bool, const C: usize>(
        w: impl Vectors<Self>,
        x: &[*const i8; C],
        scale: Self::I,
    ) -> [Self::I; C] {
        level!({
            let factor = if SCALED { scale } else { _mm256_set1_epi16(1) };
            let mut out = [_mm256_setzero_si256(); C];
            let step = if chain(BITS) < DWORDS { chain(BITS) } else { DWORDS };
            let mut j = 0;
            while j < DWORDS {
                let mut sums = [_mm256_setzero_si256(); C];
                for i in j..j + step {
                    let w = w.at(i);
                    for c in 0..C {
                        let x = x[c].add(4 * i).cast::<i32>().read_unaligned();
                        let p = _mm256_maddubs_epi16(w, _mm256_set1_epi32(x));
                        sums[c] = if i == j { p } else { _mm256_add_epi16(sums[c], p) };
                    }
                }
                for c in 0..C {
                    let p = _mm256_madd_epi16(sums[c], factor);
                    out[c] = if j == 0 { p } else { _mm256_add_epi32(out[c], p) };
                }
                j += step;
            }
            out
        })
    }
}

super::table!(Avx2, [#[target_feature(enable = "avx2,f16c")]]);
