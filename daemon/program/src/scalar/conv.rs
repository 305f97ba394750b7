//! Causal depthwise convolution.

use super::silu;

/// One output: `act(bias + sum_j kernel[j] * inputs[j])`, taps in ascending order (oldest
/// input first), the bias as the sum's first term.
pub fn tap(kernel: &[f32], inputs: impl Iterator<Item = f32>, bias: f32, activate: bool) -> f32 {
    let mut y = bias;
    for (w, x) in kernel.iter().zip(inputs) {
        y += w * x;
    }
    if activate { silu(y) } else { y }
}
