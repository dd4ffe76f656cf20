/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The kernels, once for each instruction set: kernels_plain.c and its kin define GS_KERNELS_TABLE and GS_KERNELS_NAME
 * and include this, each compiled with flags of its own. So there is no include guard, and everything is static: a
 * function shared with other files could end up being the copy compiled for the newest processor.
 *
 * Vectors are the compiler's own (vector_size), as wide as the instruction set's registers, because loops over single
 * elements are not vectorised where a target may be a source.
 */

#include "base/dtype.h"
#include "base/kernels.h"

#include <math.h>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#define INLINE static inline __attribute__((always_inline))

enum {
    UNROLL = 4,          /* vectors of a step: enough that counting and looking up pointers hides behind the memory */
    SOURCES_AT_ONCE = 8, /* read side by side, and as many targets written */
    STRIP = 1024,        /* elements of a sum that stays in the first-level cache */
    SQUARE_SUMS = 16
};

typedef double double_vector __attribute__((vector_size(VECTOR_BYTES)));

/* ---- float32 and float64: the same functions, named for the type ---- */

#define JOIN_(stem, suffix) stem##suffix
#define JOIN(stem, suffix) JOIN_(stem, suffix)
#define NAME(stem) JOIN(stem, SUFFIX)

#define REAL float
#define BITS int32_t
#define SUFFIX _f32
#define ONE_NAN INT32_C(0x7fc00000)
#define INFINITE INT32_C(0x7f800000)
#include "base/kernels_real.h"
#undef REAL
#undef BITS
#undef SUFFIX
#undef ONE_NAN
#undef INFINITE

#define REAL double
#define BITS int64_t
#define SUFFIX _f64
#define ONE_NAN INT64_C(0x7ff8000000000000)
#define INFINITE INT64_C(0x7ff0000000000000)
#include "base/kernels_real.h"

/* ---- 16-bit elements ---- */

static void widen_half(float *restrict to, const uint16_t *restrict from, size_t count) {
    size_t k = 0;
#if defined(__AVX512F__)
    for (; k + 16 <= count; k += 16) {
        _mm512_storeu_ps(to + k, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from + k))));
    }
#elif defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        _mm256_storeu_ps(to + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + k))));
    }
#endif
    for (; k < count; k++) {
        to[k] = gs_half_to_float(from[k]);
    }
}

static void narrow_half(uint16_t *restrict to, const float *restrict from, size_t count) {
    size_t k = 0;
#if defined(__AVX512F__)
    for (; k + 16 <= count; k += 16) {
        _mm256_storeu_si256((__m256i *)(void *)(to + k),
                            _mm512_cvtps_ph(_mm512_loadu_ps(from + k), _MM_FROUND_TO_NEAREST_INT));
    }
#elif defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        _mm_storeu_si128((__m128i *)(void *)(to + k),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + k), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; k < count; k++) {
        to[k] = gs_half_from_float(from[k]);
    }
}

static void widen_bfloat(float *restrict to, const uint16_t *restrict from, size_t count) {
    for (size_t k = 0; k < count; k++) {
        to[k] = gs_bfloat_to_float(from[k]);
    }
}

static void narrow_bfloat(uint16_t *restrict to, const float *restrict from, size_t count) {
    for (size_t k = 0; k < count; k++) {
        to[k] = gs_bfloat_from_float(from[k]);
    }
}

/* ---- narrow wires ---- */

#include "base/kernels_wire.h"

/* ---- the table ---- */

const gs_kernels GS_KERNELS_TABLE = {
    .name = GS_KERNELS_NAME,
    .reduce_f32 = reduce_f32,
    .reduce_f64 = reduce_f64,
    .add_f32 = add_f32,
    .add_f64 = add_f64,
    .min_f32 = min_f32,
    .min_f64 = min_f64,
    .max_f32 = max_f32,
    .max_f64 = max_f64,
    .scale_f32 = scale_f32,
    .scale_f64 = scale_f64,
    .divide_f32 = divide_f32,
    .divide_f64 = divide_f64,
    .accumulate_f32 = accumulate_f32,
    .accumulate_f64 = accumulate_f64,
    .widen_half = widen_half,
    .widen_bfloat = widen_bfloat,
    .narrow_half = narrow_half,
    .narrow_bfloat = narrow_bfloat,
    .square_sum_f32 = square_sum_f32,
    .square_sum_f64 = square_sum_f64,
    .is_finite_f32 = is_finite_f32,
    .is_finite_f64 = is_finite_f64,
    .encode_half = encode_half,
    .encode_bfloat = encode_bfloat,
    .encode_int8 = encode_int8,
    .encode_int8_stochastic = encode_int8_stochastic,
    .encode_float8 = encode_float8,
    .decode_half = decode_half,
    .decode_int8 = decode_int8,
    .decode_float8 = decode_float8,
    .decode_add_half = decode_add_half,
    .decode_add_bfloat = decode_add_bfloat,
    .decode_add_int8 = decode_add_int8,
    .decode_add_float8 = decode_add_float8,
};
