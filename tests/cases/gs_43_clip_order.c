/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads,mpi timeout=60 */

/* GS-43: clipping comes after the reduction and after unscaling, or the update is not that of a single process. */

#include "scaled_model.h"

/* Rank 0 has [6, 0], rank 1 has [0, 8]. */
static void clip_both(ranks_context *ctx, gsync_op op, double scale, int computes_norm) {
    const size_t counts[] = {2};
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_scaler *scaler = scale == 1.0 ? NULL : scaled_scaler(scale);
    double norm = 0;
    options.op = op;
    options.computes_norm = computes_norm;
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    float *grad = model->tensors[0].grad;
    REQUIRE_OK(ranks_model_open(model, &options));
    REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, scaler));
    grad[ctx->rank] = (float)((ctx->rank == 0 ? 6.0 : 8.0) * scale);
    grad[1 - ctx->rank] = 0.0f;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK_REAL(info.loss_scale, scale);
    CHECK_EQ(info.found_inf, 0);
    CHECK_REAL(info.grad_norm, computes_norm ? (op == GSYNC_SUM ? 10.0 : 5.0) : 0.0);
    REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1.0, &norm));
    CHECK_REAL(norm, op == GSYNC_SUM ? 10.0 : 5.0);
    CHECK_REAL(grad[0], (double)0.6f);
    CHECK_REAL(grad[1], (double)0.8f);
    gsync_reducer_destroy(&model->reducer);
    gsync_scaler_destroy(&scaler);
}

static void GS_43_clips_what_was_reduced_and_unscaled(ranks_context *ctx) {
    for (int computes_norm = 0; computes_norm < 2; computes_norm++) {
        clip_both(ctx, GSYNC_MEAN, 1.0, computes_norm);
        clip_both(ctx, GSYNC_MEAN, 1024.0, computes_norm);
        clip_both(ctx, GSYNC_SUM, 1.0, computes_norm);
        clip_both(ctx, GSYNC_SUM, 1024.0, computes_norm);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(GS_43_clips_what_was_reduced_and_unscaled, .world_min = 2, .world_max = 2))
