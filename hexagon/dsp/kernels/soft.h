/* IEEE single floats, 32 at once, in integer vectors: each operation rounds once, to nearest, ties
 * to even, and subnormals, infinities and NaN are what IEEE says (a NaN's payload is not kept).
 *
 * qemu-hexagon has no HVX float. One by one, floats would leave the vector registers and be stored
 * again around every operation, and of all that the emulator does it stores vectors slowest: two
 * microseconds each, where an integer operation on one takes three nanoseconds. So compares and
 * selects are masks made by subtraction and shift, which it does fastest.
 *
 * A magnitude is a float without its sign: magnitudes compare as integers. */
#ifndef TANDEM_SOFT_H
#define TANDEM_SOFT_H

#include <stdbool.h>
#include "vector.h"

#define SOFT_SIGN 0x80000000u
#define SOFT_MAGNITUDE 0x7fffffffu
#define SOFT_INFINITE 0x7f800000u
#define SOFT_UNIT 0x00800000u /* one in the exponent, and the bit that normal floats do not store */

/* All ones in lanes where a < b. The difference must not overflow. */
inline_always words soft_less(words a, words b) { return words_sar(words_sub(a, b), 31); }

/* All ones in lanes where a, seen as unsigned, is not 0. */
inline_always words soft_any(words a) {
    return words_sar(words_or(a, words_sub(words_splat(0), a)), 31);
}

inline_always words soft_select(words mask, words a, words b) {
    return words_xor(b, words_and(mask, words_xor(a, b)));
}

/* The exponent less one, in its place; 0 for subnormals, whose exponent is that of the smallest normals. */
inline_always words soft_exponent(words magnitude) {
    return words_and(words_max(words_sub(magnitude, words_splat(SOFT_UNIT)), words_splat(0)), words_splat(SOFT_INFINITE));
}

/* 24 bits and seven below them, to the nearest 24. */
inline_always words soft_round7(words x) {
    words odd = words_and(words_shr(x, 7), words_splat(1));
    return words_shr(words_add(words_add(x, words_splat(63)), odd), 7);
}

inline_always words soft_add(words a, words b) {
    const words zero = words_splat(0), infinite = words_splat(SOFT_INFINITE);
    words ma = words_and(a, words_splat(SOFT_MAGNITUDE)), mb = words_and(b, words_splat(SOFT_MAGNITUDE));
    words high = words_max(ma, mb), low = words_min(ma, mb);
    words differ = words_xor(a, b), apart = words_sar(differ, 31);
    words sign = words_and(words_xor(a, words_and(differ, soft_less(ma, mb))), words_splat(SOFT_SIGN));
    words high_e = soft_exponent(high), low_e = soft_exponent(low);
    /* Six bits below the 24 of the larger one, so that the lowest of them can stand for all that
     * the smaller one loses when it is shifted to the same exponent. */
    words larger = words_shl(words_sub(high, high_e), 6), smaller = words_shl(words_sub(low, low_e), 6);
    words by = words_min(words_shr(words_sub(high_e, low_e), 23), words_splat(31));
    words floor = words_shr_each(smaller, by), ceiling = words_sub(zero, words_sar_each(words_sub(zero, smaller), by));
    smaller = words_or(floor, words_sub(ceiling, floor));
    /* What is added to the infinite changes nothing. */
    smaller = words_and(smaller, soft_less(high, infinite));
    words sum = words_add(larger, words_sub(words_xor(smaller, apart), apart));
    words some = words_sar(words_sub(zero, sum), 31);
    /* The leading one to bit 30, or as far as the exponent goes. */
    words e = words_add(words_shr(high_e, 23), words_splat(1));
    words up = words_min(words_sub(words_leading_zeros(sum), words_splat(1)), e);
    e = words_and(words_sub(e, up), some);
    words result = words_add(words_shl(e, 23), soft_round7(words_shl_each(sum, up)));
    result = words_min(result, infinite);
    words nan = words_or(soft_less(infinite, high), words_and(apart, soft_less(words_splat(SOFT_INFINITE - 1), low)));
    result = words_or(result, words_and(nan, words_splat(SOFT_MAGNITUDE)));
    /* Opposites make +0. */
    return words_or(result, words_and(sign, words_or(some, words_xor(apart, words_splat(~0u)))));
}

