//! Products of quantized weights: eight rows with a group of columns.
//!
//! A lane is a row, so each lane adds its blocks in ascending order, as the scalar meaning
//! asks, and no column sees another.

use super::panel::{PANEL_VALUES, Panel, Unpack};
use super::simd::{Piece, Simd, WIDTH};
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
    // SAFETY: rows and columns hold `width` values, whole blocks; chunks lie inside them.
    unsafe {
        for c in 0..columns.count {
            S::store(acc.add(c * WIDTH), S::splat(0.0));
        }
        let mut first = 0;
        while first < columns.width {
            let values = PANEL_VALUES.min(columns.width - first);
            let blocks = values / dtype.block_len();
            let (mut at, mut ahead) = (*rows, *next);
            for row in &mut at {
                *row = row.add(first / dtype.block_len() * dtype.block_bytes());
            }
            if first + values < columns.width {
                for (ahead, at) in ahead.iter_mut().zip(at) {
                    *ahead = at.wrapping_add(blocks * dtype.block_bytes());
                }
            }
            let unpack = Unpack { rows: at, next: ahead, blocks, panel };
            unpack.of::<S>(dtype);
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
struct Part<'a> {
    columns: &'a Columns,
    first: usize,
    values: usize,
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
unsafe fn store_acc<S: Simd, const C: usize>(acc: *mut f32, v: [S::F; C]) {
    // SAFETY: the caller's `acc` holds `C` vectors.
    unsafe {
        for (c, v) in v.into_iter().enumerate() {
            S::store(acc.add(c * WIDTH), v);
        }
    }
}

/// Formats of blocks of 32.
trait Blocks32 {
    const BITS: u32;
    const PLANES: usize;
    /// What is subtracted from each value, as a power of two.
    const OFFSET: Option<u32>;
    const MINIMA: bool;
}

struct Q4_0;
struct Q4_1;
struct Q5_0;
struct Q8_0;

impl Blocks32 for Q4_0 {
    const BITS: u32 = 4;
    const PLANES: usize = 1;
    const OFFSET: Option<u32> = Some(3);
    const MINIMA: bool = false;
}
impl Blocks32 for Q4_1 {
    const BITS: u32 = 4;
    const PLANES: usize = 1;
    const OFFSET: Option<u32> = None;
    const MINIMA: bool = true;
}
impl Blocks32 for Q5_0 {
    const BITS: u32 = 5;
    const PLANES: usize = 1;
    const OFFSET: Option<u32> = Some(4);
    const MINIMA: bool = false;
}
impl Blocks32 for Q8_0 {
    const BITS: u32 = 4;
    const PLANES: usize = 2;
    const OFFSET: Option<u32> = Some(7);
    const MINIMA: bool = false;
}

impl<T: Blocks32> Format for T {
    #[inline(always)]
    unsafe fn run<S: Simd, const C: usize>(panel: &Panel, part: &Part<'_>, column: usize, acc: *mut f32) {
        // SAFETY: the panel holds `part.values` of each row and every column reaches to
        // `part.first + part.values`; `acc` holds `C` vectors.
        unsafe {
            let width = part.columns.width;
            let mut x = [part.columns.bytes; C];
            let mut d = [part.columns.scales; C];
            let mut sums = [part.columns.sums; C];
            for c in 0..C {
                x[c] = x[c].add((column + c) * width + part.first);
                d[c] = d[c].add((column + c) * (width / 32) + part.first / 32);
                sums[c] = sums[c].add((column + c) * (width / 32) + part.first / 32);
            }
            let mut acc_v = load_acc::<S, C>(acc);
            for b in 0..part.values / 32 {
                let unit = panel.bytes.as_ptr().add(b * T::PLANES).cast::<u8>();
                let one = S::splat_i(0x0001_0001);
                let mut isum = if T::BITS == 4 {
                    S::dot::<8, 4, false, C>(unit, &x, one)
                } else {
                    S::dot::<8, 5, false, C>(unit, &x, one)
                };
                if T::PLANES == 2 {
                    let low = S::dot::<8, 4, false, C>(unit.add(256), &x, one);
                    for c in 0..C {
                        isum[c] = S::add_i(S::shl::<4>(isum[c]), low[c]);
                    }
                }
                let scale = S::load(panel.scales[b].as_ptr());
                for c in 0..C {
                    let total = *sums[c].add(b);
                    let shifted = match T::OFFSET {
                        Some(3) => S::shl::<3>(S::splat_i(total)),
                        Some(4) => S::shl::<4>(S::splat_i(total)),
                        Some(_) => S::shl::<7>(S::splat_i(total)),
                        None => S::splat_i(0),
                    };
                    let d = S::splat(*d[c].add(b));
                    let value = S::to_float(S::sub_i(isum[c], shifted));
                    acc_v[c] = S::add(acc_v[c], S::mul(S::mul(scale, d), value));
                    if T::MINIMA {
                        let m = S::mul(S::load(panel.minima[b].as_ptr()), d);
                        acc_v[c] = S::add(acc_v[c], S::mul(m, S::splat(total as f32)));
                    }
                    x[c] = x[c].add(32);
                }
            }
            store_acc::<S, C>(acc, acc_v);
        }
    }
}

/// `Q4_K` and `Q5_K`.
struct Minima<const BITS: u32>;

/// The columns' pointers at block `part.first / 256`.
struct Wide<const C: usize> {
    x: [*const i8; C],
    d: [*const f32; C],
    sums: [*const i32; C],
}

impl<const C: usize> Wide<C> {
    /// `pairs` is 8 with the sums over 16, 4 with those over 32.
    #[inline(always)]
    unsafe fn new(part: &Part<'_>, column: usize, sums: *const i32, pairs: usize) -> Self {
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
                    let p = S::dot::<8, BITS, true, C>(unit, &at.x, factor);
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
            let mut at = Wide::<C>::new(part, column, part.columns.sums, 8);
            let mut acc_v = load_acc::<S, C>(acc);
            for b in 0..part.values / 256 {
                let mut isum = [S::splat_i(0); C];
                for h in 0..16 {
                    let factor = S::load_i(panel.factors[b * 16 + h].as_ptr());
                    let half = panel.bytes[b * 8 + h / 2].as_ptr().add(128 * (h % 2));
                    let p = S::dot::<4, 6, true, C>(half, &at.x, factor);
                    for c in 0..C {
                        isum[c] = S::add_i(isum[c], p[c]);
                        at.x[c] = at.x[c].add(16);
                    }
                }
                let scale = S::load(panel.scales[b].as_ptr());
                for c in 0..C {
                    let mut offset = S::splat_i(0);
                    for p in 0..8 {
                        let sums = S::splat_i(*at.sums[c].add(p));
                        let pair = S::load_i(panel.pairs[b * 8 + p].as_ptr());
                        offset = S::add_i(offset, S::madd(pair, sums));
                    }
                    at.sums[c] = at.sums[c].add(8);
                    let d = S::splat(*at.d[c].add(b));
                    let value = S::to_float(S::sub_i(isum[c], S::shl::<5>(offset)));
                    acc_v[c] = S::add(acc_v[c], S::mul(S::mul(scale, d), value));
                }
            }
            store_acc::<S, C>(acc, acc_v);
        }
    }
}
