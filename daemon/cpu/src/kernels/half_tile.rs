//! Products in half-precision tiles: `tandem_program::scalar::weight::dot_tile`.
//!
//! A weight's rows are rounded to halves and laid side by side as floats, a panel, once for all
//! columns. Lanes are rows, so every sum adds in order of the index, whatever the vectors' width;
//! products of halves are exact, so it is one rounding a step.

use super::simd::{Simd, WIDTH};

/// Rows of a panel.
pub(crate) const PANEL_ROWS: usize = 2 * WIDTH;

/// `sums[c][r] += panel[i][r] * x[c][i]`, `i` ascending below `depth`, for [`PANEL_ROWS`] rows
/// `r` and `columns` columns that lie `x_step` apart.
#[inline(always)]
pub(super) unsafe fn add_panel<S: Simd>(
    panel: *const f32,
    depth: usize,
    x: *const f32,
    x_step: usize,
    columns: usize,
    sums: *mut f32,
) {
    // SAFETY: the caller's panel holds `depth` vectors of `PANEL_ROWS`, `x` `columns` columns
    // of `depth` values, `sums` `PANEL_ROWS` a column; the loop stays below these.
    unsafe {
        let mut c = 0;
        while c < columns {
            let (x, sums) = (x.add(c * x_step), sums.add(c * PANEL_ROWS));
            // Twelve sums, two weights, one value: the registers of the smallest instruction set.
            c += match columns - c {
                6.. => add_columns::<S, 6>(panel, depth, x, x_step, sums),
                3.. => add_columns::<S, 3>(panel, depth, x, x_step, sums),
                _ => add_columns::<S, 1>(panel, depth, x, x_step, sums),
            };
        }
    }
}

/// [`add_panel`] for `C` columns; how many they are.
#[inline(always)]
unsafe fn add_columns<S: Simd, const C: usize>(
    panel: *const f32,
    depth: usize,
    x: *const f32,
    x_step: usize,
    sums: *mut f32,
) -> usize {
    // SAFETY: as `add_panel`, for `C` columns.
    unsafe {
        let mut low = [S::splat(0.0); C];
        let mut high = low;
        for c in 0..C {
            low[c] = S::load(sums.add(c * PANEL_ROWS));
            high[c] = S::load(sums.add(c * PANEL_ROWS + WIDTH));
        }
        for i in 0..depth {
            let first = S::load(panel.add(i * PANEL_ROWS));
            let second = S::load(panel.add(i * PANEL_ROWS + WIDTH));
            for c in 0..C {
                let v = S::splat(*x.add(c * x_step + i));
                low[c] = S::add(low[c], S::mul(first, v));
                high[c] = S::add(high[c], S::mul(second, v));
            }
        }
        for c in 0..C {
            S::store(sums.add(c * PANEL_ROWS), low[c]);
            S::store(sums.add(c * PANEL_ROWS + WIDTH), high[c]);
        }
    }
    C
}
