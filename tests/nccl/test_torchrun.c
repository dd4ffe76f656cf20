/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */
#include "nccl_ranks.h"

#include <unistd.h>

/* Processes that torchrun started: no MPI, no ncclComm_t, only variables. */

static void set_number(const char *name, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    OK(setenv(name, text, 1));
}

/* A port of this test's own: the parent of all ranks is one process. */
static void set_variables(int rank, int ranks) {
    simcuda_thread_rank(rank);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", ranks);
    set_number("MASTER_PORT", 10000 + (int)getppid() % 50000);
    OK(setenv("MASTER_ADDR", "127.0.0.1", 1));
}

static void train(int rank, int ranks, void *context) {
    const gsync_comm_options *options = context;
    gsync_comm *comm = NULL;
    set_variables(rank, ranks);
    CHECK_STATUS(gsync_comm_create(&comm, options), GSYNC_OK);
    CHECK(gsync_rank(comm) == rank && gsync_world_size(comm) == ranks && gsync_local_rank(comm) == rank);
    CHECK(strstr(gsync_comm_describe(comm), "nccl") != NULL && strstr(gsync_comm_describe(comm), "on 1 host,") != NULL);
    CHECK(getenv("NCCL_COMM_ID") == NULL);

    double value = rank;
    CHECK_STATUS(gsync_allreduce(comm, &value, 1, GSYNC_FLOAT64, GSYNC_SUM), GSYNC_OK);
    CHECK(value == ranks * (ranks - 1) / 2);

    /* Which opens a communicator for its lane. */
    gsync_reducer *reducer = NULL;
    float grad[100];
    CHECK_STATUS(gsync_reducer_create(&reducer, comm, NULL), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_add(reducer, "grad", grad, 100, GSYNC_FLOAT32), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_OK);
    for (int i = 0; i < 100; i++) {
        grad[i] = (float)(i * rank);
    }
    CHECK_STATUS(gsync_begin(reducer, GSYNC_SYNC), GSYNC_OK);
    CHECK_STATUS(gsync_finish(reducer, NULL), GSYNC_OK);
    CHECK(grad[99] == 99 * (float)(ranks - 1) / 2);
    gsync_reducer_destroy(&reducer);
    gsync_comm_destroy(&comm);
    CHECK(simcuda_objects() == 0 && simcuda_allocations() == 0);
    CHECK(simcuda_reports(NULL, 0) == 0 && simcuda_default_stream_uses() == 0);
}

static void processes_meet_by_torchruns_variables(void **state) {
    (void)state;
    gsync_comm_options asked_for = GSYNC_COMM_OPTIONS_INIT;
    asked_for.transport = GSYNC_TRANSPORT_NCCL;
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        run_rank_processes(ranks, train, &asked_for);
    }
}

static void nccl_is_chosen_where_torchrun_and_a_gpu_are_and_no_mpi(void **state) {
    (void)state;
    run_rank_processes(2, train, NULL);
}

static void see_no_gpu(int rank, int ranks, void *context) {
    gsync_comm *comm = NULL;
    (void)context;
    set_variables(rank, ranks);
    simcuda_set_device_count(0);
    CHECK_STATUS(gsync_comm_create(&comm, NULL), GSYNC_ERR_UNSUPPORTED);
    CHECK_SAYS("WORLD_SIZE is 2 but no MPI launcher started this process, and there is no GPU for NCCL");
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.transport = GSYNC_TRANSPORT_NCCL;
    CHECK_STATUS(gsync_comm_create(&comm, &options), GSYNC_ERR_UNSUPPORTED);
    CHECK(comm == NULL);
}

static void without_a_gpu_it_is_refused_with_the_reason(void **state) {
    (void)state;
    run_rank_processes(2, see_no_gpu, NULL);
}

enum { TIMEOUT_MS = 1000 };

static void miss_one(int rank, int ranks, void *context) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    (void)context;
    set_variables(rank, ranks);
    options.transport = GSYNC_TRANSPORT_NCCL;
    options.timeout_ms = TIMEOUT_MS;
    if (rank == 1) {
        return;
    }
    const uint64_t begun_ns = gs_clock_ns();
    CHECK_STATUS(gsync_comm_create(&comm, &options), GSYNC_ERR_TIMEOUT);
    CHECK_SAYS("not all ranks met at 127.0.0.1:");
    CHECK(gs_clock_ns() - begun_ns < (uint64_t)(TIMEOUT_MS + GRACE_MS) * 1000000u);
    CHECK(simcuda_objects() == 0 && simcuda_allocations() == 0);
}

static void a_process_that_does_not_come_is_known_at_the_deadline(void **state) {
    (void)state;
    run_rank_processes(3, miss_one, NULL);
}

static void lack_a_variable(int rank, int ranks, void *context) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    (void)context;
    set_variables(rank, ranks);
    options.transport = GSYNC_TRANSPORT_NCCL;
    OK(unsetenv("MASTER_ADDR"));
    CHECK_STATUS(gsync_comm_create(&comm, &options), GSYNC_ERR_ARGUMENT);
    CHECK_SAYS("MASTER_ADDR is not set");
}

static void a_variable_that_is_missing_is_named(void **state) {
    (void)state;
    run_rank_processes(1, lack_a_variable, NULL);
}

/* The processes begin as copies of this one, which therefore never uses the simulator itself. */
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_meet_by_torchruns_variables),
        cmocka_unit_test(nccl_is_chosen_where_torchrun_and_a_gpu_are_and_no_mpi),
        cmocka_unit_test(without_a_gpu_it_is_refused_with_the_reason),
        cmocka_unit_test(a_process_that_does_not_come_is_known_at_the_deadline),
        cmocka_unit_test(a_variable_that_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
