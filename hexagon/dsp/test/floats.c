/* Soft floats in integer vectors (kernels/soft.h) against this machine's own, lane by lane: of the
 * host, or of the DSP's scalar unit as qemu-hexagon has it. floats [VECTORS] [SEED] */
#include "../kernels/float.h"
#include "../kernels/soft.h"
#include <stdio.h>
#include <stdlib.h>

static uint64_t state;

static uint32_t random_word(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* Ends of ranges, and values whose sums and products are ties. */
static const uint32_t edges[] = {0,          1,          2,          0x007fffff, 0x00800000, 0x00800001, 0x00ffffff,
                                 0x33800000, 0x34000000, 0x3effffff, 0x3f000000, 0x3f7fffff, 0x3f800000, 0x3f800001,
                                 0x3fffffff, 0x40000000, 0x4b000000, 0x4b7fffff, 0x4b800000, 0x7effffff, 0x7f000000,
                                 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};

/* Near `other`'s exponent as often as not, so that sums cancel. */
static uint32_t random_float(uint32_t other) {
    uint32_t w = random_word(), sign = random_word() & 0x80000000;
    switch (random_word() % 8) {
    case 0: return edges[w % (sizeof edges / sizeof edges[0])] | sign;
    case 1: return (w & 0x007fffff) | sign;                                    /* subnormal */
    case 2: return ((other & 0x7f800000) + (w & 0x007fffff)) | sign;           /* same exponent */
    case 3: return (other & 0x7fffffff) + (w % 64 - 32) * 0x00800000u + sign;  /* up to 32 away */
    case 4: return (other & 0x7fffffff) + w % 3 - 1 + sign;                    /* a neighbour */
    case 5: return (w & 0x7ffff000) | sign;                                    /* few bits: ties */
    case 6: return (0x3f800000 + (w & 0x03ffffff)) | sign;                     /* ordinary */
    default: return w;
    }
}

static bool is_nan(uint32_t w) { return (w & 0x7fffffff) > 0x7f800000; }

static uint32_t wrong;

static void compare(const char *what, words found, const uint32_t *a, const uint32_t *b, const uint32_t *want) {
    for (int i = 0; i < LANES; i++) {
        uint32_t f = words_lane(found, i);
        if (f != want[i] && !(is_nan(f) && is_nan(want[i])) && wrong++ < 20) {
            printf("%s of %08x and %08x: %08x, not %08x\n", what, a[i], b[i], f, want[i]);
        }
    }
}

#define EACH(result)                                                     \
    for (int i = 0; i < LANES; i++) {                                    \
        volatile float x = float_of_bits(a[i]), y = float_of_bits(b[i]); \
        (void)x, (void)y;                                                \
        want[i] = (result);                                              \
    }

int main(int argc, char **argv) {
    unsigned long vectors = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint32_t a[LANES] __attribute__((aligned(128))), b[LANES] __attribute__((aligned(128))), want[LANES];
    for (unsigned long n = 0; n < vectors; n++) {
        /* Every fourth vector without what is done lane by lane. */
        for (int i = 0; i < LANES; i++) {
            a[i] = n % 4 ? random_float(random_word()) : 0x20000000 + random_word() % 0x3f000000;
            b[i] = n % 4 ? random_float(a[i]) : (a[i] + (random_word() & 0x83ffffff)) % 0x60000000 + 0x10000000;
        }
        words va = words_load(a), vb = words_load(b);
        EACH(bits_of_float(x + y))
        compare("sum", soft_add(va, vb), a, b, want);
        EACH(bits_of_float(x - y))
        compare("difference", soft_sub(va, vb), a, b, want);
        EACH(bits_of_float(x * y))
        compare("product", soft_mul(va, vb), a, b, want);
        EACH(bits_of_float(x / y))
        compare("quotient", soft_div(va, vb), a, b, want);
        EACH(x > y ? ~0u : 0u)
        compare("order", soft_above(va, vb), a, b, want);
        EACH(x < y ? b[i] : a[i])
        compare("larger", soft_max(va, vb), a, b, want);
        EACH(x > y ? b[i] : a[i])
        compare("smaller", soft_min(va, vb), a, b, want);
        EACH(bits_of_float(float_of_half(a[i] & 0xffff)))
        compare("widened half", soft_of_halves(va), a, b, want);
        /* From far below the smallest half to beyond the largest. */
        for (int i = 0; i < LANES; i++) {
            a[i] = n % 2 ? 0x32000000 + random_word() % 0x17000000 : a[i];
            a[i] ^= random_word() & 0x80000000;
            a[i] &= random_word() % 4 ? ~0u : 0xfffff000; /* ties */
        }
        va = words_load(a);
        EACH(half_of_float(x))
        compare("narrowed half", soft_halves(va), a, b, want);
        for (int i = 0; i < LANES; i++) {
            a[i] = random_word() >> random_word() % 32;
            a[i] = random_word() % 2 ? a[i] : 0u - a[i];
        }
        va = words_load(a);
        EACH(bits_of_float((float)(int32_t)a[i]))
        compare("float of integer", soft_of_words(va), a, b, want);
    }
    printf("%lu vectors: %u lanes wrong\n", vectors, wrong);
    return wrong != 0;
}
