//! Sums of floats in the orders that `tandem_program::scalar` states: [`dots`] keeps sixteen
//! partial sums and folds them, [`weigh`] adds whole rows in ascending order.

use super::elementary::{load_some, store_some};
use super::simd::{Simd, WIDTH};

/// How a row of floats is stored.
trait Stored {
    type Cell: Copy;
    const ZERO: Self::Cell;
    unsafe fn load<S: Simd>(p: *const Self::Cell) -> S::F;

    #[inline(always)]
    unsafe fn load_some<S: Simd>(p: *const Self::Cell, n: usize) -> S::F {
        let mut cells = [Self::ZERO; WIDTH];
        // SAFETY: the caller's pointer is valid for `n < WIDTH` cells.
        unsafe {
            std::ptr::copy_nonoverlapping(p, cells.as_mut_ptr(), n);
            Self::load::<S>(cells.as_ptr())
        }
    }
}

struct Single;
struct Half;
struct Brain;

impl Stored for Single {
    type Cell = f32;
    const ZERO: f32 = 0.0;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::F {
        // SAFETY: the caller's pointer is valid for eight cells.
        unsafe { S::load(p) }
    }
}

impl Stored for Half {
    type Cell = u16;
    const ZERO: u16 = 0;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u16) -> S::F {
        // SAFETY: the caller's pointer is valid for eight cells.
        unsafe { S::load_f16(p) }
    }
}

impl Stored for Brain {
    type Cell = u16;
    const ZERO: u16 = 0;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u16) -> S::F {
        // SAFETY: the caller's pointer is valid for eight cells.
        unsafe {
            let bits = p.cast::<[u16; WIDTH]>().read_unaligned();
            let mut wide = [0i32; WIDTH];
            for (w, b) in wide.iter_mut().zip(bits) {
                *w = i32::from(b) << 16;
            }
            S::bits(S::load_i(wide.as_ptr()))
        }
    }
}

/// Cell types of [`Matrix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    F32,
    F16,
    BF16,
}

/// Rows of floats in memory.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    /// First value.
    pub(crate) start: *const u8,
    /// Bytes from row to row.
    pub(crate) step: usize,
    pub(crate) cell: Cell,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

/// `scalar::sum`.
#[inline(always)]
pub(super) unsafe fn sum<S: Simd>(x: *const f32, n: usize) -> f32 {
    // SAFETY: the caller's row holds `n` floats and `i` stays below `n`.
    unsafe {
        let (mut low, mut high) = (S::splat(0.0), S::splat(0.0));
        let mut i = 0;
        while i + 2 * WIDTH <= n {
            low = S::add(low, S::load(x.add(i)));
            high = S::add(high, S::load(x.add(i + WIDTH)));
            i += 2 * WIDTH;
        }
        // Missing lanes add +0, which changes no partial sum: they start at +0 and so never
        // hold -0.
        if i + WIDTH <= n {
            low = S::add(low, S::load(x.add(i)));
            high = S::add(high, load_some::<S>(x.add(i + WIDTH), n - i - WIDTH));
        } else if i < n {
            low = S::add(low, load_some::<S>(x.add(i), n - i));
        }
        S::fold(S::add(low, high))
    }
}

/// `scalar::dot` of two f32 rows.
#[inline(always)]
pub(super) unsafe fn dot_f32<S: Simd>(a: *const f32, b: *const f32, n: usize) -> f32 {
    // SAFETY: both rows hold `n` floats.
    unsafe { tile::<S, Single, 1, 1>([a], [b], n)[0][0] }
}

