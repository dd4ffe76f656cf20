/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,4 transports=threads,mpi timeout=60 */

/* GS-45: codes of 8 bits are widened before they are added: nothing wraps around, and no sign flips. */

#include "wire_step.h"

static const size_t count = 700;

static void check_extremes(ranks_context *ctx, gsync_op op, double mine, double expected) {
    const gsync_wire_options wire_options = wire_step_options();
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = op;
    ranks_model *model = wire_step_model(ctx, &count, 1, GSYNC_FLOAT32, GSYNC_WIRE_INT8, &wire_options, &options);
    REQUIRE(!ranks_has_failed(ctx));
    wire_step_set(model, 0, mine);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    for (size_t k = 0; k < count; k++) {
        CHECK_REAL(wire_step_get(model, 0, k), expected);
    }
    gsync_reducer_destroy(&model->reducer);
}

/* 127 times a power of two has a code of 127 and a scale without error. */
static void GS_45_all_ranks_at_the_largest_code(ranks_context *ctx) {
    check_extremes(ctx, GSYNC_MEAN, 127.0, 127.0);
    check_extremes(ctx, GSYNC_MEAN, -127.0 * 0x1p-20, -127.0 * 0x1p-20);
    check_extremes(ctx, GSYNC_SUM, 127.0, 127.0 * ctx->world);
    check_extremes(ctx, GSYNC_SUM, -127.0, -127.0 * ctx->world);
}

static void GS_45_every_rank_has_its_own_scale(ranks_context *ctx) {
    const double mine = 127.0 * (double)(1 << ctx->rank);
    check_extremes(ctx, GSYNC_SUM, mine, 127.0 * (double)((1 << ctx->world) - 1));
    check_extremes(ctx, GSYNC_SUM, -mine, -127.0 * (double)((1 << ctx->world) - 1));
}

RANKS_MAIN(RANKS_TEST(GS_45_all_ranks_at_the_largest_code), RANKS_TEST(GS_45_every_rank_has_its_own_scale))
