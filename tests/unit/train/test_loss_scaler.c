/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */
/* Not under valgrind: half a million histories take their time, and there is no memory to look at. */
#include "train/loss_scaler.h"

#include "seeded.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SEED 20240505

static gs_loss_scaler scaler_with(gsync_scaler_options options) {
    gs_loss_scaler scaler;
    assert_int_equal(gs_loss_scaler_init(&scaler, &options), GSYNC_OK);
    return scaler;
}

static gs_loss_scaler default_scaler(void) {
    return scaler_with((gsync_scaler_options)GSYNC_SCALER_OPTIONS_INIT);
}

/* ---- The rules, one by one --------------------------------------------------------------------------------------- */

static void starts_with_the_documented_defaults(void **state) {
    (void)state;
    gs_loss_scaler scaler = default_scaler();
    assert_true(scaler.state.scale == 65536.0);
    for (int i = 1; i < 2000; i++) {
        assert_false(gs_loss_scaler_update(&scaler, false));
    }
    assert_true(scaler.state.scale == 65536.0);
    (void)gs_loss_scaler_update(&scaler, false);
    assert_true(scaler.state.scale == 131072.0);
    (void)gs_loss_scaler_update(&scaler, true);
    assert_true(scaler.state.scale == 65536.0);
}

static void one_skipped_step_halves_once_and_starts_the_count_anew(void **state) {
    (void)state;
    gs_loss_scaler scaler = scaler_with((gsync_scaler_options){.scale = 1024.0, .growth_interval = 3});
    (void)gs_loss_scaler_update(&scaler, false);
    (void)gs_loss_scaler_update(&scaler, false);
    (void)gs_loss_scaler_update(&scaler, true);
    assert_true(scaler.state.scale == 512.0);
    assert_int_equal(scaler.state.clean_steps, 0);
    (void)gs_loss_scaler_update(&scaler, false);
    (void)gs_loss_scaler_update(&scaler, false);
    assert_true(scaler.state.scale == 512.0);
    (void)gs_loss_scaler_update(&scaler, false);
    assert_true(scaler.state.scale == 1024.0);
    assert_int_equal(scaler.state.steps, 6);
    assert_int_equal(scaler.state.steps_skipped, 1);
}

static void never_goes_below_the_floor(void **state) {
    (void)state;
    gs_loss_scaler scaler =
        scaler_with((gsync_scaler_options){.scale = 4.0, .backoff_factor = 0.125, .scale_min = 0.25});
    for (int i = 0; i < 3000; i++) {
        (void)gs_loss_scaler_update(&scaler, true);
        assert_true(scaler.state.scale >= 0.25);
    }
    assert_true(scaler.state.scale == 0.25);
}

static void never_goes_above_the_ceiling(void **state) {
    (void)state;
    gs_loss_scaler scaler = scaler_with(
        (gsync_scaler_options){.scale = 2.0, .growth_factor = 8.0, .growth_interval = 1, .scale_max = 32.0});
    for (int i = 0; i < 3000; i++) {
        (void)gs_loss_scaler_update(&scaler, false);
        assert_true(scaler.state.scale == (i == 0 ? 16.0 : 32.0));
    }
}

/* Skips that still lower the scale are its work, not a failure. */
static void has_diverged_after_so_many_skips_in_a_row_at_the_floor(void **state) {
    (void)state;
    gs_loss_scaler scaler = scaler_with((gsync_scaler_options){.scale = 4.0, .skips_max = 3});
    const bool expected[] = {false, false, false, false, true, true};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_true(gs_loss_scaler_update(&scaler, true) == expected[i]);
    }
    assert_false(gs_loss_scaler_update(&scaler, false)); /* it stays usable */
    assert_int_equal(scaler.state.skips_in_a_row, 0);
    assert_false(gs_loss_scaler_update(&scaler, true));
    assert_false(gs_loss_scaler_update(&scaler, true));
    assert_true(gs_loss_scaler_update(&scaler, true));
}

static void a_scale_that_never_shrinks_diverges_wherever_it_is(void **state) {
    (void)state;
    gs_loss_scaler scaler = scaler_with((gsync_scaler_options){.backoff_factor = 1.0, .skips_max = 2});
    assert_false(gs_loss_scaler_update(&scaler, true));
    assert_true(gs_loss_scaler_update(&scaler, true));
    assert_true(scaler.state.scale == 65536.0);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *member;
    gsync_scaler_options options;
} refusal;

