//! Weight rows: the values of each block format, and the product of a row with a rounded
//! activation row.
//!
//! Quantized products are exact in integers inside a block; across blocks, in ascending
//! order, `acc += (d_weight * d_act) * float(isum)`, and for formats with minima a second
//! step, `acc -= (m_weight * d_act) * float(msum)` (`+=` for `Q4_1`).

use super::quant::{Q8, q8_32, q8k_256, round_f16};
use super::{LANES, fold};
use crate::op::Act;
use crate::tensor::DType;
use half::{bf16, f16};

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The 6-bit scale and minimum of sub-block `j` (0 to 7) of a `Q4_K` or `Q5_K` block.
pub fn scale_min_k4(j: usize, scales: &[u8]) -> (u8, u8) {
    if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        ((scales[j + 4] & 15) | ((scales[j - 4] >> 6) << 4), (scales[j + 4] >> 4) | ((scales[j] >> 6) << 4))
    }
}

/// The integers of one block of 32, offset already subtracted where the format has one.
pub fn unpack_32(dtype: DType, block: &[u8], q: &mut [i8; 32]) {
    match dtype {
        DType::Q8_0 => {
            for (q, b) in q.iter_mut().zip(&block[2..34]) {
                *q = *b as i8;
            }
        }
        DType::Q4_0 | DType::Q4_1 => {
            let (start, offset) = if dtype == DType::Q4_0 { (2, 8) } else { (4, 0) };
            for (i, b) in block[start..start + 16].iter().enumerate() {
                q[i] = (b & 15) as i8 - offset;
                q[i + 16] = (b >> 4) as i8 - offset;
            }
        }
        DType::Q5_0 => {
            let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            for (i, b) in block[6..22].iter().enumerate() {
                q[i] = ((b & 15) | (((high >> i) & 1) << 4) as u8) as i8 - 16;
                q[i + 16] = ((b >> 4) | (((high >> (i + 16)) & 1) << 4) as u8) as i8 - 16;
            }
        }
        _ => unreachable!("{dtype} has no blocks of 32"),
    }
}

/// The integers of one block of 256, unsigned for `Q4_K` and `Q5_K`, less 32 for `Q6_K`.
pub fn unpack_256(dtype: DType, block: &[u8], q: &mut [i8; 256]) {
    match dtype {
        DType::Q4_K => {
            for (g, bytes) in block[16..144].chunks_exact(32).enumerate() {
                for (i, b) in bytes.iter().enumerate() {
                    q[g * 64 + i] = (b & 15) as i8;
                    q[g * 64 + 32 + i] = (b >> 4) as i8;
                }
            }
        }
        DType::Q5_K => {
            let high = &block[16..48];
            for (g, bytes) in block[48..176].chunks_exact(32).enumerate() {
                for (i, b) in bytes.iter().enumerate() {
                    let low_bit = (high[i] >> (2 * g)) & 1;
                    let high_bit = (high[i] >> (2 * g + 1)) & 1;
                    q[g * 64 + i] = ((b & 15) | (low_bit << 4)) as i8;
                    q[g * 64 + 32 + i] = ((b >> 4) | (high_bit << 4)) as i8;
                }
            }
        }
        DType::Q6_K => {
            for n in 0..2 {
                let low = &block[n * 64..n * 64 + 64];
                let high = &block[128 + n * 32..128 + n * 32 + 32];
                let q = &mut q[n * 128..n * 128 + 128];
                for i in 0..32 {
                    q[i] = ((low[i] & 15) | ((high[i] & 3) << 4)) as i8 - 32;
                    q[i + 32] = ((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4)) as i8 - 32;
                    q[i + 64] = ((low[i] >> 4) | (((high[i] >> 4) & 3) << 4)) as i8 - 32;
                    q[i + 96] = ((low[i + 32] >> 4) | ((high[i] >> 6) << 4)) as i8 - 32;
                }
            }
        }
        _ => unreachable!("{dtype} has no blocks of 256"),
    }
}

