#include "product.h"
#include "packed.h"

#define MOST_COLUMNS 8

uint32_t product_columns(uint32_t dtype) { return act_for(dtype) < ACT_Q8_32 ? 4 : dtype == TDM_Q6_K ? 8 : 5; }

inline_always words vector_at(const uint8_t *block, int i) { return words_load(block + i * 128); }

/* acc + (d * scale of the column) * sum: one block's step. */
inline_always floats add_block(floats acc, floats d, float scale, words sum) {
    return floats_mac(acc, floats_mul(d, floats_splat(scale)), floats_of_words(sum));
}

/* The low and the high nibbles of `n` vectors. */
inline_always void nibbles(const uint8_t *block, int n, words *low, words *high) {
    words mask = words_splat(0x0f0f0f0f);
    for (int v = 0; v < n; v++) {
        words w = vector_at(block, v);
        low[v] = words_and(w, mask);
        high[v] = words_and(words_shr(w, 4), mask);
    }
}

/* Bit `bit` of every byte, as 16. */
inline_always words fifth(words w, int bit) {
    words b = bit <= 4 ? words_shl(w, 4 - bit) : words_shr(w, bit - 4);
    return words_and(b, words_splat(0x10101010));
}

/* Q8_0, Q4_0, Q4_1, Q5_0: 32 values as eight vectors of unsigned bytes, less `offset`. */
inline_always void block_32(uint32_t dtype, const uint8_t *tile, uint32_t width, const struct column *x,
                            const uint32_t columns, floats *out) {
    const uint32_t bytes = packed_vectors(dtype) * 128;
    const int offset = dtype == TDM_Q8_0 ? 128 : dtype == TDM_Q4_0 ? 8 : dtype == TDM_Q5_0 ? 16 : 0;
    floats acc[MOST_COLUMNS];
    for (uint32_t c = 0; c < columns; c++) {
        acc[c] = floats_splat(0.0f);
    }
    for (uint32_t b = 0; b < width / 32; b++, tile += bytes) {
        words q[8];
        if (dtype == TDM_Q8_0) {
            for (int v = 0; v < 8; v++) {
                q[v] = vector_at(tile, v);
            }
        } else {
            nibbles(tile, 4, q, q + 4);
        }
        if (dtype == TDM_Q5_0) {
            words high = vector_at(tile, 4);
            for (int v = 0; v < 8; v++) {
                q[v] = words_or(q[v], fifth(high, v));
            }
        }
        words scales = vector_at(tile, (int)packed_vectors(dtype) - 1);
        floats d = floats_of_halves(scales);
        for (uint32_t c = 0; c < columns; c++) {
            words sum = words_splat((uint32_t)(-offset * x[c].sums[b]));
            for (int v = 0; v < 8; v++) {
                sum = words_dot4(sum, q[v], x[c].q[b * 8 + (uint32_t)v]);
            }
            acc[c] = add_block(acc[c], d, x[c].d[b], sum);
            if (dtype == TDM_Q4_1) {
                floats m = floats_of_halves(words_shr(scales, 16));
                acc[c] = add_block(acc[c], m, x[c].d[b], words_splat((uint32_t)x[c].sums[b]));
            }
        }
    }
    for (uint32_t c = 0; c < columns; c++) {
        words_store(out + c, floats_bits(acc[c]));
    }
}

/* Byte `i` of every lane, unsigned, as the lane's value. */
inline_always words byte_at(words w, int i) { return words_and(words_shr(w, 8 * i), words_splat(255)); }

