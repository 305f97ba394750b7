#include "attention.h"
#include "row.h"

static const float *cell(struct cells c, uint32_t i, uint32_t dim, float *scratch) {
    const uint8_t *at = c.first + (size_t)i * c.step;
    if (!c.half) {
        return (const float *)at;
    }
    row_widen((const uint16_t *)at, scratch, dim);
    return scratch;
}

void attention_head(const float *q, struct cells k, struct cells v, uint32_t count, uint32_t dim, float scale,
                    float *scratch, float *out) {
    float *scores = scratch, *row = scratch + count;
    float top = -__builtin_inff();
    for (uint32_t i = 0; i < count; i++) {
        scores[i] = scale * row_dot(q, cell(k, i, dim, row), dim);
        top = scores[i] > top ? scores[i] : top;
    }
    for (uint32_t i = 0; i < count; i += LANES) {
        floats s = floats_sub(floats_load_some(scores + i, count - i), floats_splat(top));
        floats_store_some(scores + i, floats_exp(s), count - i);
    }
    float total = row_sum(scores, count);
    memset(out, 0, dim * sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        row_axpy(out, scores[i], cell(v, i, dim, row), dim);
    }
    for (uint32_t i = 0; i < dim; i += LANES) {
        floats o = floats_load_some(out + i, dim - i);
        floats_store_some(out + i, floats_div(o, floats_splat(total)), dim - i);
    }
}
