/* One block of a product through tiles against plain sums: whole tiles, rests in every direction,
 * sums in parts. Values whose sums are exact in halves, so that every bit counts. The conformance
 * suite has the rest: types of weights, many blocks, rounding. */
#include "../kernels/float.h"
#include "../kernels/tile.h"
#include "../include/packet.h"
#include <stdio.h>
#include <stdlib.h>

static uint32_t seed = 1;

/* -2 to 2 in whole steps. */
static float small(void) {
    seed = seed * 1664525 + 1013904223;
    return (float)(int)(seed >> 16 & 3) - 2.0f + (float)(seed >> 30 & 1);
}

static int failures;

static void *room(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (memory == NULL) {
        abort();
    }
    memset(memory, 0xff, bytes); /* what was there counts for nothing */
    return memory;
}

/* `columns` and `rows` up to 32; `part` tiles of the sum at a time. */
static void product(uint32_t columns, uint32_t rows, uint32_t width, uint32_t part) {
    const uint32_t depth = tile_blocks(width);
    uint16_t *a = room(part * TILE_BYTES), *w = room(part * TILE_BYTES), *out = room(TILE_BYTES);
    uint32_t *scales = room(TILE_BYTES);
    float *x = room(columns * width * 4), *packed = room(width * 128);
    for (uint32_t i = 0; i < columns * width; i++) {
        x[i] = small();
    }
    for (uint32_t i = 0; i < width * LANES; i++) {
        packed[i] = i % LANES < rows ? small() : 0.0f;
    }
    tile_scales(scales);
    port_tiles_clear(scales);
    for (uint32_t first = 0; first < depth; first += part) {
        const uint32_t count = depth - first < part ? depth - first : part, at = first * TILE;
        for (uint32_t pair = 0; pair < TILE / 2; pair++) {
            const float *even = 2 * pair < columns ? x + 2 * pair * width + at : NULL;
            const float *odd = 2 * pair + 1 < columns ? x + (2 * pair + 1) * width + at : NULL;
            const uint32_t left = width - at < count * TILE ? width - at : count * TILE;
            tile_pack(even, odd, left, pair, a);
        }
        tile_unpack(TDM_F32, (uint8_t *)packed, width, first, count, w);
        port_tiles_add(a, w, count);
    }
    port_tiles_store(out);
    for (uint32_t c = 0; c < TILE; c++) {
        for (uint32_t r = 0; r < TILE; r++) {
            float sum = 0, got = float_of_half(out[tile_place(c, r)]);
            for (uint32_t i = 0; i < width && c < columns; i++) {
                sum += x[c * width + i] * packed[i * LANES + r];
            }
            if (got != sum && failures++ < 10) {
                printf("%u x %u x %u in parts of %u: [%u][%u] is %g, not %g\n", columns, rows, width, part, c, r,
                       (double)got, (double)sum);
            }
        }
    }
    free(a);
    free(w);
    free(out);
    free(scales);
    free(x);
    free(packed);
}

int main(void) {
    if (!port_tiles_begin()) {
        printf("the unit is not given\n");
        return 1;
    }
    if (port_tiles_begin()) {
        printf("the unit is given twice\n");
        failures++;
    }
    product(32, 32, 32, 1);
    product(1, 1, 1, 1);
    product(31, 5, 95, 3);
    product(2, 32, 64, 1);
    product(3, 31, 290, 4);
    product(8, 32, 33 * 32, 33); /* more tiles than one packet streams */
    port_tiles_end();
    return failures == 0 ? 0 : 1;
}
