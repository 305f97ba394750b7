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

/// Blocks of 32 (ggml's Q8_0): `d = max|x| / 127`, `q = round_half_even(x * (1 / d))`, all 0
/// where the block is 0; the stored scale is `d` rounded to f16. Rows are whole blocks.
/// Values that are not finite give unspecified bytes, never a fault.
pub fn q8_32(x: &[f32], out: &mut Q8) {
    out.q.clear();
    out.d.clear();
    out.sums.clear();
    for block in x.chunks_exact(32) {
        let top = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let d = top / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut total = 0i32;
        for v in block {
            let q = (v * inverse).round_ties_even() as i8;
            total += i32::from(q);
            out.q.push(q);
        }
        out.d.push(f16::from_f32(d).to_f32());
        out.sums.push(total);
    }
}

/// Blocks of 256 (ggml's Q8_K): with `m` the value of largest magnitude (the first such),
/// `s = -127 / m`, `q = min(127, round_half_even(x * s))`, scale `1 / s` in f32; sums over 16.
pub fn q8k_256(x: &[f32], out: &mut Q8) {
    out.q.clear();
    out.d.clear();
    out.sums.clear();
    for block in x.chunks_exact(256) {
        let mut top = 0.0f32;
        for v in block {
            if v.abs() > top.abs() {
                top = *v;
            }
        }
        if top == 0.0 {
            out.q.extend_from_slice(&[0; 256]);
            out.sums.extend_from_slice(&[0; 16]);
            out.d.push(0.0);
            continue;
        }
        let s = -127.0 / top;
        for group in block.chunks_exact(16) {
            let mut total = 0i32;
            for v in group {
                let q = (v * s).round_ties_even().min(127.0) as i8;
                total += i32::from(q);
                out.q.push(q);
            }
            out.sums.push(total);
        }
        out.d.push(1.0 / s);
    }
}

/// To half and back, nearest even.
pub fn round_f16(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}
