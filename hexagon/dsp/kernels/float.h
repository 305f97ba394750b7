/* Vectors of 32 single floats: the one place that knows whether HVX float exists.
 *
 * qemu-hexagon traps on most HVX float instructions and gets the rest wrong, so the emulator's
 * program has IEEE singles made of integer vectors (soft.h), and the host has its own floats, lane by
 * lane: one rounding an operation, which makes every kernel equal to the scalar reference to the
 * bit. The HVX form (TANDEM_HVX_FLOAT, the phone) has IEEE add, sub and multiply from v79 on and qf32 before; division there is a
 * reciprocal refined twice, so it promises a relative bound only.
 *
 * The build turns contraction into fused multiply-add off, and vectorisation by the compiler
 * too: it would put HVX float into emulator builds. */
#ifndef TANDEM_FLOAT_H
#define TANDEM_FLOAT_H

#include "vector.h"

inline_always float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

inline_always uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* Exact. */
inline_always float float_of_half(uint32_t h) {
    uint32_t sign = (h & 0x8000) << 16, rest = (h & 0x7fff) << 13;
    if (rest - 0x00800000 < 0x0f000000) { /* normal */
        return float_of_bits(sign | (rest + (112u << 23)));
    }
    if (rest >= 0x0f800000) { /* infinite or not a number */
        return float_of_bits(sign | 0x7f800000 | rest);
    }
    return float_of_bits(sign | bits_of_float(float_of_bits(rest) * 0x1p112f));
}

/* To the nearest half, ties to even; NaN stays NaN. */
inline_always uint32_t half_of_float(float f) {
    uint32_t bits = bits_of_float(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) {
        return sign | 0x7e00 | (rest >> 13 & 0x3ff);
    }
    if (rest >= 0x477ff000) { /* 65520 and above round to infinity */
        return sign | 0x7c00;
    }
    if (rest < 0x38800000) { /* subnormal half: the add aligns and rounds */
        return sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000);
    }
    return sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

/* 1.5 * 2^23: adding it rounds to an integer (ties to even) and leaves it in the low bits. */
#define ROUNDER 12582912.0f
#define ROUNDER_BITS 0x4b400000u

#ifdef TANDEM_HVX_FLOAT

typedef HVX_Vector floats;

inline_always words floats_bits(floats a) { return a; }
inline_always floats floats_of_bits(words a) { return a; }
inline_always floats floats_splat(float x) { return Q6_V_vsplat_R((int)bits_of_float(x)); }

#if __HVX_ARCH__ >= 79
inline_always floats floats_add(floats a, floats b) { return Q6_Vsf_vadd_VsfVsf(a, b); }
inline_always floats floats_sub(floats a, floats b) { return Q6_Vsf_vsub_VsfVsf(a, b); }
inline_always floats floats_mul(floats a, floats b) { return Q6_Vsf_vmpy_VsfVsf(a, b); }
#else
inline_always floats floats_add(floats a, floats b) {
    return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vadd_VsfVsf(a, b));
}
inline_always floats floats_sub(floats a, floats b) {
    return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vsub_VsfVsf(a, b));
}
inline_always floats floats_mul(floats a, floats b) {
    return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vmpy_VsfVsf(a, b));
}
#endif

inline_always floats floats_max(floats a, floats b) { return Q6_Vsf_vmax_VsfVsf(a, b); }
inline_always floats floats_min(floats a, floats b) { return Q6_Vsf_vmin_VsfVsf(a, b); }

/* 1 where a > b, else 0. */
inline_always floats floats_above(floats a, floats b) {
    return Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VsfVsf(a, b), floats_splat(1.0f), words_splat(0));
}

/* Reciprocal: an estimate from the exponent, refined by r = r (2 - b r). */
inline_always floats floats_div(floats a, floats b) {
    words sign = words_and(b, words_splat(0x80000000));
    words magnitude = words_and(b, words_splat(0x7fffffff));
    floats r = words_sub(words_splat(0x7ef311c7), magnitude);
    for (int i = 0; i < 4; i++) {
        r = floats_mul(r, floats_sub(floats_splat(2.0f), floats_mul(magnitude, r)));
    }
    return floats_mul(a, words_or(r, sign));
}

inline_always floats floats_of_words(words a) {
    /* Two exact halves, one rounding: v.sf = v.w is not on every version. */
    words high = words_sar(a, 16), low = words_and(a, words_splat(0xffff));
    words bias = words_splat(ROUNDER_BITS);
    floats h = floats_sub(words_add(high, bias), floats_splat(ROUNDER));
    floats l = floats_sub(words_add(low, bias), floats_splat(ROUNDER));
    return floats_add(floats_mul(h, floats_splat(65536.0f)), l);
}

