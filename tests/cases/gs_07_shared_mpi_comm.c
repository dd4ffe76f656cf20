/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: mpi=yes worlds=2,3 transports=mpi */

/*
 * GS-07: the application's own collectives on the MPI_Comm that it gave to the library, in the middle of a step, and
 * at another place among the marks on each rank. MPI is initialised and finalised by this program.
 */

#include "ranks.h"

#include <gradsync/gradsync_mpi.h>
#include <stdlib.h>

enum { ITERATIONS = 200, TENSORS = 3 };
static const size_t counts[TENSORS] = {3, 64, 5};

static void finalize(void) {
    MPI_Finalize();
}

/* Once per process: MPI cannot be initialised again for the second test. */
static void own_mpi(void) {
    int is_initialized = 0;
    MPI_Initialized(&is_initialized);
    if (!is_initialized) {
        int provided = 0;
        MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
        atexit(finalize);
    }
}

/* Its length differs from the buckets' and changes, so that a message that strays is noticed. */
static void application_allreduce(const ranks_context *ctx, MPI_Comm comm, int iteration) {
    double values[40];
    const int n = 1 + iteration % 40;
    for (int i = 0; i < n; i++) {
        values[i] = 1000.0 * ctx->rank + 10.0 * iteration + i;
    }
    CHECK_EQ(MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_DOUBLE, MPI_SUM, comm), MPI_SUCCESS);
    for (int i = 0; i < n; i++) {
        const double ranks_part = 1000.0 * ctx->world * (ctx->world - 1) / 2;
        CHECK_REAL(values[i], ranks_part + ctx->world * (10.0 * iteration + i));
    }
}

static void train(ranks_context *ctx, ranks_model *model, MPI_Comm mpi_comm) {
    for (int i = 0; i < ITERATIONS && !ranks_has_failed(ctx); i++) {
        ranks_model_fill(model, RANKS_INTEGERS, (uint64_t)i);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(ranks_model_ready(model, 2));
        REQUIRE_OK(ranks_model_ready(model, 1));
        if (ctx->rank == 0) {
            application_allreduce(ctx, mpi_comm, i);
        }
        REQUIRE_OK(ranks_model_ready(model, 0));
        if (ctx->rank != 0) {
            application_allreduce(ctx, mpi_comm, i);
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, (uint64_t)i);
    }
}

static void share_a_communicator(ranks_context *ctx, size_t bytes_max) {
    own_mpi();
    MPI_Comm shared = MPI_COMM_NULL;
    REQUIRE_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &shared), MPI_SUCCESS);
    gsync_comm_options comm_options = ctx->comm_options;
    comm_options.transport = GSYNC_TRANSPORT_AUTO;
    REQUIRE_OK(gsync_comm_from_mpi(&ctx->comm, shared, &comm_options));
    CHECK_EQ(gsync_rank(ctx->comm), ctx->rank);
    CHECK_EQ(gsync_world_size(ctx->comm), ctx->world);

    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = bytes_max;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    train(ctx, model, shared);

    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&ctx->comm);
    application_allreduce(ctx, shared, 7); /* the library gave nothing away that was not its own */
    MPI_Comm_free(&shared);
}

static void GS_07_application_collectives_never_meet_the_buckets(ranks_context *ctx) {
    share_a_communicator(ctx, 1); /* a bucket per gradient */
}

static void GS_07_nor_when_all_gradients_share_a_bucket(ranks_context *ctx) {
    share_a_communicator(ctx, SIZE_MAX);
}

static void GS_07_nor_when_buckets_move_on_the_callers_thread(ranks_context *ctx) {
    share_a_communicator(ctx, 1);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_07_application_collectives_never_meet_the_buckets, .needs_mpi = true,
                           .needs_no_comm = true),
           RANKS_TEST_WITH(GS_07_nor_when_all_gradients_share_a_bucket, .needs_mpi = true, .needs_no_comm = true),
           RANKS_TEST_WITH(GS_07_nor_when_buckets_move_on_the_callers_thread, .needs_mpi = true, .needs_no_comm = true,
                           .progress = GSYNC_PROGRESS_CALLER))
