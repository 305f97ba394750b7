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

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    uint8_t *t = to;
    const uint8_t *f = from;
    if (((uintptr_t)t | (uintptr_t)f) % 8 == 0) {
        for (; bytes >= 8; bytes -= 8, t += 8, f += 8) {
            *(uint64_t *)t = *(const uint64_t *)f;
        }
    }
    if (((uintptr_t)t | (uintptr_t)f) % 4 == 0) {
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
    uint64_t two = (uint64_t)word << 32 | word;
    if ((uintptr_t)t % 8 == 0) {
        for (; bytes >= 8; bytes -= 8, t += 8) {
            *(uint64_t *)t = two;
        }
    }
    if ((uintptr_t)t % 4 == 0) {
        for (; bytes >= 4; bytes -= 4, t += 4) {
            *(uint32_t *)t = word;
        }
    }
    for (; bytes > 0; bytes--) {
        *t++ = (uint8_t)value;
    }
    return to;
}
