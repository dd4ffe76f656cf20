/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads,mpi timeout=60 */

/* GS-48: a rank owes what it did not send itself, and not what the mean of all lacks. */

#include "wire_step.h"

static void step(ranks_model *model, double first, double second) {
    ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, first);
    ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 1, second);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
}

static void check(const ranks_model *model, double first, double second) {
    CHECK_REAL(wire_step_get(model, 0, 0), first);
    CHECK_REAL(wire_step_get(model, 0, 1), second);
}

static void GS_48_each_rank_owes_its_own_rest(ranks_context *ctx) {
    const size_t count = 2;
    gsync_wire_options wire_options = wire_step_options();
    const gsync_options options = GSYNC_OPTIONS_INIT;
    wire_options.density = 0.5;
    wire_options.feedback = GSYNC_FEEDBACK_AUTO;
    ranks_model *model = wire_step_model(ctx, &count, 1, GSYNC_FLOAT32, GSYNC_WIRE_TOPK, &wire_options, &options);
    REQUIRE(!ranks_has_failed(ctx));
    step(model, ctx->rank == 0 ? 4 : 1, ctx->rank == 0 ? 1 : 4);
    check(model, 2, 2);
    step(model, 0, 0); /* [0, 1] of rank 0 and [1, 0] of rank 1 */
    check(model, 0.5, 0.5);
    step(model, 0, 0);
    check(model, 0, 0);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_48_each_rank_owes_its_own_rest, .world_min = 2, .world_max = 2))
