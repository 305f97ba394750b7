//! Products in half-precision tiles ([`Act::F16Tile`]): an item takes some rows of a weight and all
//! columns, so that every weight is unpacked once.

use super::product::{COLUMNS, Job, Rounded, Shared, put, round, tile_of_job};
use super::{Context, scratch};
use crate::kernels::{PANEL_ROWS, WIDTH, deinterleave};
use crate::memory::View;
use tandem_program::scalar::weight::dequantize;
use tandem_program::{Act, DeviceError, Product, Tensor};

/// Values along the width that are unpacked at once: whole blocks of every type. A panel of them
/// is 16 KiB and stays near while the columns pass by.
const DEPTH: usize = 256;
const PANEL: usize = DEPTH * PANEL_ROWS;

/// The f16 values of rows `row ..`, `depth` of them from `first` on, laid side by side; zeros
/// where there is no row. `values` is room for a row.
///
/// # Safety
///
/// The program is validated; `first` begins a block, and `depth` values of the row are whole
/// blocks from there on, at most [`DEPTH`].
unsafe fn unpack(
    shared: &Shared<'_>,
    job: &Job<'_>,
    row: usize,
    (first, depth): (usize, usize),
    values: &mut [f32],
    panel: &mut [f32],
) {
    let dtype = job.weight.dtype;
    let bytes = |n: usize| n / dtype.block_len() * dtype.block_bytes();
    let mut block = [0u8; 8 * 34];
    for lane in 0..PANEL_ROWS {
        let r = row + lane;
        if r >= job.weight.rows {
            panel.iter_mut().skip(lane).step_by(PANEL_ROWS).for_each(|v| *v = 0.0);
            continue;
        }
        let values = &mut values[..depth];
        // SAFETY: the caller's contract: these bytes are the row's, or its group's.
        unsafe {
            match job.groups.and_then(|groups| groups.at(r / WIDTH * WIDTH)) {
                // The pages of the weight as stored may have been let go of.
                Some(group) => {
                    let group = group.add(WIDTH * bytes(first));
                    let group = std::slice::from_raw_parts(group, WIDTH * bytes(depth));
                    let block = &mut block[..bytes(depth)];
                    deinterleave(dtype, group, r % WIDTH, block);
                    dequantize(dtype, block, values);
                }
                None => {
                    let start = job.weight.row_bytes(r).add(bytes(first));
                    dequantize(dtype, std::slice::from_raw_parts(start, bytes(depth)), values);
                }
            }
            (shared.kernels.round_f16)(values.as_ptr(), values.as_mut_ptr(), depth);
        }
        for (value, to) in values.iter().zip(panel.iter_mut().skip(lane).step_by(PANEL_ROWS)) {
            *to = *value;
        }
    }
}

/// Outputs `row .. row + PANEL_ROWS` for all `columns` columns, [`PANEL_ROWS`] a column. `room` is
/// for a panel and a row.
///
/// # Safety
///
/// The program is validated, and the first row exists.
unsafe fn tile(
    shared: &Shared<'_>,
    job: &Job<'_>,
    row: usize,
    columns: usize,
    room: &mut [f32],
    sums: &mut [f32],
) {
    let Rounded::Floats(x, step) = job.x else {
        return;
    };
    let (panel, values) = room.split_at_mut(PANEL);
    sums.fill(0.0);
    for first in (0..job.weight.width).step_by(DEPTH) {
        let depth = DEPTH.min(job.weight.width - first);
        // SAFETY: the caller's contract; blocks divide `DEPTH`, the slices have room for
        // `PANEL_ROWS` values of `columns` columns and `DEPTH` of a panel and a row.
        unsafe {
            unpack(shared, job, row, (first, depth), values, panel);
            let x = x.add(first);
            (shared.kernels.add_panel)(panel.as_ptr(), depth, x, step, columns, sums.as_mut_ptr());
        }
    }
    // SAFETY: the slice's own length.
    unsafe { (shared.kernels.round_f16)(sums.as_ptr(), sums.as_mut_ptr(), sums.len()) };
}

/// Stores the sums of an item.
///
/// # Safety
///
/// `out` is validated and its rows `row ..` are the caller's alone.
unsafe fn put_all(sums: &[f32], out: &View, row: usize) {
    let rows = PANEL_ROWS.min(out.width - row);
    for (c, sums) in sums.chunks_exact(PANEL_ROWS).enumerate() {
        for (i, values) in sums.as_chunks::<WIDTH>().0.iter().enumerate() {
            if i * WIDTH < rows {
                // SAFETY: the caller's contract; at most the rows that are left.
                unsafe { put(values, out.row(c).add(row + i * WIDTH), WIDTH.min(rows - i * WIDTH)) };
            }
        }
    }
}

