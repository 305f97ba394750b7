//! Products of quantized weights: eight rows with a group of columns.
//!
//! A lane is a row, so each lane adds its blocks in ascending order, as the scalar meaning
//! asks, and no column sees another.

use super::panel::{PANEL_VALUES, Panel, Unpack};
use super::repacked::{Interleaved, Rows, Source, ask_ahead};
use super::simd::{Piece, Simd, Stored, Vectors, WIDTH};
use super::sixes::DirectSixes;
use std::marker::PhantomData;
use tandem_program::DType;

/// Rounded activation columns, as [`super::round`] leaves them.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// Number of columns.
    pub(crate) count: usize,
    /// Values in a column.
    pub(crate) width: usize,
    pub(crate) bytes: *const i8,
    pub(crate) scales: *const f32,
    pub(crate) sums: *const i32,
    pub(crate) starts: *const i32,
    pub(crate) wide_sums: *const i32,
}

/// `acc[c][lane]` = product of row `lane` with column `c`. `rows` point at whole rows of
/// `columns.width` values, `next` at those of the next call, if any; `acc` has room for `columns.count` vectors.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd>(
    dtype: DType,
    rows: &[*const u8; WIDTH],
    next: &[*const u8; WIDTH],
    columns: &Columns,
    panel: &mut Panel,
    acc: *mut f32,
) {
    // SAFETY: the caller's contract, passed on.
    unsafe { through_panel::<S, _>(dtype, Rows(*rows), Rows(*next), columns, panel, acc) }
}

/// [`tile`] of eight repacked rows, `next` those of the next call, if any.
#[inline(always)]
pub(super) unsafe fn tile_repacked<S: Simd>(
    dtype: DType,
    rows: *const u8,
    next: *const u8,
    columns: &Columns,
    panel: &mut Panel,
    acc: *mut f32,
) {
    // SAFETY: the caller's contract, passed on.
    unsafe {
        match (dtype, columns.count) {
            (DType::Q4_0, 1..=DIRECT) => direct::<S, Q4_0, _>(Nibbles(rows), columns, acc),
            (DType::Q6_K, 1..=DIRECT) => direct_sixes::<S>(rows, columns, acc),
            (DType::Q8_0, 1..=DIRECT) => direct::<S, Q8_0, _>(SignedBytes(rows), columns, acc),
            _ => through_panel::<S, _>(dtype, Interleaved(rows), Interleaved(next), columns, panel, acc),
        }
    }
}

#[inline(always)]
unsafe fn through_panel<S: Simd, W: Source>(
    dtype: DType,
    rows: W,
    next: W,
    columns: &Columns,
    panel: &mut Panel,
    acc: *mut f32,
) {
    // SAFETY: rows and columns hold `width` values, whole blocks; chunks lie inside them.
    unsafe {
        for c in 0..columns.count {
            S::store(acc.add(c * WIDTH), S::splat(0.0));
        }
        let mut first = 0;
        let mut from = rows;
        while first < columns.width {
            let values = PANEL_VALUES.min(columns.width - first);
            let blocks = values / dtype.block_len();
            let mut after = from;
            after.skip(blocks * dtype.block_bytes());
            let next = if first + values < columns.width { after } else { next };
            let unpack = Unpack { from, next, blocks, panel };
            unpack.of::<S>(dtype);
            from = after;
            let part = Part { columns, first, values };
            match dtype {
                DType::Q4_0 => groups::<S, Q4_0>(panel, &part, acc),
                DType::Q4_1 => groups::<S, Q4_1>(panel, &part, acc),
                DType::Q5_0 => groups::<S, Q5_0>(panel, &part, acc),
                DType::Q8_0 => groups::<S, Q8_0>(panel, &part, acc),
                DType::Q4_K => groups::<S, Minima<4>>(panel, &part, acc),
                DType::Q5_K => groups::<S, Minima<5>>(panel, &part, acc),
                DType::Q6_K => groups::<S, Q6_K>(panel, &part, acc),
                DType::F32 | DType::F16 | DType::BF16 => {}
            }
            first += values;
        }
    }
}

/// The values `first .. first + values` of the columns.
pub(super) struct Part<'a> {
    pub(super) columns: &'a Columns,
    pub(super) first: usize,
    pub(super) values: usize,
}

/// How a format's blocks add to the accumulators of `C` columns.
trait Format {
    unsafe fn run<S: Simd, const C: usize>(panel: &Panel, part: &Part<'_>, column: usize, acc: *mut f32);
}

/// `C` columns from `column` on, as a function of its own for every format and `C`.
struct Group<'a, T, const C: usize> {
    panel: &'a Panel,
    part: &'a Part<'a>,
    column: usize,
    acc: *mut f32,
    format: PhantomData<T>,
}

