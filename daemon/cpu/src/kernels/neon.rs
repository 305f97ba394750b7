//! aarch64 with the dot product instructions. Eight lanes are two registers of four.

use super::simd::{Piece, Simd, Vectors, WIDTH};
use std::arch::aarch64::*;
use std::arch::asm;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// The one place that vouches for the intrinsics below.
macro_rules! level {
    ($body:expr) => {
        // SAFETY: the trait's contract. The kernels that inline these methods are compiled
        // for this file's features and handed out by `IsaLevel::kernels` after detection;
        // pointers are valid for the lanes named.
        unsafe { $body }
    };
}

type F = [float32x4_t; 2];
type I = [int32x4_t; 2];

/// Four halves to floats.
#[inline(always)]
unsafe fn widen(halves: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    level!(asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) halves,
        options(pure, nomem, nostack, preserves_flags)));
    out
}

/// Four floats to halves, nearest even.
#[inline(always)]
unsafe fn narrow(v: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    level!(asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) out, in(vreg) v,
        options(pure, nomem, nostack, preserves_flags)));
    out
}

/// Adds to each lane the four byte products of its bytes.
#[inline(always)]
unsafe fn sdot(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    level!(asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) w, in(vreg) x,
        options(pure, nomem, nostack, preserves_flags)));
    acc
}

/// The upper `i16` of each lane.
#[inline(always)]
unsafe fn upper(a: I) -> I {
    level!([vshrq_n_s32::<16>(a[0]), vshrq_n_s32::<16>(a[1])])
}

impl Simd for Neon {
    type F = F;
    type I = I;

