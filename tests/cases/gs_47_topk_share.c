/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads,mpi timeout=60 */

/* GS-47: of a gradient exactly its share travels, rounded up, and at least one element. */

#include "wire_step.h"

#include <math.h>

static gsync_wire_options share_of(double density) {
    gsync_wire_options options = wire_step_options();
    options.density = density;
    return options;
}

/* All elements equal on all ranks: the first ones travel. */
static void check_kept(ranks_context *ctx, double density, const size_t *counts, const size_t *kept, size_t n) {
    const gsync_wire_options wire_options = share_of(density);
    const gsync_options options = GSYNC_OPTIONS_INIT;
    ranks_model *model = wire_step_model(ctx, counts, n, GSYNC_FLOAT32, GSYNC_WIRE_TOPK, &wire_options, &options);
    REQUIRE(!ranks_has_failed(ctx));
    for (size_t t = 0; t < n; t++) {
        wire_step_set(model, t, 1.5);
    }
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    for (size_t t = 0; t < n; t++) {
        for (size_t k = 0; k < counts[t]; k++) {
            CHECK_REAL(wire_step_get(model, t, k), k < kept[t] ? 1.5 : 0.0);
        }
    }
    gsync_reducer_destroy(&model->reducer);
}

static void GS_47_a_hundredth_is_rounded_up(ranks_context *ctx) {
    static const size_t counts[] = {1, 5, 0, 50, 100, 101, 2500};
    static const size_t kept[] = {1, 1, 0, 1, 1, 2, 25};
    check_kept(ctx, 0.01, counts, kept, 7);
}

/* 0.07 is a little more than seven hundredths, 0.29 a little less than twenty-nine. */
static void GS_47_what_binary_fractions_add_does_not_count(ranks_context *ctx) {
    static const size_t counts[] = {100, 200, 1000};
    static const size_t sevens[] = {7, 14, 70};
    static const size_t twenty_nines[] = {29, 58, 290};
    check_kept(ctx, 0.07, counts, sevens, 3);
    check_kept(ctx, 0.29, counts, twenty_nines, 3);
}

static void GS_47_no_share_given_is_a_tenth(ranks_context *ctx) {
    static const size_t counts[] = {1, 10, 11, 95};
    static const size_t kept[] = {1, 1, 2, 10};
    check_kept(ctx, 0.0, counts, kept, 4);
}

static void GS_47_the_whole_is_what_travels_without_choosing(ranks_context *ctx) {
    static const size_t counts[] = {1, 50, 0, 999};
    const gsync_wire_options wire_options = share_of(1.0);
    const gsync_options options = GSYNC_OPTIONS_INIT;
    ranks_model *model = wire_step_model(ctx, counts, 4, GSYNC_FLOAT32, GSYNC_WIRE_TOPK, &wire_options, &options);
    ranks_model *dense = ranks_model_new(ctx, counts, 4, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(dense, NULL));
    for (uint64_t round = 0; round < 3; round++) {
        ranks_model_fill(model, RANKS_FLOATS, round);
        ranks_model_fill(dense, RANKS_FLOATS, round);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        REQUIRE_OK(ranks_model_step(dense, NULL, NULL));
        for (size_t t = 0; t < 4; t++) {
            for (size_t k = 0; k < counts[t]; k++) {
                CHECK_REAL(wire_step_get(model, t, k), wire_step_get(dense, t, k));
            }
        }
    }
}

static void GS_47_shares_that_are_none_are_refused(ranks_context *ctx) {
    static const double shares[] = {1.5, -0.1, 1.0000001, HUGE_VAL};
    const size_t count = 10;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const gsync_wire_options wire_options = share_of(shares[i]);
        CHECK_STATUS(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_TOPK, &wire_options), GSYNC_ERR_ARGUMENT);
        CHECK_CONTAINS(gsync_last_error(), "density");
    }
    const gsync_wire_options of_nan = share_of((double)NAN);
    CHECK_STATUS(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_TOPK, &of_nan), GSYNC_ERR_ARGUMENT);
    const gsync_wire_options of_another = share_of(0.5);
    CHECK_STATUS(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_INT8, &of_another), GSYNC_ERR_ARGUMENT);
}

RANKS_MAIN(RANKS_TEST(GS_47_a_hundredth_is_rounded_up), RANKS_TEST(GS_47_what_binary_fractions_add_does_not_count),
           RANKS_TEST(GS_47_no_share_given_is_a_tenth), RANKS_TEST(GS_47_the_whole_is_what_travels_without_choosing),
           RANKS_TEST(GS_47_shares_that_are_none_are_refused))
