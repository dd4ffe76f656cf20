/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=3 transports=threads,mpi timeout=60 */

/*
 * GS-38: the decision to skip is taken on rank 0 alone, and a NaN of another rank gets into all parameters. Here every
 * rank knows, and knows whose it was; with a loss scaler and without.
 */

#include "scaled_model.h"

#include <math.h>
#include <string.h>

enum { COUNT = 70 };
static const size_t counts[] = {COUNT, COUNT};

/* Plain SGD, but only where the step is to be taken. */
static void train(ranks_model *model, float *params, double scale, bool is_poisoned, gsync_step_info *info) {
    scaled_fill(model, 1, scale);
    if (is_poisoned) {
        scaled_poison(model, 1, 5, (double)NAN);
    }
    REQUIRE_OK(ranks_model_step(model, NULL, info));
    const float *grad = model->tensors[1].grad;
    for (size_t i = 0; i < COUNT && !info->found_inf; i++) {
        params[i] -= 0.1f * grad[i];
    }
}

static void skip_together(ranks_context *ctx, gsync_scaler *scaler, int checks_finite) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    float params[COUNT];
    float before[COUNT];
    options.checks_finite = checks_finite;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, scaler));
    for (size_t i = 0; i < COUNT; i++) {
        params[i] = 0.01f * (float)i;
    }
    train(model, params, gsync_scaler_scale(scaler), false, &info);
    CHECK_EQ(info.found_inf, 0);
    memcpy(before, params, sizeof params);
    CHECK_SAME_ON_ALL(ctx, scaled_hash(params, sizeof params));

    train(model, params, gsync_scaler_scale(scaler), ctx->rank == 2, &info);
    CHECK_EQ(info.found_inf, 1);
    CHECK_EQ(info.found_inf_rank, 2);
    CHECK_CONTAINS(info.found_inf_gradient != NULL ? info.found_inf_gradient : "", "p1");
    CHECK(memcmp(before, params, sizeof params) == 0);

    train(model, params, gsync_scaler_scale(scaler), false, &info);
    CHECK_EQ(info.found_inf, 0);
    CHECK(memcmp(before, params, sizeof params) != 0);
    CHECK_SAME_ON_ALL(ctx, scaled_hash(params, sizeof params));
    gsync_reducer_destroy(&model->reducer);
}

static void GS_38_all_skip_and_all_name_the_rank_and_the_gradient(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(1024.0);
    skip_together(ctx, scaler, 0);
    gsync_scaler_destroy(&scaler);
}

static void GS_38_a_trainer_with_a_scale_of_its_own_asks_for_the_flag_alone(ranks_context *ctx) {
    skip_together(ctx, NULL, 1);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_38_all_skip_and_all_name_the_rank_and_the_gradient, .world_min = 3),
           RANKS_TEST_WITH(GS_38_a_trainer_with_a_scale_of_its_own_asks_for_the_flag_alone, .world_min = 3))
