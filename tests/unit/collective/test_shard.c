/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */
#include "collective/shard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shard_bench.h"

#define SEED 20240302

/* Runs the job over targets of their own; checks all elements it covers and that no other was written. */
static void expect_job(bench *on, gs_shard_job job) {
    job.sources = on->sources;
    job.targets = on->targets;
    gs_shard_reduce(&job);
    const size_t size = gsync_dtype_size(job.target_dtype);
    for (int t = 0; t < job.target_count; t++) {
        for (size_t i = 0; i < job.count; i++) {
            expect_element(&job, on->target[t], job.first + i, expected_at(&job, on->source, job.first + i));
        }
        for (size_t i = 0; i < SPACE; i++) {
            const size_t begin = (MARGIN + job.first) * size;
            assert_true(on->target[t][i] == GUARD || (i >= begin && i < begin + job.count * size));
        }
    }
    for (int t = job.target_count; t < SOURCES_MAX; t++) {
        assert_int_equal(on->target[t][MARGIN * size], GUARD);
    }
}

/* ---- Claims
 * ---------------------------------------------------------------------------------------------------------- */

static void every_dtype_op_and_divisor_matches_float64_arithmetic(void **state) {
    (void)state;
    static const gsync_op ops[] = {GSYNC_SUM, GSYNC_MIN, GSYNC_MAX};
    static const double divisors[] = {1, 2, 3, 4, 5, 7, 16, 100, 0, 0.5, 0.1, 1e-3, 12345.678, 16777217.0};
    for (size_t d = 0; d < 4; d++) {
        for (size_t o = 0; o < 3; o++) {
            for (size_t v = 0; v < sizeof divisors / sizeof divisors[0]; v++) {
                const int sources = 1 + (int)(v + o) % SOURCES_MAX;
                prepare(&shared_bench, dtypes[d], dtypes[d], SEED + 1000 * d + 100 * o + v);
                expect_job(&shared_bench, (gs_shard_job){.source_count = sources,
                                                         .source_dtype = dtypes[d],
                                                         .target_count = 1 + (int)v % SOURCES_MAX,
                                                         .target_dtype = dtypes[d],
                                                         .op = ops[o],
                                                         .divisor = divisors[v],
                                                         .count = ELEMENTS});
            }
        }
    }
}

/* Weights may add up to anything; the quotient is right wherever it is a number that the type holds. */
static void divisors_far_from_one_match_float64_arithmetic(void **state) {
    (void)state;
    static const int exponents[] = {-1060, -300, -160, -149, -148, -130, -128, -127, -126, -125, -24,
                                    24,    125,  126,  127,  128,  130,  148,  149,  160,  300,  1020};
    for (size_t d = 0; d < 4; d++) {
        for (size_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
            for (int mantissa = 2; mantissa <= 3; mantissa++) {
                prepare(&shared_bench, dtypes[d], dtypes[d], SEED + 10000 + 100 * d + e);
                expect_job(&shared_bench, (gs_shard_job){.source_count = 2,
                                                         .source_dtype = dtypes[d],
                                                         .target_count = 2,
                                                         .target_dtype = dtypes[d],
                                                         .op = GSYNC_SUM,
                                                         .divisor = ldexp(mantissa, exponents[e]),
                                                         .count = 200});
            }
        }
    }
}

static void no_source_gives_zero(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        prepare(&shared_bench, dtypes[d], dtypes[d], SEED);
        expect_job(&shared_bench, (gs_shard_job){.source_count = 0,
                                                 .source_dtype = dtypes[d],
                                                 .target_count = 3,
                                                 .target_dtype = dtypes[d],
                                                 .op = GSYNC_SUM,
                                                 .divisor = 2,
                                                 .count = 70});
    }
}

static void halves_are_summed_into_float32_without_rounding_to_halves(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        prepare(&shared_bench, dtypes[d], gs_dtype_wide(dtypes[d]), SEED + d);
        expect_job(&shared_bench, (gs_shard_job){.source_count = 4,
                                                 .source_dtype = dtypes[d],
                                                 .target_count = 1,
                                                 .target_dtype = gs_dtype_wide(dtypes[d]),
                                                 .op = GSYNC_SUM,
                                                 .divisor = 1,
                                                 .count = ELEMENTS});
    }
}

static void a_float32_sum_is_divided_before_it_is_rounded_to_halves(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        prepare(&shared_bench, gs_dtype_wide(dtypes[d]), dtypes[d], SEED + d);
        expect_job(&shared_bench, (gs_shard_job){.source_count = 1,
                                                 .source_dtype = gs_dtype_wide(dtypes[d]),
                                                 .target_count = 2,
                                                 .target_dtype = dtypes[d],
                                                 .op = GSYNC_SUM,
                                                 .divisor = 3,
                                                 .count = ELEMENTS});
    }
}

