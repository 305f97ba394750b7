//! Random tensor data, block by block.

use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::io::{self, Write};
use tandem_program::DType;

/// Standard deviation of a uniform variable on [-1, 1].
const UNIFORM_DEVIATION: f32 = 0.577_350_26;

/// Draws one tensor's data. Depends on the seed and the tensor's name alone.
pub(super) struct Blocks {
    random: ChaCha8Rng,
}

impl Blocks {
    pub(super) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a: any spread of names over seeds will do.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Blocks { random: ChaCha8Rng::seed_from_u64(hash) }
    }

    pub(super) fn constant(&mut self, elements: usize, value: f32, out: &mut dyn Write) -> io::Result<()> {
        (0..elements).try_for_each(|_| out.write_all(&value.to_le_bytes()))
    }

    pub(super) fn uniform(
        &mut self,
        elements: usize,
        low: f32,
        high: f32,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        (0..elements).try_for_each(|_| {
            let value = low + (high - low) * self.unit();
            out.write_all(&value.to_le_bytes())
        })
    }

    /// In [0, 1).
    fn unit(&mut self) -> f32 {
        (self.random.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// Values of about this deviation: uniform ones, which a product cannot tell from normal.
    pub(super) fn normal(
        &mut self,
        dtype: DType,
        elements: usize,
        deviation: f32,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let top = deviation / UNIFORM_DEVIATION;
        let count = elements / dtype.block_len();
        let mut block = vec![0u8; dtype.block_bytes()];
        for _ in 0..count {
            self.random.fill_bytes(&mut block);
            match dtype {
                DType::F16 => {
                    let value = top * (2.0 * self.unit() - 1.0);
                    block.copy_from_slice(&f16::from_f32(value).to_le_bytes());
                }
                DType::F32 => block.copy_from_slice(&(top * (2.0 * self.unit() - 1.0)).to_le_bytes()),
                _ => scale(dtype, top, &mut block),
            }
            out.write_all(&block)?;
        }
        Ok(())
    }
}

/// Sets the scales of a block of random quants so that values reach about `top`.
fn scale(dtype: DType, top: f32, block: &mut [u8]) {
    let mut half =
        |at: usize, value: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    match dtype {
        DType::Q8_0 => half(0, top / 127.0),
        DType::Q4_0 => half(0, top / 8.0),
        DType::Q5_0 => half(0, top / 16.0),
        DType::Q4_1 => {
            half(0, 2.0 * top / 15.0);
            half(2, -top);
        }
        DType::Q6_K => {
            half(208, top / (32.0 * 64.0));
            block[192..208].fill(64);
        }
        DType::Q4_K | DType::Q5_K => {
            // All eight scales 32, all minima 32: value = d * 32 * q - dmin * 32.
            let quants = if dtype == DType::Q4_K { 15.0 } else { 31.0 };
            half(0, 2.0 * top / (quants * 32.0));
            half(2, top / 32.0);
            block[4..12].fill(32);
            block[12..16].fill(0);
        }
        DType::F32 | DType::F16 | DType::BF16 => {}
    }
    if matches!(dtype, DType::Q4_K | DType::Q5_K) {
        // Sub-blocks 4 to 7 keep their low four bits in bytes 12 to 15 and their high two
        // bits in the top of bytes 4 to 11: 32 = 0b10_0000.
        block[4..12].fill(32 | 0b1000_0000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_program::scalar::weight::dequantize;

    #[test]
    fn drawn_blocks_have_the_deviation_asked_for() {
        for dtype in DType::ALL.into_iter().filter(|t| *t != DType::BF16) {
            let elements = 256 * 64;
            let mut bytes = Vec::new();
            Blocks::new(1, "t").normal(dtype, elements, 0.05, &mut bytes).unwrap();
            let mut values = vec![0.0; elements];
            dequantize(dtype, &bytes, &mut values);
            let mean = values.iter().sum::<f32>() / elements as f32;
            let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / elements as f32).sqrt();
            assert!(mean.abs() < 0.006, "{dtype}: mean {mean}");
            assert!((deviation - 0.05).abs() < 0.006, "{dtype}: deviation {deviation}");
        }
    }
}