/* Of the half in the low 16 bits of each lane. */
inline_always floats floats_of_halves(words h) {
    words sign = words_shl(words_and(h, words_splat(0x8000)), 16);
    words rest = words_shl(words_and(h, words_splat(0x7fff)), 13);
    floats f = floats_mul(rest, floats_splat(0x1p112f));
    HVX_VectorPred special = Q6_Q_vcmp_gt_VwVw(rest, words_splat(0x0f7fffff));
    f = Q6_V_vmux_QVV(special, words_or(rest, words_splat(0x7f800000)), f);
    return words_or(f, sign);
}

/* half_of_float of each lane, in its low 16 bits. */
inline_always words halves_of_floats(floats a) {
    words sign = words_and(words_shr(a, 16), words_splat(0x8000)), rest = words_and(a, words_splat(0x7fffffff));
    words odd = words_add(words_splat(0xfff), words_and(words_shr(rest, 13), words_splat(1)));
    words nan = words_or(words_splat(0x7e00), words_and(words_shr(rest, 13), words_splat(0x3ff)));
    words h = words_shr(words_add(words_sub(rest, words_splat(0x38000000)), odd), 13);
    words small = words_sub(floats_add(rest, floats_splat(0.5f)), words_splat(0x3f000000));
    h = Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VwVw(words_splat(0x38800000), rest), small, h);
    h = Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VwVw(rest, words_splat(0x477fefff)), words_splat(0x7c00), h);
    h = Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VwVw(rest, words_splat(0x7f800000)), nan, h);
    return words_or(sign, h);
}

/* Lane i takes lane i + n, for a power of two. */
inline_always floats floats_down(floats a, int n) { return Q6_V_vror_VR(a, n * 4); }

/* acc + a * b */
inline_always floats floats_mac(floats acc, floats a, floats b) { return floats_add(acc, floats_mul(a, b)); }

inline_always floats floats_load(const float *p) { return *(const HVX_UVector *)p; }
inline_always void floats_store(float *p, floats v) { *(HVX_UVector *)p = v; }

#elif defined(__HVX__)

#include "soft.h"

typedef words floats;

inline_always words floats_bits(floats a) { return a; }
inline_always floats floats_of_bits(words a) { return a; }
inline_always floats floats_splat(float x) { return words_splat(bits_of_float(x)); }
inline_always floats floats_add(floats a, floats b) { return soft_add(a, b); }
inline_always floats floats_sub(floats a, floats b) { return soft_sub(a, b); }
inline_always floats floats_mul(floats a, floats b) { return soft_mul(a, b); }
inline_always floats floats_div(floats a, floats b) { return soft_div(a, b); }
inline_always floats floats_max(floats a, floats b) { return soft_max(a, b); }
inline_always floats floats_min(floats a, floats b) { return soft_min(a, b); }
inline_always floats floats_above(floats a, floats b) { return words_and(soft_above(a, b), floats_splat(1.0f)); }
inline_always floats floats_mac(floats acc, floats a, floats b) { return soft_add(acc, soft_mul(a, b)); }
inline_always floats floats_down(floats a, int n) { return Q6_V_vror_VR(a, n * 4); }
inline_always floats floats_of_words(words a) { return soft_of_words(a); }
inline_always floats floats_of_halves(words h) { return soft_of_halves(words_and(h, words_splat(0xffff))); }
inline_always words halves_of_floats(floats a) { return soft_halves(a); }
inline_always floats floats_load(const float *p) { return *(const HVX_UVector *)p; }

/* The scalar unit adds few floats sooner than soft_add adds many. */
#define FOLD_LANES

/* Not as a vector: words_store says why. */
inline_always void floats_store(float *p, floats v) { words_store_lanes(p, v); }

#else

typedef struct {
    float f[LANES];
} __attribute__((aligned(128))) floats;

#define EACH(expression)              \
    floats r;                         \
    for (int i = 0; i < LANES; i++) { \
        r.f[i] = (expression);        \
    }                                 \
    return r

inline_always words floats_bits(floats a) {
    words r;
    memcpy(&r, &a, sizeof r);
    return r;
}

inline_always floats floats_of_bits(words a) {
    floats r;
    words_store(&r, a);
    return r;
}

inline_always floats floats_splat(float x) { EACH(x); }
inline_always floats floats_add(floats a, floats b) { EACH(a.f[i] + b.f[i]); }
inline_always floats floats_sub(floats a, floats b) { EACH(a.f[i] - b.f[i]); }
inline_always floats floats_mul(floats a, floats b) { EACH(a.f[i] * b.f[i]); }
inline_always floats floats_div(floats a, floats b) { EACH(a.f[i] / b.f[i]); }
/* NaN in `a` stays; NaN in `b` is ignored. */
inline_always floats floats_max(floats a, floats b) { EACH(a.f[i] < b.f[i] ? b.f[i] : a.f[i]); }
inline_always floats floats_min(floats a, floats b) { EACH(a.f[i] > b.f[i] ? b.f[i] : a.f[i]); }
inline_always floats floats_above(floats a, floats b) { EACH(a.f[i] > b.f[i] ? 1.0f : 0.0f); }
inline_always floats floats_mac(floats acc, floats a, floats b) { EACH(acc.f[i] + a.f[i] * b.f[i]); }
inline_always floats floats_down(floats a, int n) { EACH(a.f[(i + n) % LANES]); }

