/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_KERNELS_H
#define GS_BASE_KERNELS_H

/*
 * The inner loops over elements, compiled once for each instruction set and chosen when the program runs.
 *
 * Every table gives the same bits, for all inputs and in every mode of the floating-point unit that rounds to nearest.
 * That takes two rules. Nothing is contracted or reordered. And where arithmetic gives NaN it gives the same NaN,
 * quiet, positive and without payload: which of two NaNs a sum passes on depends on the order in which the compiler
 * puts the operands, and the NaN of inf - inf has another sign on other processors.
 *
 * No kernel needs alignment beyond that of an element. A target may be one of the sources; buffers that overlap in
 * any other way are not allowed. A source is read once, and a target written once, front to back; only where NaN came
 * out is the target gone through again.
 */

#include "base/wire_format.h"

#include <float.h>

/* How a sum is divided so that it has the bits of the quotient: see gs_division_by. */
typedef struct gs_division {
    enum { GS_DIVIDE_EXACTLY, GS_DIVIDE_NARROW, GS_DIVIDE_WIDE } how;
    double by; /* EXACTLY: the factor; otherwise the divisor, which float32 holds if NARROW */
} gs_division;

/* divisor != 0. By a power of two with a normal float32 reciprocal the product has the quotient's bits. */
gs_division gs_division_by(double divisor);

/* How elements are rounded on the way, as if they had crossed a narrow wire. */
typedef struct gs_rounding {
    enum { GS_ROUND_NOT, GS_ROUND_HALF, GS_ROUND_BFLOAT } to;
    float scale; /* HALF: a power of two by which elements are multiplied before rounding, and divided after it */
    float result_scale; /* the same of the result; 0: scale */
} gs_rounding;

/* What passes over elements notice. Callers clear it; calls add to it. */
typedef struct gs_findings {
    double square_sum;        /* of results, in float64 */
    float absmax;             /* the largest finite magnitude of what was rounded; reductions look at sources only and
                                 round it down to a power of two, unless it is subnormal */
    uint64_t saturated;       /* finite elements beyond the range of the wire, which became its largest value */
    uint64_t flushed;         /* elements other than 0 that rounding made 0 */
    bool has_nonfinite;       /* inf or NaN was among the inputs, or came out */
    int nonfinite_source;     /* the first source that had one at nonfinite_element; -1: finite inputs overflowed */
    size_t nonfinite_element; /* the first such element, counted as the call counts its elements */
} gs_findings;

/* Elements [first, first + count) of all sources, summed in their order and divided once, go to all targets. */
typedef struct gs_reduction {
    const void *const *sources;
    int source_count; /* at least 1 */
    void *const *targets;
    int target_count;
    gs_division division;
    size_t first;
    size_t count;
    gs_rounding rounding;  /* float32: every source before it is added, and the result */
    gs_findings *findings; /* NULL: nothing is looked for */
} gs_reduction;

/* What is ordinary on a 16-bit wire, by the bits of magnitudes. */
typedef struct gs_narrowing {
    float scale;           /* HALF: as in gs_rounding */
    uint32_t flushed_most; /* from the smallest magnitude to this one elements become 0 */
    uint32_t end;          /* from this one on they saturate, or are not finite */
} gs_narrowing;

/* Magnitudes from 65520 on would round to inf, up to 2^-25 to 0; both after multiplication with the scale. */
static inline gs_narrowing gs_half_narrowing(float scale) {
    const double end = 65520.0 / (double)scale;
    const double flushed_most = 0x1p-25 / (double)scale;
    return (gs_narrowing){.scale = scale,
                          .flushed_most = gs_float_bits((float)flushed_most),
                          .end = end > (double)FLT_MAX ? (uint32_t)GS_INFINITY : gs_float_bits((float)end)};
}

/* The lower half of a float32 is rounded away, subnormal or not. */
static inline gs_narrowing gs_bfloat_narrowing(void) {
    return (gs_narrowing){.scale = 1.0f, .flushed_most = 0x8000, .end = 0x7f7f8000};
}

enum { GS_NARROWING_GROUP = 1024 };

