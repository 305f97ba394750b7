/* port/sdk/arithmetic.c against this machine's own arithmetic. */
#include "../../port/sdk/arithmetic.c"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The host's, by another name: this program has its own `sqrtf`. */
static float root(float x) { return (float)sqrt((double)x); }

static uint64_t seed = 88172645463325252ull;

static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static int failures;

static void check_root(uint32_t bits) {
    float x, got, want;
    __builtin_memcpy(&x, &bits, 4);
    got = sqrtf(x);
    want = root(x);
    uint32_t a, b;
    __builtin_memcpy(&a, &got, 4);
    __builtin_memcpy(&b, &want, 4);
    if (a != b && !(got != got && want != want)) {
        printf("sqrtf(%#x) is %#x, not %#x\n", bits, a, b);
        failures++;
    }
}

static void check_division(uint64_t n, uint64_t d) {
    if (__hexagon_udivdi3(n, d) != n / d || __hexagon_umoddi3(n, d) != n % d) {
        printf("%llu / %llu is wrong\n", (unsigned long long)n, (unsigned long long)d);
        failures++;
    }
    uint32_t n32 = (uint32_t)n, d32 = (uint32_t)d == 0 ? 1 : (uint32_t)d;
    if (__hexagon_udivsi3(n32, d32) != n32 / d32 || __hexagon_umodsi3(n32, d32) != n32 % d32) {
        printf("%u / %u is wrong\n", n32, d32);
        failures++;
    }
}

int main(void) {
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t exponent = 0; exponent < 256; exponent++) {
            for (uint32_t i = 0; i < 2000; i++) {
                uint32_t fraction = i < 16 ? i : i < 32 ? 0x7fffff - (i - 16) : (uint32_t)next() & 0x7fffff;
                check_root(sign << 31 | exponent << 23 | fraction);
            }
        }
    }
    for (int i = 0; i < 300000; i++) {
        uint64_t n = next() >> (next() & 63), d = next() >> (next() & 63);
        check_division(n, d == 0 ? 1 : d);
        check_division(d * (n >> 32), d == 0 ? 1 : d);
    }
    return failures == 0 ? 0 : 1;
}
