//! Attention of one query head over the cells it sees.

use super::{axpy, dot, exp, sum};

/// `out = sum_j softmax(scale * q.k_j) v_j` over the cells of `k` and `v`.
///
/// Scores `scale * dot(q, k_j)`; their maximum `m`; weights `exp(score - m)`; their
/// [`sum`]; values added in ascending cell order; one division at the end. `scores` is
/// scratch of one value a cell.
pub fn attend<'a>(
    q: &[f32],
    k: impl Iterator<Item = &'a [f32]>,
    v: impl Iterator<Item = &'a [f32]>,
    scale: f32,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    scores.clear();
    scores.extend(k.map(|k| scale * dot(q, k)));
    let m = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for s in scores.iter_mut() {
        *s = exp(*s - m);
    }
    let total = sum(scores);
    out.fill(0.0);
    for (p, v) in scores.iter().zip(v) {
        axpy(out, *p, v);
    }
    for o in out.iter_mut() {
        *o /= total;
    }
}
