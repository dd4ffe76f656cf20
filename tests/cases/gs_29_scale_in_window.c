/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/*
 * GS-29: a loss scale that is touched inside an accumulation window mixes two scales in one gradient, or divides twice.
 * Here it is frozen while a window is open, and the library divides once, in the step that closes it.
 */

#include "scaled_model.h"

static const size_t counts[] = {3, 40};
#define SCALE 1024.0

static ranks_model *open_model(ranks_context *ctx, gsync_accumulation accumulation, gsync_scaler *scaler) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = accumulation;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    CHECK_OK(gsync_reducer_set_scaler(model->reducer, scaler));
    return model;
}

static void micro_batch(ranks_model *model, gsync_phase phase, gsync_step_info *info) {
    REQUIRE_OK(gsync_begin(model->reducer, phase));
    REQUIRE_OK(ranks_model_ready(model, 1));
    REQUIRE_OK(ranks_model_ready(model, 0));
    REQUIRE_OK(gsync_finish(model->reducer, info));
}

static void GS_29_nothing_moves_the_scale_inside_a_window(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(SCALE);
    gsync_scaler *other = scaled_scaler(2.0);
    gsync_scaler_state state = GSYNC_SCALER_STATE_INIT;
    ranks_model *model = open_model(ctx, GSYNC_CLIENT_ACCUMULATES, scaler);
    REQUIRE(!ranks_has_failed(ctx));
    REQUIRE_OK(gsync_scaler_get_state(scaler, &state));
    scaled_fill(model, 1, SCALE);
    micro_batch(model, GSYNC_ACCUMULATE, NULL);
    CHECK_STATUS(gsync_scaler_update(scaler), GSYNC_ERR_STATE);
    CHECK_CONTAINS(gsync_last_error(), "window");
    CHECK_STATUS(gsync_scaler_set_state(scaler, &state), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_reducer_set_scaler(model->reducer, other), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_reducer_set_scaler(model->reducer, NULL), GSYNC_ERR_STATE);
    CHECK_REAL(gsync_scaler_scale(scaler), SCALE);

    /* Nor inside a micro-batch. */
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_STATUS(gsync_scaler_update(scaler), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_reducer_set_scaler(model->reducer, other), GSYNC_ERR_STATE);
    CHECK_REAL(gsync_scaler_scale(scaler), SCALE);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE_OK(gsync_finish(model->reducer, &info));
    CHECK_REAL(info.loss_scale, SCALE);
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    CHECK_OK(gsync_scaler_update(scaler));
    CHECK_STATUS(gsync_scaler_update(scaler), GSYNC_ERR_STATE);
    gsync_reducer_destroy(&model->reducer);
    gsync_scaler_destroy(&scaler);
    gsync_scaler_destroy(&other);
}

/* Windows of two; the library adds up, or backward does. */
static void GS_29_a_window_is_divided_by_its_scale_once(ranks_context *ctx) {
    for (int accumulation = GSYNC_CLIENT_ACCUMULATES; accumulation <= GSYNC_CLIENT_OVERWRITES; accumulation++) {
        gsync_scaler *scaler = scaled_scaler(SCALE);
        ranks_model *model = open_model(ctx, (gsync_accumulation)accumulation, scaler);
        const double micro_batches = accumulation == GSYNC_CLIENT_OVERWRITES ? 2.0 : 1.0;
        REQUIRE(!ranks_has_failed(ctx));
        for (uint64_t round = 1; round <= 3; round++) {
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            scaled_fill(model, round, gsync_scaler_scale(scaler));
            micro_batch(model, GSYNC_ACCUMULATE, NULL);
            micro_batch(model, GSYNC_SYNC, &info);
            CHECK_MODEL(model, RANKS_INTEGERS, round, ctx->world / micro_batches);
            CHECK_REAL(info.divisor, ctx->world);
            /* As often as one likes: */
            REQUIRE_OK(gsync_finish(model->reducer, NULL));
            CHECK_MODEL(model, RANKS_INTEGERS, round, ctx->world / micro_batches);
            REQUIRE_OK(gsync_scaler_update(scaler));
            CHECK_MODEL(model, RANKS_INTEGERS, round, ctx->world / micro_batches);
        }
        gsync_reducer_destroy(&model->reducer);
        gsync_scaler_destroy(&scaler);
    }
}

static void a_scaler_that_is_taken_away_divides_no_more(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(SCALE);
    ranks_model *model = open_model(ctx, GSYNC_CLIENT_ACCUMULATES, scaler);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE(!ranks_has_failed(ctx));
    scaled_fill(model, 1, SCALE);
    micro_batch(model, GSYNC_SYNC, &info);
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, NULL));
    gsync_scaler_destroy(&scaler);
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    micro_batch(model, GSYNC_SYNC, &info);
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);
    CHECK_REAL(info.loss_scale, 1.0);
}

/* A reducer that goes in the middle of its window leaves the scaler usable for others, before or after its owner. */
static void a_reducer_destroyed_inside_a_window_closes_it(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(SCALE);
    ranks_model *model = open_model(ctx, GSYNC_CLIENT_ACCUMULATES, scaler);
    ranks_model *last = open_model(ctx, GSYNC_CLIENT_ACCUMULATES, scaler);
    REQUIRE(!ranks_has_failed(ctx));
    scaled_fill(model, 1, SCALE);
    micro_batch(model, GSYNC_ACCUMULATE, NULL);
    gsync_reducer_destroy(&model->reducer);
    scaled_fill(last, 2, SCALE);
    micro_batch(last, GSYNC_SYNC, NULL);
    CHECK_MODEL_MEAN(last, RANKS_INTEGERS, 2);
    REQUIRE_OK(gsync_scaler_update(scaler));
    micro_batch(last, GSYNC_ACCUMULATE, NULL);
    gsync_scaler_destroy(&scaler);
    gsync_reducer_destroy(&last->reducer);
}

static void ranks_with_different_scales_are_told(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(ctx->rank == 1 ? 2 * SCALE : SCALE);
    ranks_model *model = open_model(ctx, GSYNC_CLIENT_ACCUMULATES, scaler);
    REQUIRE(!ranks_has_failed(ctx));
    scaled_fill(model, 1, gsync_scaler_scale(scaler));
    CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "scale");
    CHECK_STATUS(gsync_scaler_update(scaler), GSYNC_ERR_STATE); /* there was no step */
    gsync_reducer_destroy(&model->reducer);
    gsync_scaler_destroy(&scaler);
}

RANKS_MAIN(RANKS_TEST(GS_29_nothing_moves_the_scale_inside_a_window),
           RANKS_TEST(GS_29_a_window_is_divided_by_its_scale_once),
           RANKS_TEST(a_scaler_that_is_taken_away_divides_no_more),
           RANKS_TEST(a_reducer_destroyed_inside_a_window_closes_it),
           RANKS_TEST_WITH(ranks_with_different_scales_are_told, .world_min = 2))
