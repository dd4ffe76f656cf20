/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=mpi */

/* A rank creates its communicator when the others have given up: it must not wait for them for ever. */

#include "ranks.h"

#include <mpi.h>

enum { TIMEOUT_MS = 300, PROGRESS_S = 2 };

static void try_to_create(const ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.timeout_ms = TIMEOUT_MS;
    CHECK_STATUS(gsync_comm_create(&comm, &options), GSYNC_ERR_TIMEOUT);
    CHECK(comm == NULL);
}

/* MPI goes on with what was given up, whenever it is called. */
static void call_mpi_for_a_while(void) {
    const double limit = ranks_seconds() + PROGRESS_S;
    while (ranks_seconds() < limit) {
        int flag;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    }
}

static void a_rank_that_comes_too_late_is_told_so(ranks_context *ctx) {
    if (ctx->rank == 0) {
        try_to_create(ctx);
        REQUIRE(ranks_meet(ctx));
        call_mpi_for_a_while();
    } else {
        REQUIRE(ranks_meet(ctx));
        try_to_create(ctx);
    }
    REQUIRE(ranks_meet(ctx));
    gsync_comm *comm = NULL;
    CHECK_OK(gsync_comm_create(&comm, &ctx->comm_options));
    CHECK_OK(gsync_barrier(comm));
    gsync_comm_destroy(&comm);
}

RANKS_MAIN(RANKS_TEST(a_rank_that_comes_too_late_is_told_so))
