//! The gated delta rule: an item is one value head, all its columns.

use super::{Context, scratch};
use crate::kernels::{Cell, DeltaToken, Kernels, Matrix, settle};
use crate::memory::{View, copy};
use tandem_program::op::CHUNK;
use tandem_program::scalar::{self, delta};
use tandem_program::{DeltaForm, DeviceError, Op};

/// Runs `GatedDelta`.
pub(super) fn gated_delta(ctx: &Context, op: &Op) -> Result<(), DeviceError> {
    let Op::GatedDelta { form, q, k, v, decay, beta, heads, key_heads, state, out, states } = op else {
        return Ok(());
    };
    let (heads, key_heads) = (*heads as usize, *key_heads as usize);
    let (q, k, v) = (ctx.view(q)?, ctx.view(k)?, ctx.view(v)?);
    let mut saves = Vec::with_capacity(states.len());
    for s in states {
        saves.push((s.after as usize, ctx.view(&s.to)?));
    }
    let rule = Rule {
        kernels: ctx.kernels,
        columns: q.rows,
        key_dim: q.width / key_heads,
        value_dim: v.width / heads,
        key_heads,
        q,
        k,
        v,
        decay: ctx.view(decay)?,
        beta: ctx.view(beta)?,
        state: ctx.view(state)?,
        out: ctx.view(out)?,
        saves,
    };
    let streams = rule.streams(heads);
    let workers = &ctx.workers;
    let item = |worker: usize, head: usize| {
        let mut scratch = scratch(workers, worker);
        // SAFETY: validated; an item has a head of its own in every output.
        unsafe {
            match form {
                DeltaForm::PerToken => {
                    let floats = scratch.floats(rule.key_dim * SLICE + SLICE);
                    rule.per_token(head, streams, floats);
                }
                DeltaForm::Chunked { position } => {
                    let floats = scratch.floats(rule.chunk_scratch());
                    rule.chunked(head, *position, floats);
                }
            }
        }
    };
    if rule.columns * heads * rule.key_dim * rule.value_dim < super::SMALL {
        (0..heads).for_each(|head| item(0, head));
    } else {
        ctx.pool.run(heads, &item);
    }
    Ok(())
}

/// Values of a state's rows that a slice of the per-token form has: with 128 keys, 16 KiB.
const SLICE: usize = 32;

/// Bytes of an op's state from which on states are written past the caches: the weights that
/// pass by until the next token leave nothing of them there, and reading what is overwritten
/// would be a third of the traffic.
const LARGE: usize = 256 * 1024;

struct Rule {
    kernels: &'static Kernels,
    columns: usize,
    key_dim: usize,
    value_dim: usize,
    key_heads: usize,
    q: View,
    k: View,
    v: View,
    decay: View,
    beta: View,
    state: View,
    out: View,
    /// Column and where its state goes.
    saves: Vec<(usize, View)>,
}

/// A head's state in memory: address and values from row to row.
#[derive(Clone, Copy)]
struct State(*mut f32, usize);

const NOWHERE: State = State(std::ptr::null_mut(), 0);

impl Rule {
    fn q(&self, t: usize, head: usize) -> *mut f32 {
        let skip = head % self.key_heads * self.key_dim;
        self.q.row(t).wrapping_add(skip)
    }

    fn k(&self, t: usize, head: usize) -> *mut f32 {
        let skip = head % self.key_heads * self.key_dim;
        self.k.row(t).wrapping_add(skip)
    }

    fn v(&self, t: usize, head: usize) -> *mut f32 {
        self.v.row(t).wrapping_add(head * self.value_dim)
    }

    fn out(&self, t: usize, head: usize) -> *mut f32 {
        self.out.row(t).wrapping_add(head * self.value_dim)
    }

    fn head(&self, view: &View, head: usize) -> State {
        State(view.row(head * self.key_dim), view.stride())
    }

    /// Whether what the per-token form keeps goes past the caches.
    fn streams(&self, heads: usize) -> bool {
        let apart = |(_, to): &(usize, View)| {
            to.row(0).addr().is_multiple_of(32) && (to.stride() * size_of::<f32>()).is_multiple_of(32)
        };
        let bytes = heads * self.key_dim * self.value_dim * size_of::<f32>();
        bytes >= LARGE && self.value_dim.is_multiple_of(SLICE) && self.saves.iter().all(apart)
    }

