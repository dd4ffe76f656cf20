/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * GS-37: one rank, or one module, overflows and the others do not. Their scales must not part: with scales 4 and 8
 * later gradients would silently be wrong.
 */

#include "scaled_model.h"

#include <math.h>

static const size_t counts[] = {5, 70, 1};

static ranks_model *open_model(ranks_context *ctx, gsync_scaler *scaler) {
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, NULL));
    CHECK_OK(gsync_reducer_set_scaler(model->reducer, scaler));
    return model;
}

/* The next finite step: right, to the bit, on every rank. */
static void check_next_step(ranks_model *model, uint64_t round, gsync_scaler *scaler) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    scaled_fill(model, round, gsync_scaler_scale(scaler));
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK_EQ(info.found_inf, 0);
    CHECK(info.found_inf_gradient == NULL);
    CHECK_REAL(info.loss_scale, gsync_scaler_scale(scaler));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
    for (size_t i = 0; i < 3; i++) {
        CHECK_SAME_ON_ALL(model->ctx, scaled_hash(model->tensors[i].grad, counts[i] * sizeof(float)));
    }
}

static void GS_37_a_rank_that_overflows_makes_all_of_them_skip(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(8.0);
    ranks_model *model = open_model(ctx, scaler);
    REQUIRE(!ranks_has_failed(ctx));
    for (int culprit = 0; culprit < ctx->world; culprit++) { /* three halvings reach the floor */
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        const double before = gsync_scaler_scale(scaler);
        scaled_fill(model, 1, before);
        if (ctx->rank == culprit) {
            scaled_poison(model, 1, 69, (double)INFINITY);
        }
        REQUIRE_OK(ranks_model_step(model, NULL, &info));
        CHECK_EQ(info.found_inf, 1);
        CHECK_EQ(info.found_inf_rank, culprit);
        CHECK_CONTAINS(info.found_inf_gradient != NULL ? info.found_inf_gradient : "", "p1");
        REQUIRE_OK(gsync_scaler_update(scaler));
        CHECK_REAL(gsync_scaler_scale(scaler), before / 2);
        check_next_step(model, 2, scaler);
        REQUIRE_OK(gsync_scaler_update(scaler));
        CHECK_REAL(gsync_scaler_scale(scaler), before / 2);
    }
    gsync_reducer_destroy(&model->reducer);
    gsync_scaler_destroy(&scaler);
}

static void GS_37_a_module_that_overflows_skips_the_step_of_all(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(8.0);
    ranks_model *healthy = open_model(ctx, scaler);
    ranks_model *sick = open_model(ctx, scaler);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE(!ranks_has_failed(ctx));
    scaled_fill(sick, 1, 8.0);
    if (ctx->rank == 0) {
        scaled_poison(sick, 0, 0, (double)INFINITY);
    }
    scaled_fill(healthy, 1, 8.0);
    REQUIRE_OK(ranks_model_step(sick, NULL, &info));
    CHECK_EQ(info.found_inf, 1);
    REQUIRE_OK(ranks_model_step(healthy, NULL, &info));
    CHECK_EQ(info.found_inf, 0);
    REQUIRE_OK(gsync_scaler_update(scaler));
    CHECK_REAL(gsync_scaler_scale(scaler), 4.0);
    check_next_step(sick, 2, scaler);
    check_next_step(healthy, 3, scaler);
    REQUIRE_OK(gsync_scaler_update(scaler));
    CHECK_REAL(gsync_scaler_scale(scaler), 4.0);
    gsync_reducer_destroy(&sick->reducer);
    gsync_reducer_destroy(&healthy->reducer);
    gsync_scaler_destroy(&scaler);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_37_a_rank_that_overflows_makes_all_of_them_skip, .world_max = 3),
           RANKS_TEST(GS_37_a_module_that_overflows_skips_the_step_of_all))
