#include "tile.h"
#include "float.h"
#include "packed.h"

void tile_scales(uint32_t *scales) {
    for (uint32_t c = 0; c < TILE; c++) {
        scales[c] = 0x3c00; /* scale 1, bias 0 */
        scales[TILE + c] = 0;
    }
}

/* The halves of `even` in the low halves of the lanes, those of `odd` in the high ones. */
inline_always words pairs(floats even, floats odd) {
    return words_or(halves_of_floats(even), words_shl(halves_of_floats(odd), 16));
}

void tile_pack(const float *even, const float *odd, uint32_t width, uint32_t pair, uint16_t *tiles) {
    const floats none = floats_splat(0.0f);
    for (uint32_t i = 0; i < width; i += TILE, tiles += TILE_HALVES) {
        const floats a = even != NULL ? floats_load_some(even + i, width - i) : none;
        const floats b = odd != NULL ? floats_load_some(odd + i, width - i) : none;
        words_store(tiles + tile_place(2 * pair, 0), pairs(a, b));
    }
}

inline_always words vector_at(const uint8_t *block, uint32_t i) { return words_load(block + i * 128); }

/* Byte `i` of the run of words that starts at vector `at`, unsigned. */
inline_always words byte_of(const uint8_t *block, uint32_t at, uint32_t i) {
    return words_and(words_shr(vector_at(block, at + i / 4), (int)(8 * (i % 4))), words_splat(255));
}

/* Nibble `i` of bytes of which each holds values i and i + `half`. */
inline_always words nibble_of(const uint8_t *block, uint32_t at, uint32_t i, uint32_t half) {
    const words byte = byte_of(block, at, i % half);
    return i < half ? words_and(byte, words_splat(15)) : words_shr(byte, 4);
}

/* F32, F16, BF16: a tile of `left` values; nothing beyond them is read. */
static void tile_of_floats(uint32_t dtype, const uint8_t *packed, uint32_t left, uint16_t *tile) {
    for (uint32_t i = 0; i < TILE; i += 2) {
        words w = words_splat(0);
        if (i < left && dtype == TDM_F32) {
            const floats odd = i + 1 < left ? floats_of_bits(vector_at(packed, i + 1)) : floats_splat(0.0f);
            w = pairs(floats_of_bits(vector_at(packed, i)), odd);
        } else if (i < left) {
            w = vector_at(packed, i / 2);
            if (dtype == TDM_BF16) {
                w = pairs(floats_of_bits(words_shl(w, 16)), floats_of_bits(words_and(w, words_splat(0xffff0000))));
            }
        }
        words_store(tile + tile_place(i, 0), w);
    }
}

/* Q8_0, Q4_0, Q4_1, Q5_0: a block is a tile. */
static void tile_of_32(uint32_t dtype, const uint8_t *block, uint16_t *tile) {
    const int offset = dtype == TDM_Q8_0 ? 128 : dtype == TDM_Q4_0 ? 8 : dtype == TDM_Q5_0 ? 16 : 0;
    const words scales = vector_at(block, packed_vectors(dtype) - 1), less = words_splat((uint32_t)offset);
    const floats d = floats_of_halves(scales), m = floats_of_halves(words_shr(scales, 16));
    for (uint32_t i = 0; i < TILE; i += 2) {
        floats v[2];
        for (uint32_t o = 0; o < 2; o++) {
            words q = dtype == TDM_Q8_0 ? byte_of(block, 0, i + o) : nibble_of(block, 0, i + o, 16);
            if (dtype == TDM_Q5_0) {
                const words high = words_shr(byte_of(block, 4, (i + o) % 4), (int)((i + o) % 16 / 4 + (i + o) / 16 * 4));
                q = words_or(q, words_shl(words_and(high, words_splat(1)), 4));
            }
            v[o] = floats_mul(d, floats_of_words(words_sub(q, less)));
            if (dtype == TDM_Q4_1) {
                v[o] = floats_add(v[o], m);
            }
        }
        words_store(tile + tile_place(i, 0), pairs(v[0], v[1]));
    }
}

/* Q4_K, Q5_K: group `j` of a block's eight. */
static void tile_of_k4(uint32_t dtype, const uint8_t *block, uint32_t j, uint16_t *tile) {
    const words halves = vector_at(block, 36);
    const floats d = floats_mul(floats_of_halves(halves), floats_of_words(byte_of(block, 32, j)));
    const floats m = floats_mul(floats_of_halves(words_shr(halves, 16)), floats_of_words(byte_of(block, 34, j)));
    for (uint32_t i = 0; i < TILE; i += 2) {
        floats v[2];
        for (uint32_t o = 0; o < 2; o++) {
            words q = nibble_of(block, j / 2 * 8, j % 2 * 32 + i + o, 32);
            if (dtype == TDM_Q5_K) {
                const words high = words_shr(byte_of(block, 37, i + o), (int)j);
                q = words_or(q, words_shl(words_and(high, words_splat(1)), 4));
            }
            v[o] = floats_sub(floats_mul(d, floats_of_words(q)), m);
        }
        words_store(tile + tile_place(i, 0), pairs(v[0], v[1]));
    }
}

/* Q6_K: 32 values of a block from 32 * j on, two groups of 16 with a signed scale each. */
static void tile_of_k6(const uint8_t *block, uint32_t j, uint16_t *tile) {
    const uint32_t half = j / 4 * 24, p = j % 4;
    const floats whole = floats_of_halves(vector_at(block, 52));
    for (uint32_t i = 0; i < TILE; i += 2) {
        const words byte = byte_of(block, 48, 2 * j + i / 16);
        const floats d = floats_mul(whole, floats_of_words(words_sar(words_shl(byte, 24), 24)));
        floats v[2];
        for (uint32_t o = 0; o < 2; o++) {
            words low = words_shr(byte_of(block, half, p % 2 * 32 + i + o), (int)(p / 2 * 4));
            words high = words_shr(byte_of(block, half + 16, i + o), (int)(2 * p));
            low = words_and(low, words_splat(15));
            high = words_shl(words_and(high, words_splat(3)), 4);
            v[o] = floats_mul(d, floats_of_words(words_sub(words_or(low, high), words_splat(32))));
        }
        words_store(tile + tile_place(i, 0), pairs(v[0], v[1]));
    }
}

void tile_unpack(uint32_t dtype, const uint8_t *packed, uint32_t width, uint32_t first, uint32_t count,
                 uint16_t *tiles) {
    const uint32_t block = packed_block(dtype), bytes = packed_vectors(dtype) * 128;
    for (uint32_t t = first; t < first + count; t++, tiles += TILE_HALVES) {
        const uint8_t *at = packed + (uint64_t)(t * TILE / block) * bytes;
        switch (dtype) {
        case TDM_F32: case TDM_F16: case TDM_BF16: tile_of_floats(dtype, at, width - t * TILE, tiles); break;
        case TDM_Q4_K: case TDM_Q5_K: tile_of_k4(dtype, at, t % 8, tiles); break;
        case TDM_Q6_K: tile_of_k6(at, t % 8, tiles); break;
        default: tile_of_32(dtype, at, tiles); break;
        }
    }
}