impl<T: Format, const C: usize> Piece for Group<'_, T, C> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's contract, passed on.
        unsafe { T::run::<S, C>(self.panel, self.part, self.column, self.acc) }
    }
}

#[inline(always)]
unsafe fn groups<S: Simd, T: Format>(panel: &Panel, part: &Part<'_>, acc: *mut f32) {
    macro_rules! group {
        ($c:literal, $column:expr) => {
            S::outline(Group::<T, $c> {
                panel,
                part,
                column: $column,
                acc: acc.add($column * WIDTH),
                format: PhantomData,
            })
        };
    }
    // SAFETY: groups lie inside the columns, `acc` has a vector for each.
    unsafe {
        let mut c = 0;
        while c < part.columns.count {
            match part.columns.count - c {
                1 => group!(1, c),
                2 => group!(2, c),
                3 => group!(3, c),
                _ => group!(4, c),
            }
            c += 4;
        }
    }
}

#[inline(always)]
unsafe fn load_acc<S: Simd, const C: usize>(acc: *const f32) -> [S::F; C] {
    // SAFETY: the caller's `acc` holds `C` vectors.
    unsafe {
        let mut v = [S::splat(0.0); C];
        for (c, v) in v.iter_mut().enumerate() {
            *v = S::load(acc.add(c * WIDTH));
        }
        v
    }
}

#[inline(always)]
pub(super) unsafe fn store_acc<S: Simd, const C: usize>(acc: *mut f32, v: [S::F; C]) {
    // SAFETY: the caller's `acc` holds `C` vectors.
    unsafe {
        for (c, v) in v.into_iter().enumerate() {
            S::store(acc.add(c * WIDTH), v);
        }
    }
}

/// What is subtracted from each value of a block of 32.
#[derive(PartialEq)]
enum Offset {
    Nothing,
    /// 8 from the nibbles of the first plane.
    Nibbles,
    /// 16.
    Sixteen,
}

/// Formats of blocks of 32.
trait Blocks32 {
    const BITS: u32;
    const PLANES: usize;
    const OFFSET: Offset;
    const MINIMA: bool;
}

struct Q4_0;
struct Q4_1;
struct Q5_0;
struct Q8_0;

impl Blocks32 for Q4_0 {
    const BITS: u32 = 4;
    const PLANES: usize = 1;
    const OFFSET: Offset = Offset::Nibbles;
    const MINIMA: bool = false;
}
impl Blocks32 for Q4_1 {
    const BITS: u32 = 4;
    const PLANES: usize = 1;
    const OFFSET: Offset = Offset::Nothing;
    const MINIMA: bool = true;
}
impl Blocks32 for Q5_0 {
    const BITS: u32 = 5;
    const PLANES: usize = 1;
    const OFFSET: Offset = Offset::Sixteen;
    const MINIMA: bool = false;
}
impl Blocks32 for Q8_0 {
    const BITS: u32 = 4;
    const PLANES: usize = 2;
    const OFFSET: Offset = Offset::Nibbles;
    const MINIMA: bool = false;
}

/// Where blocks of 32 are read from, unpacked or not.
trait Units: Copy {
    /// Vectors of block `b`, of plane `plane`.
    unsafe fn vectors<S: Simd>(self, b: usize, plane: usize) -> impl Vectors<S>;
    /// Scales of block `b`.
    unsafe fn scale<S: Simd>(self, b: usize) -> S::F;
    /// Minima of block `b`, of formats that have them.
    unsafe fn minimum<S: Simd>(self, b: usize) -> S::F;
    /// Asks for blocks that come later, from memory where they come from there.
    unsafe fn ask_ahead<S: Simd>(self, b: usize);
}

/// Unpacked blocks of `PLANES` planes.
#[derive(Clone, Copy)]
struct Unpacked<'a, const PLANES: usize>(&'a Panel);

impl<const PLANES: usize> Units for Unpacked<'_, PLANES> {
    #[inline(always)]
    unsafe fn vectors<S: Simd>(self, b: usize, plane: usize) -> impl Vectors<S> {
        // SAFETY: the caller's block and plane lie in the panel.
        Stored(unsafe { self.0.bytes.as_ptr().add(b * PLANES + plane).cast::<u8>() })
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(self, b: usize) -> S::F {
        // SAFETY: eight floats.
        unsafe { S::load(self.0.scales[b].as_ptr()) }
    }
    #[inline(always)]
    unsafe fn minimum<S: Simd>(self, b: usize) -> S::F {
        // SAFETY: eight floats.
        unsafe { S::load(self.0.minima[b].as_ptr()) }
    }
    #[inline(always)]
    unsafe fn ask_ahead<S: Simd>(self, _b: usize) {}
}

