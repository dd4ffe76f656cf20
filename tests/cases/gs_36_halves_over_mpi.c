/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3,4 transports=mpi timeout=60 */

/* GS-36: MPI has no 16-bit types, and no 8-bit ones with a scale: gradients travel all the same, also between hosts. */

#include "own_comm.h"

static const size_t counts[] = {6, 7, 65537};
enum { COUNTS = sizeof counts / sizeof *counts };

/* Sums of these integers are exact, so the mean is rounded once and compared bit by bit. */
static void check_means(ranks_context *ctx, gsync_comm *comm, gsync_dtype dtype) {
    ranks_model *model = ranks_model_new(ctx, counts, COUNTS, dtype);
    REQUIRE_OK(ranks_model_register(model, comm, NULL));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 1; step <= 2; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
    gsync_reducer_destroy(&model->reducer);
}

static void check_allreduce(ranks_context *ctx, gsync_comm *comm, gsync_dtype dtype, size_t count) {
    const ranks_source source = {.kind = RANKS_INTEGERS, .round = 9, .tensor = count};
    void *buffer = ranks_memory(ctx, count * gsync_dtype_size(dtype));
    ranks_fill(ctx, buffer, count, dtype, source);
    REQUIRE_OK(gsync_allreduce(comm, buffer, count, dtype, GSYNC_MEAN));
    CHECK_REDUCED(ctx, buffer, count, dtype, source, (double)ctx->world);
}

static void GS_36_halves_are_reduced_by_any_mpi(ranks_context *ctx) {
    for (uint32_t ranks_per_host = 0; ranks_per_host <= 2 && !ranks_has_failed(ctx); ranks_per_host++) {
        gsync_comm *comm = NULL;
        gsync_comm_options options = ctx->comm_options;
        options.ranks_per_host = ranks_per_host;
        REQUIRE_OK(own_comm_create(ctx, &options, &comm));
        check_means(ctx, comm, GSYNC_FLOAT16);
        check_means(ctx, comm, GSYNC_BFLOAT16);
        for (size_t i = 0; i < COUNTS; i++) {
            check_allreduce(ctx, comm, GSYNC_FLOAT16, counts[i]);
            check_allreduce(ctx, comm, GSYNC_BFLOAT16, counts[i]);
        }
        gsync_comm_destroy(&comm);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(GS_36_halves_are_reduced_by_any_mpi, .needs_mpi = true, .needs_no_comm = true))
