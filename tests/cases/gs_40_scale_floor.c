/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=2 transports=threads,mpi timeout=60 */

/* GS-40: gradients that are never finite drive the loss scale down to 0, or keep a training skipping for ever. */

#include "scaled_model.h"

#include <math.h>

static const size_t counts[] = {5};

static void GS_40_stops_at_the_floor_says_so_and_recovers(ranks_context *ctx) {
    enum { STEPS = 3000, SKIPS_MAX = 50, UNTIL_FLOOR = 18 }; /* from 2^16 to 2^-2 */
    const double floor_scale = 0.25;
    gsync_scaler *scaler = NULL;
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    gsync_scaler_state state = GSYNC_SCALER_STATE_INIT;
    options.scale_min = floor_scale;
    options.skips_max = SKIPS_MAX;
    REQUIRE_OK(gsync_scaler_create(&scaler, &options));
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, scaler));
    for (int step = 1; step <= STEPS; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        scaled_fill(model, 1, gsync_scaler_scale(scaler));
        if (ctx->rank == step % 2) {
            scaled_poison(model, 0, (size_t)step % 5, step % 3 == 0 ? (double)NAN : (double)INFINITY);
        }
        REQUIRE_OK(ranks_model_step(model, NULL, &info));
        REQUIRE_EQ(info.found_inf, 1);
        REQUIRE_STATUS(gsync_scaler_update(scaler), step >= UNTIL_FLOOR + SKIPS_MAX ? GSYNC_ERR_DIVERGED : GSYNC_OK);
        REQUIRE(gsync_scaler_scale(scaler) >= floor_scale);
    }
    CHECK_REAL(gsync_scaler_scale(scaler), floor_scale);
    scaled_fill(model, 2, floor_scale);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);
    CHECK_OK(gsync_scaler_update(scaler));
    REQUIRE_OK(gsync_scaler_get_state(scaler, &state));
    CHECK_EQ(state.steps, STEPS + 1);
    CHECK_EQ(state.steps_skipped, STEPS);
    CHECK_EQ(state.skips_in_a_row, 0);
    gsync_reducer_destroy(&model->reducer);
    gsync_scaler_destroy(&scaler);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_40_stops_at_the_floor_says_so_and_recovers, .world_min = 2))