/// `scalar::dot` of each of `R` rows with each of `C` columns.
#[inline(always)]
unsafe fn tile<S: Simd, T: Stored, const R: usize, const C: usize>(
    rows: [*const T::Cell; R],
    columns: [*const f32; C],
    n: usize,
) -> [[f32; C]; R] {
    // SAFETY: every row and column holds `n` values and `i` stays below `n`.
    unsafe {
        let zero = S::splat(0.0);
        let mut lanes = [[[zero; 2]; C]; R];
        let mut i = 0;
        while i + 2 * WIDTH <= n {
            for half in 0..2 {
                let at = i + half * WIDTH;
                let mut x = [zero; C];
                for c in 0..C {
                    x[c] = S::load(columns[c].add(at));
                }
                for r in 0..R {
                    let w = T::load::<S>(rows[r].add(at));
                    for c in 0..C {
                        lanes[r][c][half] = S::add(lanes[r][c][half], S::mul(x[c], w));
                    }
                }
            }
            i += 2 * WIDTH;
        }
        // As in `sum`, padding adds +0 and changes nothing.
        let mut half = 0;
        while i < n {
            let count = WIDTH.min(n - i);
            for c in 0..C {
                let x = if count == WIDTH {
                    S::load(columns[c].add(i))
                } else {
                    load_some::<S>(columns[c].add(i), count)
                };
                for r in 0..R {
                    let w = if count == WIDTH {
                        T::load::<S>(rows[r].add(i))
                    } else {
                        T::load_some::<S>(rows[r].add(i), count)
                    };
                    lanes[r][c][half] = S::add(lanes[r][c][half], S::mul(x, w));
                }
            }
            half += 1;
            i += WIDTH;
        }
        let mut out = [[0.0f32; C]; R];
        for r in 0..R {
            for c in 0..C {
                out[r][c] = S::fold(S::add(lanes[r][c][0], lanes[r][c][1]));
            }
        }
        out
    }
}

/// `out[c * out_step + r] = scale * dot(columns[c], rows[r])`.
#[inline(always)]
pub(super) unsafe fn dots<S: Simd>(
    rows: &Matrix,
    columns: *const f32,
    column_step: usize,
    count: usize,
    scale: f32,
    out: *mut f32,
    out_step: usize,
) {
    // SAFETY: the caller's contract, passed on.
    unsafe {
        match rows.cell {
            Cell::F32 => dots_of::<S, Single>(rows, columns, column_step, count, scale, out, out_step),
            Cell::F16 => dots_of::<S, Half>(rows, columns, column_step, count, scale, out, out_step),
            Cell::BF16 => dots_of::<S, Brain>(rows, columns, column_step, count, scale, out, out_step),
        }
    }
}

#[inline(always)]
unsafe fn dots_of<S: Simd, T: Stored>(
    rows: &Matrix,
    columns: *const f32,
    column_step: usize,
    count: usize,
    scale: f32,
    out: *mut f32,
    out_step: usize,
) {
    // SAFETY: the caller's matrix holds `rows.rows` rows, `columns` holds `count` rows of
    // `rows.width` values, and `out` a value for each pair; the loops stay below these.
    unsafe {
        let mut r = 0;
        while r < rows.rows {
            // One column gains from four rows at a time, several columns share a row.
            let tall = if count == 1 { 4 } else { 2 };
            let height = if r + tall <= rows.rows { tall } else { 1 };
            let mut c = 0;
            while c < count {
                let left = count - c;
                macro_rules! run {
                    ($r:literal, $c:literal) => {{
                        let mut w = [rows.start.cast::<T::Cell>(); $r];
                        for (i, w) in w.iter_mut().enumerate() {
                            *w = rows.start.add((r + i) * rows.step).cast();
                        }
                        let mut x = [columns; $c];
                        for (i, x) in x.iter_mut().enumerate() {
                            *x = columns.add((c + i) * column_step);
                        }
                        let values = tile::<S, T, $r, $c>(w, x, rows.width);
                        for (i, values) in values.iter().enumerate() {
                            for (j, v) in values.iter().enumerate() {
                                *out.add((c + j) * out_step + r + i) = scale * v;
                            }
                        }
                        c += $c;
                    }};
                }
                match (height, left) {
                    (4, _) => run!(4, 1),
                    (2, 1) => run!(2, 1),
                    (2, 2..) => run!(2, 2),
                    (_, 4..) => run!(1, 4),
                    _ => run!(1, 1),
                }
            }
            r += height;
        }
    }
}

