//! Causal attention: an item is one column of one KV head, all its query heads at once.

use super::{Context, scratch};
use tandem_program::{DeviceError, Op};

/// Runs `Attention`.
pub(super) fn attention(ctx: &Context, op: &Op) -> Result<(), DeviceError> {
    let Op::Attention { q, k, v, heads, kv_heads, past, scale, out } = op else {
        return Ok(());
    };
    let (q, k, v, out) = (ctx.view(q)?, ctx.view(k)?, ctx.view(v)?, ctx.view(out)?);
    let (heads, kv_heads, past) = (*heads as usize, *kv_heads as usize, *past as usize);
    let (columns, group, dim) = (q.rows / heads, heads / kv_heads, q.width);
    let kernels = ctx.kernels;
    let workers = &ctx.workers;
    let item = |worker: usize, item: usize| {
        // The last columns see the most cells; they go first, so that none is left alone.
        let (column, kv_head) = (columns - 1 - item / kv_heads, item % kv_heads);
        let visible = past + column + 1;
        let first = column * heads + kv_head * group;
        let keys = k.matrix(0, visible, kv_head * dim, dim);
        let values = v.matrix(0, visible, kv_head * dim, dim);
        let mut scratch = scratch(workers, worker);
        let scores = scratch.floats(group * visible);
        let (to, step) = (out.row(first), out.stride());
        // SAFETY: validated: `visible` cells and the group's rows exist. An item writes its
        // own column and heads only.
        unsafe {
            let s = scores.as_mut_ptr();
            (kernels.dots)(&keys, q.row(first), q.stride(), group, *scale, s, visible);
            let mut totals = [0.0f32; 64];
            for from in (0..group).step_by(totals.len()) {
                let part = totals.len().min(group - from);
                for (i, total) in totals[..part].iter_mut().enumerate() {
                    *total = (kernels.softmax)(s.add((from + i) * visible), visible);
                }
                let (s, to) = (s.add(from * visible), to.add(from * step));
                (kernels.weigh)(&values, s, visible, part, to, step, true);
                for (i, total) in totals[..part].iter().enumerate() {
                    let row = to.add(i * step);
                    (kernels.divide)(row, *total, row, dim);
                }
            }
        }
    };
    let items = columns * kv_heads;
    if heads * columns * (past + columns) * dim < super::SMALL {
        (0..items).for_each(|i| item(0, i));
    } else {
        ctx.pool.run(items, &item);
    }
    Ok(())
}