inline_always words soft_sub(words a, words b) { return soft_add(a, words_xor(b, words_splat(SOFT_SIGN))); }

/* One by one, where an operand or a result is subnormal or not finite. */
inline_always words soft_each(words a, words b, bool divided) {
    words r = a;
#ifdef __HVX__
#pragma clang loop unroll(disable) /* little code for what happens rarely */
#endif
    for (int i = 0; i < LANES; i++) {
        uint32_t x = words_lane(a, i), y = words_lane(b, i);
        float f, g;
        memcpy(&f, &x, 4);
        memcpy(&g, &y, 4);
        f = divided ? f / g : f * g;
        memcpy(&x, &f, 4);
        r = words_shift_in(r, x);
    }
    return r;
}

inline_always words soft_mul(words a, words b) {
    const words unit = words_splat(SOFT_UNIT), bits = words_splat(SOFT_UNIT - 1);
    words sign = words_and(words_xor(a, b), words_splat(SOFT_SIGN));
    words ma = words_and(a, words_splat(SOFT_MAGNITUDE)), mb = words_and(b, words_splat(SOFT_MAGNITUDE));
    words least = words_min(ma, mb);
    words x = words_shl(words_or(words_and(ma, bits), unit), 7), y = words_shl(words_or(words_and(mb, bits), unit), 7);
    words low, high = words_product(x, y, &low);
    /* The leading one is bit 29 or 28; to bit 30, the lowest bit for all below. */
    words above = words_shr(high, 29);
    words p = words_shl(high, 1);
    p = words_add(p, words_and(p, words_sub(above, words_splat(1))));
    p = words_or(p, words_and(soft_any(low), words_splat(1)));
    /* The exponent less one. */
    words e = words_add(words_add(words_shr(ma, 23), words_shr(mb, 23)), words_sub(above, words_splat(128)));
    words result = words_add(words_shl(e, 23), soft_round7(p)), some = soft_less(words_splat(0), least);
    /* The sign bit of what this does not get right. */
    words odd = words_and(words_or(words_sub(least, unit), e), some);
    odd = words_or(odd, words_sub(words_splat(SOFT_INFINITE - 1), words_max(ma, mb)));
    odd = words_or(odd, words_sub(words_splat(253), e));
    if (__builtin_expect(words_any_sign(odd), 0)) {
        return soft_each(a, b, false);
    }
    return words_or(words_and(result, some), sign);
}

/* By subtraction, a bit of the quotient at a time. */
inline_always words soft_div(words a, words b) {
    const words unit = words_splat(SOFT_UNIT), bits = words_splat(SOFT_UNIT - 1);
    words sign = words_and(words_xor(a, b), words_splat(SOFT_SIGN));
    words ma = words_and(a, words_splat(SOFT_MAGNITUDE)), mb = words_and(b, words_splat(SOFT_MAGNITUDE));
    words rest = words_or(words_and(ma, bits), unit), y = words_or(words_and(mb, bits), unit);
    words less = soft_less(rest, y);
    rest = words_add(rest, words_and(rest, less));
    words missing = words_splat(0);
    for (int i = 0; i < 26; i++) {
        rest = words_sub(rest, y);
        words none = words_sar(rest, 31);
        rest = words_shl(words_add(rest, words_and(y, none)), 1);
        missing = words_sub(words_shl(missing, 1), none);
    }
    words p = words_shl(words_xor(missing, words_splat((1u << 26) - 1)), 5);
    p = words_or(p, words_and(soft_any(rest), words_splat(1)));
    words e = words_add(words_sub(words_shr(ma, 23), words_shr(mb, 23)), words_add(less, words_splat(126)));
    words result = words_add(words_shl(e, 23), soft_round7(p)), some = soft_less(words_splat(0), ma);
    words odd = words_or(words_sub(mb, unit), words_and(words_or(words_sub(ma, unit), e), some));
    odd = words_or(odd, words_sub(words_splat(SOFT_INFINITE - 1), words_max(ma, mb)));
    odd = words_or(odd, words_sub(words_splat(253), e));
    if (__builtin_expect(words_any_sign(odd), 0)) {
        return soft_each(a, b, true);
    }
    return words_or(words_and(result, some), sign);
}

