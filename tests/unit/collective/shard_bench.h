/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHARD_BENCH_H
#define SHARD_BENCH_H

/* Buffers full of elements of all kinds, and what a sum of them must be. For programs that include cmocka.h first. */

#include "collective/shard.h"

#include "seeded.h"
#include "shard_oracle.h"

enum { SOURCES_MAX = 5, ELEMENTS = 2600, MARGIN = 5, GUARD = 0x5a };
#define SPACE ((ELEMENTS + 2 * MARGIN) * 8)

static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* What one job works on. Buffers start MARGIN elements late, so that they are not aligned to vectors. */
typedef struct bench {
    unsigned char source[SOURCES_MAX][SPACE];
    unsigned char target[SOURCES_MAX][SPACE];
    const void *sources[SOURCES_MAX];
    void *targets[SOURCES_MAX];
} bench;

static bench shared_bench;

/* ---- Values --------------------------------------------------------------------------------------------------------
 */

static inline void store_float(gsync_dtype dtype, unsigned char *to, size_t index, seeded *random) {
    const uint64_t bits = seeded_next(random);
    const double sign = bits & 1u ? -1.0 : 1.0;
    const double fraction = 1.0 + ldexp((double)(bits >> 12), -52);
    const int largest = dtype == GSYNC_FLOAT16 ? 15 : (dtype == GSYNC_FLOAT64 ? 1023 : 127);
    const int smallest = dtype == GSYNC_FLOAT16 ? -24 : (dtype == GSYNC_FLOAT64 ? -1074 : -149);
    switch ((bits >> 1) & 15u) {
    case 0:
        shard_store(dtype, to, index, sign * 0.0);
        break;
    case 1:
        shard_store(dtype, to, index, sign * ldexp(1.0, smallest + (int)((bits >> 5) % 9)));
        break;
    case 2: /* the largest binade, cut off so that halves do not round up to infinity */
        shard_store(dtype, to, index, sign * ldexp(1.75, largest));
        break;
    case 3:
        shard_store(dtype, to, index, (bits >> 5) % 8 == 0 ? (double)NAN : sign * (double)INFINITY);
        break;
    default:
        shard_store(dtype, to, index, sign * ldexp(fraction, (int)((bits >> 5) % 20) - 10));
    }
}

static inline void prepare(bench *on, gsync_dtype source_dtype, gsync_dtype target_dtype, uint64_t seed) {
    seeded random = {seed};
    for (int s = 0; s < SOURCES_MAX; s++) {
        for (size_t i = 0; i < ELEMENTS + 2 * MARGIN; i++) {
            store_float(source_dtype, on->source[s], i, &random);
        }
        memset(on->target[s], GUARD, SPACE);
        on->sources[s] = on->source[s] + MARGIN * gsync_dtype_size(source_dtype);
        on->targets[s] = on->target[s] + MARGIN * gsync_dtype_size(target_dtype);
    }
}

/* ---- What must come out --------------------------------------------------------------------------------------------
 */

static inline double expected_at(const gs_shard_job *job, unsigned char sources[][SPACE], size_t index) {
    if (job->source_count == 0 || job->divisor == 0.0) {
        return 0.0;
    }
    double sum = shard_load(job->source_dtype, sources[0], MARGIN + index);
    for (int s = 1; s < job->source_count; s++) {
        sum = shard_combine(job->source_dtype, job->op, sum, shard_load(job->source_dtype, sources[s], MARGIN + index));
    }
    return job->divisor == 1.0 ? sum : shard_rounded(job->source_dtype, sum / job->divisor);
}

static inline void expect_element(const gs_shard_job *job, const unsigned char *target, size_t index, double expected) {
    const size_t size = gsync_dtype_size(job->target_dtype);
    unsigned char wanted[8];
    shard_store(job->target_dtype, wanted, 0, expected);
    const double got = shard_load(job->target_dtype, target, MARGIN + index);
    const bool is_same = memcmp(target + (MARGIN + index) * size, wanted, size) == 0;
    if (!is_same && !(isnan(expected) && isnan(got))) {
        fail_msg("%s to %s, op %d, %d sources, divisor %a, element %zu of [%zu, +%zu): got %a, expected %a",
                 gs_dtype_name(job->source_dtype), gs_dtype_name(job->target_dtype), (int)job->op, job->source_count,
                 job->divisor, index, job->first, job->count, got, expected);
    }
}

#endif
