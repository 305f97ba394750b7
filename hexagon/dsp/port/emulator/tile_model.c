/* The matrix unit in loops: the layouts and the single rounding are the hardware's. */
#include "../../kernels/tile.h"
#include "../../kernels/float.h"
#include <stdio.h>
#include <stdlib.h>

static _Thread_local bool ours;

bool port_tiles_begin(void) {
    ours = true;
    return true;
}

void port_tiles_end(void) { ours = false; }

void port_tiles(const uint16_t *a, const uint16_t *w, uint32_t depth, const uint32_t *scales, uint16_t *out) {
    if (!ours || ((uintptr_t)a | (uintptr_t)w | (uintptr_t)scales | (uintptr_t)out) % TILE_BYTES != 0) {
        fprintf(stderr, "the matrix unit is used without being held, or on tiles that are not aligned\n");
        abort();
    }
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t column = 0; column < TILE; column++) {
            double sum = 0;
            for (uint32_t i = 0; i < depth * TILE; i++) {
                uint32_t tile = i / TILE * TILE_HALVES;
                sum += (double)float_of_half(a[tile + tile_place(row, i % TILE)]) *
                       (double)float_of_half(w[tile + tile_place(i % TILE, column)]);
            }
            float scale = float_of_half(scales[column] & 0xffff), bias = float_of_half(scales[column] >> 16);
            out[tile_place(row, column)] = (uint16_t)half_of_float((float)(sum * (double)scale + (double)bias));
        }
    }
}
