//! Products with weights: activations rounded once, weights unpacked once for a group of
//! columns, rows shared out over the pool.

use super::{Context, Scratch, scratch, tiles};
use crate::kernels::{Columns, RoundedOut, WIDTH};
use crate::memory::View;
use crate::repack::Groups;
use std::sync::Mutex;
use tandem_program::{Act, DType, DeviceError, Product, Tensor};

/// Columns that share an unpacked panel. 64 rounded columns of 3584 values are 224 KiB: they
/// stay in a core's own cache while the rows pass by.
pub(super) const COLUMNS: usize = 64;

/// Rows of an item at most: with many columns, and with a few, where an item is short work.
const TALL: usize = 32;
const TALLER: usize = 128;

/// Rounded activations of the op at hand, kept for their capacity.
#[derive(Default)]
pub(crate) struct Rounding {
    bytes: [Bytes; 2],
    floats: Vec<f32>,
}

#[derive(Default)]
struct Bytes {
    bytes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    starts: Vec<i32>,
    wide_sums: Vec<i32>,
}

impl Bytes {
    fn columns(&self, count: usize, width: usize) -> Columns {
        Columns {
            count,
            width,
            bytes: self.bytes.as_ptr(),
            scales: self.scales.as_ptr(),
            sums: self.sums.as_ptr(),
            starts: self.starts.as_ptr(),
            wide_sums: self.wide_sums.as_ptr(),
        }
    }
}

fn grow<T: Copy + Default>(v: &mut Vec<T>, n: usize) -> *mut T {
    if v.len() < n {
        v.resize(n, T::default());
    }
    v.as_mut_ptr()
}

/// Where a rounded column begins, for threads that each write their own.
#[derive(Clone, Copy)]
struct Rows<T>(*mut T, usize);

// SAFETY: an address and a step; the op splits columns between threads.
unsafe impl<T> Sync for Rows<T> {}

impl<T> Rows<T> {
    fn at(&self, r: usize) -> *mut T {
        self.0.wrapping_add(r * self.1)
    }
}

/// Rounded activations as an item sees them.
#[derive(Clone, Copy)]
pub(super) enum Rounded {
    /// First value and values from column to column.
    Floats(*const f32, usize),
    Bytes(Columns),
}

// SAFETY: addresses; items only read through them.
unsafe impl Sync for Rounded {}
// SAFETY: as above.
unsafe impl Send for Rounded {}

/// Rounds the columns of `x` as `act` says.
pub(super) fn round(ctx: &mut Context, x: &View, act: Act) -> Rounded {
    let (n, width) = (x.rows, x.width);
    let mut rounding = std::mem::take(&mut ctx.rounding);
    let rounded = match act {
        Act::F32 => Rounded::Floats(x.row_bytes(0).cast_const().cast(), x.stride()),
        // The same values: what follows differs.
        Act::F16 | Act::F16Tile => {
            let to = Rows(grow(&mut rounding.floats, n * width), width);
            let k = ctx.kernels.round_f16;
            ctx.rows(n, width, |c| {
                // SAFETY: `x` is validated, `to` has room for `n` columns, split by
                // `Context::rows`.
                unsafe { k(x.row(c), to.at(c), width) }
            });
            Rounded::Floats(to.0, width)
        }
        Act::Q8_32 | Act::Q8K_256 => {
            let narrow = act == Act::Q8_32;
            let b = &mut rounding.bytes[usize::from(narrow)];
            let (scales, sums, starts, wide) = steps(width, !narrow);
            let bytes = Rows(grow(&mut b.bytes, n * width), width);
            let scales = Rows(grow(&mut b.scales, n * scales), scales);
            let sums = Rows(grow(&mut b.sums, n * sums), sums);
            let starts = Rows(grow(&mut b.starts, n * starts), starts);
            let wide = Rows(grow(&mut b.wide_sums, n * wide), wide);
            let k = if narrow { ctx.kernels.round_32 } else { ctx.kernels.round_256 };
            ctx.rows(n, width, |c| {
                let out = RoundedOut {
                    bytes: bytes.at(c),
                    scales: scales.at(c),
                    sums: sums.at(c),
                    starts: starts.at(c),
                    wide_sums: wide.at(c),
                };
                // SAFETY: `x` is validated, the arrays have room for `n` columns, split by
                // `Context::rows`.
                unsafe { k(x.row(c), width, out) }
            });
            Rounded::Bytes(b.columns(n, width))
        }
    };
    ctx.rounding = rounding;
    rounded
}

