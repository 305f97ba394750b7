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
inline_always void words_store(void *p, words v) { *(HVX_Vector *)p = v; }
inline_always words words_splat(uint32_t x) { return Q6_V_vsplat_R((int)x); }
inline_always words words_and(words a, words b) { return Q6_V_vand_VV(a, b); }
inline_always words words_or(words a, words b) { return Q6_V_vor_VV(a, b); }
inline_always words words_add(words a, words b) { return Q6_Vw_vadd_VwVw(a, b); }
inline_always words words_sub(words a, words b) { return Q6_Vw_vsub_VwVw(a, b); }
inline_always words words_shl(words a, int n) { return Q6_Vw_vasl_VwR(a, n); }
inline_always words words_shr(words a, int n) { return Q6_Vuw_vlsr_VuwR(a, n); }
inline_always words words_sar(words a, int n) { return Q6_Vw_vasr_VwR(a, n); }
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
    *(HVX_Vector *)out = b;
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
inline_always words words_add(words a, words b) { EACH(r, a.w[i] + b.w[i]); }
inline_always words words_sub(words a, words b) { EACH(r, a.w[i] - b.w[i]); }
inline_always words words_shl(words a, int n) { EACH(r, a.w[i] << n); }
inline_always words words_shr(words a, int n) { EACH(r, a.w[i] >> n); }
inline_always words words_sar(words a, int n) { EACH(r, (int32_t)a.w[i] >> n); }

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