/* Q4_K, Q5_K: eight groups of 32 with a scale and a minimum each. */
inline_always void block_k4(uint32_t dtype, const uint8_t *tile, uint32_t width, const struct column *x,
                            const uint32_t columns, floats *out) {
    const uint32_t bytes = packed_vectors(dtype) * 128;
    const int scales_at = 32, high_at = 37;
    floats acc[MOST_COLUMNS];
    for (uint32_t c = 0; c < columns; c++) {
        acc[c] = floats_splat(0.0f);
    }
    for (uint32_t b = 0; b < width / 256; b++, tile += bytes) {
        words isum[MOST_COLUMNS], msum[MOST_COLUMNS];
        for (uint32_t c = 0; c < columns; c++) {
            isum[c] = msum[c] = words_splat(0);
        }
        for (int g = 0; g < 4; g++) {
            words q[16];
            nibbles(tile + g * 8 * 128, 8, q, q + 8);
            if (dtype == TDM_Q5_K) {
                for (int v = 0; v < 8; v++) {
                    words high = vector_at(tile, high_at + v);
                    q[v] = words_or(q[v], fifth(high, 2 * g));
                    q[8 + v] = words_or(q[8 + v], fifth(high, 2 * g + 1));
                }
            }
            for (int half = 0; half < 2; half++) {
                int j = 2 * g + half;
                words scale = byte_at(vector_at(tile, scales_at + j / 4), j % 4);
                words minimum = byte_at(vector_at(tile, scales_at + 2 + j / 4), j % 4);
                for (uint32_t c = 0; c < columns; c++) {
                    const uint32_t *a = x[c].q + b * 64 + (uint32_t)j * 8;
                    const int32_t *s = x[c].sums + b * 16 + 2 * j;
                    words dot = words_splat(0);
                    for (int v = 0; v < 8; v++) {
                        dot = words_dot4(dot, q[half * 8 + v], a[v]);
                    }
                    isum[c] = words_mac_low(isum[c], dot, scale);
                    msum[c] = words_mac_low(msum[c], words_splat((uint32_t)(s[0] + s[1])), minimum);
                }
            }
        }
        words halves = vector_at(tile, scales_at + 4);
        floats d = floats_of_halves(halves), dmin = floats_of_halves(words_shr(halves, 16));
        for (uint32_t c = 0; c < columns; c++) {
            acc[c] = add_block(acc[c], d, x[c].d[b], isum[c]);
            floats m = floats_mul(floats_mul(dmin, floats_splat(x[c].d[b])), floats_of_words(msum[c]));
            acc[c] = floats_sub(acc[c], m);
        }
    }
    for (uint32_t c = 0; c < columns; c++) {
        words_store(out + c, floats_bits(acc[c]));
    }
}

/* Four vectors of Q6_K values: part `p` (32 values apart) of half `n`, words 4v.. of the part's
 * eight. */
inline_always void six_bits(const uint8_t *half, int p, int v, words *q) {
    words nibble = words_splat(0x0f0f0f0f), pair = words_splat(0x30303030);
    for (int i = 0; i < 4; i++) {
        words low = vector_at(half, (p % 2) * 8 + v + i);
        words high = vector_at(half, 16 + v + i);
        low = words_and(p < 2 ? low : words_shr(low, 4), nibble);
        high = p < 2 ? words_shl(high, 4 - 2 * p) : words_shr(high, 2 * p - 4);
        q[i] = words_or(low, words_and(high, pair));
    }
}

/* Q6_K: sixteen groups of 16 with a signed scale each. */
inline_always void block_k6(const uint8_t *tile, uint32_t width, const struct column *x, const uint32_t columns,
                            floats *out) {
    const uint32_t bytes = packed_vectors(TDM_Q6_K) * 128;
    floats acc[MOST_COLUMNS];
    for (uint32_t c = 0; c < columns; c++) {
        acc[c] = floats_splat(0.0f);
    }
    for (uint32_t b = 0; b < width / 256; b++, tile += bytes) {
        words isum[MOST_COLUMNS];
        for (uint32_t c = 0; c < columns; c++) {
            isum[c] = words_splat(0);
        }
        for (int j = 0; j < 16; j++) {
            words q[4];
            six_bits(tile + j / 8 * 24 * 128, j % 8 / 2, j % 2 * 4, q);
            /* The signed scale in the high half of each lane. */
            words scale = words_sar(words_shl(vector_at(tile, 48 + j / 4), 24 - 8 * (j % 4)), 8);
            for (uint32_t c = 0; c < columns; c++) {
                const uint32_t *a = x[c].q + b * 64 + (uint32_t)j * 4;
                words dot = words_splat((uint32_t)(-32 * x[c].sums[b * 16 + (uint32_t)j]));
                for (int v = 0; v < 4; v++) {
                    dot = words_dot4(dot, q[v], a[v]);
                }
                isum[c] = words_mac_high(isum[c], dot, scale);
            }
        }
        floats d = floats_of_halves(vector_at(tile, 52));
        for (uint32_t c = 0; c < columns; c++) {
            acc[c] = add_block(acc[c], d, x[c].d[b], isum[c]);
        }
    }
    for (uint32_t c = 0; c < columns; c++) {
        words_store(out + c, floats_bits(acc[c]));
    }
}

