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

#define SEED 20261201

static double squares_of(const double *results, size_t count) {
    double sums[16] = {0};
    for (size_t k = 0; k < count; k++) {
        sums[k % 16] += results[k] * results[k];
    }
    for (int width = 8; width > 0; width /= 2) {
        for (int k = 0; k < width; k++) {
            sums[k] += sums[k + width];
        }
    }
    return sums[0];
}

/* Sums of halves are looked at a block at a time. */
static gs_findings expected_findings(const gs_shard_job *job, unsigned char sources[][SPACE]) {
    static double results[ELEMENTS];
    gs_findings findings = {.square_sum = 0.0};
    for (size_t k = 0; k < job->count; k++) {
        unsigned char stored[8];
        shard_store(job->target_dtype, stored, 0, expected_at(job, sources, job->first + k));
        results[k] = shard_load(job->target_dtype, stored, 0);
        if (!isfinite(results[k]) && !findings.has_nonfinite) {
            findings.has_nonfinite = true;
            findings.nonfinite_element = k;
            findings.nonfinite_source = -1;
            for (int s = job->source_count - 1; s >= 0; s--) {
                const bool is_finite = isfinite(shard_load(job->source_dtype, sources[s], MARGIN + job->first + k));
                findings.nonfinite_source = is_finite ? findings.nonfinite_source : s;
            }
        }
    }
    const size_t block = gsync_dtype_size(job->source_dtype) == 2 ? 1024 : ELEMENTS;
    for (size_t k = 0; k < job->count; k += block) {
        findings.square_sum += squares_of(results + k, job->count - k < block ? job->count - k : block);
    }
    return findings;
}

static void expect_findings(const gs_shard_job *job, uint64_t seed, const gs_findings *expected) {
    const gs_findings *const got = job->findings;
    const bool is_sum =
        got->square_sum == expected->square_sum || (isnan(got->square_sum) && isnan(expected->square_sum));
    if (!is_sum || got->has_nonfinite != expected->has_nonfinite ||
        got->nonfinite_element != expected->nonfinite_element || got->nonfinite_source != expected->nonfinite_source) {
        fail_msg(
            "seed %llx, %s to %s, %d sources: squares %a, expected %a; element %zu of source %d, expected %zu of %d",
            (unsigned long long)seed, gs_dtype_name(job->source_dtype), gs_dtype_name(job->target_dtype),
            job->source_count, got->square_sum, expected->square_sum, got->nonfinite_element, got->nonfinite_source,
            expected->nonfinite_element, expected->nonfinite_source);
    }
}

/* Small numbers up to some element, or all of them. */
static void calm(bench *on, gsync_dtype dtype, uint64_t seed) {
    seeded random = {seed};
    const size_t end = seeded_below(&random, 2 * ELEMENTS);
    for (int s = 0; s < SOURCES_MAX; s++) {
        for (size_t k = 0; k < end && k < ELEMENTS + 2 * MARGIN; k++) {
            shard_store(dtype, on->source[s], k, ldexp((double)seeded_below(&random, 1000), -10));
        }
    }
}

static void expect_found(gsync_dtype source_dtype, gsync_dtype target_dtype, bool is_in_place, int number) {
    static const double divisors[] = {1, 2, 3, 0.001, 0};
    static unsigned char before[SOURCES_MAX][SPACE];
    const uint64_t seed = SEED + 90000 + (uint64_t)number;
    gs_findings findings = {.square_sum = 0.0};
    prepare(&shared_bench, source_dtype, target_dtype, seed);
    calm(&shared_bench, source_dtype, seed);
    memcpy(before, shared_bench.source, sizeof before);
    const gs_shard_job job = {.sources = shared_bench.sources,
                              .source_count = number % (SOURCES_MAX + 1),
                              .source_dtype = source_dtype,
                              .targets = is_in_place ? (void *const *)shared_bench.sources : shared_bench.targets,
                              .target_count = is_in_place ? number % (SOURCES_MAX + 1) : number % 3,
                              .target_dtype = target_dtype,
                              .op = GSYNC_SUM,
                              .divisor = divisors[number / 6 % 5],
                              .first = (size_t)number % 17,
                              .count = ELEMENTS - 20,
                              .findings = &findings};
    const gs_findings expected = expected_findings(&job, before);
    gs_shard_reduce(&job);
    expect_findings(&job, seed, &expected);
    for (int t = 0; t < job.target_count; t++) {
        const unsigned char *const target = is_in_place ? shared_bench.source[t] : shared_bench.target[t];
        for (size_t k = 0; k < job.count; k++) {
            expect_element(&job, target, job.first + k, expected_at(&job, before, job.first + k));
        }
    }
}

