/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks_private.h"

#include <math.h>
#include <string.h>

/* splitmix64 (Steele, Lea, Flood 2014): every state gives a good number, so states can be composed from keys. */
static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

ranks_random ranks_random_from(uint64_t seed, uint64_t stream) {
    return (ranks_random){mixed(seed ^ mixed(stream))};
}

uint64_t ranks_random_next(ranks_random *random) {
    random->state += 0x9e3779b97f4a7c15u;
    return mixed(random->state);
}

size_t ranks_random_below(ranks_random *random, size_t bound) {
    return (size_t)(ranks_random_next(random) % bound);
}

void ranks_shuffle(ranks_random *random, size_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const size_t j = ranks_random_below(random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

/* ---- Elements -------------------------------------------------------------------------------------------------- */

/*
 * value rounded to significand_bits (with the hidden one), to nearest even, in a format whose smallest normal number
 * is 2^exponent_min. The largest finite number is the caller's business.
 */
static double rounded_to(double value, int significand_bits, int exponent_min) {
    if (value == 0.0 || !isfinite(value)) {
        return value;
    }
    int exponent = 0;
    frexp(value, &exponent); /* value = m * 2^exponent with 0.5 <= |m| < 1 */
    int unit = exponent - significand_bits;
    const int unit_min = exponent_min - (significand_bits - 1);
    if (unit < unit_min) {
        unit = unit_min;
    }
    /* The scaled value has at most 53 bits, and rint is exact about halves: one rounding. */
    return ldexp(rint(ldexp(value, -unit)), unit);
}

static double rounded_to_half(double value) {
    const double rounded = rounded_to(value, 11, -14);
    return fabs(rounded) > 65504.0 ? copysign(HUGE_VAL, value) : rounded;
}

double ranks_rounded(gsync_dtype dtype, double value) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        return (double)(float)value;
    case GSYNC_FLOAT16:
        return rounded_to_half(value);
    case GSYNC_BFLOAT16:
        return (double)(float)rounded_to(value, 8, -126);
    case GSYNC_INT32:
    case GSYNC_INT64:
    case GSYNC_UINT8:
        return trunc(value);
    case GSYNC_FLOAT64:
        break;
    }
    return value;
}

static uint16_t half_bits(double value) {
    const double rounded = rounded_to_half(value);
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double size = fabs(rounded);
    if (isnan(rounded)) {
        return sign | 0x7e00;
    }
    if (isinf(rounded)) {
        return sign | 0x7c00;
    }
    if (size < ldexp(1.0, -14)) {
        return (uint16_t)(sign | (uint16_t)ldexp(size, 24));
    }
    int exponent = 0;
    const double significand = frexp(size, &exponent); /* 0.5 .. 1 */
    const uint16_t fraction = (uint16_t)(ldexp(significand, 11) - 1024.0);
    return (uint16_t)(sign | ((exponent + 14) << 10) | fraction);
}

static double half_value(uint16_t bits) {
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const int exponent = (bits >> 10) & 0x1f;
    const int fraction = bits & 0x3ff;
    if (exponent == 0x1f) {
        return fraction != 0 ? (double)NAN : sign * HUGE_VAL;
    }
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

static uint16_t bfloat_bits(double value) {
    const float rounded = (float)rounded_to(value, 8, -126);
    uint32_t bits = 0;
    memcpy(&bits, &rounded, sizeof(bits));
    return (uint16_t)(isnan(value) ? 0x7fc0 : bits >> 16);
}

static double bfloat_value(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value = 0;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

/* memcpy throughout: tests also use buffers that are aligned to nothing. */
#define PUT(type, stored)                                                                                              \
    do {                                                                                                               \
        const type element_value = (type)(stored);                                                                     \
        memcpy((unsigned char *)buffer + element * sizeof(type), &element_value, sizeof(type));                        \
        return;                                                                                                        \
    } while (0)

void ranks_store(void *buffer, gsync_dtype dtype, size_t element, double value) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        PUT(float, value);
    case GSYNC_FLOAT64:
        PUT(double, value);
    case GSYNC_FLOAT16:
        PUT(uint16_t, half_bits(value));
    case GSYNC_BFLOAT16:
        PUT(uint16_t, bfloat_bits(value));
    case GSYNC_INT32:
        PUT(int32_t, value);
    case GSYNC_INT64:
        PUT(int64_t, value);
    case GSYNC_UINT8:
        PUT(uint8_t, (int)value);
    }
}

#define GET(type, variable)                                                                                            \
    type variable;                                                                                                     \
    memcpy(&(variable), (const unsigned char *)buffer + element * sizeof(type), sizeof(type))