/// `out[c] += sum_m weights[c][m] * rows[m]`, `m` ascending, from zero where `fresh`.
/// `weights` holds `count` rows `weight_step` apart.
#[inline(always)]
pub(super) unsafe fn weigh<S: Simd>(
    rows: &Matrix,
    weights: *const f32,
    weight_step: usize,
    count: usize,
    out: *mut f32,
    out_step: usize,
    fresh: bool,
) {
    // SAFETY: the caller's contract, passed on.
    unsafe {
        match rows.cell {
            Cell::F32 => weigh_of::<S, Single>(rows, weights, weight_step, count, out, out_step, fresh),
            Cell::F16 => weigh_of::<S, Half>(rows, weights, weight_step, count, out, out_step, fresh),
            Cell::BF16 => weigh_of::<S, Brain>(rows, weights, weight_step, count, out, out_step, fresh),
        }
    }
}

#[inline(always)]
unsafe fn weigh_of<S: Simd, T: Stored>(
    rows: &Matrix,
    weights: *const f32,
    weight_step: usize,
    count: usize,
    out: *mut f32,
    out_step: usize,
    fresh: bool,
) {
    // SAFETY: the caller's matrix holds `rows.rows` rows of `rows.width` values, `weights`
    // `count` rows of `rows.rows`, `out` `count` rows of `rows.width`; loops stay below.
    unsafe {
        let mut c = 0;
        while c < count {
            let many = count - c >= 4;
            let mut n = 0;
            while n < rows.width {
                let left = rows.width - n;
                macro_rules! run {
                    ($c:literal, $v:literal) => {{
                        block::<S, T, $c, $v>(
                            rows,
                            n,
                            weights.add(c * weight_step),
                            weight_step,
                            out.add(c * out_step + n),
                            out_step,
                            fresh,
                        );
                        n += $v * WIDTH;
                    }};
                }
                match (many, left / WIDTH) {
                    (true, 2..) => run!(4, 2),
                    (true, 1) => run!(4, 1),
                    (false, 8..) => run!(1, 8),
                    (false, 4..) => run!(1, 4),
                    (false, 1..) => run!(1, 1),
                    (_, 0) => {
                        for i in 0..if many { 4 } else { 1 } {
                            edge::<S, T>(
                                rows,
                                n,
                                weights.add((c + i) * weight_step),
                                out.add((c + i) * out_step + n),
                                fresh,
                            );
                        }
                        n = rows.width;
                    }
                }
            }
            c += if many { 4 } else { 1 };
        }
    }
}

#[inline(always)]
unsafe fn block<S: Simd, T: Stored, const C: usize, const V: usize>(
    rows: &Matrix,
    first: usize,
    weights: *const f32,
    weight_step: usize,
    out: *mut f32,
    out_step: usize,
    fresh: bool,
) {
    // SAFETY: as `weigh_of`, for `C` columns and `V` vectors from value `first` on.
    unsafe {
        let mut acc = [[S::splat(0.0); V]; C];
        if !fresh {
            for c in 0..C {
                for v in 0..V {
                    acc[c][v] = S::load(out.add(c * out_step + v * WIDTH));
                }
            }
        }
        let mut row = rows.start.cast::<T::Cell>().add(first);
        for m in 0..rows.rows {
            let mut x = [S::splat(0.0); V];
            for v in 0..V {
                x[v] = T::load::<S>(row.add(v * WIDTH));
            }
            for c in 0..C {
                let w = S::splat(*weights.add(c * weight_step + m));
                for v in 0..V {
                    acc[c][v] = S::add(acc[c][v], S::mul(w, x[v]));
                }
            }
            row = row.cast::<u8>().wrapping_add(rows.step).cast();
        }
        for c in 0..C {
            for v in 0..V {
                S::store(out.add(c * out_step + v * WIDTH), acc[c][v]);
            }
        }
    }
}

/// The last few values of a row.
#[inline(always)]
unsafe fn edge<S: Simd, T: Stored>(
    rows: &Matrix,
    first: usize,
    weights: *const f32,
    out: *mut f32,
    fresh: bool,
) {
    // SAFETY: as `weigh_of`, for one column and the values from `first` to the end.
    unsafe {
        let count = rows.width - first;
        let mut acc = if fresh { S::splat(0.0) } else { load_some::<S>(out, count) };
        for m in 0..rows.rows {
            let row = rows.start.add(m * rows.step).cast::<T::Cell>().add(first);
            let x = T::load_some::<S>(row, count);
            acc = S::add(acc, S::mul(S::splat(*weights.add(m)), x));
        }
        store_some::<S>(out, acc, count);
    }
}