/// Scales, sums, starts and wide sums of a rounded column.
fn steps(width: usize, wide: bool) -> (usize, usize, usize, usize) {
    if wide { (width / 256, 0, width / 16, width / 64) } else { (width / 32, width / 32, width / 32, 0) }
}

/// The columns `first .. first + count`.
fn columns_at(all: &Columns, first: usize, count: usize, wide: bool) -> Columns {
    let width = all.width;
    let (scales, sums, starts, wide_sums) = steps(width, wide);
    Columns {
        count,
        width,
        bytes: all.bytes.wrapping_add(first * width),
        scales: all.scales.wrapping_add(first * scales),
        sums: all.sums.wrapping_add(first * sums),
        starts: all.starts.wrapping_add(first * starts),
        wide_sums: all.wide_sums.wrapping_add(first * wide_sums),
    }
}

/// How a product is cut into items: row groups of one column group follow each other.
#[derive(Clone, Copy)]
struct Cut {
    outputs: usize,
    rows: usize,
    row_groups: usize,
    columns: usize,
    items: usize,
}

impl Cut {
    fn new(outputs: usize, columns: usize, threads: usize) -> Self {
        // Few columns: a dozen items a thread even out a busy core. Never below a panel.
        let even = outputs.div_ceil(12 * threads).next_multiple_of(WIDTH);
        let most = if columns <= WIDTH { TALLER } else { TALL };
        let rows = if threads == 1 { most } else { even.min(most) };
        let row_groups = outputs.div_ceil(rows);
        Cut { outputs, rows, row_groups, columns, items: row_groups * columns.div_ceil(COLUMNS) }
    }

    /// Rows and columns of an item, as first and count.
    fn at(&self, item: usize) -> (usize, usize, usize, usize) {
        let row = item % self.row_groups * self.rows;
        let column = item / self.row_groups * COLUMNS;
        (row, self.rows.min(self.outputs - row), column, COLUMNS.min(self.columns - column))
    }
}

/// One product, ready to run.
pub(super) struct Job<'a> {
    pub(super) weight: View,
    /// Its repacked rows, where there are and all rows are wanted.
    pub(super) groups: Option<Groups>,
    pub(super) rows: Option<&'a [u32]>,
    pub(super) x: Rounded,
}

impl Job<'_> {
    fn row(&self, r: usize) -> *const u8 {
        let r = self.rows.map_or(r, |rows| rows[r] as usize);
        self.weight.row_bytes(r)
    }

    /// Outputs `row .. row + WIDTH` for columns `column .. column + count`, a vector of
    /// [`WIDTH`] a column. `rows` counts those left in the item; where they are fewer than
    /// `WIDTH`, the last repeats.
    ///
    /// # Safety
    ///
    /// The weight is quantized, the program validated, the rows and columns exist.
    unsafe fn tile(
        &self,
        ctx: &Shared<'_>,
        scratch: &mut Scratch,
        (row, rows): (usize, usize),
        (column, count): (usize, usize),
        acc: &mut [[f32; WIDTH]; COLUMNS],
    ) {
        let Rounded::Bytes(columns) = &self.x else {
            return;
        };
        let dtype = self.weight.dtype;
        let wide = Act::for_weight(dtype) == Act::Q8K_256;
        let columns = columns_at(columns, column, count, wide);
        let acc = acc.as_mut_ptr().cast();
        if let Some(group) = self.groups.and_then(|groups| groups.at(row)) {
            let next = self.groups.and_then(|groups| groups.at(row + WIDTH)).unwrap_or(group);
            // SAFETY: the caller's contract; `acc` has room for `COLUMNS` columns.
            unsafe {
                (ctx.kernels.tile_repacked)(dtype, group, next, &columns, &mut scratch.panel, acc);
            }
            return;
        }
        let at: [*const u8; WIDTH] = std::array::from_fn(|i| self.row(row + i.min(rows - 1)));
        // Past the item's end too: another thread may run what follows, from a shared cache.
        let last = self.rows.map_or(self.weight.rows, <[u32]>::len) - 1;
        let next = std::array::from_fn(|i| self.row((row + WIDTH + i).min(last)));
        // SAFETY: the caller's contract; `acc` has room for `COLUMNS` columns.
        unsafe { (ctx.kernels.tile)(dtype, &at, &next, &columns, &mut scratch.panel, acc) }
    }

    /// Outputs `row ..` for columns `column ..` of a float weight, into rows of `out`
    /// `out_step` apart.
    ///
    /// # Safety
    ///
    /// The weight is of floats, the program validated, rows and columns exist, `out` has room.
    unsafe fn floats(
        &self,
        ctx: &Shared<'_>,
        (row, rows): (usize, usize),
        (column, count): (usize, usize),
        out: *mut f32,
        out_step: usize,
    ) {
        let Rounded::Floats(x, step) = self.x else {
            return;
        };
        let x = x.wrapping_add(column * step);
        let width = self.weight.width;
        // SAFETY: the caller's contract.
        unsafe {
            if self.rows.is_none() {
                let matrix = self.weight.matrix(row, rows, 0, width);
                (ctx.kernels.dots)(&matrix, x, step, count, 1.0, out, out_step);
                return;
            }
            for r in 0..rows {
                let mut matrix = self.weight.matrix(0, 1, 0, width);
                matrix.start = self.row(row + r);
                (ctx.kernels.dots)(&matrix, x, step, count, 1.0, out.add(r), out_step);
            }
        }
    }
}

