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

#if defined(__SSE2__)
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
#if defined(__clang__)
#define NOT_INLINE static __attribute__((noinline))
#else
#define NOT_INLINE static __attribute__((noinline, noclone))
#endif

enum {
    UNROLL = 4,          /* vectors of a step: enough that counting and looking up pointers hides behind the memory */
    SOURCES_AT_ONCE = 8, /* read side by side, and as many targets written */
    STRIP = 1024,        /* elements of a sum that stays in the first-level cache */
    SQUARE_SUMS = 16,
    SQUARE_VECTORS = SQUARE_SUMS * sizeof(double) / VECTOR_BYTES
};

typedef double double_vector __attribute__((vector_size(VECTOR_BYTES)));

/* Compilers do not find the instruction for it. */
typedef int64_t bit_vector __attribute__((vector_size(VECTOR_BYTES)));

INLINE bool is_any_set(bit_vector bits) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)bits, (__m512i)bits) != 0;
#elif defined(__AVX2__)
    return _mm256_testz_si256((__m256i)bits, (__m256i)bits) == 0;
#elif defined(__SSE2__)
    return _mm_movemask_epi8((__m128i)bits) != 0; /* masks: whole lanes are set */
#else
    int64_t any = 0;
    for (size_t k = 0; k < VECTOR_BYTES / sizeof any; k++) {
        any |= bits[k];
    }
    return any != 0;
#endif
}

static double total_of(const double_vector *square_sums) {
    double tree[SQUARE_SUMS];
    memcpy(tree, square_sums, sizeof tree);
    for (size_t width = SQUARE_SUMS / 2; width > 0; width /= 2) {
        for (size_t k = 0; k < width; k++) {
            tree[k] += tree[k + width];
        }
    }
    return tree[0] == tree[0] ? tree[0] : (double)NAN;
}

/* ---- float32 and float64: the same functions, named for the type ---- */

#define JOIN_(stem, suffix) stem##suffix
#define JOIN(stem, suffix) JOIN_(stem, suffix)
#define NAME(stem) JOIN(stem, SUFFIX)

#define VECTOR NAME(vector)
#define VECTOR_OF_BITS NAME(vector_of_bits)
#define LANES (VECTOR_BYTES / sizeof(REAL))

#define REAL float
#define BITS int32_t
#define SUFFIX _f32
#define ONE_NAN INT32_C(0x7fc00000)
#define INFINITE INT32_C(0x7f800000)
#define ROUNDS true
#include "base/kernels_real.h"
#include "base/kernels_round.h"

#include "base/kernels_notice.h"
#undef REAL
#undef BITS
#undef SUFFIX
#undef ONE_NAN
#undef INFINITE
#undef ROUNDS

#define REAL double
#define BITS int64_t
#define SUFFIX _f64
#define ONE_NAN INT64_C(0x7ff8000000000000)
#define INFINITE INT64_C(0x7ff0000000000000)
#define ROUNDS false
#include "base/kernels_real.h"

/* Doubles cross no narrow wire. */
INLINE vector_f64 cross_f64(vector_f64 x, const narrow_wire *wire) {
    (void)wire;
    return x;
}

INLINE double_vector add_square_f64(double_vector sum, double_vector x) {
    return sum + x * x;
}

INLINE vector_f64 round_source_f64(vector_f64 x, const narrow_wire *wire, extremes *seen) {
    (void)wire, (void)seen;
    return x;
}

INLINE vector_f64 round_result_f64(vector_f64 x, vector_f64 signs, const narrow_wire *wire, extremes *seen) {
    (void)signs, (void)wire, (void)seen;
    return x;
}

INLINE words least_but_0_f64(words least, vector_f64 x) {
    (void)x;
    return least;
}

INLINE double_vector widen_part_f64(vector_f64 x, size_t part) {
    (void)part;
    return x;
}

#include "base/kernels_notice.h"

static void reduce_f32(const gs_reduction *job) {
    if (job->findings == NULL && job->rounding.to == GS_ROUND_NOT) {
        reduce_only_f32(job);
        return;
    }
    gs_findings unasked = {0};
    reduce_noticing_f32(job, job->findings != NULL ? job->findings : &unasked);
}

static void reduce_f64(const gs_reduction *job) {
    if (job->findings == NULL) {
        reduce_only_f64(job);
        return;
    }
    gs_reduction unrounded = *job;
    unrounded.rounding.to = GS_ROUND_NOT;
    reduce_noticing_f64(&unrounded, job->findings);
}

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

#include "base/kernels_blocks.h"

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
