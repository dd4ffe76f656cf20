/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi timeout=60 */

/* GS-42: the norm of 16-bit gradients, whose squares no 16-bit type holds. */

#include "ranks.h"

#include <string.h>

static ranks_model *reduce_constant(ranks_context *ctx, size_t count, gsync_dtype dtype, int computes_norm,
                                    double first, double others) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.computes_norm = computes_norm;
    ranks_model *model = ranks_model_new(ctx, &count, 1, dtype);
    CHECK_OK(ranks_model_open(model, &options));
    for (size_t i = 0; i < count; i++) {
        ranks_store(model->tensors[0].grad, dtype, i, i == 0 ? first : others);
    }
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    return model;
}

static void GS_42_one_large_half_has_its_own_size_as_norm(ranks_context *ctx) {
    for (int computes_norm = 0; computes_norm < 2; computes_norm++) {
        double norm = 0;
        ranks_model *model = reduce_constant(ctx, 1000, GSYNC_FLOAT16, computes_norm, 5000.0, 0.0);
        REQUIRE(!ranks_has_failed(ctx));
        REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1.0, &norm));
        CHECK_REAL(norm, 5000.0);
        CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT16, 0), 1.0);
        gsync_reducer_destroy(&model->reducer);
    }
}

static void GS_42_a_million_small_elements_add_up(ranks_context *ctx) {
    const gsync_dtype dtypes[] = {GSYNC_FLOAT16, GSYNC_BFLOAT16, GSYNC_FLOAT32};
    for (int trial = 0; trial < 6; trial++) {
        double norm = 0;
        ranks_model *model = reduce_constant(ctx, 1000000, dtypes[trial / 2], trial % 2, 0x1p-14, 0x1p-14);
        REQUIRE(!ranks_has_failed(ctx));
        REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 500 * 0x1p-14, &norm));
        CHECK_NEAR(norm, 1000 * 0x1p-14, 1e-9);
        CHECK_NEAR(ranks_load(model->tensors[0].grad, dtypes[trial / 2], 999999), 0x1p-15, 1e-12);
        gsync_reducer_destroy(&model->reducer);
    }
}

/* Subnormal halves are no zeros. */
static void GS_42_subnormal_halves_count(ranks_context *ctx) {
    double norm = 0;
    ranks_model *model = reduce_constant(ctx, 100, GSYNC_FLOAT16, 0, 0x1p-24, 0x1p-24);
    REQUIRE(!ranks_has_failed(ctx));
    REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1.0, &norm));
    CHECK_NEAR(norm, 10 * 0x1p-24, 1e-18);
}

RANKS_MAIN(RANKS_TEST(GS_42_one_large_half_has_its_own_size_as_norm), RANKS_TEST(GS_42_a_million_small_elements_add_up),
           RANKS_TEST(GS_42_subnormal_halves_count))
