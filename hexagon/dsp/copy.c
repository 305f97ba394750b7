/* This program's own memcpy and memset, also of the calls that the compiler makes for large
 * structures.
 *
 * The C library's reads ahead of what it copies. At the end of a map there is nothing to read:
 * the emulator's guard page ends the process, on the phone the SMMU would end the session.
 * This one touches the bytes it was given and no others. Built for the DSP only, with
 * -fno-builtin: otherwise the loops below are recognised and become calls of memcpy. */
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>
#include <stddef.h>
#include <stdint.h>

/* qemu-hexagon takes two microseconds to store a vector. And it looks at the memory of two stores
 * in a packet before it runs them: one a packet, then. */
#ifdef TANDEM_HVX_FLOAT
typedef HVX_UVector block;
#define ALIGNED 1
#else
typedef uint64_t block;
#define ALIGNED sizeof(block)
#endif

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    uint8_t *t = to;
    const uint8_t *f = from;
    if (((uintptr_t)t | (uintptr_t)f) % ALIGNED == 0) {
#pragma clang loop unroll(disable)
        for (; bytes >= sizeof(block); bytes -= sizeof(block), t += sizeof(block), f += sizeof(block)) {
            *(block *)t = *(const block *)f;
        }
    }
    if (((uintptr_t)t | (uintptr_t)f) % 4 == 0) {
#pragma clang loop unroll(disable)
        for (; bytes >= 4; bytes -= 4, t += 4, f += 4) {
            *(uint32_t *)t = *(const uint32_t *)f;
        }
    }
    for (; bytes > 0; bytes--) {
        *t++ = *f++;
    }
    return to;
}

/* What LLVM calls for structures of a vector's size; its own copies eight bytes at a time. */
void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to, const void *restrict from, size_t bytes)
    __attribute__((alias("memcpy")));

void *memset(void *to, int value, size_t bytes) {
    uint8_t *t = to;
    uint32_t word = (uint8_t)value * 0x01010101u;
#ifdef TANDEM_HVX_FLOAT
    block all = Q6_V_vsplat_R((int)word);
#else
    block all = (uint64_t)word << 32 | word;
#endif
    if ((uintptr_t)t % ALIGNED == 0) {
#pragma clang loop unroll(disable)
        for (; bytes >= sizeof(block); bytes -= sizeof(block), t += sizeof(block)) {
            *(block *)t = all;
        }
    }
    if ((uintptr_t)t % 4 == 0) {
#pragma clang loop unroll(disable)
        for (; bytes >= 4; bytes -= 4, t += 4) {
            *(uint32_t *)t = word;
        }
    }
    for (; bytes > 0; bytes--) {
        *t++ = (uint8_t)value;
    }
    return to;
}
