/* Products on the matrix unit: halves in tiles of 32 x 32, 2048 bytes each, in on-chip memory.
 *
 * The unit multiplies a row of activation tiles with a column of weight tiles into one
 * accumulator and rounds once, to halves, when it stores. What it computes is the port's
 * (port_tiles): HMX instructions on the phone (hmx.c), loops in emulation. Planning, packing and
 * moving are here, the same for both.
 *
 * No op uses it yet: the program crate has no activation rounding of this kind (the design's
 * `f16_tile`), and a product's rounding follows from its op, never from the device. */
#ifndef TANDEM_TILE_H
#define TANDEM_TILE_H

#include <stdbool.h>
#include <stdint.h>

#define TILE 32
#define TILE_HALVES (TILE * TILE)
#define TILE_BYTES (TILE_HALVES * 2)
/* A scale and a bias a column, twice over. */
#define TILE_SCALES_BYTES 256

/* Where element (row, column) stands in its tile: pairs of rows side by side. */
static inline uint32_t tile_place(uint32_t row, uint32_t column) { return row / 2 * 64 + column * 2 + row % 2; }

/* How much of a product is in on-chip memory at once. */
struct tile_plan {
    uint32_t depth;   /* tiles along the sum */
    uint32_t columns; /* blocks of 32 activation columns */
    uint32_t rows;    /* blocks of 32 weight rows */
};

/* As many columns as fit beside one block of rows, then as many rows as fit: activations stay,
 * weights pass through. False where not even one block of each fits into `bytes`. */
bool tile_plan(uint32_t width, uint32_t columns, uint32_t rows, uint32_t bytes, struct tile_plan *plan);

/* out[c][r] = sum of x[c][i] * w[r][i], for `columns` rows of x and `rows` rows of w, each of
 * `width` values. x is rounded to halves; the sum is rounded once. `vtcm` is aligned to 2048 and
 * has the bytes the plan was made for. */
void tile_product(uint8_t *vtcm, const struct tile_plan *plan, const float *x, uint32_t columns, const uint16_t *w,
                  uint32_t rows, uint32_t width, float *out);

/* The port's: the matrix unit is this thread's until the end; false where it is not given. */
bool port_tiles_begin(void);
void port_tiles_end(void);
/* The sum over `depth` tiles of a times those of w, scaled, into one tile of halves. */
void port_tiles(const uint16_t *a, const uint16_t *w, uint32_t depth, const uint32_t *scales, uint16_t *out);

#endif
