/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi timeout=60 */

/* Clipping and the loss scaler, in trainers that flush subnormals or have floating-point traps on. */

#include "float_setting.h"
#include "scaled_model.h"

#include <math.h>

static void clipping_sees_subnormals_that_the_trainer_flushes(ranks_context *ctx) {
    const size_t counts[] = {100};
    double norm = 0;
    if (!HAS_FLUSHING) {
        SKIP("how to flush subnormals here is not known");
    }
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    for (size_t i = 0; i < 100; i++) {
        ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, i, 0x1p-140);
    }
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    flush_subnormals(ctx->rank != 1);
    const gsync_status status = gsync_clip_grad_norm(model->reducer, 5 * 0x1p-140, &norm);
    const bool still_flushes = does_flush();
    flush_subnormals(false);
    REQUIRE_OK(status);
    CHECK_EQ(still_flushes, ctx->rank != 1);
    CHECK_REAL(norm, 10 * 0x1p-140);
    for (size_t i = 0; i < 100; i++) {
        REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, i), 0x1p-141));
    }
}

/* A step that overflows, its clip and its update, with traps on from begin to end. */
static void skip_with_traps(ranks_model *model, gsync_scaler *scaler, double bad) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    double norm = 0;
    scaled_fill(model, 1, gsync_scaler_scale(scaler));
    scaled_poison(model, 0, 3, bad);
    set_traps(true);
    const int before = traps_now();
    const gsync_status finish = ranks_model_step(model, NULL, &info);
    const gsync_status clip = gsync_clip_grad_norm(model->reducer, 1.0, &norm);
    const gsync_status update = gsync_scaler_update(scaler);
    const int after = traps_now();
    set_traps(false);
    REQUIRE_OK(finish);
    REQUIRE_STATUS(clip, GSYNC_ERR_NONFINITE);
    REQUIRE_OK(update);
    CHECK_EQ(info.found_inf, 1);
    CHECK(!isfinite(norm));
    CHECK_EQ(after, before);
}

/* The squares of the first, and the first factor of the second, leave float64. */
static void clip_with_traps(ranks_model *model, double max_norm) {
    double norm = 0;
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    scaled_poison(model, 0, 3, 1e300);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    set_traps(true);
    const gsync_status status = gsync_clip_grad_norm(model->reducer, max_norm, &norm);
    set_traps(false);
    REQUIRE_OK(status);
    CHECK(fabs(norm - 1e300) <= 1e288);
    CHECK(fabs(ranks_load(model->tensors[0].grad, GSYNC_FLOAT64, 3) - max_norm) <= 1e-12 * max_norm);
}

static void traps_do_not_see_what_a_skipped_step_holds(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    const size_t counts[] = {100, 7};
    if (!HAS_TRAPS) {
        SKIP("how to set traps here is not known");
    }
    for (int trial = 0; trial < 8; trial++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        gsync_scaler *scaler = scaled_scaler(8.0);
        options.computes_norm = trial / 4;
        ranks_model *model = ranks_model_new(ctx, counts, 2, dtypes[trial % 4]);
        REQUIRE_OK(ranks_model_open(model, &options));
        REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, scaler));
        skip_with_traps(model, scaler, (double)INFINITY);
        skip_with_traps(model, scaler, (double)NAN);
        REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, NULL));
        if (dtypes[trial % 4] == GSYNC_FLOAT64) {
            clip_with_traps(model, 1.0);
            clip_with_traps(model, 1e-20);
        }
        gsync_reducer_destroy(&model->reducer);
        gsync_scaler_destroy(&scaler);
    }
}

static void nonsense_is_refused_without_a_trap(ranks_context *ctx) {
    const size_t counts[] = {1};
    const volatile double nan = (double)NAN;
    gsync_scaler *scaler = NULL;
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    if (!HAS_TRAPS) {
        SKIP("how to set traps here is not known");
    }
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    options.scale = nan;
    set_traps(true);
    const gsync_status clip = gsync_clip_grad_norm(model->reducer, nan, NULL);
    const gsync_status create = gsync_scaler_create(&scaler, &options);
    set_traps(false);
    CHECK_STATUS(clip, GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(create, GSYNC_ERR_ARGUMENT);
}

RANKS_MAIN(RANKS_TEST(clipping_sees_subnormals_that_the_trainer_flushes),
           RANKS_TEST(traps_do_not_see_what_a_skipped_step_holds), RANKS_TEST(nonsense_is_refused_without_a_trap))
