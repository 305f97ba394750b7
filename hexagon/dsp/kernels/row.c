#include "row.h"
#include <math.h>

/* The lower sixteen lanes take values i % 16 in ascending order: first the vector's lower
 * half, then its upper one. */
inline_always floats add_both(floats acc, floats v) { return floats_add(floats_add(acc, v), floats_down(v, 16)); }

float row_dot(const float *a, const float *b, uint32_t n) {
    floats acc = floats_splat(0.0f);
    for (uint32_t i = 0; i < n; i += LANES) {
        acc = add_both(acc, floats_mul(floats_load_some(a + i, n - i), floats_load_some(b + i, n - i)));
    }
    return floats_fold16(acc);
}

float row_sum(const float *a, uint32_t n) {
    floats acc = floats_splat(0.0f);
    for (uint32_t i = 0; i < n; i += LANES) {
        acc = add_both(acc, floats_load_some(a + i, n - i));
    }
    return floats_fold16(acc);
}

/* A loop over vectors of a row: `v` becomes the result of lanes `i ..`. */
#define ROW(result)                                       \
    for (uint32_t i = 0; i < n; i += LANES) {             \
        floats_store_some(out + i, (result), n - i);      \
    }

#define AT(p) floats_load_some((p) + i, n - i)

void row_axpy(float *out, float factor, const float *x, uint32_t n) {
    floats f = floats_splat(factor);
    ROW(floats_mac(AT(out), f, AT(x)))
}

static float inverse_root(const float *x, float eps, uint32_t n) {
    return 1.0f / sqrtf(row_dot(x, x, n) / (float)n + eps);
}

void row_rms_norm(const float *x, const float *weight, float eps, float *out, uint32_t n) {
    floats s = floats_splat(inverse_root(x, eps, n));
    ROW(floats_mul(floats_mul(AT(x), s), AT(weight)))
}

void row_l2_norm(const float *x, float eps, float scale, float *out, uint32_t n) {
    floats s = floats_splat(scale / sqrtf(row_dot(x, x, n) + eps));
    ROW(floats_mul(AT(x), s))
}

void row_gated_norm(const float *x, const float *z, const float *weight, float eps, float *out, uint32_t n) {
    floats s = floats_splat(inverse_root(x, eps, n));
    ROW(floats_mul(floats_mul(floats_mul(AT(x), s), AT(weight)), floats_silu(AT(z))))
}

void row_silu_mul(const float *gate, const float *up, float *out, uint32_t n) {
    ROW(floats_mul(floats_silu(AT(gate)), AT(up)))
}

void row_sigmoid_mul(const float *x, const float *gate, float *out, uint32_t n) {
    ROW(floats_mul(AT(x), floats_sigmoid(AT(gate))))
}

void row_add(const float *a, const float *b, float *out, uint32_t n) { ROW(floats_add(AT(a), AT(b))) }

void row_scale(const float *x, float factor, float *out, uint32_t n) {
    floats f = floats_splat(factor);
    ROW(floats_mul(AT(x), f))
}

void row_rope(const float *x, const float *table, uint32_t half, float *out, uint32_t n) {
    for (uint32_t i = 0; i < half; i += LANES) {
        uint32_t left = half - i;
        floats a = floats_load_some(x + i, left), b = floats_load_some(x + half + i, left);
        floats cos = floats_load_some(table + i, left), sin = floats_load_some(table + half + i, left);
        floats first = floats_sub(floats_mul(a, cos), floats_mul(b, sin));
        floats second = floats_add(floats_mul(a, sin), floats_mul(b, cos));
        floats_store_some(out + i, first, left);
        floats_store_some(out + half + i, second, left);
    }
    if (out != x && n > 2 * half) {
        memcpy(out + 2 * half, x + 2 * half, (n - 2 * half) * sizeof(float));
    }
}

/* FreeBSD's s_log1pf.c for arguments from 0 up, as Rust's libm has it.
 *
 * Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved. Developed at SunPro, a Sun
 * Microsystems, Inc. business. Permission to use, copy, modify, and distribute this software
 * is freely granted, provided that this notice is preserved. */
static float log1p_positive(float x) {
    uint32_t ix = bits_of_float(x);
    float c = 0.0f, f = 0.0f;
    int32_t k = 1;
    if (ix < 0x3ed413d0) {
        if (ix << 1 < 0x33800000u << 1) {
            return x;
        }
        if (ix <= 0xbe95f619) {
            k = 0;
            f = x;
        }
    } else if (ix >= 0x7f800000) {
        return x;
    }
    if (k > 0) {
        float u = 1.0f + x;
        uint32_t iu = bits_of_float(u) + (0x3f800000 - 0x3f3504f3);
        k = (int32_t)(iu >> 23) - 0x7f;
        if (k < 25) {
            c = k >= 2 ? 1.0f - (u - x) : x - (u - 1.0f);
            c = c / u;
        }
        f = float_of_bits((iu & 0x007fffff) + 0x3f3504f3) - 1.0f;
    }
    float s = f / (2.0f + f);
    float z = s * s, w = z * z;
    float t1 = w * (0.40000972152f + w * 0.24279078841f);
    float t2 = z * (0.66666662693f + w * 0.28498786688f);
    float r = t2 + t1, hfsq = 0.5f * f * f, dk = (float)k;
    return s * (hfsq + r) + (dk * 9.0580006145e-06f + c) - hfsq + f + dk * 6.9313812256e-01f;
}

void row_delta_gates(const float *alpha, const float *beta, const float *a, const float *dt, float *decay,
                     float *beta_out, uint32_t n) {
    for (uint32_t i = 0; i < n; i += LANES) {
        uint32_t lanes = n - i < LANES ? n - i : LANES;
        float x[LANES] __attribute__((aligned(128))), e[LANES] __attribute__((aligned(128)));
        floats sum = floats_add(AT(alpha), AT(dt));
        floats step = floats_sigmoid(AT(beta));
        floats_store(x, sum);
        floats_store(e, floats_exp(sum));
        for (uint32_t l = 0; l < lanes; l++) {
            x[l] = a[i + l] * (x[l] > 20.0f ? x[l] : log1p_positive(e[l]));
        }
        memcpy(decay + i, x, lanes * sizeof(float));
        floats_store_some(beta_out + i, step, lanes);
    }
}

void row_widen(const uint16_t *x, float *out, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        out[i] = float_of_half(x[i]);
    }
}

void row_narrow(const float *x, uint16_t *out, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (uint16_t)half_of_float(x[i]);
    }
}
