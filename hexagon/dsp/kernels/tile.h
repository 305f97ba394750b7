/* Products on the matrix unit: halves in tiles of 32 x 32, 2048 bytes each, in on-chip memory.
 *
 * The unit multiplies a row of activation tiles with a column of weight tiles into one
 * accumulator and rounds once, to halves, when it stores: scalar/weight.rs `dot_tile`. What it
 * computes is below port_tiles_: HMX instructions where the compiler has them (hmx.c), vectors
 * of floats elsewhere (hmx_soft.c). Packing and unpacking (tile.c), planning and moving
 * (../run_tiles.c) are the same for both. */
#ifndef TANDEM_TILE_H
#define TANDEM_TILE_H

#include <stdbool.h>
#include <stdint.h>

#define TILE 32
#define TILE_HALVES (TILE * TILE)
#define TILE_BYTES (TILE_HALVES * 2)

/* Tiles that hold `n` values, rows or columns. */
static inline uint32_t tile_blocks(uint32_t n) { return n / TILE + (n % TILE != 0); }

/* Where element (row, column) stands in its tile: pairs of rows side by side. Of activations a row
 * is a column of the pass, of weights, which the sum runs along, a value's index. */
static inline uint32_t tile_place(uint32_t row, uint32_t column) { return row / 2 * 64 + column * 2 + row % 2; }

/* Rounds two activation columns, `width` values from `even` and `odd` on (NULL: zeros), to rows
 * 2 * pair and 2 * pair + 1 of tiles that follow each other; fills the last one up with zeros. */
void tile_pack(const float *even, const float *odd, uint32_t width, uint32_t pair, uint16_t *tiles);

/* Tiles first .. first + count of 32 packed weight rows (packed.h) of `width` values each: values
 * rounded to halves, zeros where the width ends. */
void tile_unpack(uint32_t dtype, const uint8_t *packed, uint32_t width, uint32_t first, uint32_t count,
                 uint16_t *tiles);

/* What port_tiles_clear wants: a scale of 1 and a bias of 0 a column, in a tile's room. */
void tile_scales(uint32_t *scales);

/* The port's: the matrix unit is this thread's until the end; false where it is not given. */
bool port_tiles_begin(void);
void port_tiles_end(void);
/* The accumulator is empty; sums will be scaled by `scales`. */
void port_tiles_clear(const uint32_t *scales);
/* Adds `depth` tiles of `a` times those of `w`. */
void port_tiles_add(const uint16_t *a, const uint16_t *w, uint32_t depth);
/* The sums as one tile of halves: rows as those of `a`, columns as those of `w`. */
void port_tiles_store(uint16_t *out);

#endif
