/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_DTYPE_H
#define GS_BASE_DTYPE_H

/* Element types, and the conversions of the 16-bit ones. */

#include <gradsync/gradsync.h>
#include <stdbool.h>
#include <string.h>

/* Functions that kernels of a GPU use too; there nvcc compiles this as C++. */
#if defined(__CUDACC__)
#define GS_ANYWHERE __host__ __device__
#else
#define GS_ANYWHERE
#endif

const char *gs_dtype_name(gsync_dtype dtype);

/* Of the powers of two by which elements may be multiplied before they become float16. */
enum { GS_HALF_EXPONENT_MIN = -112, GS_HALF_EXPONENT_MAX = 126 };

/* The types a gradient may have. */
bool gs_dtype_is_floating(gsync_dtype dtype);

/* The type in which elements are added: float64 for float64, int64 for integers, float32 otherwise. */
gsync_dtype gs_dtype_wide(gsync_dtype dtype);

static inline GS_ANYWHERE uint32_t gs_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline GS_ANYWHERE float gs_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/*
 * The conversions below hold with FTZ and DAZ set: no intermediate float32 is subnormal unless the input is. They
 * choose by masks, because from `a ? b : c` compilers make branches around the floating-point operations, and then no
 * vector code. A NaN keeps its sign and as much of its payload as there is room for, and becomes quiet, as the
 * conversion instructions of x86 do it.
 */

static inline GS_ANYWHERE uint32_t gs_choose_bits(bool first, uint32_t bits, uint32_t others) {
    const uint32_t mask = 0u - (uint32_t)first;
    return (bits & mask) | (others & ~mask);
}

/* Exact. A subnormal half is its integer mantissa times 2^-24, which is a normal float32. */
static inline GS_ANYWHERE float gs_half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t fraction = half & 0x3ffu;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = 0x7f800000u | (fraction << 13) | gs_choose_bits(fraction != 0, 0x400000u, 0);
    const uint32_t subnormal = gs_float_bits((float)(int32_t)fraction * 0x1p-24f);
    const uint32_t finite = gs_choose_bits(magnitude < 0x400u, subnormal, normal);
    return gs_float_from_bits(sign | gs_choose_bits(magnitude >= 0x7c00u, special, finite));
}

/* Round to nearest even. Below 2^-14 adding 0.5 leaves the rounding to the float32 adder, whose unit there is 2^-24. */
static inline GS_ANYWHERE uint16_t gs_half_from_float(float value) {
    const uint32_t bits = gs_float_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t subnormal = gs_float_bits(gs_float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const uint32_t special = gs_choose_bits(magnitude > 0x7f800000u, nan, 0x7c00u);
    const uint32_t finite = gs_choose_bits(magnitude < 0x38800000u, subnormal, normal);
    return (uint16_t)(sign | gs_choose_bits(magnitude >= 0x47800000u, special, finite));
}

static inline GS_ANYWHERE float gs_bfloat_to_float(uint16_t bfloat) {
    return gs_float_from_bits((uint32_t)bfloat << 16);
}

/* Round to nearest even; NaNs stay NaNs, quiet. */
static inline GS_ANYWHERE uint16_t gs_bfloat_from_float(float value) {
    const uint32_t bits = gs_float_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
