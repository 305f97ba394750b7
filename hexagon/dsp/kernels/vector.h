/* Integer vectors of 32 words: HVX where there is HVX, plain C elsewhere, the same meaning.
 *
 * The host form exists so that kernels run under the sanitizers; the loops say what each
 * instruction does. */
#ifndef TANDEM_VECTOR_H
#define TANDEM_VECTOR_H

#include <stdint.h>
#include <string.h>

#define LANES 32

#ifdef __HVX__

#define inline_always static inline __attribute__((always_inline))

#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

typedef HVX_Vector words;

/* `p` is aligned to 128 bytes: the hardware ignores the low bits of the address. */
inline_always words words_load(const void *p) { return *(const HVX_Vector *)p; }
/* Not by the intrinsic: the compiler makes a vector's store and a word's load of it. */
inline_always uint32_t words_lane(words a, int i) {
    uint32_t x;
    __asm__("%0 = vextract(%1,%2)" : "=r"(x) : "v"(a), "r"(i * 4));
    return x;
}

#ifdef TANDEM_HVX_FLOAT
inline_always words words_splat(uint32_t x) { return Q6_V_vsplat_R((int)x); }
inline_always void words_store(void *p, words v) { *(HVX_Vector *)p = v; }
#else
/* For qemu-hexagon, which takes two microseconds to store a vector, and three nanoseconds for this:
 * constants are made where they are used, for all of soft.h's would not fit the registers. */
inline_always words words_splat(uint32_t x) {
    words v;
    __asm__ volatile("%0 = vsplat(%1)" : "=v"(v) : "r"(x));
    return v;
}

/* Lane by lane for the same reason; and a packet each, for it looks at the memory of two stores in
 * one before it runs them. To any address of a word. */
inline_always void words_store_lanes(void *p, words v) {
    uint32_t *to = p;
#pragma clang loop unroll(disable)
    for (int i = 0; i < LANES; i++, to++) {
        __asm__ volatile("memw(%0) = %1" : : "r"(to), "r"(words_lane(v, i)) : "memory");
    }
}

inline_always void words_store(void *p, words v) { words_store_lanes((void *)((uintptr_t)p & ~(uintptr_t)127), v); }
#endif
inline_always words words_and(words a, words b) { return Q6_V_vand_VV(a, b); }
inline_always words words_or(words a, words b) { return Q6_V_vor_VV(a, b); }
inline_always words words_xor(words a, words b) { return Q6_V_vxor_VV(a, b); }
inline_always words words_add(words a, words b) { return Q6_Vw_vadd_VwVw(a, b); }
inline_always words words_sub(words a, words b) { return Q6_Vw_vsub_VwVw(a, b); }
inline_always words words_shl(words a, int n) { return Q6_Vw_vasl_VwR(a, n); }
inline_always words words_shr(words a, int n) { return Q6_Vuw_vlsr_VuwR(a, n); }
inline_always words words_sar(words a, int n) { return Q6_Vw_vasr_VwR(a, n); }
/* Signed. */
inline_always words words_max(words a, words b) { return Q6_Vw_vmax_VwVw(a, b); }
inline_always words words_min(words a, words b) { return Q6_Vw_vmin_VwVw(a, b); }
/* By the lane's own count, 0 to 31; others leave any value. */
inline_always words words_shl_each(words a, words n) { return Q6_Vw_vasl_VwVw(a, n); }
inline_always words words_shr_each(words a, words n) { return Q6_Vw_vlsr_VwVw(a, n); }
inline_always words words_sar_each(words a, words n) { return Q6_Vw_vasr_VwVw(a, n); }
inline_always words words_leading_zeros(words a) { return Q6_Vuw_vcl0_Vuw(a); }
/* The 64 bits of each lane's signed product: the upper half, and the lower one to `low`. */
inline_always words words_product(words a, words b, words *low) {
    HVX_VectorPair p = Q6_W_vmpyoacc_WVwVh(Q6_W_vmpye_VwVuh(a, b), a, b);
    *low = Q6_V_lo_W(p);
    return Q6_V_hi_W(p);
}
/* Every lane takes the next one's value, the last one `x`. */
inline_always words words_shift_in(words a, uint32_t x) { return Q6_V_vror_VR(Q6_Vw_vinsert_VwR(a, (int)x), 4); }
/* Whether the sign bit of any lane is set. */
inline_always int words_any_sign(words a) {
    uint32_t all = 0;
    for (int i = 0; i < LANES; i++) {
        all |= words_lane(a, i);
    }
    return all >> 31;
}
/* Each lane: acc + the sum of four unsigned bytes of `w` times four signed bytes of `x`. */
inline_always words words_dot4(words acc, words w, uint32_t x) {
    return Q6_Vw_vrmpyacc_VwVubRb(acc, w, (int)x);
}
/* Each lane: acc + a * (low half of b, unsigned). */
inline_always words words_mac_low(words acc, words a, words b) {
    return Q6_Vw_vmpyieacc_VwVwVuh(acc, a, b);
}
/* Each lane: acc + a * (high half of b, signed). */
inline_always words words_mac_high(words acc, words a, words b) {
    return Q6_Vw_vadd_VwVw(acc, Q6_Vw_vmpyio_VwVh(a, b));
}
/* The low byte of each lane, in order. */
inline_always void words_store_bytes(void *p, words v) {
    HVX_Vector h = Q6_Vh_vpacke_VwVw(v, v);
    HVX_Vector b = Q6_Vb_vpacke_VhVh(h, h);
    uint32_t out[LANES] __attribute__((aligned(128)));
    words_store(out, b);
    memcpy(p, out, LANES);
}

