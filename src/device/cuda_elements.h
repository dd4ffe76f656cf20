/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_ELEMENTS_H
#define GS_DEVICE_CUDA_ELEMENTS_H

/*
 * What the kernels do to one element. nvcc compiles this for GPUs, and an ordinary compiler for the tests; both give
 * the same bits, and those of base/kernels.h: nothing is contracted, division rounds to nearest, subnormals stay, and
 * where arithmetic gives NaN it is always the same one.
 */

#include "base/dtype.h"
#include "device/device_cuda.h"

/* ---- NaN ---- */

static inline GS_ANYWHERE float gs_one_nan_f32(float x) {
    return x == x ? x : gs_float_from_bits(0x7fc00000u);
}

static inline GS_ANYWHERE double gs_one_nan_f64(double x) {
    double nan;
    const uint64_t bits = UINT64_C(0x7ff8000000000000);
    memcpy(&nan, &bits, sizeof nan);
    return x == x ? x : nan;
}

static inline GS_ANYWHERE bool gs_is_finite_f64(double x) {
    return x - x == 0; /* NaN unless finite */
}

/* ---- 16-bit elements: the bits of dtype.h, which a GPU has instructions for, but for NaN ---- */

static inline GS_ANYWHERE float gs_element_from_half(uint16_t half) {
#if defined(__CUDA_ARCH__)
    if ((half & 0x7fffu) <= 0x7c00u) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
        return value;
    }
#endif
    return gs_half_to_float(half);
}

static inline GS_ANYWHERE uint16_t gs_element_to_half(float value) {
#if defined(__CUDA_ARCH__)
    if (value == value) {
        uint16_t half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
        return half;
    }
#endif
    return gs_half_from_float(value);
}

/* ---- division ---- */

/* By a number that only the device knows: gs_division_by of kernels.h, and by 0 the result is 0. */
typedef enum gs_cuda_division_how {
    GS_CUDA_NOT,
    GS_CUDA_EXACTLY,
    GS_CUDA_NARROW,
    GS_CUDA_WIDE,
    GS_CUDA_BY_ZERO
} gs_cuda_division_how;

typedef struct gs_cuda_division {
    gs_cuda_division_how how;
    double by;
} gs_cuda_division;

static inline GS_ANYWHERE gs_cuda_division gs_cuda_division_by(const double *divisor) {
    gs_cuda_division division = {GS_CUDA_NOT, 1.0};
    if (divisor == NULL) {
        return division;
    }
    division.by = *divisor;
    uint64_t bits;
    memcpy(&bits, &division.by, sizeof bits);
    const uint64_t exponent = bits >> 52;
    if (division.by == 0) {
        division.how = GS_CUDA_BY_ZERO;
    } else if ((bits & UINT64_C(0xfffffffffffff)) == 0 && exponent >= 1023 - 127 && exponent <= 1023 + 126) {
        division.how = GS_CUDA_EXACTLY; /* a power of two whose reciprocal is a normal float32 */
        division.by = 1.0 / division.by;
    } else {
        division.how = (double)(float)division.by == division.by ? GS_CUDA_NARROW : GS_CUDA_WIDE;
    }
    return division;
}

static inline GS_ANYWHERE float gs_divided_f32(float x, gs_cuda_division by) {
    switch (by.how) {
    case GS_CUDA_NOT:
        return x;
    case GS_CUDA_EXACTLY:
        return gs_one_nan_f32(x * (float)by.by);
    case GS_CUDA_NARROW:
        return gs_one_nan_f32(x / (float)by.by);
    case GS_CUDA_WIDE:
        return gs_one_nan_f32((float)((double)x / by.by));
    case GS_CUDA_BY_ZERO:
        break;
    }
    return 0;
}

static inline GS_ANYWHERE double gs_divided_f64(double x, gs_cuda_division by) {
    switch (by.how) {
    case GS_CUDA_NOT:
        return x;
    case GS_CUDA_EXACTLY:
        return gs_one_nan_f64(x * by.by);
    case GS_CUDA_NARROW:
    case GS_CUDA_WIDE:
        return gs_one_nan_f64(x / by.by);
    case GS_CUDA_BY_ZERO:
        break;
    }
    return 0;
}

/* ---- findings ---- */

/* Of one thread, in as few registers as it takes. No thread sees 2^32 elements. */
typedef struct gs_cuda_tally {
    double square_sum;
    uint64_t first_nonfinite; /* all ones: there is none */
    uint32_t absmax_bits;
    uint32_t saturated;
    uint32_t flushed;
} gs_cuda_tally;

static inline GS_ANYWHERE gs_cuda_tally gs_cuda_no_tally(void) {
    const gs_cuda_tally tally = {0, UINT64_MAX, 0, 0, 0};
    return tally;
}

static inline GS_ANYWHERE void gs_cuda_note_absmax(gs_cuda_tally *tally, float x) {
    const uint32_t magnitude = gs_float_bits(x) & 0x7fffffffu;
    if (magnitude < 0x7f800000u && magnitude > tally->absmax_bits) {
        tally->absmax_bits = magnitude;
    }
}

