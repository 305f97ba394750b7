#include "tile.h"
#include "float.h"

static uint32_t blocks(uint32_t n) { return (n + TILE - 1) / TILE; }
static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

bool tile_plan(uint32_t width, uint32_t columns, uint32_t rows, uint32_t bytes, struct tile_plan *plan) {
    uint32_t depth = blocks(width);
    /* The scales in a tile's room of their own, and one tile of results. */
    uint32_t tiles = bytes / TILE_BYTES;
    if (depth == 0 || tiles < 2 || (tiles - 2) / depth < 2) {
        return false;
    }
    uint32_t room = (tiles - 2) / depth;
    plan->depth = depth;
    plan->columns = least(blocks(columns), room - 1);
    plan->rows = least(blocks(rows), room - plan->columns);
    return true;
}

/* Tiles of 32 activation columns (fewer: the rest is zero). */
static void pack_activations(const float *x, uint32_t columns, uint32_t width, uint16_t *to) {
    memset(to, 0, blocks(width) * TILE_BYTES);
    for (uint32_t c = 0; c < columns; c++) {
        for (uint32_t i = 0; i < width; i++) {
            to[i / TILE * TILE_HALVES + tile_place(c, i % TILE)] = (uint16_t)half_of_float(x[c * width + i]);
        }
    }
}

/* Tiles of 32 weight rows, turned: the sum runs along a weight tile's rows. */
static void pack_weights(const uint16_t *w, uint32_t rows, uint32_t width, uint16_t *to) {
    memset(to, 0, blocks(width) * TILE_BYTES);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < width; i++) {
            to[i / TILE * TILE_HALVES + tile_place(i % TILE, r)] = w[r * width + i];
        }
    }
}

static void unpack(const uint16_t *tile, uint32_t columns, uint32_t rows, uint32_t stride, float *out) {
    for (uint32_t c = 0; c < columns; c++) {
        for (uint32_t r = 0; r < rows; r++) {
            out[c * stride + r] = float_of_half(tile[tile_place(c, r)]);
        }
    }
}

void tile_product(uint8_t *vtcm, const struct tile_plan *plan, const float *x, uint32_t columns, const uint16_t *w,
                  uint32_t rows, uint32_t width, float *out) {
    const uint32_t block = plan->depth * TILE_HALVES;
    uint32_t *scales = (uint32_t *)vtcm;
    uint16_t *result = (uint16_t *)(vtcm + TILE_BYTES);
    uint16_t *activations = result + TILE_HALVES, *weights = activations + plan->columns * block;
    for (uint32_t c = 0; c < TILE; c++) {
        scales[c] = 0x3c00; /* scale 1, bias 0 */
        scales[TILE + c] = 0;
    }
    for (uint32_t c0 = 0; c0 < columns; c0 += plan->columns * TILE) {
        uint32_t here = least(columns - c0, plan->columns * TILE);
        for (uint32_t c = 0; c < here; c += TILE) {
            pack_activations(x + (c0 + c) * width, least(here - c, TILE), width, activations + c / TILE * block);
        }
        for (uint32_t r0 = 0; r0 < rows; r0 += plan->rows * TILE) {
            uint32_t these = least(rows - r0, plan->rows * TILE);
            for (uint32_t r = 0; r < these; r += TILE) {
                pack_weights(w + (r0 + r) * width, least(these - r, TILE), width, weights + r / TILE * block);
            }
            for (uint32_t c = 0; c < here; c += TILE) {
                for (uint32_t r = 0; r < these; r += TILE) {
                    port_tiles(activations + c / TILE * block, weights + r / TILE * block, plan->depth, scales, result);
                    unpack(result, least(here - c, TILE), least(these - r, TILE), rows,
                           out + (c0 + c) * rows + r0 + r);
                }
            }
        }
    }
}