#else

/* Not forced here: sanitized kernels of forced inlines take minutes to compile. */
#define inline_always static inline

typedef struct {
    uint32_t w[LANES];
} __attribute__((aligned(128))) words;

#define EACH(result, expression)            \
    words result;                           \
    for (int i = 0; i < LANES; i++) {       \
        result.w[i] = (uint32_t)(expression); \
    }                                       \
    return result

inline_always words words_load(const void *p) { return *(const words *)p; }
inline_always void words_store(void *p, words v) { *(words *)p = v; }
inline_always words words_splat(uint32_t x) { EACH(r, x); }
inline_always words words_and(words a, words b) { EACH(r, a.w[i] & b.w[i]); }
inline_always words words_or(words a, words b) { EACH(r, a.w[i] | b.w[i]); }
inline_always words words_xor(words a, words b) { EACH(r, a.w[i] ^ b.w[i]); }
inline_always words words_add(words a, words b) { EACH(r, a.w[i] + b.w[i]); }
inline_always words words_sub(words a, words b) { EACH(r, a.w[i] - b.w[i]); }
inline_always words words_shl(words a, int n) { EACH(r, a.w[i] << n); }
inline_always words words_shr(words a, int n) { EACH(r, a.w[i] >> n); }
inline_always words words_sar(words a, int n) { EACH(r, (int32_t)a.w[i] >> n); }

#define LESS(x, y) ((int32_t)(x) < (int32_t)(y))
inline_always words words_max(words a, words b) { EACH(r, LESS(a.w[i], b.w[i]) ? b.w[i] : a.w[i]); }
inline_always words words_min(words a, words b) { EACH(r, LESS(b.w[i], a.w[i]) ? b.w[i] : a.w[i]); }
#undef LESS
inline_always words words_shl_each(words a, words n) { EACH(r, a.w[i] << (n.w[i] & 31)); }
inline_always words words_shr_each(words a, words n) { EACH(r, a.w[i] >> (n.w[i] & 31)); }
inline_always words words_sar_each(words a, words n) { EACH(r, (int32_t)a.w[i] >> (n.w[i] & 31)); }
inline_always words words_leading_zeros(words a) { EACH(r, a.w[i] ? __builtin_clz(a.w[i]) : 32); }

inline_always words words_product(words a, words b, words *low) {
    words high;
    for (int i = 0; i < LANES; i++) {
        int64_t p = (int64_t)(int32_t)a.w[i] * (int32_t)b.w[i];
        low->w[i] = (uint32_t)p;
        high.w[i] = (uint32_t)(p >> 32);
    }
    return high;
}

inline_always uint32_t words_lane(words a, int i) { return a.w[i]; }

inline_always words words_shift_in(words a, uint32_t x) {
    memmove(a.w, a.w + 1, sizeof a.w - sizeof a.w[0]);
    a.w[LANES - 1] = x;
    return a;
}

inline_always int words_any_sign(words a) {
    uint32_t all = 0;
    for (int i = 0; i < LANES; i++) {
        all |= a.w[i];
    }
    return all >> 31;
}

inline_always words words_dot4(words acc, words w, uint32_t x) {
    for (int i = 0; i < LANES; i++) {
        int32_t sum = 0;
        for (int b = 0; b < 32; b += 8) {
            sum += (int32_t)(w.w[i] >> b & 255) * (int8_t)(x >> b);
        }
        acc.w[i] += (uint32_t)sum;
    }
    return acc;
}

inline_always words words_mac_low(words acc, words a, words b) {
    EACH(r, acc.w[i] + a.w[i] * (b.w[i] & 0xffff));
}

inline_always words words_mac_high(words acc, words a, words b) {
    EACH(r, acc.w[i] + a.w[i] * (uint32_t)((int32_t)b.w[i] >> 16));
}

inline_always void words_store_bytes(void *p, words v) {
    uint8_t *out = p;
    for (int i = 0; i < LANES; i++) {
        out[i] = (uint8_t)v.w[i];
    }
}

#undef EACH

#endif

#endif
