/* Attention of one query head over the cells it sees: scalar/attention.rs `attend`. */
#ifndef TANDEM_ATTENTION_H
#define TANDEM_ATTENTION_H

#include <stdint.h>

/* Keys or values of one KV head. */
struct cells {
    const uint8_t *first; /* the head's part of cell 0 */
    uint32_t step;        /* bytes from cell to cell */
    uint32_t half;        /* cells are halves */
};

/* `scratch`: `count + dim` floats, aligned to 4. Maximum first, then weights and their sum, as
 * the reference has it; an online softmax would round elsewhere. */
void attention_head(const float *q, struct cells k, struct cells v, uint32_t count, uint32_t dim, float scale,
                    float *scratch, float *out);

#endif
