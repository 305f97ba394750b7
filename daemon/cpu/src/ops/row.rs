//! Ops that work row by row.

use super::Context;
use crate::memory::copy;
use tandem_program::scalar::{self, weight};
use tandem_program::{DType, DeviceError, Op, Tensor};

/// Runs any op that is not in a file of its own.
pub(super) fn run(ctx: &Context, op: &Op) -> Result<(), DeviceError> {
    match op {
        Op::Embed { table, ids, scale, out } => embed(ctx, table, ids, *scale, out),
        Op::RmsNorm { x, weight, eps, out } => {
            let (x, w, out) = (ctx.view(x)?, ctx.view(weight)?, ctx.view(out)?);
            let k = ctx.kernels.rms_norm;
            ctx.rows(out.rows, out.width, |r| {
                // SAFETY: validated; rows are split by `Context::rows`.
                unsafe { k(x.row(r), w.row(0), *eps, out.row(r), out.width) }
            });
            Ok(())
        }
        Op::L2Norm { x, groups, eps, scale, out } => {
            let (x, out) = (ctx.view(x)?, ctx.view(out)?);
            let (k, part) = (ctx.kernels.l2_norm, out.width / *groups as usize);
            ctx.rows(out.rows, out.width, |r| {
                for first in (0..out.width).step_by(part) {
                    // SAFETY: validated, the width is whole groups; rows are split by
                    // `Context::rows`.
                    unsafe { k(x.row(r).add(first), *eps, *scale, out.row(r).add(first), part) }
                }
            });
            Ok(())
        }
        Op::GatedNorm { x, z, weight, eps, out } => {
            let (x, z, out) = (ctx.view(x)?, ctx.view(z)?, ctx.view(out)?);
            let (k, w) = (ctx.kernels.gated_norm, ctx.view(weight)?);
            ctx.rows(out.rows, 2 * out.width, |r| {
                // SAFETY: validated; rows are split by `Context::rows`.
                unsafe { k(x.row(r), z.row(r), w.row(0), *eps, out.row(r), out.width) }
            });
            Ok(())
        }
        Op::SiluMul { gate, up, out } => zip(ctx, ctx.kernels.silu_mul, gate, up, out),
        Op::SigmoidMul { x, gate, out } => zip(ctx, ctx.kernels.sigmoid_mul, x, gate, out),
        Op::Add { a, b, out } => zip(ctx, ctx.kernels.add, a, b, out),
        Op::Rope { x, heads, table, out } => rope(ctx, x, *heads as usize, table, out),
        Op::Copy { x, out } => convert(ctx, x, out),
        Op::Gather { x, rows, out } => {
            let (x, out) = (ctx.view(x)?, ctx.view(out)?);
            ctx.rows(out.rows, out.width, |r| {
                let from = x.row(rows[r] as usize).cast_const();
                // SAFETY: validated, indices too; rows are split by `Context::rows`.
                unsafe { copy(from.cast(), out.row(r).cast(), out.width, 4) }
            });
            Ok(())
        }
        Op::DeltaGates { alpha, beta, a, dt, decay, beta_out } => {
            delta_gates(ctx, [alpha, beta, a, dt, decay, beta_out])
        }
        Op::MatMul { .. }
        | Op::SwiGlu { .. }
        | Op::Attention { .. }
        | Op::Conv { .. }
        | Op::GatedDelta { .. } => Ok(()),
    }
}

type Zip = unsafe fn(*const f32, *const f32, *mut f32, usize);

fn zip(ctx: &Context, k: Zip, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<(), DeviceError> {
    let (a, b, out) = (ctx.view(a)?, ctx.view(b)?, ctx.view(out)?);
    ctx.rows(out.rows, out.width, |r| {
        // SAFETY: validated; rows are split by `Context::rows`.
        unsafe { k(a.row(r), b.row(r), out.row(r), out.width) }
    });
    Ok(())
}

fn embed(ctx: &Context, table: &Tensor, ids: &[u32], scale: f32, out: &Tensor) -> Result<(), DeviceError> {
    let (table, out) = (ctx.view(table)?, ctx.view(out)?);
    let bytes = table.dtype.bytes_of(table.width as u64).unwrap_or(0) as usize;
    let k = ctx.kernels.scale;
    ctx.rows(out.rows, 4 * out.width, |r| {
        // SAFETY: validated, ids too; rows are split by `Context::rows`, and no output
        // overlaps the table.
        unsafe {
            let row = std::slice::from_raw_parts(table.row_bytes(ids[r] as usize), bytes);
            let to = std::slice::from_raw_parts_mut(out.row(r), out.width);
            weight::dequantize(table.dtype, row, to);
            k(out.row(r), scale, out.row(r), out.width);
        }
    });
    Ok(())
}

fn rope(ctx: &Context, x: &Tensor, heads: usize, table: &Tensor, out: &Tensor) -> Result<(), DeviceError> {
    let (x, table, out) = (ctx.view(x)?, ctx.view(table)?, ctx.view(out)?);
    let k = ctx.kernels.rope;
    ctx.rows(out.rows, out.width, |r| {
        let (from, to, turned) = (x.row(r), out.row(r), table.width);
        // SAFETY: validated; rows are split by `Context::rows`. The rest of the row is
        // copied only between different views, which do not overlap.
        unsafe {
            k(from, table.row(r / heads), turned / 2, to);
            if from != to {
                copy(from.add(turned).cast(), to.add(turned).cast(), out.width - turned, 4);
            }
        }
    });
    Ok(())
}

fn convert(ctx: &Context, x: &Tensor, out: &Tensor) -> Result<(), DeviceError> {
    let (x, out) = (ctx.view(x)?, ctx.view(out)?);
    let n = out.width;
    ctx.rows(out.rows, n, |r| {
        let (from, to) = (x.row_bytes(r).cast_const(), out.row_bytes(r));
        // SAFETY: validated, types and overlap too; rows are split by `Context::rows`.
        unsafe {
            match (x.dtype, out.dtype) {
                (DType::F32, DType::F16) => (ctx.kernels.to_f16)(from.cast(), to.cast(), n),
                (DType::F16, DType::F32) => (ctx.kernels.from_f16)(from.cast(), to.cast(), n),
                _ => copy(from, to, n, x.dtype.block_bytes()),
            }
        }
    });
    Ok(())
}

fn delta_gates(ctx: &Context, tensors: [&Tensor; 6]) -> Result<(), DeviceError> {
    let mut views = [ctx.view(tensors[0])?; 6];
    for (v, t) in views.iter_mut().zip(tensors) {
        *v = ctx.view(t)?;
    }
    let [alpha, beta, a, dt, decay, beta_out] = views;
    ctx.rows(alpha.rows, 16 * alpha.width, |r| {
        for h in 0..alpha.width {
            // SAFETY: validated; rows are split by `Context::rows`. All inputs of a value are
            // read before its outputs are written, which may be the same views.
            unsafe {
                let x = *alpha.row(r).add(h) + *dt.row(0).add(h);
                let g = *a.row(0).add(h) * scalar::softplus(x);
                let b = scalar::sigmoid(*beta.row(r).add(h));
                *decay.row(r).add(h) = g;
                *beta_out.row(r).add(h) = b;
            }
        }
    });
    Ok(())
}
