/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=4 transports=threads,mpi timeout=60 */

/* GS-34: a mean in 16 bits neither overflows before the division nor vanishes by dividing first. */

#include "wire_step.h"

static const size_t counts[] = {1, 1037};

/* The same value on all ranks is their mean, at both ends of what float16 holds. Two steps: the first on a float16 wire
 * is native. */
static void check_mean_of_equals(ranks_context *ctx, gsync_dtype dtype, gsync_wire wire, double value) {
    const gsync_wire_options wire_options = wire_step_options();
    const gsync_options options = GSYNC_OPTIONS_INIT;
    ranks_model *model = wire_step_model(ctx, counts, 2, dtype, wire, &wire_options, &options);
    REQUIRE(!ranks_has_failed(ctx));
    for (int step = 0; step < 3; step++) {
        wire_step_set(model, 0, value);
        wire_step_set(model, 1, value);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_REAL(wire_step_get(model, 0, 0), value);
        CHECK_REAL(wire_step_get(model, 1, 1036), value);
    }
    gsync_reducer_destroy(&model->reducer);
}

static void GS_34_large_halves_do_not_overflow_in_the_sum(ranks_context *ctx) {
    check_mean_of_equals(ctx, GSYNC_FLOAT16, GSYNC_WIRE_NATIVE, 30000.0);
    check_mean_of_equals(ctx, GSYNC_FLOAT16, GSYNC_WIRE_NATIVE, 65504.0);
    check_mean_of_equals(ctx, GSYNC_FLOAT32, GSYNC_WIRE_FLOAT16, 30000.0);
    check_mean_of_equals(ctx, GSYNC_BFLOAT16, GSYNC_WIRE_FLOAT16, 29952.0);
}

static void GS_34_the_smallest_halves_do_not_vanish(ranks_context *ctx) {
    check_mean_of_equals(ctx, GSYNC_FLOAT16, GSYNC_WIRE_NATIVE, 0x1p-24);
    check_mean_of_equals(ctx, GSYNC_FLOAT32, GSYNC_WIRE_FLOAT16, 0x1p-24);
}

/* The wire's scale follows the gradients: what float16 itself cannot hold is no more of a problem. */
static void GS_34_gradients_beyond_float16_fit_its_wire(ranks_context *ctx) {
    check_mean_of_equals(ctx, GSYNC_FLOAT32, GSYNC_WIRE_FLOAT16, 0x1p100);
    check_mean_of_equals(ctx, GSYNC_FLOAT32, GSYNC_WIRE_FLOAT16, 0x1p-100);
}

/* A sum beyond the type is beyond it: no wrapping, no saturation behind the trainer's back. */
static void GS_34_a_sum_that_no_half_holds_is_infinite(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    const gsync_wire_options wire_options = wire_step_options();
    options.op = GSYNC_SUM;
    options.checks_finite = 1;
    ranks_model *model = wire_step_model(ctx, counts, 2, GSYNC_FLOAT16, GSYNC_WIRE_NATIVE, &wire_options, &options);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE(!ranks_has_failed(ctx));
    wire_step_set(model, 0, 30000.0);
    wire_step_set(model, 1, 1.0);
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK(wire_step_get(model, 0, 0) > 65504.0);
    CHECK_REAL(wire_step_get(model, 1, 5), 4.0);
    CHECK_EQ(info.found_inf, 1);
    CHECK_EQ(info.found_inf_rank, -1);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_34_large_halves_do_not_overflow_in_the_sum, .world_min = 4),
           RANKS_TEST(GS_34_the_smallest_halves_do_not_vanish), RANKS_TEST(GS_34_gradients_beyond_float16_fit_its_wire),
           RANKS_TEST_WITH(GS_34_a_sum_that_no_half_holds_is_infinite, .world_min = 4, .world_max = 4))