static inline GS_ANYWHERE void gs_cuda_note_nonfinite(gs_cuda_tally *tally, uint64_t element) {
    tally->first_nonfinite = element < tally->first_nonfinite ? element : tally->first_nonfinite;
}

static inline GS_ANYWHERE void gs_cuda_note_square(gs_cuda_tally *tally, double x) {
    const double square = x * x;
    tally->square_sum += square;
}

static inline GS_ANYWHERE gs_cuda_findings gs_cuda_findings_of(const gs_cuda_tally *tally) {
    gs_cuda_findings found;
    found.square_sum = tally->square_sum;
    found.absmax_bits = tally->absmax_bits;
    found.has_nonfinite = tally->first_nonfinite != UINT64_MAX;
    found.first_nonfinite = found.has_nonfinite ? tally->first_nonfinite : 0;
    found.saturated = tally->saturated;
    found.flushed = tally->flushed;
    return found;
}

/* ---- narrow wires ---- */

/* gs_narrowing of kernels.h, and what undoes the scale. */
typedef struct gs_cuda_narrowing {
    bool is_on;
    float scale;
    float inverse;
    uint32_t flushed_most;
    uint32_t end;
} gs_cuda_narrowing;

static inline GS_ANYWHERE uint32_t gs_bits_of_power(int exponent) {
    if (exponent >= -126) {
        return (uint32_t)(exponent + 127) << 23;
    }
    return exponent >= -149 ? 1u << (exponent + 149) : 0;
}

/* For FLOAT16 and the scale 2^exponent: gs_half_narrowing, by bits alone. */
static inline GS_ANYWHERE gs_cuda_narrowing gs_half_narrowing_of(int exponent) {
    const uint32_t without_power = 0x7ff000; /* 65520 is 2^15 and this */
    gs_cuda_narrowing how;
    how.is_on = true;
    how.scale = gs_float_from_bits(gs_bits_of_power(exponent));
    how.inverse = gs_float_from_bits(gs_bits_of_power(-exponent));
    how.flushed_most = gs_bits_of_power(-25 - exponent);
    how.end = gs_bits_of_power(15 - exponent) | without_power;
    return how;
}

/* floor(log2(x)) of what is greater than 0, and less for what is subnormal. */
static inline GS_ANYWHERE int gs_exponent_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 0x7ffu) - 1023;
}

/* How results are narrowed whose contributions are narrowed as `how` says. */
static inline GS_ANYWHERE gs_cuda_narrowing gs_narrowing_of_results(const gs_cuda_narrowing *how,
                                                                    const gs_cuda_result_scale *results) {
    if (!how->is_on || results->divisor == NULL) {
        return *how;
    }
    const double times = *results->divisor / results->usual;
    int exponent = gs_exponent_of((double)results->scale) + (times > 0 ? gs_exponent_of(times) : 0);
    exponent = exponent > GS_HALF_EXPONENT_MAX ? GS_HALF_EXPONENT_MAX : exponent;
    return gs_half_narrowing_of(exponent < GS_HALF_EXPONENT_MIN ? GS_HALF_EXPONENT_MIN : exponent);
}

static inline GS_ANYWHERE uint16_t gs_narrowed(float x, const gs_cuda_narrowing *how, bool is_half,
                                               gs_cuda_tally *tally) {
    const uint32_t bits = gs_float_bits(x);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude < how->end) {
        tally->flushed += magnitude <= how->flushed_most && magnitude != 0;
        return is_half ? gs_element_to_half(x * how->scale) : gs_bfloat_from_float(x);
    }
    if (magnitude > 0x7f800000u) {
        return is_half ? 0x7e00u : 0x7fc0u;
    }
    const bool is_infinite = magnitude == 0x7f800000u;
    tally->saturated += !is_infinite;
    const uint32_t infinity = is_half ? 0x7c00u : 0x7f80u;
    return (uint16_t)(sign | (is_infinite ? infinity : infinity - 1)); /* the largest number lies before it */
}

static inline GS_ANYWHERE void gs_cuda_merge(gs_cuda_findings *to, const gs_cuda_findings *from) {
    to->square_sum = gs_one_nan_f64(to->square_sum + from->square_sum);
    to->absmax_bits = from->absmax_bits > to->absmax_bits ? from->absmax_bits : to->absmax_bits;
    to->saturated += from->saturated;
    to->flushed += from->flushed;
    if (from->has_nonfinite && (!to->has_nonfinite || from->first_nonfinite < to->first_nonfinite)) {
        to->has_nonfinite = 1;
        to->first_nonfinite = from->first_nonfinite;
    }
}

/* What a whole pass has noticed. */
static inline GS_ANYWHERE void gs_cuda_note_pass(gs_cuda_notebook *notebook, const gs_cuda_findings *found) {
    gs_cuda_merge(&notebook->found, found);
    notebook->has_nonfinite |= found->has_nonfinite;
}

#endif
