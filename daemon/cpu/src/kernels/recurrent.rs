//! Kernels of the recurrent ops: the short convolution and the gated delta rule.

use super::elementary::{exp, load_some, silu, store_some};
use super::float::{Cell, Matrix, weigh};
use super::simd::{Simd, WIDTH};

/// A block of channels of the convolution.
#[derive(Clone, Copy)]
pub(crate) struct Convolution {
    /// `columns + taps - 1` input rows, oldest first, each at the block's first channel.
    pub(crate) inputs: *const *const f32,
    /// First channel of the block, added to each input row.
    pub(crate) first: usize,
    pub(crate) columns: usize,
    pub(crate) taps: usize,
    /// `[taps x channels]`: the kernel's block, taps outermost.
    pub(crate) kernel: *const f32,
    /// Null where there is none.
    pub(crate) bias: *const f32,
    pub(crate) silu: bool,
    pub(crate) channels: usize,
    pub(crate) out: *mut f32,
    /// Values from a column's output row to the next.
    pub(crate) out_step: usize,
}

/// `scalar::conv::tap` for every column and channel of the block.
#[inline(always)]
pub(super) unsafe fn conv<S: Simd>(block: &Convolution) {
    // SAFETY: the caller's block describes rows that hold its channels.
    unsafe {
        for t in 0..block.columns {
            let out = block.out.add(t * block.out_step);
            let mut c = 0;
            while c < block.channels {
                let count = WIDTH.min(block.channels - c);
                let mut y =
                    if block.bias.is_null() { S::splat(0.0) } else { some::<S>(block.bias.add(c), count) };
                for j in 0..block.taps {
                    let x = (*block.inputs.add(t + j)).add(block.first + c);
                    let w = some::<S>(block.kernel.add(j * block.channels + c), count);
                    y = S::add(y, S::mul(w, some::<S>(x, count)));
                }
                if block.silu {
                    y = silu::<S>(y);
                }
                if count == WIDTH {
                    S::store(out.add(c), y);
                } else {
                    store_some::<S>(out.add(c), y, count);
                }
                c += WIDTH;
            }
        }
    }
}

#[inline(always)]
unsafe fn some<S: Simd>(p: *const f32, count: usize) -> S::F {
    // SAFETY: the caller's pointer is valid for `count <= WIDTH` floats.
    unsafe { if count == WIDTH { S::load(p) } else { load_some::<S>(p, count) } }
}

/// One column of one head in the per-token form.
#[derive(Clone, Copy)]
pub(crate) struct DeltaToken {
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) q: *const f32,
    pub(crate) k: *const f32,
    pub(crate) v: *const f32,
    pub(crate) decay: f32,
    pub(crate) beta: f32,
    /// State before; rows `from_step` values apart.
    pub(crate) from: *const f32,
    pub(crate) from_step: usize,
    /// State after, perhaps the same memory as `from`. Null where it is only streamed.
    pub(crate) to: *mut f32,
    pub(crate) to_step: usize,
    /// State after once more, past the caches ([`Simd::stream`]); null where it is not wanted.
    /// Rows begin at multiples of 32 bytes, and `value_dim` is a multiple of 32.
    pub(crate) streamed: *mut f32,
    pub(crate) streamed_step: usize,
    /// Scratch of `value_dim` values.
    pub(crate) d: *mut f32,
    pub(crate) out: *mut f32,
}

