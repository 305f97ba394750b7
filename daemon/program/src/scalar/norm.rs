//! Row normalisations.

use super::{dot, silu};

/// `out = (x * s) * weight` with `s = 1 / sqrt(dot(x, x) / width + eps)`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let s = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = (v * s) * w;
    }
}

/// `out = x * s` with `s = scale / sqrt(dot(x, x) + eps)`.
pub fn l2_norm(x: &[f32], eps: f32, scale: f32, out: &mut [f32]) {
    let s = scale / (dot(x, x) + eps).sqrt();
    for (o, v) in out.iter_mut().zip(x) {
        *o = v * s;
    }
}

/// `out = rms_norm(x, weight) * silu(z)`.
pub fn gated_norm(x: &[f32], z: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let s = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for (((o, v), w), z) in out.iter_mut().zip(x).zip(weight).zip(z) {
        *o = ((v * s) * w) * silu(*z);
    }
}

/// NEOX pairs `(x[i], x[i + half])` turned by angle `i`; the rest copied.
/// `table` holds `half` cosines, then `half` sines.
pub fn rope(x: &[f32], table: &[f32], out: &mut [f32]) {
    let half = table.len() / 2;
    let (cos, sin) = table.split_at(half);
    for i in 0..half {
        out[i] = x[i] * cos[i] - x[i + half] * sin[i];
        out[i + half] = x[i] * sin[i] + x[i + half] * cos[i];
    }
    out[2 * half..].copy_from_slice(&x[2 * half..]);
}
