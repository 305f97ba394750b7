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

/// `x / d` to the nearest integer, ties to even, 0 where `d` is 0. Kept within -127 to 127:
/// where `d` is subnormal and coarse the quotient can be larger, and byte products count on
/// -128 never coming up. Values that are not finite give unspecified bytes, never a fault.
fn to_byte(x: f32, d: f32) -> i8 {
    if d == 0.0 { 0 } else { (x / d).round_ties_even().clamp(-127.0, 127.0) as i8 }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest subnormals: `d` rounds to one unit and the quotient to 190.
    #[test]
    fn bytes_of_subnormal_blocks_stay_within_127() {
        let x = [-190.0 * f32::from_bits(1); 256];
        let mut out = Q8::default();
        q8_32(&x, &mut out);
        assert!(out.q.iter().all(|q| *q == -127), "{:?}", out.q);
        q8k_256(&x, &mut out);
        assert!(out.q.iter().all(|q| *q == -127), "{:?}", out.q);
    }
}
