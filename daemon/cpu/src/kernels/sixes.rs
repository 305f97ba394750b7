//! Products of repacked `Q6_K` rows with few columns: blocks are unpacked in registers, on the
//! way to the products, where a panel between would cost a store and a load a vector.

use super::repacked::ask_ahead;
use super::simd::{Piece, Simd, Vectors, WIDTH};
use super::tile::{Columns, Part, Wide, store_acc};
use tandem_program::DType;

/// Where the parts of a repacked block of 256 begin, in bytes.
const TOPS: usize = WIDTH * 128;
const FACTORS: usize = WIDTH * 192;
const SCALE: usize = WIDTH * 208;
/// Bytes ahead of the block at work that are asked for: three blocks, measured.
const AHEAD: usize = 3 * WIDTH * DType::Q6_K.block_bytes();
/// Half a block.
const HALF: usize = WIDTH * 105;

/// Four vectors of the sixteen values of unit `R` (0 to 3) of half a block.
#[derive(Clone, Copy)]
struct Sixes<const R: u32> {
    lows: *const u8,
    tops: *const u8,
}

impl<S: Simd, const R: u32> Vectors<S> for Sixes<R> {
    #[inline(always)]
    unsafe fn at(self, j: usize) -> S::I {
        // SAFETY: the maker's pointers have four vectors each.
        unsafe {
            let lows = S::load_i(self.lows.add(32 * j).cast());
            let tops = S::load_i(self.tops.add(32 * j).cast());
            let lows = S::and(if R >= 2 { S::shr::<4>(lows) } else { lows }, S::splat_i(0x0f0f_0f0f));
            let tops = match R {
                0 => S::shl::<4>(tops),
                1 => S::shl::<2>(tops),
                2 => tops,
                _ => S::shr::<2>(tops),
            };
            S::or(lows, S::and(tops, S::splat_i(0x3030_3030)))
        }
    }
}

/// Adds the next 16 values, times their factor.
#[inline(always)]
unsafe fn sixteen<S: Simd, const R: u32, const C: usize>(
    w: Sixes<R>,
    factor: S::I,
    isum: &mut [S::I; C],
    at: &mut Wide<C>,
) {
    // SAFETY: the caller's columns hold 16 more values, and a start for them.
    unsafe {
        let p = S::dot_from::<4, 6, true, C>(w, &at.x, &at.sums, factor);
        for c in 0..C {
            isum[c] = S::add_i(isum[c], p[c]);
            at.x[c] = at.x[c].add(16);
            at.sums[c] = at.sums[c].add(1);
        }
    }
}

/// `C` columns with eight repacked rows, as a function of its own.
pub(super) struct DirectSixes<'a, const C: usize> {
    /// Whole blocks of `columns.width` values for each of the eight rows.
    pub(super) rows: *const u8,
    /// Rounded over 256.
    pub(super) columns: &'a Columns,
    /// Room for `C` vectors.
    pub(super) acc: *mut f32,
}

impl<const C: usize> Piece for DirectSixes<'_, C> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let part = Part { columns: self.columns, first: 0, values: self.columns.width };
        // SAFETY: the rows hold `values` values, whole blocks, and so do the columns, with sixteen
        // starts and a scale a block.
        unsafe {
            let mut at = Wide::<C>::new(&part, 0, self.columns.starts, 16);
            let mut acc = [S::splat(0.0); C];
            let mut block = self.rows;
            for b in 0..part.values / 256 {
                let mut isum = [S::splat_i(0); C];
                for half in 0..2 {
                    ask_ahead::<S>(block.add(HALF * half), AHEAD, HALF);
                    // Unit `r`, whose two factors are bytes `a` and `a + 1` of the cell.
                    macro_rules! unit {
                        ($factors:expr, $r:literal, $a:literal, $b:literal) => {
                            let lows = block.add(WIDTH * (64 * half + 32 * ($r % 2)));
                            let tops = block.add(TOPS + WIDTH * 32 * half);
                            let first = Sixes::<$r> { lows, tops };
                            let second = Sixes::<$r> { lows: lows.add(128), tops: tops.add(128) };
                            let factor = S::bytes_as_pair::<$a, $a>($factors);
                            sixteen::<S, _, C>(first, factor, &mut isum, &mut at);
                            let factor = S::bytes_as_pair::<$b, $b>($factors);
                            sixteen::<S, _, C>(second, factor, &mut isum, &mut at);
                        };
                    }
                    let cells = block.add(FACTORS + WIDTH * 8 * half);
                    let factors = S::load_i(cells.cast());
                    unit!(factors, 0, 0, 1);
                    unit!(factors, 1, 2, 3);
                    let factors = S::load_i(cells.add(WIDTH * 4).cast());
                    unit!(factors, 2, 0, 1);
                    unit!(factors, 3, 2, 3);
                }
                let scale = S::load_f16(block.add(SCALE).cast());
                for c in 0..C {
                    let d = S::splat(*at.d[c].add(b));
                    let value = S::to_float(isum[c]);
                    acc[c] = S::add(acc[c], S::mul(S::mul(scale, d), value));
                }
                block = block.add(WIDTH * DType::Q6_K.block_bytes());
            }
            store_acc::<S, C>(self.acc, acc);
        }
    }
}
