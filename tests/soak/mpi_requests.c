/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=mpi timeout=120 */

/*
 * Every message that the library begins it also ends: between reductions none is under way, however many there were.
 * The program stands between the library and MPI, and passes calls on through MPI's profiling interface.
 *
 *     GRADSYNC_TEST_SOAK=1 scripts/mpirun.sh mpirun -n 2 build/test/tests/programs/soak.mpi_requests
 */

#include "process_usage.h"

#include <mpi.h>
#include <stdatomic.h>

enum { COUNT = 100 * 1000, TIMES_IN_CI = 40, TIMES = 20000 };

static _Atomic long begun;
static _Atomic long ended;

int MPI_Isend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request *request) {
    atomic_fetch_add(&begun, 1);
    return PMPI_Isend(buf, count, type, dest, tag, comm, request);
}

int MPI_Irecv(void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request) {
    atomic_fetch_add(&begun, 1);
    return PMPI_Irecv(buf, count, type, source, tag, comm, request);
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[]) {
    const int code = PMPI_Testall(count, requests, flag, statuses);
    atomic_fetch_add(&ended, *flag != 0 ? count : 0);
    return code;
}

static void no_message_is_under_way_between_reductions(ranks_context *ctx) {
    const size_t counts[] = {COUNT, 3, 1};
    const long times = soak_is_long() ? TIMES : TIMES_IN_CI;
    gsync_comm_options comm_options = ctx->comm_options;
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_comm *comm = NULL;
    comm_options.ranks_per_host = ctx->world > 2 ? 2 : 1;
    options.bucket_bytes_max = 4096;
    REQUIRE_OK(gsync_comm_create(&comm, &comm_options));
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_register(model, comm, &options));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    const long begun_before = begun;
    for (long i = 0; i < times; i++) {
        int64_t one = 1;
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        REQUIRE_EQ(begun - ended, 0);
        REQUIRE_OK(gsync_allreduce(comm, &one, 1, GSYNC_INT64, GSYNC_SUM));
        REQUIRE_EQ(begun - ended, 0);
    }
    /* Only the first ranks of hosts speak with each other. */
    CHECK(gsync_local_rank(comm) == 0 ? begun > begun_before : begun == begun_before);
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
    CHECK_EQ(begun - ended, 0);
    if (soak_is_long()) {
        printf("rank %d: %ld steps: %ld messages begun, %ld ended\n", ctx->rank, times, (long)begun, (long)ended);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(no_message_is_under_way_between_reductions, .needs_mpi = true, .watchdog_s = 600))