typedef struct gs_kernels {
    const char *name;

    void (*reduce_f32)(const gs_reduction *reduction);
    void (*reduce_f64)(const gs_reduction *reduction);

    /* sum += x */
    void (*add_f32)(float *sum, const float *x, size_t count);
    void (*add_f64)(double *sum, const double *x, size_t count);

    /* The lesser or greater of both, the first of equal ones; NaN if either is NaN, and the later one's if both are. */
    void (*min_f32)(float *least, const float *x, size_t count);
    void (*min_f64)(double *least, const double *x, size_t count);
    void (*max_f32)(float *most, const float *x, size_t count);
    void (*max_f64)(double *most, const double *x, size_t count);

    /* to = factor * x */
    void (*scale_f32)(float *to, const float *x, float factor, size_t count);
    void (*scale_f64)(double *to, const double *x, double factor, size_t count);

    /* x /= divisor */
    void (*divide_f32)(float *x, gs_division by, size_t count);
    void (*divide_f64)(double *x, gs_division by, size_t count);

    /* to = sum + factor * x, the product rounded before the sum is */
    void (*accumulate_f32)(float *to, const float *sum, const float *x, float factor, size_t count);
    void (*accumulate_f64)(double *to, const double *sum, const double *x, double factor, size_t count);

    /* What gs_half_to_float and its kin in dtype.h do to one element. `to` and `from` are different memory. */
    void (*widen_half)(float *to, const uint16_t *from, size_t count);
    void (*widen_bfloat)(float *to, const uint16_t *from, size_t count);
    void (*narrow_half)(uint16_t *to, const float *from, size_t count);
    void (*narrow_bfloat)(uint16_t *to, const float *from, size_t count);

    /* Squares summed in float64: element k goes to sum k % 16, and the 16 sums are added as a tree in the end. */
    double (*square_sum_f32)(const float *x, size_t count);
    double (*square_sum_f64)(const double *x, size_t count);

    /* Neither infinite nor NaN is any of them. */
    bool (*is_finite_f32)(const float *x, size_t count);
    bool (*is_finite_f64)(const double *x, size_t count);

    /*
     * Of the codecs in src/wire, which say what is written. Encoders stop before the first group of elements, or block,
     * in which one is out of the ordinary, and return how many elements there were before it; those are in the
     * findings, if there are any. Decoding needs no care. `number` is that of the first element in the stream.
     */
    size_t (*encode_half)(uint16_t *wire, const float *x, size_t count, const gs_narrowing *how, gs_findings *findings);
    size_t (*encode_bfloat)(uint16_t *wire, const float *x, size_t count, const gs_narrowing *how,
                            gs_findings *findings);
    size_t (*encode_int8)(uint8_t *wire, const float *x, size_t count, gs_findings *findings);
    size_t (*encode_int8_stochastic)(uint8_t *wire, const float *x, size_t count, gs_random_stream stream,
                                     uint32_t number, gs_findings *findings);
    size_t (*encode_float8)(uint8_t *wire, const float *x, size_t count, gs_findings *findings);
    void (*decode_half)(float *x, const uint16_t *wire, size_t count, float factor);
    void (*decode_int8)(float *x, const uint8_t *wire, size_t count);
    void (*decode_float8)(float *x, const uint8_t *wire, size_t count);
    void (*decode_add_half)(float *sum, const uint16_t *wire, size_t count, float factor);
    void (*decode_add_bfloat)(float *sum, const uint16_t *wire, size_t count);
    void (*decode_add_int8)(float *sum, const uint8_t *wire, size_t count);
    void (*decode_add_float8)(float *sum, const uint8_t *wire, size_t count);
} gs_kernels;

/* PLAIN is whatever the library is compiled for: SSE2 on x86-64, NEON on AArch64. */
typedef enum gs_isa { GS_ISA_PLAIN, GS_ISA_AVX2, GS_ISA_AVX512, GS_ISA_COUNT } gs_isa;

/* NULL where this build or this machine lacks it; PLAIN is never lacking. Costs a few nanoseconds. */
const gs_kernels *gs_kernels_get(gs_isa isa);
const gs_kernels *gs_kernels_best(void);

/* Tables are reached through the functions above: their code may not run here. */
extern const gs_kernels gs_kernels_plain;
extern const gs_kernels gs_kernels_avx2;
extern const gs_kernels gs_kernels_avx512;

#endif
