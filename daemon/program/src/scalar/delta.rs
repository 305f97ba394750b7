//! The gated delta rule of one value head (Gated DeltaNet), in both its forms.
//!
//! State `S [key_dim x value_dim]`, row-major. For column `t` with log decay `g`:
//!
//! ```text
//! S = exp(g) S;   d = beta (v - S^T k);   S = S + k d^T;   o = S^T q
//! ```
//!
//! The chunked form solves the same recurrence for up to 64 columns from one state `S0`. With
//! `G_i` the running sum of `g` in the chunk:
//!
//! ```text
//! d_i = beta_i (v_i - exp(G_i) S0^T k_i - sum_{j<i} exp(G_i - G_j) (k_i.k_j) d_j)
//! o_i = exp(G_i) S0^T q_i + sum_{j<=i} exp(G_i - G_j) (q_i.k_j) d_j
//! S_p = exp(G_p) S0 + sum_{j<=p} exp(G_p - G_j) k_j d_j^T
//! ```
//!
//! The solve is causal: `d_i` and `o_i` need nothing after column `i`, so a state in the
//! middle of a chunk is one more product with what is already there ([`chunk_state`]), and
//! changes nothing else.

use super::{axpy, dot, exp};

/// Columns of one head, each a slice: key, query `[key_dim]`, value `[value_dim]`.
#[derive(Clone, Copy)]
pub struct Column<'a> {
    /// Query.
    pub q: &'a [f32],
    /// Key.
    pub k: &'a [f32],
    /// Value.
    pub v: &'a [f32],
    /// Log decay.
    pub g: f32,
    /// Step size, 0 to 1.
    pub beta: f32,
}

/// `out[n] = sum_m k[m] * s[m][n]`, `m` ascending.
fn transpose_mul(s: &[f32], k: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    let width = out.len();
    for (row, k) in s.chunks_exact(width).zip(k) {
        axpy(out, *k, row);
    }
}

/// One column in the per-token form; `s` becomes the state after it.
///
/// Order: `u = S^T k`; `d = beta * (v - e * u)` with `e = exp(g)`;
/// `S[m][n] = e * S[m][n] + k[m] * d[n]`; `out = S^T q`.
pub fn token(s: &mut [f32], c: Column<'_>, d: &mut [f32], out: &mut [f32]) {
    let width = out.len();
    let e = exp(c.g);
    transpose_mul(s, c.k, d);
    for (d, v) in d.iter_mut().zip(c.v) {
        *d = c.beta * (v - e * *d);
    }
    for (row, k) in s.chunks_exact_mut(width).zip(c.k) {
        for (s, d) in row.iter_mut().zip(d.iter()) {
            *s = e * *s + k * d;
        }
    }
    transpose_mul(s, c.q, out);
}

/// What a chunk leaves behind for [`chunk_state`].
pub struct Chunk {
    /// Running sums of the log decays.
    pub gamma: Vec<f32>,
    /// `[columns x value_dim]`.
    pub d: Vec<f32>,
}

/// The columns of one chunk from state `s0`; `out [columns x value_dim]`.
///
/// Order for column `i`: `a = exp(G_i) * (S0^T k_i)`, then `a += (exp(G_i - G_j) * dot(k_i, k_j)) * d_j`
/// for `j` ascending, `d_i = beta_i * (v_i - a)`; the output alike with `q_i`, `j <= i`.
pub fn chunk(s0: &[f32], columns: &[Column<'_>], out: &mut [f32]) -> Chunk {
    let width = columns.first().map_or(0, |c| c.v.len());
    let mut gamma = Vec::with_capacity(columns.len());
    let mut g = 0.0f32;
    for c in columns {
        g += c.g;
        gamma.push(g);
    }
    let mut d = vec![0.0f32; columns.len() * width];
    let mut acc = vec![0.0f32; width];
    for (i, c) in columns.iter().enumerate() {
        let e = exp(gamma[i]);
        let (before, rest) = d.split_at_mut(i * width);
        let d_i = &mut rest[..width];
        transpose_mul(s0, c.k, &mut acc);
        acc.iter_mut().for_each(|a| *a *= e);
        for (j, d_j) in before.chunks_exact(width).enumerate() {
            axpy(&mut acc, exp(gamma[i] - gamma[j]) * dot(c.k, columns[j].k), d_j);
        }
        for ((d, v), a) in d_i.iter_mut().zip(c.v).zip(&acc) {
            *d = c.beta * (v - a);
        }
        let o = &mut out[i * width..(i + 1) * width];
        transpose_mul(s0, c.q, o);
        o.iter_mut().for_each(|o| *o *= e);
        for (j, d_j) in d[..(i + 1) * width].chunks_exact(width).enumerate() {
            axpy(o, exp(gamma[i] - gamma[j]) * dot(c.q, columns[j].k), d_j);
        }
    }
    Chunk { gamma, d }
}

/// The state after column `p` of a chunk that started from `s0`.
///
/// Order: `S[m][n] = exp(G_p) * S0[m][n]`, then `+= (exp(G_p - G_j) * k_j[m]) * d_j[n]` for
/// `j` ascending.
pub fn chunk_state(s0: &[f32], columns: &[Column<'_>], chunk: &Chunk, p: usize, out: &mut [f32]) {
    let width = columns[p].v.len();
    let e = exp(chunk.gamma[p]);
    for (o, s) in out.iter_mut().zip(s0) {
        *o = e * s;
    }
    for j in 0..=p {
        let w = exp(chunk.gamma[p] - chunk.gamma[j]);
        let d_j = &chunk.d[j * width..(j + 1) * width];
        for (row, k) in out.chunks_exact_mut(width).zip(columns[j].k) {
            axpy(row, w * k, d_j);
        }
    }
}

/// Length of the chunk that starts at absolute `position` with `left` columns to go: it ends
/// on a multiple of [`crate::op::CHUNK`] or with the columns.
pub fn chunk_len(position: u32, left: u32) -> u32 {
    (crate::op::CHUNK - position % crate::op::CHUNK).min(left)
}