/// `scalar::delta::token`. Each state value is read before it is written, in ascending rows.
#[inline(always)]
pub(super) unsafe fn delta_token<S: Simd>(t: &DeltaToken) {
    // SAFETY: the caller's rows have the sizes that `DeltaToken` states.
    unsafe {
        let e = tandem_program::scalar::exp(t.decay);
        let state = Matrix {
            start: t.from.cast(),
            step: t.from_step * 4,
            cell: Cell::F32,
            rows: t.key_dim,
            width: t.value_dim,
        };
        weigh::<S>(&state, t.k, 0, 1, t.d, 0, true);
        let mut n = 0;
        while n < t.value_dim {
            let count = WIDTH.min(t.value_dim - n);
            let u = S::mul(S::splat(e), some::<S>(t.d.add(n), count));
            let d = S::mul(S::splat(t.beta), S::sub(some::<S>(t.v.add(n), count), u));
            if count == WIDTH {
                S::store(t.d.add(n), d);
            } else {
                store_some::<S>(t.d.add(n), d, count);
            }
            n += WIDTH;
        }
        let mut n = 0;
        while n < t.value_dim {
            match (t.value_dim - n) / WIDTH {
                4.. => {
                    match (t.to.is_null(), t.streamed.is_null()) {
                        (false, true) => advance::<S, 4, true, false>(t, e, n),
                        (false, false) => advance::<S, 4, true, true>(t, e, n),
                        (true, _) => advance::<S, 4, false, true>(t, e, n),
                    }
                    n += 4 * WIDTH;
                }
                1.. => {
                    advance::<S, 1, true, false>(t, e, n);
                    n += WIDTH;
                }
                0 => {
                    let count = t.value_dim - n;
                    let d = load_some::<S>(t.d.add(n), count);
                    let mut acc = S::splat(0.0);
                    for m in 0..t.key_dim {
                        let s = load_some::<S>(t.from.add(m * t.from_step + n), count);
                        let s = S::add(S::mul(S::splat(e), s), S::mul(S::splat(*t.k.add(m)), d));
                        store_some::<S>(t.to.add(m * t.to_step + n), s, count);
                        acc = S::add(acc, S::mul(S::splat(*t.q.add(m)), s));
                    }
                    store_some::<S>(t.out.add(n), acc, count);
                    n = t.value_dim;
                }
            }
        }
    }
}

/// `S = e S + k d^T` and `out = S^T q` for `V` vectors of values.
#[inline(always)]
unsafe fn advance<S: Simd, const V: usize, const STORED: bool, const STREAMED: bool>(
    t: &DeltaToken,
    e: f32,
    n: usize,
) {
    // SAFETY: as `delta_token`; the `V` vectors from `n` on lie in the rows.
    unsafe {
        let e = S::splat(e);
        let mut acc = [S::splat(0.0); V];
        let mut d = [S::splat(0.0); V];
        for (v, d) in d.iter_mut().enumerate() {
            *d = S::load(t.d.add(n + v * WIDTH));
        }
        for m in 0..t.key_dim {
            let from = t.from.add(m * t.from_step + n);
            let to = t.to.wrapping_add(m * t.to_step + n);
            let streamed = t.streamed.wrapping_add(m * t.streamed_step + n);
            let (k, q) = (S::splat(*t.k.add(m)), S::splat(*t.q.add(m)));
            for v in 0..V {
                let s = S::add(S::mul(e, S::load(from.add(v * WIDTH))), S::mul(k, d[v]));
                if STORED {
                    S::store(to.add(v * WIDTH), s);
                }
                if STREAMED {
                    S::stream(streamed.add(v * WIDTH), s);
                }
                acc[v] = S::add(acc[v], S::mul(q, s));
            }
        }
        for (v, acc) in acc.into_iter().enumerate() {
            S::store(t.out.add(n + v * WIDTH), acc);
        }
    }
}

/// `out[j] = exp(gamma - gammas[j]) * dots[j]`.
#[inline(always)]
pub(super) unsafe fn fade<S: Simd>(
    gamma: f32,
    gammas: *const f32,
    dots: *const f32,
    out: *mut f32,
    n: usize,
) {
    // SAFETY: the caller's rows hold `n` values.
    unsafe {
        let mut i = 0;
        while i < n {
            let count = WIDTH.min(n - i);
            let e = exp::<S>(S::sub(S::splat(gamma), some::<S>(gammas.add(i), count)));
            let w = S::mul(e, some::<S>(dots.add(i), count));
            if count == WIDTH {
                S::store(out.add(i), w);
            } else {
                store_some::<S>(out.add(i), w, count);
            }
            i += WIDTH;
        }
    }
}

/// `out = beta * (v - a)`.
#[inline(always)]
pub(super) unsafe fn correct<S: Simd>(beta: f32, v: *const f32, a: *const f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's rows hold `n` values.
    unsafe {
        let mut i = 0;
        while i < n {
            let count = WIDTH.min(n - i);
            let (v, a) = (some::<S>(v.add(i), count), some::<S>(a.add(i), count));
            let d = S::mul(S::splat(beta), S::sub(v, a));
            if count == WIDTH {
                S::store(out.add(i), d);
            } else {
                store_some::<S>(out.add(i), d, count);
            }
            i += WIDTH;
        }
    }
}