    /// A state's values are independent of each other across the value dimension, so a slice goes
    /// through all columns before the next: between columns it stays in the core's first cache.
    ///
    /// # Safety
    ///
    /// The program is validated and no other thread has this head.
    unsafe fn per_token(&self, head: usize, streams: bool, scratch: &mut [f32]) {
        let (own, d) = scratch.split_at_mut(self.key_dim * SLICE);
        let own = State(own.as_mut_ptr(), SLICE);
        for first in (0..self.value_dim).step_by(SLICE) {
            let width = SLICE.min(self.value_dim - first);
            let slice = |state: State| State(state.0.wrapping_add(first), state.1);
            let mut from = slice(self.head(&self.state, head));
            for t in 0..self.columns {
                let mut saves = self.saves.iter().filter(|(after, _)| *after == t);
                let kept = saves.next().map(|(_, to)| slice(self.head(to, head)));
                // Past the caches, the next column would wait for it. Else a state that is kept
                // anyway is computed in its place and read from there.
                let (to, streamed) = match kept {
                    Some(kept) if streams => (own, kept),
                    Some(kept) => (kept, NOWHERE),
                    None => (own, NOWHERE),
                };
                let last = streams && t + 1 == self.columns && kept.is_some();
                // SAFETY: the caller's contract; column `t` exists. What is streamed is apart as the kernel
                // asks, or `streams` would be false; only then `to` may be null. `to` is scratch or a state
                // output, which overlaps no input; where it is `from`, the kernel allows it.
                unsafe {
                    (self.kernels.delta_token)(&DeltaToken {
                        key_dim: self.key_dim,
                        value_dim: width,
                        q: self.q(t, head),
                        k: self.k(t, head),
                        v: self.v(t, head).add(first),
                        decay: *self.decay.row(t).add(head),
                        beta: *self.beta.row(t).add(head),
                        from: from.0,
                        from_step: from.1,
                        to: if last { std::ptr::null_mut() } else { to.0 },
                        to_step: to.1,
                        streamed: streamed.0,
                        streamed_step: streamed.1,
                        d: d.as_mut_ptr(),
                        out: self.out(t, head).add(first),
                    });
                    for (_, again) in saves {
                        if streams {
                            settle();
                        }
                        self.copy_state(kept.unwrap_or(to), slice(self.head(again, head)), width);
                    }
                }
                from = to;
            }
        }
        if streams {
            settle();
        }
    }

    /// # Safety
    ///
    /// Both are `width` values a row of states of this rule and do not overlap.
    unsafe fn copy_state(&self, from: State, to: State, width: usize) {
        for m in 0..self.key_dim {
            // SAFETY: the caller's contract.
            unsafe {
                let (from, to) = (from.0.add(m * from.1), to.0.add(m * to.1));
                copy(from.cast(), to.cast(), width, 4);
            }
        }
    }

    fn chunk_scratch(&self) -> usize {
        let chunk = CHUNK as usize;
        // Two states, d, weighted keys, and a row of gammas, dots and weights.
        2 * self.key_dim * self.value_dim + chunk * (self.value_dim + self.key_dim) + 3 * chunk
    }

    /// # Safety
    ///
    /// The program is validated, no other thread has this head, `scratch` holds
    /// [`Rule::chunk_scratch`] values.
    unsafe fn chunked(&self, head: usize, position: u32, scratch: &mut [f32]) {
        let size = self.key_dim * self.value_dim;
        let (first_own, rest) = scratch.split_at_mut(size);
        let (second_own, rest) = rest.split_at_mut(size);
        let own = [first_own, second_own].map(|s| State(s.as_mut_ptr(), self.value_dim));
        let mut from = self.head(&self.state, head);
        let (mut first, mut turn) = (0, 0);
        while first < self.columns {
            let left = (self.columns - first) as u32;
            let len = delta::chunk_len(position + first as u32, left) as usize;
            // SAFETY: the caller's contract; the chunk's columns exist; `to` is scratch or a
            // state output and never `from`.
            unsafe {
                let mut chunk = Chunk::new(self, head, first, len, from, rest);
                chunk.solve();
                for (after, to) in &self.saves {
                    if (first..first + len).contains(after) {
                        chunk.state(after - first, self.head(to, head));
                    }
                }
                if first + len < self.columns {
                    chunk.state(len - 1, own[turn]);
                    from = own[turn];
                    turn = 1 - turn;
                }
            }
            first += len;
        }
    }
}

/// One chunk of one head; see `scalar::delta` for the formulas and their order.
struct Chunk<'a> {
    rule: &'a Rule,
    head: usize,
    first: usize,
    len: usize,
    from: State,
    /// `[len x value_dim]`.
    d: *mut f32,
    /// `[key_dim x len]`.
    keys: *mut f32,
    gamma: *mut f32,
    dots: *mut f32,
    weights: *mut f32,
}

