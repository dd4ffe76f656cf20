/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads,mpi timeout=60 */

/* GS-44: an 8-bit code of zeros is zeros, and of a constant is the constant, to half a step. */

#include "wire_step.h"

#include <math.h>

static const gsync_wire wires[] = {GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8};
enum { WIRES = sizeof wires / sizeof *wires };

typedef struct tried {
    ranks_model *model;
    gsync_step_info info;
} tried;

/* Two gradients: one element, and two blocks of which the last is not full and holds `last`. */
static tried reduce(ranks_context *ctx, gsync_wire wire, double value, double last) {
    static const size_t counts[] = {1, 300};
    const gsync_wire_options wire_options = wire_step_options();
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_finite = 1;
    tried made = {.info = GSYNC_STEP_INFO_INIT};
    made.model = wire_step_model(ctx, counts, 2, GSYNC_FLOAT32, wire, &wire_options, &options);
    wire_step_set(made.model, 0, value);
    wire_step_set(made.model, 1, value);
    for (size_t k = 256; k < 300; k++) {
        ranks_store(made.model->tensors[1].grad, GSYNC_FLOAT32, k, last);
    }
    CHECK_OK(ranks_model_step(made.model, NULL, &made.info));
    CHECK_EQ(made.info.found_inf, 0);
    return made;
}

static void check_all(const ranks_model *model, double value, double last, double tolerance) {
    CHECK_NEAR(wire_step_get(model, 0, 0), value, tolerance);
    for (size_t k = 0; k < 300; k++) {
        CHECK_NEAR(wire_step_get(model, 1, k), k < 256 ? value : last, tolerance);
    }
}

static void GS_44_zeros_stay_zeros(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES; i++) {
        tried of = reduce(ctx, wires[i], 0.0, -0.0);
        check_all(of.model, 0.0, 0.0, 0.0);
        gsync_reducer_destroy(&of.model->reducer);
    }
}

static void GS_44_one_rank_has_zeros(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES; i++) {
        tried of = reduce(ctx, wires[i], ctx->rank == 1 ? 8.0 : 0.0, 0.0);
        check_all(of.model, 8.0 / ctx->world, 0.0, 8.0 / 254);
        gsync_reducer_destroy(&of.model->reducer);
    }
}

static void GS_44_a_constant_is_exact_to_half_a_step(ranks_context *ctx) {
    tried of = reduce(ctx, GSYNC_WIRE_INT8, 0.37, 0.37);
    check_all(of.model, 0.37, 0.37, 2 * 0.37 / 254);
    gsync_reducer_destroy(&of.model->reducer);
}

static void GS_44_a_last_block_of_zeros_does_not_spoil_the_one_before(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES; i++) {
        tried of = reduce(ctx, wires[i], 1.0, 0.0);
        check_all(of.model, 1.0, 0.0, 2 * 1.0 / 254);
        gsync_reducer_destroy(&of.model->reducer);
    }
}

RANKS_MAIN(RANKS_TEST(GS_44_zeros_stay_zeros), RANKS_TEST_WITH(GS_44_one_rank_has_zeros, .world_min = 2),
           RANKS_TEST(GS_44_a_constant_is_exact_to_half_a_step),
           RANKS_TEST(GS_44_a_last_block_of_zeros_does_not_spoil_the_one_before))
