/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* What becomes of residuals on a GPU between the passes that write them. */

#include "cuda_fixture.h"
#include "simcuda.h"

#include <string.h>

enum { RESIDUALS = 1000, MOST_ELEMENTS = 700 };

/* ---- settling ---- */

typedef struct settling {
    gs_cuda_residual residuals[2 * RESIDUALS];
    gs_cuda_term terms[RESIDUALS];
    uint8_t written[RESIDUALS];
    float used[RESIDUALS];
    uint32_t has_nonfinite;
    double divisor;
    double kept_divisor;
} settling;

static settling settling_random(uint64_t seed) {
    seeded random = {seed};
    settling made = {.divisor = 48, .kept_divisor = 5};
    for (size_t i = 0; i < RESIDUALS; i++) {
        made.terms[i].number = (i * 7 + 3) % RESIDUALS; /* in another order than residuals */
        made.written[i] = (uint8_t)seeded_below(&random, 4);
        made.used[i] = (float)seeded_below(&random, 3);
        made.residuals[i].valid = (uint32_t)seeded_below(&random, 2);
        made.residuals[RESIDUALS + i].valid = (uint32_t)seeded_below(&random, 2);
    }
    return made;
}

static settling settled(const gpu *on, const settling *before, size_t count, bool asks) {
    settling after = *before;
    settling *const there = gpu_copy_of(on, before, sizeof *before);
    const gs_cuda_settlement settlement = {.contributions = there->residuals,
                                           .results = there->residuals + RESIDUALS,
                                           .residual_count = RESIDUALS,
                                           .terms = there->terms,
                                           .term_count = count,
                                           .written = there->written,
                                           .used = asks ? there->used : NULL,
                                           .has_nonfinite = asks ? &there->has_nonfinite : NULL,
                                           .divisor = &there->divisor,
                                           .loss_scale = 16,
                                           .kept_divisor = &there->kept_divisor};
    assert_int_equal(gs_cuda_settle(on->cuda, &settlement, on->stream), GSYNC_OK);
    gpu_get(on, &after, there, sizeof after);
    gs_cuda_free(on->cuda, there);
    return after;
}

static void expect_flipped(const settling *before, const settling *after, size_t count, bool asks) {
    for (size_t i = 0; i < RESIDUALS; i++) {
        const size_t number = before->terms[i].number;
        const bool arrives = i < count && (!asks || before->used[i] != 0);
        for (size_t stage = 0; stage < 2; stage++) {
            const size_t at = stage * RESIDUALS + number;
            const uint32_t flips = arrives && (before->written[i] >> stage & 1) != 0;
            assert_int_equal(after->residuals[at].valid, before->residuals[at].valid ^ flips);
        }
    }
}

static void what_was_written_becomes_valid(void **state) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        const settling before = settling_random(seed);
        const size_t count = seed == 0 ? RESIDUALS : (size_t)(seed * 50);
        const settling after = settled(*state, &before, count, false);
        expect_flipped(&before, &after, count, false);
        assert_true(after.kept_divisor == 3);
    }
}

static void not_of_what_no_rank_has_used(void **state) {
    const settling before = settling_random(77);
    const settling after = settled(*state, &before, RESIDUALS, true);
    expect_flipped(&before, &after, RESIDUALS, true);
}

static void nothing_does_where_the_step_does_not_count(void **state) {
    settling before = settling_random(78);
    before.divisor = 0;
    settling after = settled(*state, &before, RESIDUALS, false);
    assert_memory_equal(&after, &before, sizeof before);
    before.divisor = 4;
    before.has_nonfinite = 1;
    after = settled(*state, &before, RESIDUALS, true);
    assert_memory_equal(&after, &before, sizeof before);
    after = settled(*state, &before, RESIDUALS, false); /* a host has decided otherwise */
    expect_flipped(&before, &after, RESIDUALS, false);
}

/* ---- folding ---- */

typedef struct owing {
    gs_cuda_residual host[2];
    gs_cuda_residual *device;
    float values[4][MOST_ELEMENTS];
} owing;

static owing owing_new(const gpu *on, size_t count, uint64_t seed) {
    seeded random = {seed};
    owing made = {.device = NULL};
    for (size_t i = 0; i < 4; i++) {
        fill_values(made.values[i], GSYNC_FLOAT32, MOST_ELEMENTS, ORDINARY, &random);
        made.host[i / 2].sides[i % 2] = gpu_copy_of(on, made.values[i], count * sizeof(float));
        made.host[i / 2].valid = (uint32_t)seeded_below(&random, 2);
    }
    made.device = gpu_copy_of(on, made.host, sizeof made.host);
    return made;
}

static void owing_free(const gpu *on, owing *from) {
    for (size_t i = 0; i < 4; i++) {
        gs_cuda_free(on->cuda, from->host[i / 2].sides[i % 2]);
    }
    gs_cuda_free(on->cuda, from->device);
}

static void expect_folded(const gpu *on, const owing *of, size_t count, float divisor) {
    const uint32_t contribution = of->host[0].valid;
    const uint32_t result = of->host[1].valid;
    float got[4][MOST_ELEMENTS];
    for (size_t i = 0; i < 4; i++) {
        gpu_get(on, got[i], of->host[i / 2].sides[i % 2], count * sizeof(float));
    }
    for (size_t k = 0; k < count; k++) {
        const float product = of->values[2 + result][k] * divisor;
        assert_true(got[contribution][k] == of->values[contribution][k] + product);
        assert_true(got[1 - contribution][k] == of->values[1 - contribution][k]);
        assert_true(got[2][k] == 0 && got[3][k] == 0);
    }
}

static void what_is_owed_of_results_is_owed_as_a_contribution(void **state) {
    const gpu *on = *state;
    const double divisor = 3;
    double *const there = gpu_copy_of(on, &divisor, sizeof divisor);
    for (uint64_t seed = 0; seed < 20; seed++) {
        const size_t count = seed % 4 == 0 ? (size_t)seed : MOST_ELEMENTS - (size_t)seed;
        owing of = owing_new(on, MOST_ELEMENTS, seed);
        const gs_cuda_folding folding = {.contribution = of.device,
                                         .result = of.device + 1,
                                         .host_contribution = of.host,
                                         .host_result = of.host + 1,
                                         .divisor = there};
        assert_int_equal(gs_cuda_fold(on->cuda, &folding, count, on->stream), GSYNC_OK);
        expect_folded(on, &of, count, 3);
        owing_free(on, &of);
    }
    gs_cuda_free(on->cuda, there);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_becomes_valid, gpu_setup, gpu_teardown),
        cmocka_unit_test_setup_teardown(not_of_what_no_rank_has_used, gpu_setup, gpu_teardown),
        cmocka_unit_test_setup_teardown(nothing_does_where_the_step_does_not_count, gpu_setup, gpu_teardown),
        cmocka_unit_test_setup_teardown(what_is_owed_of_results_is_owed_as_a_contribution, gpu_setup, gpu_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