static void any_range_gives_the_same_bits_and_writes_nothing_else(void **state) {
    (void)state;
    seeded random = {SEED};
    for (int i = 0; i < 300; i++) {
        const uint64_t seed = seeded_next(&random);
        const gsync_dtype dtype = dtypes[seeded_below(&random, 4)];
        const size_t first = seeded_below(&random, ELEMENTS);
        const size_t count = seeded_below(&random, ELEMENTS - first + 1);
        prepare(&shared_bench, dtype, dtype, seed);
        expect_job(&shared_bench, (gs_shard_job){.source_count = 1 + (int)seeded_below(&random, SOURCES_MAX),
                                                 .source_dtype = dtype,
                                                 .target_count = 1 + (int)seeded_below(&random, SOURCES_MAX),
                                                 .target_dtype = dtype,
                                                 .op = GSYNC_SUM,
                                                 .divisor = 1.0 + (double)seeded_below(&random, 6),
                                                 .first = first,
                                                 .count = count});
    }
}

/* As ranks of one address space do it: every target is one of the sources. */
static void targets_may_be_the_sources_themselves(void **state) {
    (void)state;
    static const double divisors[] = {1, 2, 3, 4};
    static unsigned char before[SOURCES_MAX][SPACE];
    for (size_t i = 0; i < 4 * 4 * 5; i++) {
        const gsync_dtype dtype = dtypes[i % 4];
        prepare(&shared_bench, dtype, dtype, SEED + i);
        memcpy(before, shared_bench.source, sizeof before);
        gs_shard_job job = {.sources = shared_bench.sources,
                            .source_count = 1 + (int)(i / 16),
                            .source_dtype = dtype,
                            .targets = shared_bench.targets,
                            .target_count = 1 + (int)(i / 16),
                            .target_dtype = dtype,
                            .op = GSYNC_SUM,
                            .divisor = divisors[i / 4 % 4],
                            .first = 13,
                            .count = ELEMENTS - 20};
        for (int s = 0; s < SOURCES_MAX; s++) {
            shared_bench.targets[s] = (void *)shared_bench.sources[s];
        }
        gs_shard_reduce(&job);
        for (int t = 0; t < job.target_count; t++) {
            for (size_t k = 0; k < job.count; k++) {
                expect_element(&job, shared_bench.source[t], job.first + k, expected_at(&job, before, job.first + k));
            }
        }
    }
}

static void integers_are_summed_and_compared_as_integers(void **state) {
    (void)state;
    static const int64_t large[2][3] = {{INT64_MAX, -5, 3}, {1, 7, INT64_MIN}};
    static const int64_t sums[3] = {INT64_MIN, 2, INT64_MIN + 3};
    static const int64_t least[3] = {1, -5, INT64_MIN};
    static const int64_t most[3] = {INT64_MAX, 7, 3};
    static const gsync_op ops[3] = {GSYNC_SUM, GSYNC_MIN, GSYNC_MAX};
    const int64_t *const expected[3] = {sums, least, most};
    for (int o = 0; o < 3; o++) {
        int64_t target[3] = {0};
        const void *sources[2] = {large[0], large[1]};
        void *targets[1] = {target};
        const gs_shard_job job = {.sources = sources,
                                  .source_count = 2,
                                  .source_dtype = GSYNC_INT64,
                                  .targets = targets,
                                  .target_count = 1,
                                  .target_dtype = GSYNC_INT64,
                                  .op = ops[o],
                                  .divisor = 1,
                                  .count = 3};
        gs_shard_reduce(&job);
        assert_memory_equal(target, expected[o], sizeof target);
    }
}

/* ---- Splitting
 * ------------------------------------------------------------------------------------------------------- */

static void parts_follow_each_other_and_cover_everything_once(void **state) {
    (void)state;
    seeded random = {SEED};
    for (int i = 0; i < 20000; i++) {
        const size_t bits = seeded_below(&random, 50);
        const size_t count = (size_t)(seeded_next(&random) >> (63 - bits));
        const int parts = 1 + (int)seeded_below(&random, i % 2 ? 8 : 300);
        size_t at = 0;
        for (int p = 0; p < parts; p++) {
            size_t first;
            size_t length;
            gs_shard_split(count, parts, p, &first, &length);
            assert_true(first == at && length <= count - at);
            assert_true(length == 0 || first % 64 == 0);
            at += length;
        }
        assert_true(at == count);
    }
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_op_and_divisor_matches_float64_arithmetic),
        cmocka_unit_test(divisors_far_from_one_match_float64_arithmetic),
        cmocka_unit_test(no_source_gives_zero),
        cmocka_unit_test(halves_are_summed_into_float32_without_rounding_to_halves),
        cmocka_unit_test(a_float32_sum_is_divided_before_it_is_rounded_to_halves),
        cmocka_unit_test(any_range_gives_the_same_bits_and_writes_nothing_else),
        cmocka_unit_test(targets_may_be_the_sources_themselves),
        cmocka_unit_test(integers_are_summed_and_compared_as_integers),
        cmocka_unit_test(parts_follow_each_other_and_cover_everything_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
