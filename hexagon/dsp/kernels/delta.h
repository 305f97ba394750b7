/* The gated delta rule of one value head, per token and chunked: scalar/delta.rs. */
#ifndef TANDEM_DELTA_H
#define TANDEM_DELTA_H

#include <stdint.h>

#define DELTA_CHUNK 64

/* One head's columns. Strides count values from column to column. */
struct delta {
    const float *q, *k, *v, *decay, *beta;
    uint32_t q_stride, k_stride, v_stride, decay_stride, beta_stride;
    uint32_t key_dim, value_dim;
    float *out;
    uint32_t out_stride;
};

/* Floats of scratch: running sums of the log decays, and `d` of every column of a chunk. */
static inline uint64_t delta_scratch(uint32_t value_dim) {
    return DELTA_CHUNK + (uint64_t)DELTA_CHUNK * value_dim + value_dim;
}

/* Column `t`; `s` (dense, key_dim rows of value_dim) becomes the state after it. */
void delta_token(const struct delta *h, uint32_t t, float *s, float *scratch);

/* Columns first .. first + count (at most DELTA_CHUNK) from state `s`; leaves in `scratch`
 * what delta_chunk_state needs. */
void delta_chunk(const struct delta *h, const float *s, uint32_t first, uint32_t count, float *scratch);

/* The state after column first + p of the chunk just run, to `out` (rows `out_stride` apart). */
void delta_chunk_state(const struct delta *h, const float *s, uint32_t first, uint32_t p, const float *scratch,
                       float *out, uint32_t out_stride);

#endif