/* *to + w * x */
inline_always void mac_to(floats *to, floats w, float x) {
    words_store(to, floats_bits(floats_mac(*to, w, floats_splat(x))));
}

/* F32, F16, BF16: sixteen partial sums a lane, value i to partial i % 16. */
inline_always void plain(uint32_t dtype, const uint8_t *tile, uint32_t width, const float *x, floats *out) {
    floats part[16];
    for (int i = 0; i < 16; i++) {
        words_store(part + i, words_splat(0));
    }
    const uint32_t step = packed_block(dtype);
    for (uint32_t i = 0; i < width; i += step, tile += 128) {
        words w = words_load(tile);
        if (dtype == TDM_F32) {
            mac_to(part + i % 16, floats_of_bits(w), x[i]);
            continue;
        }
        mac_to(part + i % 16, dtype == TDM_F16 ? floats_of_halves(w) : floats_of_bits(words_shl(w, 16)), x[i]);
        if (i + 1 < width) {
            mac_to(part + (i + 1) % 16, dtype == TDM_F16 ? floats_of_halves(words_shr(w, 16))
                                                         : floats_of_bits(words_and(w, words_splat(0xffff0000))), x[i + 1]);
        }
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            words_store(part + i, floats_bits(floats_add(part[i], part[i + half])));
        }
    }
    words_store(out, floats_bits(part[0]));
}

/* A body for each number of columns, so that loops over columns unroll into registers. */
#define TILES(name, body, dtype)                                                                                   \
    static void name(const uint8_t *tile, uint32_t width, const struct column *x, uint32_t columns, floats *out) { \
        switch (columns) {                                                                                         \
        case 1: body(dtype, tile, width, x, 1, out); break;                                                        \
        case 2: body(dtype, tile, width, x, 2, out); break;                                                        \
        case 3: body(dtype, tile, width, x, 3, out); break;                                                        \
        case 4: body(dtype, tile, width, x, 4, out); break;                                                        \
        default: body(dtype, tile, width, x, 5, out); break;                                                       \
        }                                                                                                          \
    }

TILES(q8_0, block_32, TDM_Q8_0)
TILES(q4_0, block_32, TDM_Q4_0)
TILES(q4_1, block_32, TDM_Q4_1)
TILES(q5_0, block_32, TDM_Q5_0)
TILES(q4_k, block_k4, TDM_Q4_K)
TILES(q5_k, block_k4, TDM_Q5_K)

static void q6_k(const uint8_t *tile, uint32_t width, const struct column *x, uint32_t columns, floats *out) {
    switch (columns) {
    case 1: block_k6(tile, width, x, 1, out); break;
    case 2: block_k6(tile, width, x, 2, out); break;
    case 3: block_k6(tile, width, x, 3, out); break;
    case 4: block_k6(tile, width, x, 4, out); break;
    case 5: block_k6(tile, width, x, 5, out); break;
    case 6: block_k6(tile, width, x, 6, out); break;
    case 7: block_k6(tile, width, x, 7, out); break;
    default: block_k6(tile, width, x, 8, out); break;
    }
}

void product_tile(uint32_t dtype, const uint8_t *tile, uint32_t width, const struct column *x, uint32_t columns,
                  floats *out) {
    switch (dtype) {
    case TDM_Q8_0: q8_0(tile, width, x, columns, out); break;
    case TDM_Q4_0: q4_0(tile, width, x, columns, out); break;
    case TDM_Q4_1: q4_1(tile, width, x, columns, out); break;
    case TDM_Q5_0: q5_0(tile, width, x, columns, out); break;
    case TDM_Q4_K: q4_k(tile, width, x, columns, out); break;
    case TDM_Q5_K: q5_k(tile, width, x, columns, out); break;
    case TDM_Q6_K: q6_k(tile, width, x, columns, out); break;
    default:
        for (uint32_t c = 0; c < columns; c++) {
            if (dtype == TDM_F32) {
                plain(TDM_F32, tile, width, x[c].x, out + c);
            } else if (dtype == TDM_F16) {
                plain(TDM_F16, tile, width, x[c].x, out + c);
            } else {
                plain(TDM_BF16, tile, width, x[c].x, out + c);
            }
        }
    }
}

