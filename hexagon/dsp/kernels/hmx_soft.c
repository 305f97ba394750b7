/* The matrix unit in vectors of floats: the emulator's model of it, and what libraries of the
 * open toolchain, which cannot assemble HMX, do in its place. Tiles, accumulator and the single
 * rounding are the unit's; sums are single floats added in order of the index, which makes it
 * equal to scalar/weight.rs `dot_tile` to the bit where floats are (float.h). */
#include "float.h"
#include "tile.h"
#include <stdatomic.h>

/* One unit a process, as in the hardware. */
static _Atomic bool held;
static floats sums[TILE];
static floats scale, bias;

bool port_tiles_begin(void) { return !atomic_exchange(&held, true); }
void port_tiles_end(void) { atomic_store(&held, false); }

/* The unit would compute something else, or with another's accumulator. */
static void demand(const void *a, const void *b) {
    if (!atomic_load_explicit(&held, memory_order_relaxed) || ((uintptr_t)a | (uintptr_t)b) % TILE_BYTES != 0) {
        __builtin_trap();
    }
}

void port_tiles_clear(const uint32_t *scales) {
    demand(scales, scales);
    const words w = words_load(scales);
    scale = floats_of_halves(w);
    bias = floats_of_halves(words_shr(w, 16));
    for (uint32_t row = 0; row < TILE; row++) {
        words_store(&sums[row], floats_bits(floats_splat(0.0f)));
    }
}

void port_tiles_add(const uint16_t *a, const uint16_t *w, uint32_t depth) {
    demand(a, w);
    for (uint32_t t = 0; t < depth; t++, a += TILE_HALVES, w += TILE_HALVES) {
        floats weights[TILE];
        for (uint32_t i = 0; i < TILE; i += 2) {
            const words pair = words_load(w + tile_place(i, 0));
            words_store(&weights[i], floats_bits(floats_of_halves(pair)));
            words_store(&weights[i + 1], floats_bits(floats_of_halves(words_shr(pair, 16))));
        }
        for (uint32_t row = 0; row < TILE; row++) {
            floats sum = sums[row];
            for (uint32_t i = 0; i < TILE; i++) {
                sum = floats_mac(sum, weights[i], floats_splat(float_of_half(a[tile_place(row, i)])));
            }
            words_store(&sums[row], floats_bits(sum));
        }
    }
}

void port_tiles_store(uint16_t *out) {
    demand(out, out);
    for (uint32_t row = 0; row < TILE; row += 2) {
        const floats even = floats_add(floats_mul(sums[row], scale), bias);
        const floats odd = floats_add(floats_mul(sums[row + 1], scale), bias);
        words_store(out + tile_place(row, 0), words_or(halves_of_floats(even), words_shl(halves_of_floats(odd), 16)));
    }
}