inline_always floats floats_of_words(words a) {
    int32_t w[LANES] __attribute__((aligned(128)));
    words_store(w, a);
    EACH((float)w[i]);
}

inline_always floats floats_of_halves(words h) {
    uint32_t w[LANES] __attribute__((aligned(128)));
    words_store(w, h);
    EACH(float_of_half(w[i] & 0xffff));
}

inline_always words halves_of_floats(floats a) {
    uint32_t w[LANES] __attribute__((aligned(128)));
    for (int i = 0; i < LANES; i++) {
        w[i] = half_of_float(a.f[i]);
    }
    return words_load(w);
}

inline_always floats floats_load(const float *p) {
    floats r;
    memcpy(&r, p, sizeof r);
    return r;
}

inline_always void floats_store(float *p, floats v) { memcpy(p, &v, sizeof v); }

#undef EACH

#endif

/* The first `n` lanes from memory, the others 0: nothing beyond `n` is touched. */
inline_always floats floats_load_some(const float *p, uint32_t n) {
    if (n >= LANES) {
        return floats_load(p);
    }
    float some[LANES] __attribute__((aligned(128))) = {0};
    memcpy(some, p, n * sizeof(float));
    return floats_load(some);
}

inline_always void floats_store_some(float *p, floats v, uint32_t n) {
    if (n >= LANES) {
        floats_store(p, v);
        return;
    }
    float some[LANES] __attribute__((aligned(128)));
    floats_store(some, v);
    memcpy(p, some, n * sizeof(float));
}

inline_always float floats_first(floats v) {
#ifdef __HVX__
    return float_of_bits(words_lane(floats_bits(v), 0));
#else
    float some[LANES] __attribute__((aligned(128)));
    floats_store(some, v);
    return some[0];
#endif
}

inline_always floats floats_abs(floats a) {
    return floats_of_bits(words_and(floats_bits(a), words_splat(0x7fffffff)));
}

/* scalar/mod.rs `fold` of lanes 0 to 15. */
inline_always float floats_fold16(floats v) {
#ifdef FOLD_LANES
    float part[16];
    for (int i = 0; i < 16; i++) {
        part[i] = float_of_bits(words_lane(v, i));
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            part[i] += part[i + half];
        }
    }
    return part[0];
#else
    for (int half = 8; half > 0; half /= 2) {
        v = floats_add(v, floats_down(v, half));
    }
    return floats_first(v);
#endif
}

/* scalar/float.rs `exp`. */
inline_always floats floats_exp(floats x) {
    x = floats_max(floats_min(x, floats_splat(88.37f)), floats_splat(-87.33f));
    floats t = floats_mac(floats_splat(0.5f), x, floats_splat(0x1.715476p+0f));
    /* floor: the nearest integer, one less where that is above */
    floats n = floats_sub(floats_add(t, floats_splat(ROUNDER)), floats_splat(ROUNDER));
    n = floats_sub(n, floats_above(n, t));
    floats r = floats_sub(floats_sub(x, floats_mul(n, floats_splat(0.693359375f))),
                          floats_mul(n, floats_splat(-2.12194440e-4f)));
    static const float p[6] = {1.9875691e-4f, 1.3981999e-3f, 8.333452e-3f, 4.1665796e-2f, 1.6666665e-1f, 5.0000003e-1f};
    floats y = floats_splat(p[0]);
    for (int i = 1; i < 6; i++) {
        y = floats_mac(floats_splat(p[i]), y, r);
    }
    y = floats_mac(r, y, floats_mul(r, r));
    y = floats_add(y, floats_splat(1.0f));
    words power = words_sub(floats_bits(floats_add(n, floats_splat(ROUNDER))), words_splat(ROUNDER_BITS - 127));
    return floats_mul(y, floats_of_bits(words_shl(power, 23)));
}

inline_always floats floats_negate(floats a) {
    return floats_of_bits(words_sub(floats_bits(a), words_splat(0x80000000)));
}

/* scalar/float.rs `sigmoid` and `silu`. */
inline_always floats floats_sigmoid(floats x) {
    return floats_div(floats_splat(1.0f), floats_add(floats_splat(1.0f), floats_exp(floats_negate(x))));
}

inline_always floats floats_silu(floats x) {
    return floats_div(x, floats_add(floats_splat(1.0f), floats_exp(floats_negate(x))));
}

#endif
