/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=mpi links=internal */

/* A rank gives up while MPI still holds a message of it that cannot be taken back, and the other side comes for it. */

#include "api/comm.h"
#include "collective/lane_internal.h"
#include "ranks.h"

#include <mpi.h>

enum { BYTES = 64 * 1024, TIMEOUT_MS = 1000 };
/* A tenth of a second for what can be taken back; the rest is for a busy machine. */
static const double LEAVING_S_MAX = 1.5;

static const gs_transport_ops *real_ops;

static gsync_comm *make_two_hosts(const ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.ranks_per_host = 1;
    CHECK_OK(gsync_comm_create(&comm, &options));
    return comm;
}

static gsync_status see_nothing(gs_net *net, gs_net_stream stream, uint32_t slot, bool *is_done) {
    (void)net, (void)stream, (void)slot;
    *is_done = false;
    return GSYNC_OK;
}

/* What gsync_broadcast does, but by hand, so that this rank can stop in the middle: it has sent its header, and not yet
 * looked for the others'. */
static void start_broadcast(gsync_comm *comm) {
    bool is_done;
    bool did_work;
    const gs_transport_ops *ops = comm->group->ops;
    gs_transport_ops deaf = *ops;
    deaf.net_test = see_nothing;
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "broadcast", .total = BYTES},
        .dtype = GSYNC_UINT8,
    };
    comm->group->ops = &deaf;
    CHECK_OK(gs_lane_post(comm->group->control, &operation));
    CHECK_OK(gs_lane_progress(comm->group->control, &is_done, &did_work));
    comm->group->ops = ops;
}

static void go_on(gsync_comm *comm) {
    bool is_done = false;
    bool did_work;
    while (!is_done) {
        (void)gs_lane_progress(comm->group->control, &is_done, &did_work);
    }
}

static void memory_outlives_a_message_that_is_still_to_be_read(ranks_context *ctx) {
    gsync_comm *comm = make_two_hosts(ctx);
    unsigned char *buffer = ranks_memory(ctx, BYTES);
    if (ctx->rank == 0) {
        CHECK_STATUS(gsync_broadcast(comm, buffer, BYTES, GSYNC_UINT8, 0), GSYNC_ERR_TIMEOUT);
        gsync_comm_destroy(&comm);
        REQUIRE(ranks_meet(ctx));
    } else {
        start_broadcast(comm);
        REQUIRE(ranks_meet(ctx));
        go_on(comm);
        gsync_comm_destroy(&comm);
    }
    CHECK_EQ(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
}

/* Parts of a large sum that the other side never takes: as many as may be on their way at once. */
static gsync_status see_headers_only(gs_net *net, gs_net_stream stream, uint32_t slot, bool *is_done) {
    *is_done = false;
    return stream == GS_NET_WHOLE ? real_ops->net_test(net, stream, slot, is_done) : GSYNC_OK;
}

static void leaving_takes_no_time_however_many_messages_are_pending(ranks_context *ctx) {
    enum { ELEMENTS = 4 * 1024 * 1024 };
    const size_t count = ELEMENTS;
    gsync_comm *comm = make_two_hosts(ctx);
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, NULL));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    gs_transport_ops deaf = *comm->group->ops;
    real_ops = comm->group->ops;
    deaf.net_test = see_headers_only;
    comm->group->ops = ctx->rank == 1 ? &deaf : real_ops;
    CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_TIMEOUT);
    comm->group->ops = real_ops;
    const double start = ranks_seconds();
    gsync_reducer_destroy(&model->reducer);
    CHECK(ranks_seconds() - start < LEAVING_S_MAX);
    gsync_comm_destroy(&comm);
    CHECK_EQ(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
}

RANKS_MAIN(RANKS_TEST_WITH(leaving_takes_no_time_however_many_messages_are_pending, .timeout_ms = TIMEOUT_MS),
           RANKS_TEST_WITH(memory_outlives_a_message_that_is_still_to_be_read, .timeout_ms = TIMEOUT_MS))
