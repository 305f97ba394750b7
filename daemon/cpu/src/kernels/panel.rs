//! Weight panels: eight rows of a quantized matrix, unpacked so that a vector lane is a row.
//!
//! ```text
//! unit (32 values) ─▶ │ values 0-3 of rows 0..8 │ values 4-7 of rows 0..8 │ … │ 28-31 │
//!                       32 bytes                   32 bytes                   (8 vectors)
//! ```
//!
//! Bytes are unsigned; what a format subtracts from them is taken off the integer sums
//! (the activations carry what these start from). `Q8_0` becomes two planes of nibbles
//! (`w + 128 = 16 * high + low`), so that no format's products overflow 16 bits: the high
//! plane of a unit comes first, then the low one.
//!
//! A panel is made once for a group of columns, from rows as stored or, without transposing,
//! from repacked rows ([`super::repacked`]).

use super::repacked::Source;
use super::simd::{Piece, Simd, WIDTH};
use std::marker::PhantomData;
use tandem_program::DType;

/// Values of each row that a panel holds at most.
pub(crate) const PANEL_VALUES: usize = 1024;

const UNITS: usize = PANEL_VALUES / 32;

/// See the module.
#[repr(C, align(64))]
pub(crate) struct Panel {
    /// Unit by unit; twice as many vectors for `Q8_0`.
    pub(super) bytes: [[u8; 256]; UNITS * 2],
    /// Block scales, lane by lane.
    pub(super) scales: [[f32; WIDTH]; UNITS],
    /// Block minima of the formats that have them.
    pub(super) minima: [[f32; WIDTH]; UNITS],
    /// Integer scales: one a unit (`Q4_K`, `Q5_K`) or two (`Q6_K`), each twice as `i16`.
    pub(super) factors: [[i32; WIDTH]; UNITS * 2],
    /// Pairs of integer minima (`Q4_K`, `Q5_K`): of units 2p and 2p + 1.
    pub(super) pairs: [[i32; WIDTH]; UNITS],
}

impl Panel {
    /// An empty panel on the heap.
    pub(crate) fn boxed() -> Box<Panel> {
        // SAFETY: all fields are plain numbers, for which zero bytes are a value; the
        // allocation has the type's own layout.
        unsafe {
            let layout = std::alloc::Layout::new::<Panel>();
            let p = std::alloc::alloc_zeroed(layout).cast::<Panel>();
            if p.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            Box::from_raw(p)
        }
    }
}

/// Fills the panel from `blocks` blocks of each row, of which `from` has the first.
pub(super) struct Unpack<'a, W> {
    pub(super) from: W,
    /// Where the next panel's blocks lie: asked for ahead of their use. Eight short rows are
    /// more streams than a hardware prefetcher follows.
    pub(super) next: W,
    pub(super) blocks: usize,
    pub(super) panel: &'a mut Panel,
}

impl<W: Source> Unpack<'_, W> {
    /// # Safety
    ///
    /// Each row holds `blocks` blocks of `dtype`, at most [`PANEL_VALUES`] values.
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd>(self, dtype: DType) {
        // SAFETY: the caller's contract, passed on.
        unsafe {
            match dtype {
                DType::Q4_0 => S::outline(UnpackAs::<Q4_0, W>(self, PhantomData)),
                DType::Q4_1 => S::outline(UnpackAs::<Q4_1, W>(self, PhantomData)),
                DType::Q5_0 => S::outline(UnpackAs::<Q5_0, W>(self, PhantomData)),
                DType::Q8_0 => S::outline(UnpackAs::<Q8_0, W>(self, PhantomData)),
                DType::Q4_K => S::outline(UnpackAs::<Q4_K, W>(self, PhantomData)),
                DType::Q5_K => S::outline(UnpackAs::<Q5_K, W>(self, PhantomData)),
                DType::Q6_K => S::outline(UnpackAs::<Q6_K, W>(self, PhantomData)),
                DType::F32 | DType::F16 | DType::BF16 => {}
            }
        }
    }
}

