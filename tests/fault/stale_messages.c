/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,4 transports=mpi */

/* Messages to a rank that has left must not turn up in a communicator that is made later. */

#include "ranks.h"

enum { ROUNDS = 6, TIMEOUT_MS = 1000 };

static gsync_comm *make_hosts(const ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.ranks_per_host = 1;
    CHECK_OK(gsync_comm_create(&comm, &options));
    return comm;
}

/* The last rank leaves, and the others call it in vain. */
static void send_to_nobody(ranks_context *ctx) {
    gsync_comm *comm = make_hosts(ctx);
    if (ctx->rank == ctx->world - 1) {
        gsync_comm_destroy(&comm);
        REQUIRE(ranks_meet(ctx));
    } else {
        REQUIRE(ranks_meet(ctx));
        CHECK_STATUS(gsync_barrier(comm), GSYNC_ERR_TIMEOUT);
        gsync_comm_destroy(&comm);
    }
    REQUIRE(ranks_meet(ctx));
}

static void messages_to_a_rank_that_left_reach_nobody_else(ranks_context *ctx) {
    for (int round = 0; round < ROUNDS && !ranks_has_failed(ctx); round++) {
        send_to_nobody(ctx);
        gsync_comm *comm = make_hosts(ctx);
        float sum = (float)ctx->rank;
        CHECK_OK(gsync_barrier(comm));
        CHECK_OK(gsync_allreduce(comm, &sum, 1, GSYNC_FLOAT32, GSYNC_SUM));
        CHECK_REAL(sum, (double)(ctx->world * (ctx->world - 1)) / 2);
        gsync_comm_destroy(&comm);
        REQUIRE(ranks_meet(ctx));
    }
}

RANKS_MAIN(RANKS_TEST_WITH(messages_to_a_rank_that_left_reach_nobody_else, .timeout_ms = TIMEOUT_MS))
