/* Kernels on single rows of floats; `n` values. Outputs may be the input where the op allows it. */
#ifndef TANDEM_ROW_H
#define TANDEM_ROW_H

#include "float.h"

/* scalar/mod.rs `dot` and `sum`: sixteen partial sums, folded in halves. */
float row_dot(const float *a, const float *b, uint32_t n);
float row_sum(const float *a, uint32_t n);

/* out += factor * x */
void row_axpy(float *out, float factor, const float *x, uint32_t n);

/* scalar/norm.rs */
void row_rms_norm(const float *x, const float *weight, float eps, float *out, uint32_t n);
void row_l2_norm(const float *x, float eps, float scale, float *out, uint32_t n);
void row_gated_norm(const float *x, const float *z, const float *weight, float eps, float *out, uint32_t n);
void row_rope(const float *x, const float *table, uint32_t half, float *out, uint32_t n);

void row_silu_mul(const float *gate, const float *up, float *out, uint32_t n);
void row_sigmoid_mul(const float *x, const float *gate, float *out, uint32_t n);
void row_add(const float *a, const float *b, float *out, uint32_t n);
void row_scale(const float *x, float factor, float *out, uint32_t n);

/* decay = a * softplus(alpha + dt); beta_out = sigmoid(beta) */
void row_delta_gates(const float *alpha, const float *beta, const float *a, const float *dt, float *decay,
                     float *beta_out, uint32_t n);

/* Half to single and back, nearest even. */
void row_widen(const uint16_t *x, float *out, uint32_t n);
void row_narrow(const float *x, uint16_t *out, uint32_t n);

#endif
