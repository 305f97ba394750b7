#include "delta.h"
#include "row.h"

static float exp_of(float x) { return floats_first(floats_exp(floats_splat(x))); }

/* out[n] = sum over m of k[m] * s[m][n], m ascending; lanes along n stay in a register. */
static void transpose_mul(const float *s, const float *k, uint32_t key_dim, uint32_t value_dim, float *out) {
    for (uint32_t i = 0; i < value_dim; i += LANES) {
        uint32_t left = value_dim - i;
        floats acc = floats_splat(0.0f);
        for (uint32_t m = 0; m < key_dim; m++) {
            acc = floats_mac(acc, floats_splat(k[m]), floats_load_some(s + (size_t)m * value_dim + i, left));
        }
        floats_store_some(out + i, acc, left);
    }
}

/* w[j] = exp(gamma[i] - gamma[j]) for j up to i. */
static void decays(const float *gamma, uint32_t i, float *w) {
    for (uint32_t j = 0; j <= i; j += LANES) {
        floats g = floats_sub(floats_splat(gamma[i]), floats_load_some(gamma + j, i + 1 - j));
        floats_store_some(w + j, floats_exp(g), i + 1 - j);
    }
}

void delta_token(const struct delta *h, uint32_t t, float *s, float *scratch) {
    const uint32_t n = h->value_dim;
    const float *k = h->k + (size_t)t * h->k_stride, *v = h->v + (size_t)t * h->v_stride;
    float *d = scratch;
    floats e = floats_splat(exp_of(h->decay[(size_t)t * h->decay_stride]));
    floats beta = floats_splat(h->beta[(size_t)t * h->beta_stride]);
    transpose_mul(s, k, h->key_dim, n, d);
    for (uint32_t i = 0; i < n; i += LANES) {
        floats u = floats_mul(e, floats_load_some(d + i, n - i));
        floats_store_some(d + i, floats_mul(beta, floats_sub(floats_load_some(v + i, n - i), u)), n - i);
    }
    for (uint32_t m = 0; m < h->key_dim; m++) {
        float *row = s + (size_t)m * n;
        floats key = floats_splat(k[m]);
        for (uint32_t i = 0; i < n; i += LANES) {
            floats kept = floats_mul(e, floats_load_some(row + i, n - i));
            floats_store_some(row + i, floats_mac(kept, key, floats_load_some(d + i, n - i)), n - i);
        }
    }
    transpose_mul(s, h->q + (size_t)t * h->q_stride, h->key_dim, n, h->out + (size_t)t * h->out_stride);
}

void delta_chunk(const struct delta *h, const float *s, uint32_t first, uint32_t count, float *scratch) {
    const uint32_t n = h->value_dim;
    float *gamma = scratch, *d = scratch + DELTA_CHUNK, *acc = d + (size_t)DELTA_CHUNK * n;
    float g = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        g += h->decay[(size_t)(first + i) * h->decay_stride];
        gamma[i] = g;
    }
    for (uint32_t i = 0; i < count; i++) {
        const size_t t = first + i;
        const float *k = h->k + t * h->k_stride, *q = h->q + t * h->q_stride, *v = h->v + t * h->v_stride;
        float e = exp_of(gamma[i]), *d_i = d + (size_t)i * n, *out = h->out + t * h->out_stride;
        float w[DELTA_CHUNK];
        decays(gamma, i, w);
        transpose_mul(s, k, h->key_dim, n, acc);
        row_scale(acc, e, acc, n);
        for (uint32_t j = 0; j < i; j++) {
            const float *k_j = h->k + (size_t)(first + j) * h->k_stride;
            row_axpy(acc, w[j] * row_dot(k, k_j, h->key_dim), d + (size_t)j * n, n);
        }
        floats beta = floats_splat(h->beta[t * h->beta_stride]);
        for (uint32_t l = 0; l < n; l += LANES) {
            floats rest = floats_sub(floats_load_some(v + l, n - l), floats_load_some(acc + l, n - l));
            floats_store_some(d_i + l, floats_mul(beta, rest), n - l);
        }
        transpose_mul(s, q, h->key_dim, n, out);
        row_scale(out, e, out, n);
        for (uint32_t j = 0; j <= i; j++) {
            const float *k_j = h->k + (size_t)(first + j) * h->k_stride;
            row_axpy(out, w[j] * row_dot(q, k_j, h->key_dim), d + (size_t)j * n, n);
        }
    }
}

void delta_chunk_state(const struct delta *h, const float *s, uint32_t first, uint32_t p, const float *scratch,
                       float *out, uint32_t out_stride) {
    const uint32_t n = h->value_dim;
    const float *gamma = scratch, *d = scratch + DELTA_CHUNK;
    float e = exp_of(gamma[p]), decay[DELTA_CHUNK];
    decays(gamma, p, decay);
    for (uint32_t m = 0; m < h->key_dim; m++) {
        row_scale(s + (size_t)m * n, e, out + (size_t)m * out_stride, n);
    }
    for (uint32_t j = 0; j <= p; j++) {
        const float *k = h->k + (size_t)(first + j) * h->k_stride;
        for (uint32_t m = 0; m < h->key_dim; m++) {
            row_axpy(out + (size_t)m * out_stride, decay[j] * k[m], d + (size_t)j * n, n);
        }
    }
}