/* Signed integers, to the nearest float. */
inline_always words soft_of_words(words a) {
    words negative = words_sar(a, 31), m = words_sub(words_xor(a, negative), negative);
    words up = words_leading_zeros(m), x = words_shl_each(m, up);
    /* 24 bits, and eight below them; of 32 there are none to spare for a carry. */
    words r = words_shr(x, 8), rest = words_add(words_and(x, words_splat(255)), words_splat(127));
    r = words_add(r, words_shr(words_add(rest, words_and(r, words_splat(1))), 8));
    words result = words_add(words_shl(words_sub(words_splat(157), up), 23), r);
    result = words_and(result, soft_any(m));
    return words_or(result, words_and(negative, words_splat(SOFT_SIGN)));
}

/* Of the half in the low 16 bits of each lane; exact. */
inline_always words soft_of_halves(words h) {
    words sign = words_shl(words_and(h, words_splat(0x8000)), 16);
    words m = words_shl(words_and(h, words_splat(0x7fff)), 13);
    words special = soft_less(words_splat(0x0f7fffff), m);
    words normal = words_add(m, words_splat(112u << 23));
    normal = words_or(normal, words_and(special, words_splat(SOFT_INFINITE)));
    /* A subnormal half is m times 2^-37, and a normal float. */
    words up = words_sub(words_leading_zeros(m), words_splat(8));
    words small = words_add(words_sub(words_splat(112u << 23), words_shl(up, 23)), words_shl_each(m, up));
    small = words_and(small, soft_any(m));
    return words_or(sign, soft_select(soft_less(m, words_splat(SOFT_UNIT)), small, normal));
}

/* half_of_float of each lane, in its low 16 bits. */
inline_always words soft_halves(words a) {
    words sign = words_and(words_shr(a, 16), words_splat(0x8000)), m = words_and(a, words_splat(SOFT_MAGNITUDE));
    words odd = words_and(words_shr(m, 13), words_splat(1));
    words h = words_shr(words_add(words_sub(m, words_splat(0x38000000 - 0xfff)), odd), 13);
    /* A subnormal half: the sum with 0.5 aligns and rounds. */
    words small = words_sub(soft_add(m, words_splat(0x3f000000)), words_splat(0x3f000000));
    h = soft_select(soft_less(m, words_splat(0x38800000)), small, h);
    h = soft_select(soft_less(words_splat(0x477fefff), m), words_splat(0x7c00), h);
    words nan = words_or(words_splat(0x7e00), words_and(words_shr(m, 13), words_splat(0x3ff)));
    h = soft_select(soft_less(words_splat(SOFT_INFINITE), m), nan, h);
    return words_or(sign, h);
}

/* All ones where a > b; where one of them is NaN, 0. */
inline_always words soft_above(words a, words b) {
    words sa = words_sar(a, 31), sb = words_sar(b, 31);
    words ma = words_and(a, words_splat(SOFT_MAGNITUDE)), mb = words_and(b, words_splat(SOFT_MAGNITUDE));
    /* As integers they are in order, both zeros are 0. */
    words ia = words_sub(words_xor(ma, sa), sa), ib = words_sub(words_xor(mb, sb), sb);
    words above = soft_any(words_xor(words_max(ia, ib), ib));
    return words_and(above, words_xor(soft_less(words_splat(SOFT_INFINITE), words_max(ma, mb)), words_splat(~0u)));
}

/* NaN in `a` stays; NaN in `b` is ignored. */
inline_always words soft_max(words a, words b) { return soft_select(soft_above(b, a), b, a); }
inline_always words soft_min(words a, words b) { return soft_select(soft_above(a, b), b, a); }

#endif
