/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,4 transports=mpi */

/* ranks_per_host beyond what there is, up to the largest number that fits into the option. */

#include "ranks.h"

static void a_host_may_have_room_for_more_ranks_than_there_are(ranks_context *ctx) {
    static const uint32_t sizes[] = {1000, INT32_MAX, (uint32_t)INT32_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gsync_comm *comm = NULL;
        gsync_comm_options options = ctx->comm_options;
        options.ranks_per_host = sizes[i];
        REQUIRE_OK(gsync_comm_create(&comm, &options));
        CHECK_EQ(gsync_local_rank(comm), ctx->rank);
        CHECK_CONTAINS(gsync_comm_describe(comm), "on 1 host");
        CHECK_OK(gsync_barrier(comm));
        gsync_comm_destroy(&comm);
    }
}

RANKS_MAIN(RANKS_TEST(a_host_may_have_room_for_more_ranks_than_there_are))