/// A format's blocks: `block(from, b, panel)` unpacks block `b`, at which `from` stands.
trait Packed {
    const DTYPE: DType;
    unsafe fn block<S: Simd>(from: impl Source, b: usize, panel: &mut Panel);
}

struct UnpackAs<'a, T, W>(Unpack<'a, W>, PhantomData<T>);

impl<T: Packed, W: Source> Piece for UnpackAs<'_, T, W> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const LINE: usize = 64;
        let mut from = self.0.from;
        let mut ahead = 0;
        for b in 0..self.0.blocks {
            while ahead < (b + 1) * T::DTYPE.block_bytes() {
                // SAFETY: any address will do.
                unsafe { self.0.next.prefetch::<S>(ahead) };
                ahead += LINE;
            }
            // SAFETY: the rows hold `blocks` blocks.
            unsafe { T::block::<S>(from, b, self.0.panel) };
            from.skip(T::DTYPE.block_bytes());
        }
    }
}

macro_rules! packed {
    ($($name:ident: |$s:ident, $from:ident, $b:ident, $panel:ident| $body:expr;)*) => {
        $(
            #[allow(non_camel_case_types)]
            struct $name;
            impl Packed for $name {
                const DTYPE: DType = DType::$name;
                #[inline(always)]
                unsafe fn block<$s: Simd>($from: impl Source, $b: usize, $panel: &mut Panel) {
                    // SAFETY: the caller's rows point at whole blocks of this format.
                    unsafe { $body }
                }
            }
        )*
    };
}

packed! {
    Q4_0: |S, from, b, panel| nibbles_32::<S>(from, b, 2, false, panel);
    Q4_1: |S, from, b, panel| nibbles_32::<S>(from, b, 4, true, panel);
    Q5_0: |S, from, b, panel| fives_32::<S>(from, b, panel);
    Q8_0: |S, from, b, panel| bytes_32::<S>(from, b, panel);
    Q4_K: |S, from, b, panel| {
        scales_256::<S>(from, b, panel);
        nibbles_256::<S>(from, b, 16, None, panel);
    };
    Q5_K: |S, from, b, panel| {
        scales_256::<S>(from, b, panel);
        nibbles_256::<S>(from, b, 48, Some(16), panel);
    };
    Q6_K: |S, from, b, panel| sixes_256::<S>(from, b, panel);
}

/// Stores vector `j` of unit `unit`.
#[inline(always)]
unsafe fn put<S: Simd>(panel: &mut Panel, unit: usize, j: usize, v: S::I) {
    // SAFETY: a unit has eight vectors; the caller's `unit` and `j` lie in the panel.
    unsafe { S::store_i(panel.bytes[unit].as_mut_ptr().add(32 * j).cast(), v) }
}

#[inline(always)]
unsafe fn low<S: Simd>(v: S::I) -> S::I {
    // SAFETY: arithmetic only.
    unsafe { S::and(v, S::splat_i(0x0f0f_0f0f)) }
}

#[inline(always)]
unsafe fn high<S: Simd>(v: S::I) -> S::I {
    // SAFETY: arithmetic only.
    unsafe { low::<S>(S::shr::<4>(v)) }
}

#[inline(always)]
unsafe fn nibbles_32<S: Simd>(from: impl Source, b: usize, start: usize, minimum: bool, panel: &mut Panel) {
    // SAFETY: each row holds a block: the scale, perhaps a minimum, 16 bytes from `start`.
    unsafe {
        if minimum {
            let head = from.dwords::<S>(0);
            S::store(panel.scales[b].as_mut_ptr(), S::low_f16(head));
            S::store(panel.minima[b].as_mut_ptr(), S::low_f16(S::shr::<16>(head)));
        } else {
            S::store(panel.scales[b].as_mut_ptr(), from.half::<S>(0));
        }
        for (j, v) in from.four::<S>(start).into_iter().enumerate() {
            put::<S>(panel, b, j, low::<S>(v));
            put::<S>(panel, b, j + 4, high::<S>(v));
        }
    }
}