impl<'a> Chunk<'a> {
    /// # Safety
    ///
    /// The columns exist; `scratch` holds what [`Rule::chunk_scratch`] counts besides states.
    unsafe fn new(
        rule: &'a Rule,
        head: usize,
        first: usize,
        len: usize,
        from: State,
        scratch: &mut [f32],
    ) -> Self {
        let chunk = CHUNK as usize;
        let (d, rest) = scratch.split_at_mut(chunk * rule.value_dim);
        let (keys, rest) = rest.split_at_mut(chunk * rule.key_dim);
        let (gamma, rest) = rest.split_at_mut(chunk);
        let (dots, rest) = rest.split_at_mut(chunk);
        let weights = rest;
        let mut g = 0.0f32;
        for (i, gamma) in gamma[..len].iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            g += unsafe { *rule.decay.row(first + i).add(head) };
            *gamma = g;
        }
        Chunk {
            rule,
            head,
            first,
            len,
            from,
            d: d.as_mut_ptr(),
            keys: keys.as_mut_ptr(),
            gamma: gamma.as_mut_ptr(),
            dots: dots.as_mut_ptr(),
            weights: weights.as_mut_ptr(),
        }
    }

    fn matrix(&self, start: *mut f32, step: usize, rows: usize, width: usize) -> Matrix {
        Matrix {
            start: start.cast_const().cast(),
            step: step * size_of::<f32>(),
            cell: Cell::F32,
            rows,
            width,
        }
    }

    /// `exp(G_i) S0^T x_i` for every column's `x`, into rows of `out`.
    unsafe fn decayed_state(&self, x: *const f32, x_step: usize, out: *mut f32, out_step: usize) {
        let rule = self.rule;
        let (keys, values) = (rule.key_dim, rule.value_dim);
        let state = self.matrix(self.from.0, self.from.1, keys, values);
        // SAFETY: `x` and `out` hold `len` rows.
        unsafe {
            (rule.kernels.weigh)(&state, x, x_step, self.len, out, out_step, true);
            for i in 0..self.len {
                let row = out.add(i * out_step);
                let e = scalar::exp(*self.gamma.add(i));
                (rule.kernels.scale)(row, e, row, values);
            }
        }
    }

    /// `out += sum_{j < count} exp(G_i - G_j) (x . k_j) d_j`.
    unsafe fn within(&self, i: usize, x: *const f32, count: usize, out: *mut f32) {
        let rule = self.rule;
        let keys = self.matrix(rule.k(self.first, self.head), rule.k.stride(), count, rule.key_dim);
        let d = self.matrix(self.d, rule.value_dim, count, rule.value_dim);
        // SAFETY: the chunk's first `count` columns exist and have their `d`.
        unsafe {
            (rule.kernels.dots)(&keys, x, 0, 1, 1.0, self.dots, 0);
            let g = *self.gamma.add(i);
            (rule.kernels.fade)(g, self.gamma, self.dots, self.weights, count);
            (rule.kernels.weigh)(&d, self.weights, 0, 1, out, 0, false);
        }
    }

    /// Every column's `d` and output.
    unsafe fn solve(&mut self) {
        let rule = self.rule;
        let (first, head, width) = (self.first, self.head, rule.value_dim);
        // SAFETY: the chunk's columns exist; `d` has a row for each; outputs are this head's.
        unsafe {
            self.decayed_state(rule.k(first, head), rule.k.stride(), self.d, width);
            self.decayed_state(
                rule.q(first, head),
                rule.q.stride(),
                rule.out(first, head),
                rule.out.stride(),
            );
            for i in 0..self.len {
                let t = first + i;
                let d = self.d.add(i * width);
                self.within(i, rule.k(t, head), i, d);
                let beta = *rule.beta.row(t).add(head);
                (rule.kernels.correct)(beta, rule.v(t, head), d, d, width);
                self.within(i, rule.q(t, head), i + 1, rule.out(t, head));
            }
        }
    }

    /// The state after the chunk's column `p`.
    unsafe fn state(&self, p: usize, to: State) {
        let rule = self.rule;
        let (keys, width) = (rule.key_dim, rule.value_dim);
        let count = p + 1;
        // SAFETY: as `solve`; `to` is a state that nothing else reads now.
        unsafe {
            let g = *self.gamma.add(p);
            let e = scalar::exp(g);
            for j in 0..count {
                let w = scalar::exp(g - *self.gamma.add(j));
                let k = rule.k(self.first + j, self.head);
                for m in 0..keys {
                    *self.keys.add(m * count + j) = w * *k.add(m);
                }
            }
            for m in 0..keys {
                let (from, to) = (self.from.0.add(m * self.from.1), to.0.add(m * to.1));
                (rule.kernels.scale)(from, e, to, width);
            }
            let d = self.matrix(self.d, width, count, width);
            (rule.kernels.weigh)(&d, self.keys, count, keys, to.0, to.1, false);
        }
    }
}