    unsafe fn outline<P: Piece>(piece: P) {
        #[target_feature(enable = "neon,dotprod")]
        #[inline(never)]
        unsafe fn apart<P: Piece>(piece: P) {
            // SAFETY: the caller's contract, passed on.
            unsafe { piece.run::<Neon>() }
        }
        // SAFETY: only this level's kernels get here, with its features.
        unsafe { apart(piece) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        level!(asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)))
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        level!([vld1q_f32(p), vld1q_f32(p.add(4))])
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        level!({
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        })
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> F {
        level!([vdupq_n_f32(v); 2])
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        level!([vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        level!([vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        level!([vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        level!([vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        // Not FMIN, which would pass on a NaN in `a`.
        level!([vbslq_f32(vcltq_f32(a[0], b[0]), a[0], b[0]), vbslq_f32(vcltq_f32(a[1], b[1]), a[1], b[1]),])
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        level!([vbslq_f32(vcgtq_f32(a[0], b[0]), a[0], b[0]), vbslq_f32(vcgtq_f32(a[1], b[1]), a[1], b[1]),])
    }
    #[inline(always)]
    unsafe fn neg(a: F) -> F {
        level!([vnegq_f32(a[0]), vnegq_f32(a[1])])
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        level!([vabsq_f32(a[0]), vabsq_f32(a[1])])
    }
    #[inline(always)]
    unsafe fn floor(a: F) -> F {
        level!([vrndmq_f32(a[0]), vrndmq_f32(a[1])])
    }
    #[inline(always)]
    unsafe fn fold(a: F) -> f32 {
        level!({
            let b = vaddq_f32(a[0], a[1]);
            let c = vaddq_f32(b, vextq_f32::<2>(b, b));
            vgetq_lane_f32::<0>(c) + vgetq_lane_f32::<1>(c)
        })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        level!([widen(vld1_u16(p)), widen(vld1_u16(p.add(4)))])
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        level!({
            vst1_u16(p, narrow(v[0]));
            vst1_u16(p.add(4), narrow(v[1]));
        })
    }

    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> I {
        level!([vld1q_s32(p), vld1q_s32(p.add(4))])
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut i32, v: I) {
        level!({
            vst1q_s32(p, v[0]);
            vst1q_s32(p.add(4), v[1]);
        })
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> I {
        level!([vdupq_n_s32(v); 2])
    }
    #[inline(always)]
    unsafe fn and(a: I, b: I) -> I {
        level!([vandq_s32(a[0], b[0]), vandq_s32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn or(a: I, b: I) -> I {
        level!([vorrq_s32(a[0], b[0]), vorrq_s32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn xor(a: I, b: I) -> I {
        level!([veorq_s32(a[0], b[0]), veorq_s32(a[1], b[1])])
    }
    // Shifts by a register's constant: the immediate forms do not allow 0.
    #[inline(always)]
    unsafe fn shl<const N: i32>(a: I) -> I {
        level!({
            let n = vdupq_n_s32(N);
            [vshlq_s32(a[0], n), vshlq_s32(a[1], n)]
        })
    }
    #[inline(always)]
    unsafe fn shr<const N: i32>(a: I) -> I {
        level!({
            let n = vdupq_n_s32(-N);
            let shift =
                [vshlq_u32(vreinterpretq_u32_s32(a[0]), n), vshlq_u32(vreinterpretq_u32_s32(a[1]), n)];
            [vreinterpretq_s32_u32(shift[0]), vreinterpretq_s32_u32(shift[1])]
        })
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        level!([vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn sub_i(a: I, b: I) -> I {
        level!([vsubq_s32(a[0], b[0]), vsubq_s32(a[1], b[1])])
    }
    #[inline(always)]
    unsafe fn total(a: I) -> i32 {
        level!(vaddvq_s32(vaddq_s32(a[0], a[1])))
    }
    #[inline(always)]
    unsafe fn to_float(a: I) -> F {
        level!([vcvtq_f32_s32(a[0]), vcvtq_f32_s32(a[1])])
    }
    #[inline(always)]
    unsafe fn round(a: F) -> I {
        level!([vcvtnq_s32_f32(a[0]), vcvtnq_s32_f32(a[1])])
    }
    #[inline(always)]
    unsafe fn bits(a: I) -> F {
        level!([vreinterpretq_f32_s32(a[0]), vreinterpretq_f32_s32(a[1])])
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut i8, v: [I; 4]) {
        level!({
            for i in 0..4 {
                let words = vcombine_s16(vqmovn_s32(v[i][0]), vqmovn_s32(v[i][1]));
                vst1_s8(p.add(8 * i), vqmovn_s16(words));
            }
        })
    }
    #[inline(always)]
    unsafe fn low_f16(a: I) -> F {
        level!(
            [widen(vmovn_u32(vreinterpretq_u32_s32(a[0]))), widen(vmovn_u32(vreinterpretq_u32_s32(a[1]))),]
        )
    }
    #[inline(always)]
    unsafe fn bytes_as_pair<const A: u32, const B: u32>(v: I) -> I {
        level!({
            let lane = [0u8, A as u8, 0, B as u8];
            let mut order = [0u8; 16];
            for i in 0..16 {
                order[i] = lane[i % 4] + (i as u8 & 12);
            }
            let order = vld1q_u8(order.as_ptr());
            let mut out = v;
            for out in &mut out {
                // The lower bytes are shifted out.
                let turned = vqtbl1q_u8(vreinterpretq_u8_s32(*out), order);
                *out = vreinterpretq_s32_s16(vshrq_n_s16::<8>(vreinterpretq_s16_u8(turned)));
            }
            out
        })
    }
    #[inline(always)]
    unsafe fn madd(a: I, b: I) -> I {
        level!({
            let (al, bl) = (upper(Self::shl::<16>(a)), upper(Self::shl::<16>(b)));
            let (ah, bh) = (upper(a), upper(b));
            [
                vmlaq_s32(vmulq_s32(al[0], bl[0]), ah[0], bh[0]),
                vmlaq_s32(vmulq_s32(al[1], bl[1]), ah[1], bh[1]),
            ]
        })
    }

    #[inline(always)]
    unsafe fn dwords(rows: &[*const u8; WIDTH], at: usize) -> I {
        level!({
            let mut d = [0i32; WIDTH];
            for i in 0..WIDTH {
                d[i] = rows[i].add(at).cast::<i32>().read_unaligned();
            }
            Self::load_i(d.as_ptr())
        })
    }
    #[inline(always)]
    unsafe fn transpose(rows: &[*const u8; WIDTH], at: usize) -> [I; 4] {
        level!({
            let mut out = [[vdupq_n_s32(0); 2]; 4];
            for h in 0..2 {
                let mut r = [vdupq_n_s32(0); 4];
                for i in 0..4 {
                    r[i] = vreinterpretq_s32_u8(vld1q_u8(rows[4 * h + i].add(at)));
                }
                let (a, b) = (vtrn1q_s32(r[0], r[1]), vtrn2q_s32(r[0], r[1]));
                let (c, d) = (vtrn1q_s32(r[2], r[3]), vtrn2q_s32(r[2], r[3]));
                let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
                let (c, d) = (vreinterpretq_s64_s32(c), vreinterpretq_s64_s32(d));
                out[0][h] = vreinterpretq_s32_s64(vtrn1q_s64(a, c));
                out[1][h] = vreinterpretq_s32_s64(vtrn1q_s64(b, d));
                out[2][h] = vreinterpretq_s32_s64(vtrn2q_s64(a, c));
                out[3][h] = vreinterpretq_s32_s64(vtrn2q_s64(b, d));
            }
            out
        })
    }

    #[inline(always)]
    unsafe fn dot<const DWORDS: usize, const BITS: u32, const SCALED: bool, const C: usize>(
        w: impl Vectors<Self>,
        x: &[*const i8; C],
        scale: I,
    ) -> [I; C] {
        level!({
            let mut out = [[vdupq_n_s32(0); 2]; C];
            for j in 0..DWORDS {
                // Bytes below 64: the same signed and unsigned.
                let w = w.at(j);
                let w = [vreinterpretq_s8_s32(w[0]), vreinterpretq_s8_s32(w[1])];
                for c in 0..C {
                    let x = x[c].add(4 * j).cast::<i32>().read_unaligned();
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                    out[c] = [sdot(out[c][0], w[0], x), sdot(out[c][1], w[1], x)];
                }
            }
            if SCALED {
                // The factor as 32 bits: its upper copy, sign and all.
                let factor = upper(scale);
                for out in &mut out {
                    *out = [vmulq_s32(out[0], factor[0]), vmulq_s32(out[1], factor[1])];
                }
            }
            out
        })
    }
}

super::table!(Neon, [#[target_feature(enable = "neon,dotprod")]]);
