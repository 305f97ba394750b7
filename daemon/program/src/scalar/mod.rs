//! The meaning of every op, one row, head or chunk at a time, in plain scalar Rust.
//!
//! Fast kernels sit elsewhere and are tested against these functions; a portable device may
//! call them. Rounding: every multiplication, addition, division and square root is an IEEE
//! single operation of its own. Sums: [`dot`] and [`sum`] keep sixteen partial sums (element
//! `i` goes to partial `i % 16`, in ascending order) and fold them in halves; everything else
//! adds in ascending order.

pub mod attention;
pub mod conv;
pub mod delta;
pub mod float;
pub mod norm;
pub mod quant;
pub mod weight;

pub use float::{exp, sigmoid, silu, softplus};

/// Partial sums of [`dot`] and [`sum`].
pub const LANES: usize = 16;

/// Folds sixteen partial sums: 8 with 8, 4 with 4, 2 with 2, 1 with 1.
pub fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Inner product of two rows of equal length.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut lanes = [0.0f32; LANES];
    let (a_whole, a_rest) = a.as_chunks::<LANES>();
    let (b_whole, b_rest) = b.as_chunks::<LANES>();
    for (x, y) in a_whole.iter().zip(b_whole) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    for (i, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] += x * y;
    }
    fold(lanes)
}

/// Sum of a row.
pub fn sum(a: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = a.as_chunks::<LANES>();
    for x in whole {
        for i in 0..LANES {
            lanes[i] += x[i];
        }
    }
    for (i, x) in rest.iter().enumerate() {
        lanes[i] += x;
    }
    fold(lanes)
}

/// `out += factor * x`.
pub fn axpy(out: &mut [f32], factor: f32, x: &[f32]) {
    for (o, v) in out.iter_mut().zip(x) {
        *o += factor * v;
    }
}