static void findings_are_of_what_is_stored_and_of_whose_sources_it_was(void **state) {
    (void)state;
    for (int number = 0; number < 60; number++) {
        for (size_t d = 0; d < 4; d++) {
            expect_found(dtypes[d], dtypes[d], number % 2 == 0, number);
            expect_found(dtypes[d], gs_dtype_wide(dtypes[d]), false, number);
        }
    }
}

static void a_sum_that_only_halves_cannot_hold_is_nobodys_infinity(void **state) {
    (void)state;
    uint16_t largest[2] = {0x3c00, 0x7bff};
    const void *const sources[2] = {largest, largest};
    void *const targets[2] = {largest, largest};
    gs_findings findings = {.square_sum = 0.0};
    gs_shard_reduce(&(gs_shard_job){.sources = sources,
                                    .source_count = 2,
                                    .source_dtype = GSYNC_FLOAT16,
                                    .targets = targets,
                                    .target_count = 2,
                                    .target_dtype = GSYNC_FLOAT16,
                                    .op = GSYNC_SUM,
                                    .divisor = 1.0,
                                    .count = 2,
                                    .findings = &findings});
    assert_int_equal(largest[0], 0x4000);
    assert_int_equal(largest[1], 0x7c00);
    assert_true(findings.has_nonfinite && findings.nonfinite_element == 1 && findings.nonfinite_source == -1);
}

static void float32_is_rounded_before_it_is_added_and_afterwards(void **state) {
    (void)state;
    float x[4] = {9.0f, 2049.0f, 1e6f, 1e-9f};
    float y[4] = {9.0f, 1.0f, -1.0f, 0.0f};
    const void *const sources[2] = {x, y};
    void *const targets[2] = {x, y};
    gs_findings findings = {.square_sum = 0.0};
    gs_shard_reduce(&(gs_shard_job){.sources = sources,
                                    .source_count = 2,
                                    .source_dtype = GSYNC_FLOAT32,
                                    .targets = targets,
                                    .target_count = 2,
                                    .target_dtype = GSYNC_FLOAT32,
                                    .op = GSYNC_SUM,
                                    .divisor = 1.0,
                                    .first = 1,
                                    .count = 3,
                                    .rounding = {.to = GS_ROUND_HALF, .scale = 1.0f},
                                    .findings = &findings});
    static const float expected[4] = {9.0f, 2048.0f, 65504.0f, 0.0f}; /* 2048 + 1 is as near to 2048 as to 2050 */
    assert_memory_equal(x, expected, sizeof x);
    assert_memory_equal(y, expected, sizeof y);
    assert_true(findings.saturated == 1 && findings.flushed == 1 && findings.absmax == 0x1p19f);
}

static void a_single_ranks_data_is_looked_at_and_left_alone(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        static unsigned char before[SPACE];
        gs_findings findings = {.square_sum = 0.0};
        prepare(&shared_bench, dtypes[d], dtypes[d], SEED + d);
        memcpy(before, shared_bench.source[0], SPACE);
        gs_shard_job job = {.sources = shared_bench.sources,
                            .source_count = 1,
                            .source_dtype = dtypes[d],
                            .targets = (void *const *)shared_bench.sources,
                            .target_count = 1,
                            .target_dtype = dtypes[d],
                            .op = GSYNC_SUM,
                            .divisor = 1.0,
                            .count = ELEMENTS};
        assert_true(gs_shard_changes_nothing(&job));
        job.findings = &findings;
        assert_false(gs_shard_changes_nothing(&job));
        gs_shard_reduce(&job);
        assert_true(findings.has_nonfinite && findings.nonfinite_source == 0);
        assert_memory_equal(shared_bench.source[0], before, SPACE);
    }
}

static void rounding_changes_even_a_single_ranks_data(void **state) {
    (void)state;
    float x = 2049.0f;
    const void *const source = &x;
    void *const target = &x;
    const gs_shard_job job = {.sources = &source,
                              .source_count = 1,
                              .source_dtype = GSYNC_FLOAT32,
                              .targets = &target,
                              .target_count = 1,
                              .target_dtype = GSYNC_FLOAT32,
                              .op = GSYNC_SUM,
                              .divisor = 1.0,
                              .count = 1,
                              .rounding = {.to = GS_ROUND_BFLOAT}};
    assert_false(gs_shard_changes_nothing(&job));
    gs_shard_reduce(&job);
    assert_true(x == 2048.0f);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(findings_are_of_what_is_stored_and_of_whose_sources_it_was),
        cmocka_unit_test(a_sum_that_only_halves_cannot_hold_is_nobodys_infinity),
        cmocka_unit_test(float32_is_rounded_before_it_is_added_and_afterwards),
        cmocka_unit_test(a_single_ranks_data_is_looked_at_and_left_alone),
        cmocka_unit_test(rounding_changes_even_a_single_ranks_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