/// The values of a row. `row` holds exactly `out.len()` values in `dtype`.
pub fn dequantize(dtype: DType, row: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (o, b) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        DType::F16 => {
            for (o, b) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *o = f16::from_le_bytes(*b).to_f32();
            }
        }
        DType::BF16 => {
            for (o, b) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *o = bf16::from_le_bytes(*b).to_f32();
            }
        }
        DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 => {
            let mut q = [0i8; 32];
            for (block, out) in row.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(32)) {
                unpack_32(dtype, block, &mut q);
                let d = half_at(block, 0);
                let m = if dtype == DType::Q4_1 { half_at(block, 2) } else { 0.0 };
                for (o, q) in out.iter_mut().zip(&q) {
                    *o = d * f32::from(*q) + m;
                }
            }
        }
        DType::Q4_K | DType::Q5_K => {
            let mut q = [0i8; 256];
            for (block, out) in row.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(256)) {
                unpack_256(dtype, block, &mut q);
                let (d, dmin) = (half_at(block, 0), half_at(block, 2));
                for j in 0..8 {
                    let (scale, min) = scale_min_k4(j, &block[4..16]);
                    let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
                    for i in j * 32..j * 32 + 32 {
                        out[i] = d * f32::from(q[i]) - m;
                    }
                }
            }
        }
        DType::Q6_K => {
            let mut q = [0i8; 256];
            for (block, out) in row.chunks_exact(210).zip(out.chunks_exact_mut(256)) {
                unpack_256(dtype, block, &mut q);
                let d = half_at(block, 208);
                for i in 0..256 {
                    out[i] = d * f32::from(block[192 + i / 16] as i8) * f32::from(q[i]);
                }
            }
        }
    }
}

/// An activation row as a product sees it.
#[derive(Clone, Debug, Default)]
pub struct Rounded {
    /// For [`Act::F32`], [`Act::F16`] and [`Act::F16Tile`].
    pub floats: Vec<f32>,
    /// For the integer forms.
    pub bytes: Q8,
}

/// Rounds an activation row.
pub fn round(act: Act, x: &[f32], out: &mut Rounded) {
    match act {
        Act::F32 => {
            out.floats.clear();
            out.floats.extend_from_slice(x);
        }
        Act::F16 | Act::F16Tile => {
            out.floats.clear();
            out.floats.extend(x.iter().map(|v| round_f16(*v)));
        }
        Act::Q8_32 => q8_32(x, &mut out.bytes),
        Act::Q8K_256 => q8k_256(x, &mut out.bytes),
    }
}

fn dot_float(dtype: DType, row: &[u8], x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let bytes = dtype.block_bytes();
    let mut w = [0.0f32; LANES];
    for (row, x) in row.chunks(LANES * bytes).zip(x.chunks(LANES)) {
        dequantize(dtype, row, &mut w[..x.len()]);
        for i in 0..x.len() {
            lanes[i] += x[i] * w[i];
        }
    }
    fold(lanes)
}

