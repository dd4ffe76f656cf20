/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HALF_ORACLE_H
#define HALF_ORACLE_H

/*
 * What the 16-bit formats mean, worked out the slow way: a table of the values of all bit patterns, and rounding as a
 * search in it. Nothing is shared with the library's bit tricks.
 */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct half_format {
    int exponent_bits;
    int fraction_bits;
} half_format;

static inline uint16_t half_infinity(half_format format) {
    return (uint16_t)(((1u << format.exponent_bits) - 1) << format.fraction_bits);
}

/* Of the patterns without a sign, up to infinity, which counts as the next power of two: where rounding overflows. */
static inline double half_magnitude(half_format format, uint16_t bits) {
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const int exponent = bits >> format.fraction_bits;
    const int fraction = bits & ((1 << format.fraction_bits) - 1);
    const int hidden = exponent == 0 ? 0 : 1 << format.fraction_bits;
    return ldexp(hidden + fraction, (exponent == 0 ? 1 : exponent) - bias - format.fraction_bits);
}

static inline bool half_is_nan(half_format format, uint16_t bits) {
    return (bits & 0x7fffu) > half_infinity(format);
}

static inline double half_value(half_format format, uint16_t bits) {
    const double sign = bits & 0x8000u ? -1.0 : 1.0;
    const uint16_t rest = bits & 0x7fffu;
    if (half_is_nan(format, bits)) {
        return (double)NAN;
    }
    return sign * (rest == half_infinity(format) ? (double)INFINITY : half_magnitude(format, rest));
}

/* The pattern nearest to a number that is no NaN, the even one of two equally near. */
static inline uint16_t half_nearest(half_format format, double value) {
    const uint16_t sign = signbit(value) ? 0x8000u : 0;
    const double size = fabs(value);
    uint16_t below = 0; /* the largest pattern whose value is not above size */
    uint16_t above = half_infinity(format);
    if (size >= half_magnitude(format, above)) {
        return sign | above;
    }
    while (above - below > 1) {
        const uint16_t middle = (uint16_t)((below + above) / 2);
        if (half_magnitude(format, middle) <= size) {
            below = middle;
        } else {
            above = middle;
        }
    }
    const double down = size - half_magnitude(format, below);
    const double up = half_magnitude(format, above) - size;
    const bool takes_above = up < down || (up == down && below % 2 == 1);
    return (uint16_t)(sign | (takes_above ? above : below));
}

#endif