/// The products of a `MatMul` that are in tiles.
pub(super) fn matmul<'a>(
    ctx: &mut Context,
    x: &View,
    products: impl Iterator<Item = &'a Product>,
) -> Result<(), DeviceError> {
    let rounded = round(ctx, x, Act::F16Tile);
    let mut jobs = Vec::new();
    let mut items = 0;
    for p in products {
        let groups = ctx.store.groups(&p.weight);
        let job = Job { weight: ctx.view(&p.weight)?, groups, rows: None, x: rounded };
        jobs.push((items, job, ctx.view(&p.out)?));
        items += p.weight.rows.div_ceil(PANEL_ROWS as u32) as usize;
    }
    let shared = Shared { kernels: ctx.kernels, workers: &ctx.workers };
    let columns = x.rows;
    ctx.pool.run(items, &|worker, item| {
        let after = jobs.partition_point(|(first, ..)| *first <= item);
        let (first, job, out) = &jobs[after - 1];
        let row = (item - first) * PANEL_ROWS;
        let mut scratch = scratch(shared.workers, worker);
        let (room, sums) = scratch.floats(PANEL + DEPTH + columns * PANEL_ROWS).split_at_mut(PANEL + DEPTH);
        // SAFETY: validated; an item's rows are its own, and exist.
        unsafe {
            tile(&shared, job, row, columns, room, sums);
            put_all(sums, out, row);
        }
    });
    Ok(())
}

/// A `SwiGlu` of which at least one product is in tiles.
pub(super) fn swiglu(
    ctx: &mut Context,
    x: &View,
    weights: [&Tensor; 2],
    acts: [Act; 2],
    out: &View,
) -> Result<(), DeviceError> {
    let tiled = acts.map(|act| act == Act::F16Tile);
    let first = round(ctx, x, acts[0]);
    let second = if acts[1] == acts[0] { first } else { round(ctx, x, acts[1]) };
    let job = |weight: &Tensor, x| -> Result<Job<'_>, DeviceError> {
        Ok(Job { weight: ctx.view(weight)?, groups: ctx.store.groups(weight), rows: None, x })
    };
    let jobs = [job(weights[0], first)?, job(weights[1], second)?];
    let shared = Shared { kernels: ctx.kernels, workers: &ctx.workers };
    let columns = x.rows;
    ctx.pool.run(out.width.div_ceil(PANEL_ROWS), &|worker, item| {
        let row = item * PANEL_ROWS;
        let mut scratch = scratch(shared.workers, worker);
        let size = columns * PANEL_ROWS;
        scratch.floats(PANEL + DEPTH + 2 * size);
        // Apart, for a product that is not in tiles needs the rest of the scratch meanwhile.
        let mut taken = std::mem::take(&mut scratch.floats);
        let (room, sums) = taken.split_at_mut(PANEL + DEPTH);
        let (gate, up) = sums[..2 * size].split_at_mut(size);
        // SAFETY: validated; an item's rows are its own, and exist; the slices have room for
        // `PANEL_ROWS` values a column.
        unsafe {
            for (i, sums) in [&mut *gate, &mut *up].into_iter().enumerate() {
                if tiled[i] {
                    tile(&shared, &jobs[i], row, columns, room, sums);
                    continue;
                }
                for r in (0..PANEL_ROWS.min(out.width - row)).step_by(WIDTH) {
                    let rows = out.width - row - r;
                    for first in (0..columns).step_by(COLUMNS) {
                        let count = COLUMNS.min(columns - first);
                        let mut values = [[0.0f32; WIDTH]; COLUMNS];
                        let at = (row + r, rows.min(PANEL_ROWS - r));
                        tile_of_job(&jobs[i], &shared, &mut scratch, at, (first, count), &mut values);
                        for (c, values) in values[..count].iter().enumerate() {
                            sums[(first + c) * PANEL_ROWS + r..][..WIDTH].copy_from_slice(values);
                        }
                    }
                }
            }
            (shared.kernels.silu_mul)(gate.as_ptr(), up.as_ptr(), gate.as_mut_ptr(), size);
            put_all(gate, out, row);
        }
        scratch.floats = taken;
    });
    Ok(())
}
