/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_RESULTS_H
#define CUDA_RESULTS_H

/* What the tests of passes that make results share: what a pass has to notice of them, and the scales they have. */

#include "cuda_fixture.h"

#include "wire/codec.h"

#include <math.h>

#define SEED 20261201

static const gsync_dtype singles[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16};

static inline double as_double(gsync_dtype dtype, const void *elements, size_t k) {
    switch (dtype) {
    case GSYNC_FLOAT64:
        return ((const double *)elements)[k];
    case GSYNC_FLOAT32:
        return (double)((const float *)elements)[k];
    case GSYNC_FLOAT16:
        return (double)gs_half_to_float(((const uint16_t *)elements)[k]);
    default:
        return (double)gs_bfloat_to_float(((const uint16_t *)elements)[k]);
    }
}

typedef struct expectation {
    double square_sum;
    double tolerance;
    bool has_nonfinite;
    size_t first_nonfinite;
} expectation;

static inline void expect_result(double x, size_t element, expectation *of) {
    if (!isfinite(x) && !of->has_nonfinite) {
        of->has_nonfinite = true;
        of->first_nonfinite = element;
    }
    of->square_sum += x * x;
    of->tolerance = 1e-12 * of->square_sum;
}

static inline void expect_found(const gs_cuda_findings *got, const expectation *expected, uint64_t seed) {
    const bool is_same_sum = isfinite(expected->square_sum)
                                 ? fabs(got->square_sum - expected->square_sum) <= expected->tolerance
                                 : !isfinite(got->square_sum);
    if (!is_same_sum || got->has_nonfinite != expected->has_nonfinite ||
        (expected->has_nonfinite && got->first_nonfinite != expected->first_nonfinite)) {
        fail_msg("seed %llu: squares %a, nonfinite %u at %llu; expected %a, %d at %zu", (unsigned long long)seed,
                 got->square_sum, got->has_nonfinite, (unsigned long long)got->first_nonfinite, expected->square_sum,
                 expected->has_nonfinite, expected->first_nonfinite);
    }
}

/* What makes the result scale, and what it then is. */
typedef struct scaling {
    double divisor;
    double usual;
    float scale;
    float expected;
} scaling;

static const scaling scalings[] = {
    {4.0, 4.0, 0x1p9f, 0x1p9f},
    {0x1p26, 4.0, 0x1p9f, 0x1p33f},
    {7.9, 4.0, 0x1p9f, 0x1p9f},
    {3.9, 4.0, 0x1p-9f, 0x1p-10f},
    {0.0, 4.0, 0x1p9f, 0x1p9f},
    {NAN, 4.0, 0x1p9f, 0x1p9f},
    {-3.0, 4.0, 0x1p9f, 0x1p9f},
    {0x1p1000, 1.0, 0x1p9f, 0x1p126f},
    {INFINITY, 1.0, 0x1p-112f, 0x1p126f},
    {0x1p-1000, 1.0, 0x1p126f, 0x1p-112f},
    {0x1p-1074, 1.0, 0x1p126f, 0x1p-112f},
    {1e300, 1e308, 0x1p60f, 0x1p33f},
    {0x1.fffffffffffffp1, 2.0, 1.0f, 1.0f},
};
enum { SCALINGS = sizeof scalings / sizeof *scalings };

#endif
