#include "conv.h"
#include "float.h"

/* Input `t` counted from the oldest of the state. */
static const float *input(const struct conv *c, uint32_t t) {
    uint32_t kept = c->taps - 1;
    return t < kept ? c->state + (size_t)t * c->state_stride : c->x + (size_t)(t - kept) * c->x_stride;
}

void conv_channels(const struct conv *c, uint32_t channels) {
    floats kernel[CONV_TAPS];
    for (uint32_t j = 0; j < c->taps; j++) {
        float taps[LANES] __attribute__((aligned(128))) = {0};
        for (uint32_t l = 0; l < channels; l++) {
            taps[l] = c->kernel[(size_t)l * c->kernel_stride + j];
        }
        kernel[j] = floats_load(taps);
    }
    floats bias = c->bias ? floats_load_some(c->bias, channels) : floats_splat(0.0f);
    for (uint32_t t = 0; t < c->columns; t++) {
        floats y = bias;
        for (uint32_t j = 0; j < c->taps; j++) {
            y = floats_mac(y, kernel[j], floats_load_some(input(c, t + j), channels));
        }
        floats_store_some(c->out + (size_t)t * c->out_stride, c->silu ? floats_silu(y) : y, channels);
    }
}