/// What items share.
pub(super) struct Shared<'a> {
    pub(super) kernels: &'static crate::kernels::Kernels,
    pub(super) workers: &'a [Mutex<Scratch>],
}

/// Runs `MatMul`.
pub(super) fn matmul(ctx: &mut Context, x: &Tensor, products: &[Product]) -> Result<(), DeviceError> {
    let x = ctx.view(x)?;
    if x.rows == 0 {
        return Ok(());
    }
    let mut rounded: Vec<(Act, Rounded)> = Vec::new();
    let mut jobs = Vec::with_capacity(products.len());
    let mut items = 0;
    for p in products.iter().filter(|p| p.act != Act::F16Tile) {
        let act = p.act;
        let x_rounded = match rounded.iter().find(|(a, _)| *a == act) {
            Some((_, r)) => *r,
            None => {
                let r = round(ctx, &x, act);
                rounded.push((act, r));
                r
            }
        };
        let groups = if p.rows.is_none() { ctx.store.groups(&p.weight) } else { None };
        let weight = ctx.view(&p.weight)?;
        let job = Job { weight, groups, rows: p.rows.as_deref(), x: x_rounded };
        let out = ctx.view(&p.out)?;
        let cut = Cut::new(out.width, x.rows, ctx.pool.threads());
        jobs.push((items, job, out, cut));
        items += cut.items;
    }
    let shared = Shared { kernels: ctx.kernels, workers: &ctx.workers };
    ctx.pool.run(items, &|worker, item| {
        let after = jobs.partition_point(|(first, ..)| *first <= item);
        let (first, job, out, cut) = &jobs[after - 1];
        let (row, rows, column, count) = cut.at(item - first);
        // SAFETY: validated; `cut` gives each item rows and columns of its own, all existing.
        unsafe { product(&shared, worker, job, out, (row, rows), (column, count)) }
    });
    let mut tiled = products.iter().filter(|p| p.act == Act::F16Tile).peekable();
    if tiled.peek().is_some() { tiles::matmul(ctx, &x, tiled) } else { Ok(()) }
}

/// One item of a product.
///
/// # Safety
///
/// The program is validated, and no other item has these rows and columns of `out`.
unsafe fn product(
    shared: &Shared<'_>,
    worker: usize,
    job: &Job<'_>,
    out: &View,
    (row, rows): (usize, usize),
    (column, count): (usize, usize),
) {
    // SAFETY: the caller's contract.
    unsafe {
        if !job.weight.dtype.is_quantized() {
            let to = out.row(column).wrapping_add(row);
            job.floats(shared, (row, rows), (column, count), to, out.stride());
            return;
        }
        let mut scratch = scratch(shared.workers, worker);
        let mut acc = [[0.0f32; WIDTH]; COLUMNS];
        for r in (0..rows).step_by(WIDTH) {
            let here = WIDTH.min(rows - r);
            job.tile(shared, &mut scratch, (row + r, rows - r), (column, count), &mut acc);
            for (c, values) in acc[..count].iter().enumerate() {
                let to = out.row(column + c).add(row + r);
                put(values, to, here);
            }
        }
    }
}