/// Bits `4 * j ..` of each lane as bit 4 of its four bytes.
#[inline(always)]
unsafe fn fifth_bits<S: Simd>(bits: S::I) -> S::I {
    // SAFETY: arithmetic only.
    unsafe {
        let t = S::and(bits, S::splat_i(15));
        let spread = S::or(S::or(t, S::shl::<7>(t)), S::or(S::shl::<14>(t), S::shl::<21>(t)));
        S::shl::<4>(S::and(spread, S::splat_i(0x0101_0101)))
    }
}

#[inline(always)]
unsafe fn fives_32<S: Simd>(from: impl Source, b: usize, panel: &mut Panel) {
    // SAFETY: each row holds a block of 22 bytes: scale, 4 bytes of high bits, nibbles.
    unsafe {
        S::store(panel.scales[b].as_mut_ptr(), from.half::<S>(0));
        let bits = from.dwords::<S>(2);
        let fifth = [
            fifth_bits::<S>(bits),
            fifth_bits::<S>(S::shr::<4>(bits)),
            fifth_bits::<S>(S::shr::<8>(bits)),
            fifth_bits::<S>(S::shr::<12>(bits)),
            fifth_bits::<S>(S::shr::<16>(bits)),
            fifth_bits::<S>(S::shr::<20>(bits)),
            fifth_bits::<S>(S::shr::<24>(bits)),
            fifth_bits::<S>(S::shr::<28>(bits)),
        ];
        for (j, v) in from.four::<S>(6).into_iter().enumerate() {
            put::<S>(panel, b, j, S::or(low::<S>(v), fifth[j]));
            put::<S>(panel, b, j + 4, S::or(high::<S>(v), fifth[j + 4]));
        }
    }
}

#[inline(always)]
unsafe fn bytes_32<S: Simd>(from: impl Source, b: usize, panel: &mut Panel) {
    // SAFETY: each row holds a block of 34 bytes: scale, 32 bytes.
    unsafe {
        S::store(panel.scales[b].as_mut_ptr(), from.half::<S>(0));
        for half in 0..2 {
            let bytes = from.four::<S>(2 + 16 * half);
            for (j, v) in bytes.into_iter().enumerate() {
                let v = S::xor(v, S::splat_i(0x8080_8080u32 as i32));
                put::<S>(panel, 2 * b, 4 * half + j, high::<S>(v));
                put::<S>(panel, 2 * b + 1, 4 * half + j, low::<S>(v));
            }
        }
    }
}

/// The 16-byte head of a `Q4_K` or `Q5_K` block; packing as in `scalar::weight::scale_min_k4`.
#[inline(always)]
unsafe fn scales_256<S: Simd>(from: impl Source, b: usize, panel: &mut Panel) {
    // SAFETY: each row holds a block that begins with the 16 bytes read.
    unsafe {
        let [head, a, m, c] = from.four::<S>(0);
        S::store(panel.scales[b].as_mut_ptr(), S::low_f16(head));
        S::store(panel.minima[b].as_mut_ptr(), S::low_f16(S::shr::<16>(head)));
        let six = S::splat_i(0x3f3f_3f3f);
        let top = S::splat_i(0x3030_3030);
        let scales = [S::and(a, six), S::or(low::<S>(c), S::and(S::shr::<2>(a), top))];
        let minima = [S::and(m, six), S::or(high::<S>(c), S::and(S::shr::<2>(m), top))];
        for h in 0..2 {
            let f = [
                S::bytes_as_pair::<0, 0>(scales[h]),
                S::bytes_as_pair::<1, 1>(scales[h]),
                S::bytes_as_pair::<2, 2>(scales[h]),
                S::bytes_as_pair::<3, 3>(scales[h]),
            ];
            for (i, f) in f.into_iter().enumerate() {
                S::store_i(panel.factors[b * 8 + h * 4 + i].as_mut_ptr(), f);
            }
            let p = [S::bytes_as_pair::<0, 1>(minima[h]), S::bytes_as_pair::<2, 3>(minima[h])];
            for (i, p) in p.into_iter().enumerate() {
                S::store_i(panel.pairs[b * 4 + h * 2 + i].as_mut_ptr(), p);
            }
        }
    }
}

