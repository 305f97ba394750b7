/* Activations as products see them: scalar/quant.rs `q8_32`, `q8k_256`, `round_f16`. */
#ifndef TANDEM_ACTIVATION_H
#define TANDEM_ACTIVATION_H

#include <stdint.h>

/* The kinds of rounding. */
enum act { ACT_F32, ACT_F16, ACT_Q8_32, ACT_Q8K_256 };

/* One column, rounded. */
struct column {
    const float *x;       /* ACT_F32, ACT_F16: the values */
    const uint32_t *q;    /* the others: four signed bytes a word */
    const float *d;       /* a scale a block of 32 or 256 */
    const int32_t *sums;  /* of the bytes, over 32 (q8_32) or 16 (q8k_256) */
};

/* The rounding that goes with a weight type. */
enum act act_for(uint32_t dtype);

/* Bytes `activation_round` needs for a row of `width`; a multiple of 128. */
uint64_t activation_bytes(enum act act, uint32_t width);

/* Rounds a row into `memory` (aligned to 128) and says where its parts lie. ACT_F32 copies
 * nothing: the column points at `x`. */
struct column activation_round(enum act act, const float *x, uint32_t width, void *memory);

#endif
