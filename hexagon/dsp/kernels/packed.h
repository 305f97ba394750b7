/* Packed weights: 32 rows of a weight side by side, one row a lane.
 *
 *   weight  │ tile of rows 0..31 │ tile of rows 32..63 │ ...   (last one filled up with zeros)
 *   tile    │ block 0 of all 32 rows │ block 1 │ ...           (blocks along the inputs)
 *   vector  │ word of row 0 │ word of row 1 │ ... │ word of row 31 │   128 bytes
 *
 * A word holds four consecutive bytes of ggml's block of that row, or of the values named
 * here, so that one dot4 with four activation bytes in a scalar register serves 32 rows. In a
 * block, vectors follow each other in this order (q: quants' bytes as ggml has them):
 *
 *   F32         1 value: the value                                                  1 vector
 *   F16, BF16   2 values: first in the low half, second in the high half            1
 *   Q8_0       32 values: q[4j..] with the top bit flipped, j = 0..7; scale         9
 *   Q4_0       32: q[4j..], j = 0..3; scale                                         5
 *   Q4_1       32: q[4j..], j = 0..3; scale | minimum << 16                         5
 *   Q5_0       32: q[4j..], j = 0..3; high bits; scale                              6
 *   Q4_K      256: q[32g + 4j..], g = 0..3, j = 0..7; scales 0..3, 4..7,
 *                  minima 0..3, 4..7 (a byte each); d | dmin << 16                  37
 *   Q5_K      256: as Q4_K; high bits: ggml's qh[4j..], j = 0..7                    45
 *   Q6_K      256: low bits ql[64n + 4j..], j = 0..15, and high bits qh[32n + 4j..],
 *                  j = 0..7, for n = 0, 1; scales 0..3, .., 12..15; d               53
 *
 * High bits of Q5_0: byte b, bit v: the fifth bit of value 4v + b; bit 4 + v: of value
 * 16 + 4v + b. hexagon/src/packed.rs writes this form. */
#ifndef TANDEM_PACKED_H
#define TANDEM_PACKED_H

#include <stdint.h>
#include "../include/packet.h"

/* Values along the inputs in a block, 0 for a type that is none. */
static inline uint32_t packed_block(uint32_t dtype) {
    switch (dtype) {
    case TDM_F32: return 1;
    case TDM_F16: case TDM_BF16: return 2;
    case TDM_Q8_0: case TDM_Q4_0: case TDM_Q4_1: case TDM_Q5_0: return 32;
    case TDM_Q4_K: case TDM_Q5_K: case TDM_Q6_K: return 256;
    default: return 0;
    }
}

/* Vectors of 128 bytes in a block of 32 rows. */
static inline uint32_t packed_vectors(uint32_t dtype) {
    switch (dtype) {
    case TDM_Q8_0: return 9;
    case TDM_Q4_0: case TDM_Q4_1: return 5;
    case TDM_Q5_0: return 6;
    case TDM_Q4_K: return 37;
    case TDM_Q5_K: return 45;
    case TDM_Q6_K: return 53;
    default: return 1;
    }
}

/* Bytes of one tile of `width` values a row. */
static inline uint64_t packed_tile_bytes(uint32_t dtype, uint32_t width) {
    uint64_t block = packed_block(dtype);
    return (width + block - 1) / block * packed_vectors(dtype) * 128;
}

#endif
