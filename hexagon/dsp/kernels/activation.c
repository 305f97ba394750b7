#include "activation.h"
#include "../include/packet.h"
#include "float.h"

enum act act_for(uint32_t dtype) {
    switch (dtype) {
    case TDM_F16: return ACT_F16;
    case TDM_Q8_0: case TDM_Q4_0: case TDM_Q4_1: case TDM_Q5_0: return ACT_Q8_32;
    case TDM_Q4_K: case TDM_Q5_K: case TDM_Q6_K: return ACT_Q8K_256;
    default: return ACT_F32;
    }
}

static uint64_t whole(uint64_t bytes) { return (bytes + 127) / 128 * 128; }

uint64_t activation_bytes(enum act act, uint32_t width) {
    uint64_t w = width;
    switch (act) {
    case ACT_F32: return 0;
    case ACT_F16: return whole(4 * w);
    case ACT_Q8_32: return whole(w) + 2 * whole(w / 32 * 4);
    case ACT_Q8K_256: return whole(w) + whole(w / 256 * 4) + whole(w / 16 * 4);
    }
    return 0;
}

/* One block: bytes to `q`, the scale back. The largest magnitude over 127, quotients rounded
 * to the nearest byte, ties to even, kept within -127 to 127. */
static float quantize(const float *x, uint32_t values, uint8_t *q) {
    floats most = floats_splat(0.0f);
    for (uint32_t i = 0; i < values; i += LANES) {
        most = floats_max(most, floats_abs(floats_load(x + i)));
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        most = floats_max(most, floats_down(most, half));
    }
    float d = floats_first(most) / 127.0f;
    if (d == 0.0f) {
        memset(q, 0, values);
        return d;
    }
    floats scale = floats_splat(d);
    for (uint32_t i = 0; i < values; i += LANES) {
        floats v = floats_div(floats_load(x + i), scale);
        v = floats_min(floats_max(v, floats_splat(-127.0f)), floats_splat(127.0f));
        v = floats_add(v, floats_splat(ROUNDER));
        words_store_bytes(q + i, words_sub(floats_bits(v), words_splat(ROUNDER_BITS)));
    }
    return d;
}

static void add_up(const uint8_t *q, uint32_t values, uint32_t group, int32_t *sums) {
    for (uint32_t i = 0; i < values; i += group) {
        int32_t sum = 0;
        for (uint32_t j = i; j < i + group; j++) {
            sum += (int8_t)q[j];
        }
        *sums++ = sum;
    }
}

struct column activation_round(enum act act, const float *x, uint32_t width, void *memory) {
    struct column c = {0};
    if (act == ACT_F32) {
        c.x = x;
        return c;
    }
    if (act == ACT_F16) {
        float *to = memory;
        for (uint32_t i = 0; i < width; i++) {
            to[i] = float_of_half(half_of_float(x[i]));
        }
        c.x = to;
        return c;
    }
    uint32_t block = act == ACT_Q8_32 ? 32 : 256, group = act == ACT_Q8_32 ? 32 : 16;
    uint8_t *q = memory;
    float *d = (float *)(q + whole(width));
    int32_t *sums = (int32_t *)((uint8_t *)d + whole(width / block * 4));
    for (uint32_t b = 0; b < width / block; b++) {
        float scale = quantize(x + b * block, block, q + b * block);
        d[b] = act == ACT_Q8_32 ? float_of_half(half_of_float(scale)) : scale;
    }
    add_up(q, width, group, sums);
    c.q = (const uint32_t *)q;
    c.d = d;
    c.sums = sums;
    return c;
}
