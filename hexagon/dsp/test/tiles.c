/* Products through tiles against plain sums, at every shape class: whole tiles, rests in every
 * direction, more columns or rows than on-chip memory holds at once. Values whose sums are exact
 * in halves, so that every bit counts. */
#include "../kernels/float.h"
#include "../kernels/tile.h"
#include <stdio.h>
#include <stdlib.h>

static uint32_t seed = 1;

/* -2 to 2 in whole steps. */
static float small(void) {
    seed = seed * 1664525 + 1013904223;
    return (float)(int)(seed >> 16 & 3) - 2.0f + (float)(seed >> 30 & 1);
}

static int failures;

static void product(uint32_t columns, uint32_t rows, uint32_t width, uint32_t tiles) {
    struct tile_plan plan;
    uint32_t bytes = tiles * TILE_BYTES;
    if (!tile_plan(width, columns, rows, bytes, &plan)) {
        printf("%u x %u x %u: no plan for %u tiles\n", columns, rows, width, tiles);
        failures++;
        return;
    }
    if ((2 + plan.depth * (plan.columns + plan.rows)) > tiles) {
        printf("%u x %u x %u: the plan does not fit %u tiles\n", columns, rows, width, tiles);
        failures++;
    }
    uint8_t *vtcm = aligned_alloc(TILE_BYTES, bytes);
    float *x = malloc(sizeof *x * columns * width), *out = malloc(sizeof *out * columns * rows);
    uint16_t *w = malloc(sizeof *w * rows * width);
    if (vtcm == NULL || x == NULL || out == NULL || w == NULL) {
        abort();
    }
    memset(vtcm, 0xff, bytes); /* what was there counts for nothing */
    for (uint32_t i = 0; i < columns * width; i++) {
        x[i] = small();
    }
    for (uint32_t i = 0; i < rows * width; i++) {
        w[i] = (uint16_t)half_of_float(small());
    }
    tile_product(vtcm, &plan, x, columns, w, rows, width, out);
    for (uint32_t c = 0; c < columns; c++) {
        for (uint32_t r = 0; r < rows; r++) {
            float sum = 0;
            for (uint32_t i = 0; i < width; i++) {
                sum += x[c * width + i] * float_of_half(w[r * width + i]);
            }
            if (out[c * rows + r] != sum && failures++ < 10) {
                printf("%u x %u x %u: [%u][%u] is %g, not %g\n", columns, rows, width, c, r, (double)out[c * rows + r],
                       (double)sum);
            }
        }
    }
    free(vtcm);
    free(x);
    free(w);
    free(out);
}

int main(void) {
    port_tiles_begin();
    product(32, 32, 32, 4);
    product(1, 1, 1, 4);
    product(33, 65, 95, 14);
    product(31, 32, 64, 6);
    product(100, 40, 64, 8);
    product(40, 100, 64, 8);
    product(8, 32, 33 * 32, 2 + 2 * 33); /* more tiles than one packet streams */
    port_tiles_end();
    struct tile_plan plan;
    if (tile_plan(64, 1, 1, 5 * TILE_BYTES, &plan) || tile_plan(64, 1, 1, 0, &plan)) {
        printf("a plan for too little memory\n");
        failures++;
    }
    return failures == 0 ? 0 : 1;
}
