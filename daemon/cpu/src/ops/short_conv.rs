//! The causal convolution: an item is a block of channels, all its columns at once.

use super::{Context, scratch};
use crate::kernels::Convolution;
use crate::memory::copy;
use tandem_program::{DeviceError, Op};

/// Channels of an item: its kernel and one input row of each tap stay in the first cache.
const CHANNELS: usize = 256;

/// Input rows in order of time.
struct Inputs(Vec<*const f32>);

// SAFETY: addresses; items only read through them.
unsafe impl Sync for Inputs {}

impl Inputs {
    fn start(&self) -> *const *const f32 {
        self.0.as_ptr()
    }

    fn row(&self, row: usize) -> *const f32 {
        self.0[row]
    }
}

/// Runs `Conv`.
pub(super) fn conv(ctx: &Context, op: &Op) -> Result<(), DeviceError> {
    let Op::Conv { x, state, kernel, bias, silu, out, states } = op else {
        return Ok(());
    };
    let (x, state, kernel) = (ctx.view(x)?, ctx.view(state)?, ctx.view(kernel)?);
    let (out, bias) = (ctx.view(out)?, bias.map(|b| ctx.view(&b)).transpose()?);
    let (columns, channels, taps) = (x.rows, x.width, kernel.width);
    let inputs = Inputs(
        (0..taps - 1)
            .map(|r| state.row(r).cast_const())
            .chain((0..columns).map(|r| x.row(r).cast_const()))
            .collect(),
    );
    let mut kept = Vec::with_capacity(states.len());
    for s in states {
        kept.push((s.after as usize, ctx.view(&s.to)?));
    }
    let kernels = ctx.kernels;
    let workers = &ctx.workers;
    let item = |worker: usize, item: usize| {
        let first = item * CHANNELS;
        let count = CHANNELS.min(channels - first);
        let mut scratch = scratch(workers, worker);
        let turned = scratch.floats(taps * count);
        // SAFETY: validated; items have channels of their own.
        unsafe {
            for c in 0..count {
                let row = kernel.row(first + c);
                for j in 0..taps {
                    turned[j * count + c] = *row.add(j);
                }
            }
            if columns > 0 {
                (kernels.conv)(&Convolution {
                    inputs: inputs.start(),
                    first,
                    columns,
                    taps,
                    kernel: turned.as_ptr(),
                    bias: bias.map_or(std::ptr::null(), |b| b.row(0).add(first)),
                    silu: *silu,
                    channels: count,
                    out: out.row(0).add(first),
                    out_step: out.stride(),
                });
            }
            for (after, to) in &kept {
                for r in 0..taps - 1 {
                    // `after` is a column, so the rows exist; `to` overlaps no input.
                    let from = inputs.row(after + 1 + r).add(first);
                    copy(from.cast(), to.row(r).add(first).cast(), count, 4);
                }
            }
        }
    };
    let items = channels.div_ceil(CHANNELS);
    if columns * channels * taps < super::SMALL {
        (0..items).for_each(|i| item(0, i));
    } else {
        ctx.pool.run(items, &item);
    }
    Ok(())
}
