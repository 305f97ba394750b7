/* Causal depthwise convolution of up to 32 neighbouring channels: scalar/conv.rs `tap`.
 *
 * Channels lie in lanes, so the columns are read as they are, without a transpose, and SiLU is
 * part of the same pass. */
#ifndef TANDEM_CONV_H
#define TANDEM_CONV_H

#include <stdint.h>

#define CONV_TAPS 16

struct conv {
    const float *x;      /* column 0, the first of the channels */
    uint32_t x_stride;   /* values */
    const float *state;  /* the oldest of taps - 1 inputs before column 0 */
    uint32_t state_stride;
    const float *kernel; /* taps of the first channel, then of the next */
    uint32_t kernel_stride;
    const float *bias;   /* or none */
    uint32_t taps;       /* 2 to CONV_TAPS */
    uint32_t silu;
    uint32_t columns;
    float *out;
    uint32_t out_stride;
};

void conv_channels(const struct conv *c, uint32_t channels);

#endif
