/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_WIRE_FORMAT_H
#define GS_BASE_WIRE_FORMAT_H

/*
 * What one element of the 8-bit wires is made of, for the kernels and for what src/wire does itself. Like dtype.h's
 * conversions these choose by masks, so that loops over them become vector code, and give the same bits with FTZ and
 * DAZ set as far as their operands are normal numbers.
 */

#include "base/dtype.h"

#include <float.h>

enum {
    GS_WIRE_BLOCK = 256, /* elements that share a scale */
    GS_INT8_BLOCK_BYTES = GS_WIRE_BLOCK + 4,
    GS_FLOAT8_BLOCK_BYTES = GS_WIRE_BLOCK + 1,
    GS_MAGNITUDE = 0x7fffffff, /* of the bits of a float32: those of its absolute value */
    GS_INFINITY = 0x7f800000,
    GS_ONE_NAN = 0x7fc00000
};

static inline GS_ANYWHERE uint32_t gs_magnitude(float x) {
    return gs_float_bits(x) & GS_MAGNITUDE;
}

/* ---- int8 ---- */

/*
 * The largest magnitudes of blocks from LEAST on and before END are ordinary: with a smaller one the factors below
 * could be infinite, and with a larger one 127 times the scale.
 */
enum { GS_INT8_LEAST = 0x0f800000 /* 2^-96 */, GS_INT8_END = 0x7f000000 /* 2^127 */ };

/*
 * The code of x / scale, rounded to nearest even, in the low byte: adding 1.5 * 2^23, whose last bit is 1, rounds. What
 * is added has the low byte 0.
 */
static inline GS_ANYWHERE uint32_t gs_int8_code(float scaled) {
    return gs_float_bits(scaled + 0x1.8p23f);
}

/* How a block whose largest magnitude is finite and not 0 is encoded: x * lift * factor are its codes. */
typedef struct gs_int8_block {
    float scale;
    float factor;
    float lift; /* 1, or what makes normal numbers of the smallest */
} gs_int8_block;

/*
 * absmax / 127, rounded up where it is subnormal: rounding down could make 127 codes too few by half. In units of
 * 2^-149 absmax is an integer there.
 */
static inline GS_ANYWHERE float gs_int8_tiny_scale(float absmax) {
    const uint64_t units = (uint64_t)((double)absmax * 0x1p149);
    const uint64_t scale_units = (units + 126) / 127;
    return (float)((double)scale_units * 0x1p-149);
}

/* Small magnitudes are multiplied in two steps, since the factor for one could be infinite. */
static inline GS_ANYWHERE gs_int8_block gs_int8_block_of(float absmax) {
    gs_int8_block block = {absmax / 127.0f, 0.0f, 1.0f};
    if (gs_magnitude(absmax) < GS_INT8_LEAST) {
        block.lift = 0x1p64f;
    } else if (block.scale * 127.0f > FLT_MAX) {
        block.scale = gs_float_from_bits(gs_float_bits(block.scale) - 1);
    }
    block.factor = 127.0f / (absmax * block.lift);
    if (absmax < 127.0f * FLT_MIN) {
        block.scale = gs_int8_tiny_scale(absmax);
        block.factor = 1.0f / (block.scale * block.lift);
    }
    return block;
}

/*
 * Random numbers are a function of a key and of the number of an element, so that they are the same however elements
 * are divided among calls. Streams of different keys are unrelated: with `first` alone they would be the same numbers
 * in another order, which is why `second` comes in between.
 */
typedef struct gs_random_stream {
    uint32_t first;
    uint32_t second;
} gs_random_stream;

