/* What the compiler calls for operations that the DSP has no instruction for. The vendor's
 * linker adds its own; an open build's library brings these, so that it needs nothing of the
 * phone but what platform.h declares. None is in a kernel's inner loop. */
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Long division, bit by bit from the divisor's highest place. */
static inline uint64_t divide(uint64_t n, uint64_t d, uint64_t *rest) {
    uint64_t quotient = 0;
    if (d != 0 && n >= d) {
        int places = __builtin_clzll(d) - __builtin_clzll(n);
        for (d <<= places; places >= 0; places--, d >>= 1) {
            quotient <<= 1;
            if (n >= d) {
                n -= d;
                quotient |= 1;
            }
        }
    }
    *rest = n;
    return quotient;
}

HIDDEN uint64_t __hexagon_udivdi3(uint64_t n, uint64_t d) {
    uint64_t rest;
    return divide(n, d, &rest);
}

HIDDEN uint64_t __hexagon_umoddi3(uint64_t n, uint64_t d) {
    uint64_t rest;
    divide(n, d, &rest);
    return rest;
}

HIDDEN uint32_t __hexagon_udivsi3(uint32_t n, uint32_t d) { return (uint32_t)__hexagon_udivdi3(n, d); }
HIDDEN uint32_t __hexagon_umodsi3(uint32_t n, uint32_t d) { return (uint32_t)__hexagon_umoddi3(n, d); }

/* Rounded to nearest, as IEEE wants it: the root of the fraction as a whole number of 25 bits,
 * and whether anything is left. */
static inline float root_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) == 0 || bits == 0x7f800000) {
        return x; /* zeros and infinity */
    }
    if (bits > 0x7f800000) {
        bits = 0x7fc00000; /* negative or not a number */
        __builtin_memcpy(&x, &bits, 4);
        return x;
    }
    int exponent = (int)(bits >> 23);
    uint64_t fraction = bits & 0x7fffff;
    if (exponent == 0) {
        int shift = __builtin_clzll(fraction) - 40;
        fraction <<= shift;
        exponent = 1 - shift;
    } else {
        fraction |= 0x800000;
    }
    /* x = fraction * 2^(exponent - 150); an even power of two stands outside the root. */
    int power = exponent - 150;
    if (power & 1) {
        fraction <<= 1;
        power--;
    }
    fraction <<= 26;
    power -= 26;
    uint64_t root = 0, rest = fraction;
    for (uint64_t place = 1ull << 50; place != 0; place >>= 2) {
        if (rest >= root + place) {
            rest -= root + place;
            root = (root >> 1) + place;
        } else {
            root >>= 1;
        }
    }
    /* The root has 25 bits or 26: to 24, nearest; a tie cannot be, for the root of a number of
     * 24 bits that ends at bit 25 would have a square of more than 24. */
    int extra = 64 - __builtin_clzll(root) - 24;
    uint64_t half = 1ull << (extra - 1);
    uint64_t rounded = (root + half) >> extra;
    int result = power / 2 + extra + 150;
    if (rounded >> 24) {
        rounded >>= 1;
        result++;
    }
    bits = (uint32_t)result << 23 | (uint32_t)(rounded & 0x7fffff);
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

/* Compilers call it by one name or the other. */
HIDDEN float sqrtf(float x) { return root_of(x); }
HIDDEN float __hexagon_sqrtf(float x) { return root_of(x); }