fn dot_bytes(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

fn dot_32(dtype: DType, row: &[u8], x: &Q8) -> f32 {
    let mut acc = 0.0f32;
    let mut q = [0i8; 32];
    for (b, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
        unpack_32(dtype, block, &mut q);
        let isum = dot_bytes(&q, &x.q[b * 32..b * 32 + 32]);
        acc += (half_at(block, 0) * x.d[b]) * isum as f32;
        if dtype == DType::Q4_1 {
            acc += (half_at(block, 2) * x.d[b]) * x.sums[b] as f32;
        }
    }
    acc
}

fn dot_256(dtype: DType, row: &[u8], x: &Q8) -> f32 {
    let mut acc = 0.0f32;
    let mut q = [0i8; 256];
    for (b, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
        unpack_256(dtype, block, &mut q);
        let xq = &x.q[b * 256..b * 256 + 256];
        if dtype == DType::Q6_K {
            let mut isum = 0i32;
            for j in 0..16 {
                isum += i32::from(block[192 + j] as i8)
                    * dot_bytes(&q[j * 16..j * 16 + 16], &xq[j * 16..j * 16 + 16]);
            }
            acc += (half_at(block, 208) * x.d[b]) * isum as f32;
            continue;
        }
        let (mut isum, mut msum) = (0i32, 0i32);
        for j in 0..8 {
            let (scale, min) = scale_min_k4(j, &block[4..16]);
            isum += i32::from(scale) * dot_bytes(&q[j * 32..j * 32 + 32], &xq[j * 32..j * 32 + 32]);
            msum += i32::from(min) * (x.sums[b * 16 + 2 * j] + x.sums[b * 16 + 2 * j + 1]);
        }
        acc += (half_at(block, 0) * x.d[b]) * isum as f32;
        acc -= (half_at(block, 2) * x.d[b]) * msum as f32;
    }
    acc
}

/// Product of a weight row with an activation row rounded by [`Act::F16Tile`]: weights to half,
/// exact products added in single precision in ascending order, the sum to half. No padding
/// changes it: zeros add +0, and a sum that starts at +0 is never -0.
pub fn dot_tile(dtype: DType, row: &[u8], x: &[f32]) -> f32 {
    const SOME: usize = 256;
    let bytes = SOME / dtype.block_len() * dtype.block_bytes();
    let mut sum = 0.0f32;
    let mut w = [0.0f32; SOME];
    for (row, x) in row.chunks(bytes).zip(x.chunks(SOME)) {
        dequantize(dtype, row, &mut w[..x.len()]);
        for (x, w) in x.iter().zip(&w) {
            sum += x * round_f16(*w);
        }
    }
    round_f16(sum)
}

/// Product of a weight row with an activation row rounded by `act`, which is
/// [`Act::for_weight`] of its type or [`Act::F16Tile`].
pub fn dot_row(act: Act, dtype: DType, row: &[u8], x: &Rounded) -> f32 {
    match act {
        Act::F16Tile => dot_tile(dtype, row, &x.floats),
        Act::F32 | Act::F16 => dot_float(dtype, row, &x.floats),
        Act::Q8_32 => dot_32(dtype, row, &x.bytes),
        Act::Q8K_256 => dot_256(dtype, row, &x.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantized products stay near the product of the dequantized row: a wrong nibble order
    /// or scale shows at once.
    #[test]
    fn products_agree_with_dequantized_rows() {
        let mut seed = 7u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for dtype in DType::ALL {
            let width = 512;
            let mut row = vec![0u8; dtype.bytes_of(width as u64).unwrap() as usize];
            row.iter_mut().for_each(|b| *b = (next() * 128.0) as i8 as u8);
            fix_scales(dtype, &mut row);
            let x: Vec<f32> = (0..width).map(|_| next()).collect();
            let mut w = vec![0.0; width];
            dequantize(dtype, &row, &mut w);
            let mut rounded = Rounded::default();
            round(Act::for_weight(dtype), &x, &mut rounded);
            let want: f32 = w.iter().zip(&x).map(|(a, b)| a * b).sum();
            let size: f32 = w.iter().zip(&x).map(|(a, b)| (a * b).abs()).sum();
            let got = dot_row(Act::for_weight(dtype), dtype, &row, &rounded);
            assert!((got - want).abs() < 4e-3 * size, "{dtype}: {got} against {want} (size {size})");
            round(Act::F16Tile, &x, &mut rounded);
            let got = dot_row(Act::F16Tile, dtype, &row, &rounded);
            assert!((got - want).abs() < 1e-3 * size, "{dtype} in tiles: {got} against {want} (size {size})");
        }
    }

    /// Sums are rounded to half once, at the end: halves on the way would stay at 2048, where
    /// their step is 2.
    #[test]
    fn tiles_add_in_single_precision_and_store_halves() {
        let row = [f16::ONE; 2051].map(f16::to_le_bytes).concat();
        let sum = |x: f32, n: usize| dot_tile(DType::F16, &row[..2 * n], &vec![x; n]);
        assert_eq!(sum(1.0, 2049), 2048.0);
        assert_eq!(sum(1.0, 2050), 2050.0);
        assert_eq!(sum(1.0, 2051), 2052.0);
        assert_eq!(sum(32.0, 2047), 65504.0);
        assert_eq!(sum(-32.0, 2048), f32::NEG_INFINITY);
    }

    fn fix_scales(dtype: DType, row: &mut [u8]) {
        let at: &[usize] = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => {
                let n = dtype.block_bytes();
                for (i, v) in row.chunks_exact_mut(n).enumerate() {
                    let x = (i as f32 * 0.37).sin();
                    match dtype {
                        DType::F32 => v.copy_from_slice(&x.to_le_bytes()),
                        DType::F16 => v.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
                        _ => v.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
                    }
                }
                return;
            }
            DType::Q4_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
            DType::Q6_K => &[208],
            _ => &[0],
        };
        for block in row.chunks_exact_mut(dtype.block_bytes()) {
            for a in at {
                block[*a..*a + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
            }
        }
    }
}