/// Outputs `row .. row + WIDTH` for columns `column ..`, a vector a column, of any weight; `rows`
/// counts those left in the item.
///
/// # Safety
///
/// The program is validated, the rows and columns exist.
pub(super) unsafe fn tile_of_job(
    job: &Job<'_>,
    shared: &Shared<'_>,
    scratch: &mut Scratch,
    (row, rows): (usize, usize),
    columns: (usize, usize),
    acc: &mut [[f32; WIDTH]; COLUMNS],
) {
    // SAFETY: the caller's contract; `acc` has room for a vector a column.
    unsafe {
        if job.weight.dtype.is_quantized() {
            job.tile(shared, scratch, (row, rows), columns, acc);
        } else {
            job.floats(shared, (row, rows.min(WIDTH)), columns, acc.as_mut_ptr().cast(), WIDTH);
        }
    }
}

/// Stores the first `n` of a tile's values for one column.
///
/// # Safety
///
/// `to` is valid for `n` values, at most [`WIDTH`].
pub(super) unsafe fn put(values: &[f32; WIDTH], to: *mut f32, n: usize) {
    // SAFETY: the caller's contract. The whole vector is one store, the rest a call.
    unsafe {
        if n == WIDTH {
            to.cast::<[f32; WIDTH]>().write_unaligned(*values);
        } else {
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, n);
        }
    }
}

/// Runs `SwiGlu`: both tiles, then the activation, then one store.
pub(super) fn swiglu(
    ctx: &mut Context,
    x: &Tensor,
    [gate, up]: [&Tensor; 2],
    acts: [Act; 2],
    out: &Tensor,
) -> Result<(), DeviceError> {
    let (x, out) = (ctx.view(x)?, ctx.view(out)?);
    if x.rows == 0 {
        return Ok(());
    }
    if acts.contains(&Act::F16Tile) {
        return tiles::swiglu(ctx, &x, [gate, up], acts, &out);
    }
    let first = round(ctx, &x, acts[0]);
    let second = if acts[1] == acts[0] { first } else { round(ctx, &x, acts[1]) };
    let jobs = [
        Job { weight: ctx.view(gate)?, groups: ctx.store.groups(gate), rows: None, x: first },
        Job { weight: ctx.view(up)?, groups: ctx.store.groups(up), rows: None, x: second },
    ];
    let cut = Cut::new(out.width, x.rows, ctx.pool.threads());
    let shared = Shared { kernels: ctx.kernels, workers: &ctx.workers };
    ctx.pool.run(cut.items, &|worker, item| {
        let (row, rows, column, count) = cut.at(item);
        let mut scratch = scratch(shared.workers, worker);
        let mut acc = [[[0.0f32; WIDTH]; COLUMNS]; 2];
        for r in (0..rows).step_by(WIDTH) {
            let here = WIDTH.min(rows - r);
            // SAFETY: validated; `cut` gives each item rows and columns of its own, all
            // existing; `acc` has room for a vector a column.
            unsafe {
                for (job, acc) in jobs.iter().zip(&mut acc) {
                    let columns = (column, count);
                    tile_of_job(job, &shared, &mut scratch, (row + r, rows - r), columns, acc);
                }
                let [g, u] = &mut acc;
                let g: *mut f32 = g.as_mut_ptr().cast();
                (shared.kernels.silu_mul)(g, u.as_ptr().cast(), g, count * WIDTH);
                for c in 0..count {
                    let to = out.row(column + c).add(row + r);
                    put(&acc[0][c], to, here);
                }
            }
        }
    });
    Ok(())
}

// `tile` reads whole vectors of rows, so a panel's lanes and a block's rows must agree.
const _: () = assert!(TALL.is_multiple_of(WIDTH) && DType::Q4_0.block_len() == 32);
