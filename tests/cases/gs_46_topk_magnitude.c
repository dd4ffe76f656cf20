/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi timeout=60 */

/* GS-46: top-k chooses by magnitude, the first among equals; NaN is larger than everything and -0 is 0. */

#include "wire_step.h"

#include <math.h>

enum { COUNT = 4 };

/* All ranks have these; one of the four travels. */
static ranks_model *reduce(ranks_context *ctx, const double *values, gsync_step_info *info) {
    const size_t count = COUNT;
    gsync_wire_options wire_options = wire_step_options();
    gsync_options options = GSYNC_OPTIONS_INIT;
    wire_options.density = 0.25;
    options.checks_finite = 1;
    ranks_model *model = wire_step_model(ctx, &count, 1, GSYNC_FLOAT32, GSYNC_WIRE_TOPK, &wire_options, &options);
    for (size_t k = 0; k < COUNT; k++) {
        ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, k, values[k]);
    }
    *info = (gsync_step_info)GSYNC_STEP_INFO_INIT;
    CHECK_OK(ranks_model_step(model, NULL, info));
    return model;
}

static void check_only(ranks_context *ctx, const double *values, size_t chosen) {
    gsync_step_info info;
    const ranks_model *model = reduce(ctx, values, &info);
    for (size_t k = 0; k < COUNT; k++) {
        CHECK_REAL(wire_step_get(model, 0, k), k == chosen ? values[k] : 0.0);
    }
    CHECK_EQ(info.found_inf, 0);
}

static void GS_46_a_large_negative_element_is_large(ranks_context *ctx) {
    check_only(ctx, (const double[]){1, -10, 2, 0.5}, 1);
    check_only(ctx, (const double[]){1, 2, 10, -9.5}, 2);
}

static void GS_46_of_equals_it_is_the_first(ranks_context *ctx) {
    check_only(ctx, (const double[]){1, -3, 3, -3}, 1);
    check_only(ctx, (const double[]){2, 2, 2, 2}, 0);
    check_only(ctx, (const double[]){-0.0, 0, -0.0, 0x1p-149}, 3);
}

static void GS_46_zeros_of_both_signs_are_zeros(ranks_context *ctx) {
    gsync_step_info info;
    const ranks_model *model = reduce(ctx, (const double[]){0, -0.0, 0, -0.0}, &info);
    for (size_t k = 0; k < COUNT; k++) {
        CHECK(wire_step_get(model, 0, k) == 0.0);
    }
}

static void GS_46_NaN_is_not_dropped(ranks_context *ctx) {
    gsync_step_info info;
    const ranks_model *model = reduce(ctx, (const double[]){1, -10, (double)NAN, 0.5}, &info);
    CHECK(isnan(wire_step_get(model, 0, 2)));
    CHECK_EQ(info.found_inf, 1);
    CHECK_EQ(info.found_inf_rank, 0);
}

/* Alone there is nobody to send to, and nothing is left out. */
static void GS_46_one_rank_keeps_all(ranks_context *ctx) {
    static const double values[] = {1, -10, 2, 0.5};
    gsync_step_info info;
    const ranks_model *model = reduce(ctx, values, &info);
    for (size_t k = 0; k < COUNT; k++) {
        CHECK_REAL(wire_step_get(model, 0, k), values[k]);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(GS_46_a_large_negative_element_is_large, .world_min = 2),
           RANKS_TEST_WITH(GS_46_of_equals_it_is_the_first, .world_min = 2),
           RANKS_TEST(GS_46_zeros_of_both_signs_are_zeros), RANKS_TEST(GS_46_NaN_is_not_dropped),
           RANKS_TEST_WITH(GS_46_one_rank_keeps_all, .world_max = 1))