/// Bytes ahead of the blocks at work that are asked for: with 1 to 2 KiB the time of a product is
/// the same, with more or less it grows.
const AHEAD: usize = 1536;

/// Repacked blocks of `Q4_0`, from the first on: what a block has at byte `at` lies at
/// `8 * at`.
#[derive(Clone, Copy)]
struct Nibbles(*const u8);

impl Units for Nibbles {
    #[inline(always)]
    unsafe fn vectors<S: Simd>(self, b: usize, _plane: usize) -> impl Vectors<S> {
        NibblesOf(self.0.wrapping_add(WIDTH * (b * DType::Q4_0.block_bytes() + 2)))
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(self, b: usize) -> S::F {
        // SAFETY: the caller's block begins with eight halves.
        unsafe { S::load_f16(self.0.add(WIDTH * b * DType::Q4_0.block_bytes()).cast()) }
    }
    #[inline(always)]
    unsafe fn minimum<S: Simd>(self, _b: usize) -> S::F {
        // SAFETY: arithmetic only.
        unsafe { S::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn ask_ahead<S: Simd>(self, b: usize) {
        let bytes = WIDTH * DType::Q4_0.block_bytes();
        // SAFETY: any address will do.
        unsafe { ask_ahead::<S>(self.0.wrapping_add(b * bytes), AHEAD, bytes) }
    }
}

#[derive(Clone, Copy)]
struct NibblesOf(*const u8);

impl<S: Simd> Vectors<S> for NibblesOf {
    #[inline(always)]
    unsafe fn at(self, j: usize) -> S::I {
        // SAFETY: four vectors hold the nibbles of eight.
        unsafe {
            let v = S::load_i(self.0.add(32 * (j % 4)).cast());
            nibbles::<S>(v, j >= 4)
        }
    }
}

/// Repacked blocks of `Q8_0`.
#[derive(Clone, Copy)]
struct SignedBytes(*const u8);

impl Units for SignedBytes {
    #[inline(always)]
    unsafe fn vectors<S: Simd>(self, b: usize, plane: usize) -> impl Vectors<S> {
        PlaneOf(self.0.wrapping_add(WIDTH * (b * DType::Q8_0.block_bytes() + 2)), plane)
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(self, b: usize) -> S::F {
        // SAFETY: the caller's block begins with eight halves.
        unsafe { S::load_f16(self.0.add(WIDTH * b * DType::Q8_0.block_bytes()).cast()) }
    }
    #[inline(always)]
    unsafe fn minimum<S: Simd>(self, _b: usize) -> S::F {
        // SAFETY: arithmetic only.
        unsafe { S::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn ask_ahead<S: Simd>(self, b: usize) {
        let bytes = WIDTH * DType::Q8_0.block_bytes();
        // SAFETY: any address will do.
        unsafe { ask_ahead::<S>(self.0.wrapping_add(b * bytes), AHEAD, bytes) }
    }
}

/// The upper nibbles (plane 0) or the lower ones of bytes of which 128 was subtracted.
#[derive(Clone, Copy)]
struct PlaneOf(*const u8, usize);

impl<S: Simd> Vectors<S> for PlaneOf {
    #[inline(always)]
    unsafe fn at(self, j: usize) -> S::I {
        // SAFETY: the block holds eight vectors.
        unsafe {
            let v = S::load_i(self.0.add(32 * j).cast());
            let v = if self.1 == 0 { S::xor(v, S::splat_i(0x8080_8080u32 as i32)) } else { v };
            nibbles::<S>(v, self.1 == 0)
        }
    }
}

#[inline(always)]
unsafe fn nibbles<S: Simd>(v: S::I, upper: bool) -> S::I {
    // SAFETY: arithmetic only.
    unsafe { S::and(if upper { S::shr::<4>(v) } else { v }, S::splat_i(0x0f0f_0f0f)) }
}

/// Most columns that are multiplied with blocks as they are unpacked, without a panel between.
const DIRECT: usize = 4;

/// `C` columns with repacked rows, as a function of its own.
struct Direct<'a, T, U, const C: usize> {
    units: U,
    columns: &'a Columns,
    acc: *mut f32,
    format: PhantomData<T>,
}

impl<T: Blocks32, U: Units, const C: usize> Piece for Direct<'_, T, U, C> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let part = Part { columns: self.columns, first: 0, values: self.columns.width };
        // SAFETY: the caller's contract, passed on.
        unsafe {
            let zero = [S::splat(0.0); C];
            let acc = blocks_32::<S, T, U, C>(self.units, &part, 0, zero);
            store_acc::<S, C>(self.acc, acc);
        }
    }
}

#[inline(always)]
unsafe fn direct<S: Simd, T: Blocks32, U: Units>(units: U, columns: &Columns, acc: *mut f32) {
    macro_rules! piece {
        ($c:literal) => {
            S::outline(Direct::<T, U, $c> { units, columns, acc, format: PhantomData })
        };
    }
    // SAFETY: the caller's contract, passed on.
    unsafe {
        match columns.count {
            1 => piece!(1),
            2 => piece!(2),
            3 => piece!(3),
            _ => piece!(4),
        }
    }
}

#[inline(always)]
unsafe fn direct_sixes<S: Simd>(rows: *const u8, columns: &Columns, acc: *mut f32) {
    // SAFETY: the caller's contract, passed on.
    unsafe {
        match columns.count {
            1 => S::outline(DirectSixes::<1> { rows, columns, acc }),
            2 => S::outline(DirectSixes::<2> { rows, columns, acc }),
            3 => S::outline(DirectSixes::<3> { rows, columns, acc }),
            _ => S::outline(DirectSixes::<4> { rows, columns, acc }),
        }
    }
}

impl<T: Blocks32> Format for T {
    #[inline(always)]
    unsafe fn run<S: Simd, const C: usize>(panel: &Panel, part: &Part<'_>, column: usize, acc: *mut f32) {
        // SAFETY: the panel holds `part.values` of each row; `acc` holds `C` vectors.
        unsafe {
            let before = load_acc::<S, C>(acc);
            let after = match T::PLANES {
                1 => blocks_32::<S, T, _, C>(Unpacked::<1>(panel), part, column, before),
                _ => blocks_32::<S, T, _, C>(Unpacked::<2>(panel), part, column, before),
            };
            store_acc::<S, C>(acc, after);
        }
    }
}

/// The accumulators after the blocks of 32 in `part`.
#[inline(always)]
unsafe fn blocks_32<S: Simd, T: Blocks32, U: Units, const C: usize>(
    units: U,
    part: &Part<'_>,
    column: usize,
    mut acc: [S::F; C],
) -> [S::F; C] {
    // SAFETY: `units` holds `part.values` of each row and every column reaches to
    // `part.first + part.values`.
    unsafe {
        let width = part.columns.width;
        let mut x = [part.columns.bytes; C];
        let mut d = [part.columns.scales; C];
        let mut sums = [part.columns.sums; C];
        let mut starts = [part.columns.starts; C];
        for c in 0..C {
            x[c] = x[c].add((column + c) * width + part.first);
            d[c] = d[c].add((column + c) * (width / 32) + part.first / 32);
            sums[c] = sums[c].add((column + c) * (width / 32) + part.first / 32);
            starts[c] = starts[c].add((column + c) * (width / 32) + part.first / 32);
        }
        for b in 0..part.values / 32 {
            units.ask_ahead::<S>(b);
            let one = S::splat_i(0x0001_0001);
            let first = units.vectors::<S>(b, 0);
            let mut isum = if T::OFFSET == Offset::Nibbles {
                // A lane ends with 16 values times a weight less 4, and -4 times the other 16: at most
                // 16 * (11 + 4) * 127.
                S::dot_from::<8, 4, false, C>(first, &x, &starts.map(|e| e.wrapping_add(b)), one)
            } else if T::BITS == 4 {
                S::dot::<8, 4, false, C>(first, &x, one)
            } else {
                S::dot::<8, 5, false, C>(first, &x, one)
            };
            if T::PLANES == 2 {
                let low = S::dot::<8, 4, false, C>(units.vectors::<S>(b, 1), &x, one);
                for c in 0..C {
                    isum[c] = S::add_i(S::shl::<4>(isum[c]), low[c]);
                }
            }
            let scale = units.scale::<S>(b);
            for c in 0..C {
                if T::OFFSET == Offset::Sixteen {
                    let shifted = S::shl::<4>(S::splat_i(*sums[c].add(b)));
                    isum[c] = S::sub_i(isum[c], shifted);
                }
                let d = S::splat(*d[c].add(b));
                let value = S::to_float(isum[c]);
                acc[c] = S::add(acc[c], S::mul(S::mul(scale, d), value));
                if T::MINIMA {
                    let m = S::mul(units.minimum::<S>(b), d);
                    acc[c] = S::add(acc[c], S::mul(m, S::splat(*sums[c].add(b) as f32)));
                }
                x[c] = x[c].add(32);
            }
        }
        acc
    }
}

/// `Q4_K` and `Q5_K`.
struct Minima<const BITS: u32>;

/// The columns' pointers at block `part.first / 256`.
pub(super) struct Wide<const C: usize> {
    pub(super) x: [*const i8; C],
    pub(super) d: [*const f32; C],
    pub(super) sums: [*const i32; C],
}

impl<const C: usize> Wide<C> {
    /// `pairs` is 16 with the starts over 16 values, 4 with the pairs of sums over 32.
    #[inline(always)]
    pub(super) unsafe fn new(part: &Part<'_>, column: usize, sums: *const i32, pairs: usize) -> Self {
        let blocks = part.columns.width / 256;
        let mut at = Wide { x: [part.columns.bytes; C], d: [part.columns.scales; C], sums: [sums; C] };
        for c in 0..C {
            let block = (column + c) * blocks + part.first / 256;
            // SAFETY: the columns hold `width` values, so `block` exists in each array.
            unsafe {
                at.x[c] = at.x[c].add(block * 256);
                at.d[c] = at.d[c].add(block);
                at.sums[c] = at.sums[c].add(block * pairs);
            }
        }
        at
    }
}

impl<const BITS: u32> Format for Minima<BITS> {
    #[inline(always)]
    unsafe fn run<S: Simd, const C: usize>(panel: &Panel, part: &Part<'_>, column: usize, acc: *mut f32) {
        // SAFETY: as for blocks of 32.
        unsafe {
            let mut at = Wide::<C>::new(part, column, part.columns.wide_sums, 4);
            let mut acc_v = load_acc::<S, C>(acc);
            for b in 0..part.values / 256 {
                let mut isum = [S::splat_i(0); C];
                for u in 0..8 {
                    let factor = S::load_i(panel.factors[b * 8 + u].as_ptr());
                    let unit = panel.bytes[b * 8 + u].as_ptr();
                    let p = S::dot::<8, BITS, true, C>(Stored(unit), &at.x, factor);
                    for c in 0..C {
                        isum[c] = S::add_i(isum[c], p[c]);
                        at.x[c] = at.x[c].add(32);
                    }
                }
                let scale = S::load(panel.scales[b].as_ptr());
                let minimum = S::load(panel.minima[b].as_ptr());
                for c in 0..C {
                    let mut msum = S::splat_i(0);
                    for p in 0..4 {
                        let sums = S::splat_i(*at.sums[c].add(p));
                        let pair = S::load_i(panel.pairs[b * 4 + p].as_ptr());
                        msum = S::add_i(msum, S::madd(pair, sums));
                    }
                    at.sums[c] = at.sums[c].add(4);
                    let d = S::splat(*at.d[c].add(b));
                    let value = S::mul(S::mul(scale, d), S::to_float(isum[c]));
                    let below = S::mul(S::mul(minimum, d), S::to_float(msum));
                    acc_v[c] = S::sub(S::add(acc_v[c], value), below);
                }
            }
            store_acc::<S, C>(acc, acc_v);
        }
    }
}

#[allow(non_camel_case_types)]
struct Q6_K;

impl Format for Q6_K {
    #[inline(always)]
    unsafe fn run<S: Simd, const C: usize>(panel: &Panel, part: &Part<'_>, column: usize, acc: *mut f32) {
        // SAFETY: as for blocks of 32.
        unsafe {
            let mut at = Wide::<C>::new(part, column, part.columns.starts, 16);
            let mut acc_v = load_acc::<S, C>(acc);
            for b in 0..part.values / 256 {
                let mut isum = [S::splat_i(0); C];
                for h in 0..16 {
                    // A lane ends with 8 values times a weight less 32: at most 8 * 32 * 127.
                    let factor = S::load_i(panel.factors[b * 16 + h].as_ptr());
                    let half = panel.bytes[b * 8 + h / 2].as_ptr().add(128 * (h % 2));
                    let p = S::dot_from::<4, 6, true, C>(Stored(half), &at.x, &at.sums, factor);
                    for c in 0..C {
                        isum[c] = S::add_i(isum[c], p[c]);
                        at.x[c] = at.x[c].add(16);
                        at.sums[c] = at.sums[c].add(1);
                    }
                }
                let scale = S::load(panel.scales[b].as_ptr());
                for c in 0..C {
                    let d = S::splat(*at.d[c].add(b));
                    let value = S::to_float(isum[c]);
                    acc_v[c] = S::add(acc_v[c], S::mul(S::mul(scale, d), value));
                }
            }
            store_acc::<S, C>(acc, acc_v);
        }
    }
}
