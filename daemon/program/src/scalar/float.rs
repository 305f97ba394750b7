//! Elementary functions, spelled out so that every device and C library agrees.

/// `e^x`: argument reduction by a two-part ln 2, then the degree-6 polynomial of Cephes
/// `expf` (S. Moshier). Relative error below 2e-7. Arguments are clamped to
/// `[-87.33, 88.37]`, so the result is always a normal number.
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(EXP_MIN, EXP_MAX);
    let n = (x * std::f32::consts::LOG2_E + 0.5).floor();
    let r = (x - n * EXP_C1) - n * EXP_C2;
    let mut p = EXP_P[0];
    for c in &EXP_P[1..] {
        p = p * r + c;
    }
    let y = (p * (r * r) + r) + 1.0;
    y * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// Smallest argument of [`exp`] that is not clamped.
pub const EXP_MIN: f32 = -87.33;
/// Largest argument of [`exp`] that is not clamped.
pub const EXP_MAX: f32 = 88.37;
/// High part of ln 2, exact in few bits.
pub const EXP_C1: f32 = 0.693_359_4;
/// ln 2 minus the high part.
pub const EXP_C2: f32 = -2.121_944_4e-4;
/// Polynomial coefficients, highest degree first.
pub const EXP_P: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.000_000_3e-1];

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`, computed as `x / (1 + e^-x)`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + e^x)`; `x` itself above 20, where they agree to single precision.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1pf(exp(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_stays_within_two_ulps_of_double_precision() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let want = f64::from(x).exp();
            let got = f64::from(exp(x));
            assert!(((got - want) / want).abs() < 2.4e-7, "exp({x}) = {got}, want {want}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn extremes_are_finite() {
        for x in [f32::NEG_INFINITY, -1e30, -100.0, 100.0, 1e30, f32::INFINITY] {
            assert!(exp(x).is_finite());
            assert!(sigmoid(x).is_finite());
        }
        assert_eq!(softplus(50.0), 50.0);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
    }
}
