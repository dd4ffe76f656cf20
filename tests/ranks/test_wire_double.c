/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi */
#include "ranks.h"

#include <math.h>

/* float64 gradients on narrow wires are float32 on their way: rounded to it, summed in it, and widened. */

enum { COUNT = 3000 };

static double value(int rank, size_t element, int step) {
    return sin((double)(element * 31 + (size_t)rank * 7 + (size_t)step)) * (1.0 + rank);
}

static double largest(const ranks_context *ctx) {
    return (double)ctx->world; /* of all ranks' values */
}

/* Twice the rounding of the coarsest part of the wire. */
static double tolerance(const ranks_context *ctx, gsync_wire wire) {
    switch (wire) {
    case GSYNC_WIRE_FLOAT16:
        return largest(ctx) * 0x1p-10;
    case GSYNC_WIRE_BFLOAT16:
        return largest(ctx) * 0x1p-7;
    case GSYNC_WIRE_INT8:
        return largest(ctx) * 2 / 254 * 1.01;
    default:
        return largest(ctx) * 0x1p-3;
    }
}

static void step(gsync_reducer *reducer, const double *grad) {
    CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
    CHECK_OK(gsync_ready(reducer, grad));
    CHECK_OK(gsync_finish(reducer, NULL));
}

static void check_wire(ranks_context *ctx, gsync_wire wire) {
    gsync_reducer *reducer = NULL;
    double *grad = ranks_memory(ctx, COUNT * sizeof *grad);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_add(reducer, "grad", grad, COUNT, GSYNC_FLOAT64));
    CHECK_OK(gsync_reducer_set_wire(reducer, NULL, wire, NULL));
    CHECK_OK(gsync_reducer_commit(reducer));
    for (int number = 0; number < 3 && !ranks_has_failed(ctx); number++) {
        double worst = 0;
        for (size_t k = 0; k < COUNT; k++) {
            grad[k] = value(ctx->rank, k, number);
        }
        step(reducer, grad);
        for (size_t k = 0; k < COUNT; k++) {
            double mean = 0;
            for (int rank = 0; rank < ctx->world; rank++) {
                mean += value(rank, k, number) / ctx->world;
            }
            worst = fmax(worst, fabs(grad[k] - mean));
            CHECK_EQ((double)(float)grad[k] == grad[k], 1);
        }
        CHECK(worst <= tolerance(ctx, wire));
        CHECK(worst > 0);
    }
    gsync_reducer_destroy(&reducer);
}

static void travels_as_float32_on_every_narrow_wire(ranks_context *ctx) {
    check_wire(ctx, GSYNC_WIRE_FLOAT16);
    check_wire(ctx, GSYNC_WIRE_BFLOAT16);
    check_wire(ctx, GSYNC_WIRE_INT8);
    check_wire(ctx, GSYNC_WIRE_FLOAT8);
}

static void is_exact_on_a_dense_top_k(ranks_context *ctx) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    gsync_reducer *reducer = NULL;
    double *grad = ranks_memory(ctx, COUNT * sizeof *grad);
    options.density = 1.0;
    options.elements_min = 1;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_add(reducer, "grad", grad, COUNT, GSYNC_FLOAT64));
    CHECK_OK(gsync_reducer_set_wire(reducer, NULL, GSYNC_WIRE_TOPK, &options));
    CHECK_OK(gsync_reducer_commit(reducer));
    for (size_t k = 0; k < COUNT; k++) {
        grad[k] = (double)((k * 13 + (size_t)ctx->rank * 5) % 101) - 50.0;
    }
    step(reducer, grad);
    for (size_t k = 0; k < COUNT; k++) {
        float sum = 0;
        for (int rank = 0; rank < ctx->world; rank++) {
            sum += (float)((k * 13 + (size_t)rank * 5) % 101) - 50.0f;
        }
        CHECK_REAL(grad[k], (double)(sum / (float)ctx->world));
    }
    gsync_reducer_destroy(&reducer);
}

static void beyond_float32_it_is_found_and_named(ranks_context *ctx) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    gsync_reducer *reducer = NULL;
    double *grad = ranks_memory(ctx, COUNT * sizeof *grad);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_add(reducer, "grad", grad, COUNT, GSYNC_FLOAT64));
    CHECK_OK(gsync_reducer_set_wire(reducer, NULL, GSYNC_WIRE_INT8, NULL));
    CHECK_OK(gsync_reducer_commit(reducer));
    for (size_t k = 0; k < COUNT; k++) {
        grad[k] = ctx->rank == 1 && k == 1234 ? 1e200 : 1.0;
    }
    CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
    CHECK_OK(gsync_finish(reducer, &info));
    CHECK_EQ(info.found_inf, 1);
    CHECK_EQ(info.found_inf_rank, 1);
    CHECK_CONTAINS(info.found_inf_gradient, "grad");
    gsync_reducer_destroy(&reducer);
}

RANKS_MAIN(RANKS_TEST(travels_as_float32_on_every_narrow_wire), RANKS_TEST(is_exact_on_a_dense_top_k),
           RANKS_TEST(beyond_float32_it_is_found_and_named))
