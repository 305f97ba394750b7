//! Weights as the DSP's vectors want them: 32 rows side by side.
//!
//! The form is drawn in `dsp/kernels/packed.h`. Packing costs one pass over a weight when a
//! program first uses it; the bytes have to be copied into shared memory anyhow.

use tandem_program::DType;
use tandem_program::scalar::weight::scale_min_k4;

/// Rows of a tile.
pub const LANES: usize = 32;
/// Bytes of a vector: a word a row.
const VECTOR: usize = 4 * LANES;

/// Values along the inputs in a block.
pub(crate) fn block_len(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 1,
        DType::F16 | DType::BF16 => 2,
        _ => dtype.block_len(),
    }
}

/// Words a row in a block.
fn words(dtype: DType) -> usize {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => 1,
        DType::Q8_0 => 9,
        DType::Q4_0 | DType::Q4_1 => 5,
        DType::Q5_0 => 6,
        DType::Q4_K => 37,
        DType::Q5_K => 45,
        DType::Q6_K => 53,
    }
}

/// Bytes of a tile whose rows have `width` values.
pub fn tile_bytes(dtype: DType, width: u32) -> u64 {
    (width as usize).div_ceil(block_len(dtype)) as u64 * (words(dtype) * VECTOR) as u64
}

/// Bytes of a packed weight.
pub fn bytes(dtype: DType, rows: u32, width: u32) -> u64 {
    u64::from(rows).div_ceil(LANES as u64) * tile_bytes(dtype, width)
}

/// Packs up to 32 rows into a tile of [`tile_bytes`]; lanes without a row are zero.
///
/// `rows` holds whole rows of `width` values one after the other.
pub fn pack_tile(dtype: DType, rows: &[u8], width: u32, tile: &mut [u8]) {
    tile.fill(0);
    let Some(row_bytes) = dtype.bytes_of(u64::from(width)) else { return };
    let block_bytes = block_len(dtype) / dtype.block_len() * dtype.block_bytes();
    let mut block_words = [0u32; 53];
    let block_words = &mut block_words[..words(dtype)];
    for (lane, row) in rows.chunks_exact(row_bytes as usize).enumerate() {
        let tile_blocks = tile.chunks_exact_mut(block_words.len() * VECTOR);
        for (block, to) in row.chunks(block_bytes).zip(tile_blocks) {
            block_of(dtype, block, block_words);
            for (word, vector) in block_words.iter().zip(to.chunks_exact_mut(VECTOR)) {
                vector[lane * 4..lane * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// Four bytes; what a last, half block lacks is zero.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn run(bytes: &[u8], to: &mut [u32]) {
    for (word_out, four) in to.iter_mut().zip(bytes.chunks_exact(4)) {
        *word_out = word(four);
    }
}

/// One row's words of a block.
fn block_of(dtype: DType, block: &[u8], to: &mut [u32]) {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => to[0] = word(block),
        DType::Q8_0 => {
            run(&block[2..34], &mut to[..8]);
            to[..8].iter_mut().for_each(|w| *w ^= 0x8080_8080);
            to[8] = word(&block[..2]);
        }
        DType::Q4_0 => {
            run(&block[2..18], &mut to[..4]);
            to[4] = word(&block[..2]);
        }
        DType::Q4_1 => {
            run(&block[4..20], &mut to[..4]);
            to[4] = word(&block[..4]);
        }
        DType::Q5_0 => {
            run(&block[6..22], &mut to[..4]);
            let high = word(&block[2..6]);
            // Bit v of byte b: value 4v + b; the upper sixteen values in the upper four bits.
            to[4] = (0..32).fold(0, |bits, i| {
                let (byte, bit) = (i % 4, i % 16 / 4 + i / 16 * 4);
                bits | (high >> i & 1) << (8 * byte + bit)
            });
            to[5] = word(&block[..2]);
        }
        DType::Q4_K | DType::Q5_K => {
            let quants = if dtype == DType::Q4_K { 16 } else { 48 };
            run(&block[quants..quants + 128], &mut to[..32]);
            for j in 0..8 {
                let (scale, minimum) = scale_min_k4(j, &block[4..16]);
                let shift = 8 * (j % 4);
                if j % 4 == 0 {
                    (to[32 + j / 4], to[34 + j / 4]) = (0, 0);
                }
                to[32 + j / 4] |= u32::from(scale) << shift;
                to[34 + j / 4] |= u32::from(minimum) << shift;
            }
            to[36] = word(&block[..4]);
            if dtype == DType::Q5_K {
                run(&block[16..48], &mut to[37..45]);
            }
        }
        DType::Q6_K => {
            for half in 0..2 {
                let to = &mut to[half * 24..half * 24 + 24];
                run(&block[half * 64..half * 64 + 64], &mut to[..16]);
                run(&block[128 + half * 32..160 + half * 32], &mut to[16..]);
            }
            run(&block[192..208], &mut to[48..52]);
            to[52] = word(&block[208..210]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the drawing, not against the kernels: those are compared by the conformance suite.
    #[test]
    fn words_of_a_row_stand_in_its_lane() {
        let width = 64;
        let row = |seed: u8| -> Vec<u8> { (0..68).map(|i| seed.wrapping_add(i)).collect() };
        let rows = [row(0), row(100)].concat();
        let mut tile = vec![1; tile_bytes(DType::Q8_0, width) as usize];
        pack_tile(DType::Q8_0, &rows, width, &mut tile);
        let at = |block: usize, vector: usize, lane: usize| {
            let at = (block * 9 + vector) * 128 + lane * 4;
            [tile[at], tile[at + 1], tile[at + 2], tile[at + 3]]
        };
        assert_eq!(at(0, 0, 0), [2, 3, 4, 5].map(|b: u8| b ^ 0x80));
        assert_eq!(at(1, 3, 1), [148, 149, 150, 151].map(|b: u8| b ^ 0x80));
        assert_eq!(at(1, 8, 1), [134, 135, 0, 0]);
        assert_eq!(at(1, 8, 2), [0; 4]);
        assert_eq!(bytes(DType::Q8_0, 33, 64), 2 * 18 * 128);
    }

    #[test]
    fn an_odd_width_of_halves_ends_in_half_a_word() {
        let mut tile = vec![1; tile_bytes(DType::F16, 3) as usize];
        assert_eq!(tile.len(), 256);
        pack_tile(DType::F16, &[1, 2, 3, 4, 5, 6], 3, &mut tile);
        assert_eq!(tile[..4], [1, 2, 3, 4]);
        assert_eq!(tile[128..132], [5, 6, 0, 0]);
        assert_eq!(tile[132..], [0; 124]);
    }
}
