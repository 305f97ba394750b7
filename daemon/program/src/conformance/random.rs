//! Seeded inputs.

use crate::tensor::DType;
use half::{bf16, f16};

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    /// A sequence of its own for every name.
    pub(super) fn new(name: &str) -> Self {
        let mut seed = 0xcbf2_9ce4_8422_2325u64;
        for b in name.bytes() {
            seed = (seed ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n.max(1))) as u32
    }

    /// One of `items`.
    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u32) as usize]
    }

    /// Evenly between -1 and 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Around 0, heavier in the middle, up to `size` in magnitude.
    pub(super) fn value(&mut self, size: f32) -> f32 {
        let (a, b) = (self.unit(), self.unit());
        a * b * size
    }

    /// `count` values of a type, values up to about `size` in magnitude.
    pub(super) fn fill(&mut self, dtype: DType, count: usize, size: f32) -> Vec<u8> {
        let mut bytes = vec![0u8; dtype.bytes_of(count as u64).unwrap_or(0) as usize];
        match dtype {
            DType::F32 => {
                bytes.chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&self.value(size).to_le_bytes()))
            }
            DType::F16 => bytes
                .chunks_exact_mut(2)
                .for_each(|b| b.copy_from_slice(&f16::from_f32(self.value(size)).to_le_bytes())),
            DType::BF16 => bytes
                .chunks_exact_mut(2)
                .for_each(|b| b.copy_from_slice(&bf16::from_f32(self.value(size)).to_le_bytes())),
            _ => {
                bytes.iter_mut().for_each(|b| *b = self.next() as u8);
                // Random bytes everywhere but in the f16 scales, which are ordinary numbers.
                let halves: &[usize] = match dtype {
                    DType::Q4_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
                    DType::Q6_K => &[208],
                    _ => &[0],
                };
                for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                    for at in halves {
                        let scale = f16::from_f32(self.value(size) / 16.0);
                        block[*at..*at + 2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
            }
        }
        bytes
    }
}
