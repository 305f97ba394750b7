/* The matrix unit's own instructions: the vendor's compiler alone assembles them, so this file
 * is in SDK builds only, in place of hmx_soft.c. CI compiles it with the instructions as comments
 * (HMX_SYNTAX), which checks all but them. Not run on hardware. */
#include "tile.h"

#ifdef HMX_SYNTAX
#define HMX(text) "// " text
#else
#define HMX(text) text
#endif

/* Tiles that one packet streams. */
#define STREAM 32

void port_tiles_clear(const uint32_t *scales) {
    /* Without it results are scaled by what the last user left. */
    __asm__ volatile(HMX("bias = mxmem2(%0)") : : "r"(scales) : "memory");
    __asm__ volatile(HMX("mxclracc.hf") : : : "memory");
}

void port_tiles_add(const uint16_t *a, const uint16_t *w, uint32_t depth) {
    while (depth > 0) {
        uint32_t tiles = depth < STREAM ? depth : STREAM, range = tiles * TILE_BYTES - 1;
        /* Both loads in one packet: apart they multiply something else. */
        __asm__ volatile(HMX("{ activation.hf = mxmem(%0,%1):deep; weight.hf = mxmem(%2,%1) }")
                         :
                         : "r"(a), "r"(range), "r"(w)
                         : "memory");
        a += tiles * TILE_HALVES;
        w += tiles * TILE_HALVES;
        depth -= tiles;
    }
}

void port_tiles_store(uint16_t *out) {
    __asm__ volatile(HMX("mxmem(%0,%1):after.hf = acc") : : "r"(out), "r"(0) : "memory");
}