double ranks_load(const void *buffer, gsync_dtype dtype, size_t element) {
    switch (dtype) {
    case GSYNC_FLOAT32: {
        GET(float, single);
        return (double)single;
    }
    case GSYNC_FLOAT64: {
        GET(double, number);
        return number;
    }
    case GSYNC_FLOAT16: {
        GET(uint16_t, half);
        return half_value(half);
    }
    case GSYNC_BFLOAT16: {
        GET(uint16_t, half);
        return bfloat_value(half);
    }
    case GSYNC_INT32: {
        GET(int32_t, integer);
        return (double)integer;
    }
    case GSYNC_INT64: {
        GET(int64_t, integer);
        return (double)integer;
    }
    case GSYNC_UINT8: {
        GET(uint8_t, byte);
        return (double)byte;
    }
    }
    return (double)NAN;
}

/* ---- Buffers, and what they hold afterwards -----------------------------------------------------------------------
 */

double ranks_value(const ranks_context *ctx, ranks_source source, int rank, size_t element) {
    const uint64_t where = mixed(mixed(mixed(ctx->seed ^ source.round) ^ source.tensor) ^ (uint64_t)rank);
    const uint64_t bits = mixed(where ^ element);
    if (source.kind == RANKS_INTEGERS) {
        return (double)(int)(bits % 2047) - 1023.0;
    }
    const double fraction = ldexp((double)(bits >> 11), -52) - 1.0; /* -1 .. 1 */
    return ldexp(fraction, (int)(bits % 13) - 6);
}

void ranks_fill(const ranks_context *ctx, void *buffer, size_t count, gsync_dtype dtype, ranks_source source) {
    for (size_t i = 0; i < count; i++) {
        ranks_store(buffer, dtype, i, ranks_value(ctx, source, ctx->rank, i));
    }
}

static bool is_member(ranks_source source, int rank) {
    return source.members == 0 || (source.members >> rank & 1u) != 0;
}

double ranks_sum(const ranks_context *ctx, gsync_dtype dtype, ranks_source source, size_t element) {
    double sum = 0.0;
    for (int rank = 0; rank < ctx->world; rank++) {
        if (is_member(source, rank)) {
            sum += ranks_rounded(dtype, ranks_value(ctx, source, rank, element));
        }
    }
    return sum;
}

/* By how much a sum in the dtype's sum precision, divided and rounded to the dtype, may be off. */
static double tolerance(const ranks_context *ctx, gsync_dtype dtype, ranks_source source, size_t element,
                        double divisor, double expected) {
    if (source.kind == RANKS_INTEGERS) {
        return 0.0;
    }
    double size = 0.0;
    for (int rank = 0; rank < ctx->world; rank++) {
        size += is_member(source, rank) ? fabs(ranks_value(ctx, source, rank, element)) : 0.0;
    }
    const double sum_unit = dtype == GSYNC_FLOAT64 ? ldexp(1.0, -53) : ldexp(1.0, -24);
    const double own_unit = dtype == GSYNC_FLOAT16 ? ldexp(1.0, -11) : dtype == GSYNC_BFLOAT16 ? ldexp(1.0, -8) : 0.0;
    const double smallest = dtype == GSYNC_FLOAT16 ? ldexp(1.0, -25) : 0.0;
    return (ctx->world + 1) * sum_unit * size / divisor + own_unit * fabs(expected) + smallest;
}

/* Where the sum is exact the quotient is rounded to the sum precision and then to the dtype, as the header says. */
static double expected_of(gsync_dtype dtype, double sum, double divisor) {
    const double quotient = sum / divisor;
    return ranks_rounded(dtype, dtype == GSYNC_FLOAT64 ? quotient : (double)(float)quotient);
}

bool ranks_check_reduced(const ranks_context *ctx, const void *buffer, size_t count, gsync_dtype dtype,
                         ranks_source source, double divisor, const char *file, int line) {
    for (size_t i = 0; i < count; i++) {
        const double got = ranks_load(buffer, dtype, i);
        const double expected = expected_of(dtype, ranks_sum(ctx, dtype, source, i), divisor);
        const double allowed = tolerance(ctx, dtype, source, i, divisor, expected);
        if (!(fabs(got - expected) <= allowed)) {
            return ranks_fail(file, line,
                              "round %llu tensor %zu element %zu of %zu: got %.17g, expected %.17g within %g",
                              (unsigned long long)source.round, source.tensor, i, count, got, expected, allowed);
        }
    }
    return true;
}

bool ranks_check_own(const ranks_context *ctx, const void *buffer, size_t count, gsync_dtype dtype, ranks_source source,
                     const char *file, int line) {
    for (size_t i = 0; i < count; i++) {
        const double got = ranks_load(buffer, dtype, i);
        const double expected = ranks_rounded(dtype, ranks_value(ctx, source, ctx->rank, i));
        if (got != expected) {
            return ranks_fail(file, line, "round %llu tensor %zu element %zu of %zu: got %.17g, it was %.17g",
                              (unsigned long long)source.round, source.tensor, i, count, got, expected);
        }
    }
    return true;
}