static inline GS_ANYWHERE uint64_t gs_random_mix(uint64_t word) {
    word += UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

/* For 2^32 elements; `high` is what their numbers have above that. */
static inline GS_ANYWHERE gs_random_stream gs_random_stream_of(uint64_t key, uint32_t high) {
    const uint64_t word = gs_random_mix(gs_random_mix(key) + high);
    const gs_random_stream stream = {(uint32_t)word, (uint32_t)(word >> 32)};
    return stream;
}

static inline GS_ANYWHERE uint32_t gs_random_bits(gs_random_stream stream, uint32_t number) {
    uint32_t bits = number ^ stream.first;
    bits = (bits ^ (bits >> 16)) * 0x7feb352du;
    bits += stream.second;
    bits = (bits ^ (bits >> 15)) * 0x846ca68bu;
    return bits ^ (bits >> 16);
}

/* `factor`, or the float before it, so that no product with a magnitude up to `most` is beyond the largest code. */
static inline GS_ANYWHERE float gs_int8_fixed_factor(float most, float factor) {
    const bool is_beyond = most * factor > 127.0f * 0x1p24f;
    return gs_float_from_bits(gs_float_bits(factor) - is_beyond);
}

/* The code in the low byte: x / scale in units of 2^-24, plus a random number below 1, and of that the integer below.
 */
static inline GS_ANYWHERE uint32_t gs_int8_stochastic_code(float fixed, uint32_t random_bits) {
    return ((uint32_t)(int32_t)fixed + (random_bits >> 8)) >> 24;
}

/* ---- float8: E4M3 without infinities ---- */

/* From this largest magnitude on a block needs care, because an element could round to 2^128: 1.9375 * 2^127. */
enum { GS_FLOAT8_END = 0x7f780000, GS_FLOAT8_NAN_EXPONENT = 255 };

/* In the largest blocks codes above 240 times the scale are 2^128, which would decode to inf: they become 240. */
enum { GS_FLOAT8_LARGEST_EXPONENT = 247 };
#define GS_FLOAT8_LARGEST_SCALED 240.0f

/* For a block whose largest magnitude this is: at most 448, which is 1.75 * 2^8, times 2^(exponent - 127). */
static inline GS_ANYWHERE uint32_t gs_float8_exponent(uint32_t most) {
    const uint32_t exponent = (most + 0x1fffffu) >> 23;
    return exponent > 8 ? exponent - 8 : 0;
}

/* 2^(127 - exponent), which is always a normal number. */
static inline GS_ANYWHERE float gs_float8_factor(uint32_t exponent) {
    return gs_float_from_bits((254u - exponent) << 23);
}

/* 2^(exponent - 127), which is subnormal for exponent 0. */
static inline GS_ANYWHERE float gs_float8_scale(uint32_t exponent) {
    const uint32_t normal = gs_choose_bits(exponent == 0, 0x00400000u, exponent << 23);
    return gs_float_from_bits(gs_choose_bits(exponent == GS_FLOAT8_NAN_EXPONENT, GS_ONE_NAN, normal));
}

/*
 * Rounded to nearest even; |x| is 448 at most. Adding 2^20 times the power of two below |x|, or below the smallest
 * normal number 2^-6, leaves the rounding to the adder: the last bit of the sum is worth an eighth of that power. Then
 * the low bits of the sum count eighths, of which the first 8 are the exponent's last bit, as in a subnormal code.
 */
static inline GS_ANYWHERE uint32_t gs_float8_from_float(float x) {
    const int32_t smallest = 121 << 23;
    const int32_t exponent = (int32_t)(gs_float_bits(x) & GS_INFINITY);
    const int32_t power = exponent > smallest ? exponent : smallest;
    const float rounder = gs_float_from_bits((uint32_t)power + (20u << 23));
    const uint32_t eighths = gs_float_bits(gs_float_from_bits(gs_magnitude(x)) + rounder) << 20;
    const uint32_t sign = gs_float_bits(x) >> 4 & 0x08000000u;
    return (eighths + (uint32_t)(power - smallest) + sign) >> 20;
}

/* Exact. Codes below 8 are multiples of 2^-9: the bits of 2^14 plus that multiple, less 2^14. */
static inline GS_ANYWHERE float gs_float8_to_float(uint32_t code) {
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t subnormal = gs_float_bits(gs_float_from_bits(0x46800000u | magnitude) - 0x1p14f);
    const uint32_t finite = gs_choose_bits(magnitude < 8, subnormal, normal);
    return gs_float_from_bits(gs_choose_bits(magnitude == 0x7f, GS_ONE_NAN, finite) | code >> 7 << 31);
}

#endif
