//! Activation rounding: what a product does to its input row first.

use half::f16;

/// A row rounded to blocks of signed bytes.
#[derive(Clone, Debug, Default)]
pub struct Q8 {
    /// One signed byte a value.
    pub q: Vec<i8>,
    /// One scale a block (32 or 256 values).
    pub d: Vec<f32>,
    /// Sums of `q` over 32 values ([`q8_32`]) or 16 values ([`q8k_256`]).
    pub sums: Vec<i32>,
}

/// `x / d` to the nearest signed byte, ties to even; 0 where `d` is 0. Values that are not
/// finite give unspecified bytes, never a fault.
fn to_byte(x: f32, d: f32) -> i8 {
    if d == 0.0 { 0 } else { (x / d).round_ties_even() as i8 }
}

fn largest(block: &[f32]) -> f32 {
    block.iter().fold(0.0f32, |m, v| m.max(v.abs()))
}

/// Blocks of 32: `d = max|x| / 127`, `q = round_half_even(x / d)`; the stored scale is `d`
/// rounded to f16 (ggml's Q8_0). Rows are whole blocks.
pub fn q8_32(x: &[f32], out: &mut Q8) {
    out.q.clear();
    out.d.clear();
    out.sums.clear();
    for block in x.chunks_exact(32) {
        let d = largest(block) / 127.0;
        let first = out.q.len();
        out.q.extend(block.iter().map(|v| to_byte(*v, d)));
        out.sums.push(out.q[first..].iter().map(|q| i32::from(*q)).sum());
        out.d.push(f16::from_f32(d).to_f32());
    }
}

/// Blocks of 256: as [`q8_32`], but the scale stays f32 and the sums are over 16 (the
/// precision of ggml's Q8_K).
pub fn q8k_256(x: &[f32], out: &mut Q8) {
    out.q.clear();
    out.d.clear();
    out.sums.clear();
    for block in x.chunks_exact(256) {
        let d = largest(block) / 127.0;
        for group in block.chunks_exact(16) {
            let first = out.q.len();
            out.q.extend(group.iter().map(|v| to_byte(*v, d)));
            out.sums.push(out.q[first..].iter().map(|q| i32::from(*q)).sum());
        }
        out.d.push(d);
    }
}

/// To half and back, nearest even.
pub fn round_f16(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}