/* One row of a tile, scalar: embeddings read a row a token. */

static uint32_t word_at(const uint8_t *block, int vector, uint32_t lane) {
    uint32_t w;
    memcpy(&w, block + vector * 128 + lane * 4, 4);
    return w;
}

/* Byte `i` of a lane's run of words that starts at `vector`. */
static uint32_t lane_byte(const uint8_t *block, int vector, uint32_t lane, int i) {
    return word_at(block, vector + i / 4, lane) >> (i % 4 * 8) & 255;
}

static void row_32(uint32_t dtype, const uint8_t *block, uint32_t lane, float *out) {
    uint32_t scales = word_at(block, (int)packed_vectors(dtype) - 1, lane);
    float d = float_of_half(scales & 0xffff), m = dtype == TDM_Q4_1 ? float_of_half(scales >> 16) : 0.0f;
    for (int i = 0; i < 32; i++) {
        int32_t q;
        if (dtype == TDM_Q8_0) {
            q = (int32_t)lane_byte(block, 0, lane, i) - 128;
        } else {
            uint32_t byte = lane_byte(block, 0, lane, i % 16);
            q = (int32_t)(i < 16 ? byte & 15 : byte >> 4);
            if (dtype == TDM_Q4_0) {
                q -= 8;
            }
            if (dtype == TDM_Q5_0) {
                uint32_t high = lane_byte(block, 4, lane, i % 4);
                q |= (int32_t)((high >> (i / 4) & 1) << 4);
                q -= 16;
            }
        }
        out[i] = d * (float)q + m;
    }
}

static void row_k4(uint32_t dtype, const uint8_t *block, uint32_t lane, float *out) {
    uint32_t halves = word_at(block, 36, lane);
    float d = float_of_half(halves & 0xffff), dmin = float_of_half(halves >> 16);
    for (int i = 0; i < 256; i++) {
        int g = i / 64, j = i / 32, at = i % 32;
        uint32_t byte = lane_byte(block, g * 8, lane, at);
        uint32_t q = j % 2 ? byte >> 4 : byte & 15;
        if (dtype == TDM_Q5_K) {
            q |= (lane_byte(block, 37, lane, at) >> j & 1) << 4;
        }
        float scale = d * (float)lane_byte(block, 32, lane, j), minimum = dmin * (float)lane_byte(block, 34, lane, j);
        out[i] = scale * (float)q - minimum;
    }
}

static void row_k6(const uint8_t *block, uint32_t lane, float *out) {
    float d = float_of_half(word_at(block, 52, lane) & 0xffff);
    for (int i = 0; i < 256; i++) {
        int half = i / 128 * 24, p = i % 128 / 32, at = i % 32;
        uint32_t low = lane_byte(block, half, lane, p % 2 * 32 + at) >> (p / 2 * 4) & 15;
        uint32_t high = lane_byte(block, half + 16, lane, at) >> (2 * p) & 3;
        int8_t scale = (int8_t)lane_byte(block, 48, lane, i / 16);
        out[i] = d * (float)scale * (float)((int32_t)(low | high << 4) - 32);
    }
}

void packed_row(uint32_t dtype, const uint8_t *tile, uint32_t lane, uint32_t width, float *out) {
    const uint32_t step = packed_block(dtype), bytes = packed_vectors(dtype) * 128;
    for (uint32_t i = 0; i < width; i += step, tile += bytes) {
        uint32_t w = word_at(tile, 0, lane);
        switch (dtype) {
        case TDM_F32: out[i] = float_of_bits(w); break;
        case TDM_F16:
        case TDM_BF16:
            out[i] = dtype == TDM_F16 ? float_of_half(w & 0xffff) : float_of_bits(w << 16);
            if (i + 1 < width) {
                out[i + 1] = dtype == TDM_F16 ? float_of_half(w >> 16) : float_of_bits(w & 0xffff0000);
            }
            break;
        case TDM_Q4_K: case TDM_Q5_K: row_k4(dtype, tile, lane, out + i); break;
        case TDM_Q6_K: row_k6(tile, lane, out + i); break;
        default: row_32(dtype, tile, lane, out + i); break;
        }
    }
}