#[inline(always)]
unsafe fn nibbles_256<S: Simd>(
    from: impl Source,
    b: usize,
    start: usize,
    fifth: Option<usize>,
    panel: &mut Panel,
) {
    // SAFETY: each row holds a block with 128 bytes of nibbles from `start` and, where
    // `fifth` says so, 32 bytes of fifth bits.
    unsafe {
        let mut bits = [S::splat_i(0); 8];
        if let Some(at) = fifth {
            let (x, y) = (from.four::<S>(at), from.four::<S>(at + 16));
            bits[..4].copy_from_slice(&x[..4]);
            bits[4..].copy_from_slice(&y[..4]);
        }
        let one = S::splat_i(0x0101_0101);
        for g in 0..4 {
            for half in 0..2 {
                let bytes = from.four::<S>(start + 32 * g + 16 * half);
                for (j, v) in bytes.into_iter().enumerate() {
                    let j = 4 * half + j;
                    let (mut first, mut second) = (low::<S>(v), high::<S>(v));
                    if fifth.is_some() {
                        first = S::or(first, S::shl::<4>(S::and(bits[j], one)));
                        second = S::or(second, S::shl::<4>(S::and(S::shr::<1>(bits[j]), one)));
                        bits[j] = S::shr::<2>(bits[j]);
                    }
                    put::<S>(panel, b * 8 + 2 * g, j, first);
                    put::<S>(panel, b * 8 + 2 * g + 1, j, second);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn sixes_256<S: Simd>(from: impl Source, b: usize, panel: &mut Panel) {
    // SAFETY: each row holds a block of 210 bytes: 128 of low bits, 64 of high bits, 16
    // scales, and the f16 scale at 208, read with the two bytes before it.
    unsafe {
        let d = from.last_half::<S>(208);
        S::store(panel.scales[b].as_mut_ptr(), d);
        for (i, v) in from.four::<S>(192).into_iter().enumerate() {
            let factors = [
                S::bytes_as_pair::<0, 0>(v),
                S::bytes_as_pair::<1, 1>(v),
                S::bytes_as_pair::<2, 2>(v),
                S::bytes_as_pair::<3, 3>(v),
            ];
            for (j, f) in factors.into_iter().enumerate() {
                S::store_i(panel.factors[b * 16 + i * 4 + j].as_mut_ptr(), f);
            }
        }
        let two = S::splat_i(0x3030_3030);
        for n in 0..2 {
            for half in 0..2 {
                let tops = from.four::<S>(128 + 32 * n + 16 * half);
                let near = from.four::<S>(64 * n + 16 * half);
                let far = from.four::<S>(64 * n + 32 + 16 * half);
                for i in 0..4 {
                    let j = half * 4 + i;
                    let unit = b * 8 + n * 4;
                    let h = tops[i];
                    let h0 = S::and(S::shl::<4>(h), two);
                    let h1 = S::and(S::shl::<2>(h), two);
                    let h2 = S::and(h, two);
                    let h3 = S::and(S::shr::<2>(h), two);
                    put::<S>(panel, unit, j, S::or(low::<S>(near[i]), h0));
                    put::<S>(panel, unit + 1, j, S::or(low::<S>(far[i]), h1));
                    put::<S>(panel, unit + 2, j, S::or(high::<S>(near[i]), h2));
                    put::<S>(panel, unit + 3, j, S::or(high::<S>(far[i]), h3));
                }
            }
        }
    }
}