static void refuses_nonsense_by_name_and_leaves_the_scaler_alone(void **state) {
    (void)state;
    const refusal refusals[] = {
        {"scale is", {.scale = 3.0}},
        {"scale is", {.scale = -2.0}},
        {"scale is", {.scale = (double)NAN}},
        {"scale is", {.scale = (double)INFINITY}},
        {"scale is", {.scale = 0x1p25}}, /* above the default ceiling */
        {"scale is", {.scale = 0.5}},    /* below the default floor */
        {"growth_factor", {.growth_factor = 0.5}},
        {"growth_factor", {.growth_factor = 1.5}},
        {"growth_factor", {.growth_factor = (double)NAN}},
        {"growth_factor", {.growth_factor = (double)INFINITY}},
        {"backoff_factor", {.backoff_factor = 2.0}},
        {"backoff_factor", {.backoff_factor = 0.3}},
        {"backoff_factor", {.backoff_factor = -0.5}},
        {"backoff_factor", {.backoff_factor = (double)NAN}},
        {"scale_min", {.scale_min = 0x1p-127}},
        {"scale_min", {.scale_min = -1.0}},
        {"scale_min", {.scale_min = (double)NAN}},
        {"scale_max", {.scale_max = 0.5}}, /* below the default floor */
        {"scale_max", {.scale_max = 0x1p127}},
        {"scale_max", {.scale_max = 1000.0}},
        {"scale_max", {.scale_max = (double)NAN}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        gs_loss_scaler scaler = scaler_with((gsync_scaler_options){.scale = 8.0});
        assert_int_equal(gs_loss_scaler_init(&scaler, &refusals[i].options), GSYNC_ERR_ARGUMENT);
        assert_non_null(strstr(gsync_last_error(), refusals[i].member));
        assert_true(scaler.state.scale == 8.0);
    }
}

static void accepts_every_limit(void **state) {
    (void)state;
    const gs_loss_scaler scaler = scaler_with((gsync_scaler_options){.scale = 0x1p126,
                                                                     .growth_factor = 1.0,
                                                                     .backoff_factor = 1.0,
                                                                     .growth_interval = UINT32_MAX,
                                                                     .scale_min = 0x1p-126,
                                                                     .scale_max = 0x1p126,
                                                                     .skips_max = UINT32_MAX});
    assert_true(scaler.state.scale == 0x1p126);
}

/* ---- States ------------------------------------------------------------------------------------------------------ */

static void refuses_states_that_cannot_be_and_keeps_its_own(void **state) {
    (void)state;
    const struct {
        const char *member;
        gsync_scaler_state state;
    } refusals[] = {
        {"scale is", {.scale = 0.0}},
        {"scale is", {.scale = 48.0}},
        {"scale is", {.scale = 128.0}},
        {"scale is", {.scale = 2.0}},
        {"scale is", {.scale = (double)NAN}},
        {"steps_skipped", {.scale = 8.0, .steps = 1, .steps_skipped = 2}},
        {"skips_in_a_row", {.scale = 8.0, .steps = 9, .steps_skipped = 2, .skips_in_a_row = 3}},
        {"clean_steps", {.scale = 8.0, .steps = 9, .steps_skipped = 2, .clean_steps = 8}},
        {"clean_steps", {.scale = 8.0, .steps = 9, .steps_skipped = 2, .clean_steps = 1, .skips_in_a_row = 1}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        gs_loss_scaler scaler = scaler_with((gsync_scaler_options){.scale = 16.0, .scale_min = 4.0, .scale_max = 64.0});
        assert_int_equal(gs_loss_scaler_set_state(&scaler, &refusals[i].state), GSYNC_ERR_ARGUMENT);
        assert_non_null(strstr(gsync_last_error(), refusals[i].member));
        assert_true(scaler.state.scale == 16.0);
        assert_int_equal(scaler.state.steps, 0);
    }
}

/* ---- Histories --------------------------------------------------------------------------------------------------- */

/* The header's words, with the scale as a whole number of doublings. */
typedef struct model {
    int exponent, growth, backoff, least, most;
    unsigned interval, skips_max;
    unsigned clean, stuck;
    uint64_t steps, skipped;
} model;

static bool model_update(model *m, bool found_inf) {
    const int before = m->exponent;
    m->steps++;
    m->skipped += found_inf;
    if (found_inf) {
        m->exponent = before - m->backoff < m->least ? m->least : before - m->backoff;
        m->clean = 0;
        m->stuck = m->exponent == before ? m->stuck + 1 : m->stuck;
    } else if (++m->clean, m->stuck = 0, m->clean == m->interval) {
        m->exponent = before + m->growth > m->most ? m->most : before + m->growth;
        m->clean = 0;
    }
    return m->stuck >= m->skips_max;
}

static int between(seeded *random, int least, int most) {
    return least + (int)seeded_below(random, (size_t)(most - least) + 1);
}

static model random_model(seeded *random) {
    model m = {.growth = between(random, 0, 3), .backoff = between(random, 0, 3)};
    m.least = between(random, -126, 126);
    m.most = between(random, m.least, m.least + 12 < 126 ? m.least + 12 : 126);
    m.exponent = between(random, m.least, m.most);
    m.interval = (unsigned)between(random, 1, 6);
    m.skips_max = (unsigned)between(random, 1, 5);
    return m;
}

static gs_loss_scaler scaler_of(const model *m) {
    return scaler_with((gsync_scaler_options){
        .scale = ldexp(1.0, m->exponent),
        .growth_factor = ldexp(1.0, m->growth),
        .backoff_factor = ldexp(1.0, -m->backoff),
        .growth_interval = m->interval,
        .scale_min = ldexp(1.0, m->least),
        .scale_max = ldexp(1.0, m->most),
        .skips_max = m->skips_max,
    });
}

static bool is_in_state_of(const gs_loss_scaler *scaler, const model *m) {
    return scaler->state.scale == ldexp(1.0, m->exponent) && scaler->state.clean_steps == m->clean &&
           scaler->state.skips_in_a_row == m->stuck && scaler->state.steps == m->steps &&
           scaler->state.steps_skipped == m->skipped;
}

enum { RANKS = 3, HISTORIES = 500000, STEPS_MAX = 40 };

/* Each rank sees its own overflows; what they agree on is whether there was any. One rank starts from a checkpoint in
 * the middle. */
static void run_history(uint64_t seed) {
    seeded random = {seed};
    model m = random_model(&random);
    gs_loss_scaler scalers[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        scalers[rank] = scaler_of(&m);
    }
    const model start = m;
    const int steps = between(&random, 1, STEPS_MAX);
    const int resumed = between(&random, 0, steps);
    const size_t odds = 1 + seeded_below(&random, 12); /* 1: every step overflows somewhere */
    for (int step = 0; step < steps; step++) {
        const bool found_inf = seeded_below(&random, odds) == 0;
        if (step == resumed) {
            const gsync_scaler_state saved = scalers[0].state;
            scalers[0] = scaler_of(&start);
            assert_int_equal(gs_loss_scaler_set_state(&scalers[0], &saved), GSYNC_OK);
        }
        const bool has_diverged = model_update(&m, found_inf);
        for (int rank = 0; rank < RANKS; rank++) {
            if (gs_loss_scaler_update(&scalers[rank], found_inf) != has_diverged ||
                !is_in_state_of(&scalers[rank], &m)) {
                fail_msg("history %llu, step %d, rank %d: the scale is %g and not 2^%d", (unsigned long long)seed, step,
                         rank, scalers[rank].state.scale, m.exponent);
            }
        }
    }
}

static void half_a_million_random_histories_are_the_models_on_every_rank(void **state) {
    (void)state;
    for (uint64_t history = 0; history < HISTORIES; history++) {
        run_history(SEED + history);
    }
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_with_the_documented_defaults),
        cmocka_unit_test(one_skipped_step_halves_once_and_starts_the_count_anew),
        cmocka_unit_test(never_goes_below_the_floor),
        cmocka_unit_test(never_goes_above_the_ceiling),
        cmocka_unit_test(has_diverged_after_so_many_skips_in_a_row_at_the_floor),
        cmocka_unit_test(a_scale_that_never_shrinks_diverges_wherever_it_is),
        cmocka_unit_test(refuses_nonsense_by_name_and_leaves_the_scaler_alone),
        cmocka_unit_test(accepts_every_limit),
        cmocka_unit_test(refuses_states_that_cannot_be_and_keeps_its_own),
        cmocka_unit_test(half_a_million_random_histories_are_the_models_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
