/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=180 */
#include "nccl_ranks.h"

#include "api/comm.h"
#include "collective/internal_nccl.h"

/* Communicators of a trainer's ncclComm_t: what is refused, what fails, and what is left. */

enum { TIMEOUT_MS = 1500, RANKS = 4 };

static const gsync_comm_options impatient = {.struct_size = sizeof impatient, .timeout_ms = TIMEOUT_MS};

static _Atomic uint64_t begun_ns;

static void begin_clock(void) {
    simcuda_reset();
    atomic_store(&begun_ns, gs_clock_ns());
}

static void check_in_time(void) {
    CHECK(gs_clock_ns() - atomic_load(&begun_ns) < (uint64_t)(TIMEOUT_MS + GRACE_MS) * 1000000u);
}

static gsync_status make(nccl_rank *self) {
    return gsync_comm_from_nccl(&self->comm, self->trainers, &impatient);
}

static void nothing_is_refused_by_name(void **state) {
    (void)state;
    simcuda_reset();
    gsync_comm *comm = NULL;
    assert_int_equal(gsync_comm_from_nccl(&comm, NULL, NULL), GSYNC_ERR_ARGUMENT);
    assert_non_null(strstr(gsync_last_error(), "nccl is NULL"));
}

/* Rank 1 fails; the others see that the child is too small. */
static void fail_alone(nccl_rank *self) {
    if (self->rank == 1) {
        OK(cudaSetDevice(7));
        CHECK_STATUS(make(self), GSYNC_ERR_ARGUMENT);
        CHECK_SAYS("the ncclComm_t is for device 1, but device 7 is current");
        OK(cudaSetDevice(1));
    } else {
        CHECK_STATUS(make(self), GSYNC_ERR_ABORTED);
        CHECK_SAYS("1 of the 4 ranks could not create their communicator");
    }
    CHECK(self->comm == NULL);
    check_in_time();
}

static void a_rank_on_another_device_than_its_communicators_fails_all(void **state) {
    (void)state;
    begin_clock();
    run_bare_ranks(RANKS, fail_alone);
    expect_nothing_left();
}

static void stay_away(nccl_rank *self) {
    if (self->rank == 3) {
        while (gs_clock_ns() - atomic_load(&begun_ns) < (uint64_t)(TIMEOUT_MS + 200) * 1000000u) {
            gs_nccl_nap();
        }
        return;
    }
    CHECK_STATUS(make(self), GSYNC_ERR_TIMEOUT);
    CHECK_SAYS("not all ranks of the ncclComm_t called gsync_comm_from_nccl within 1500 ms");
    check_in_time();
}

static void a_rank_that_does_not_come_is_known_at_the_deadline(void **state) {
    (void)state;
    begin_clock();
    run_bare_ranks(RANKS, stay_away);
    expect_nothing_left();
}

static void fail_to_split(nccl_rank *self) {
    CHECK_EITHER(make(self), GSYNC_ERR_TRANSPORT, GSYNC_ERR_TIMEOUT);
    check_in_time();
}

static void a_split_that_fails_on_one_rank_ends_on_all(void **state) {
    (void)state;
    begin_clock();
    simcuda_fault("ncclCommSplit", 2, 1, SIMCUDA_RETURNS, ncclInternalError);
    run_bare_ranks(RANKS, fail_to_split);
    expect_nothing_left();
}

/* The trainer's is of no further use to us: it may go first, and is never aborted by us. */
static void outlive(nccl_rank *self) {
    CHECK_STATUS(make(self), GSYNC_OK);
    OK(ncclCommDestroy(self->trainers));
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
    }
    gsync_comm_destroy(&self->comm);
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&self->trainers, 1, id, 0)); /* for who cleans up */
}

static void it_may_outlive_the_trainers_communicator(void **state) {
    (void)state;
    begin_clock();
    run_bare_ranks(RANKS, outlive);
    expect_nothing_left();
}

/* ---- failures of messages ---- */

static void leave_barrier(nccl_rank *self) {
    if (self->rank == 0) {
        gsync_comm_destroy(&self->comm);
        return;
    }
    CHECK_EITHER(gsync_barrier(self->comm), GSYNC_ERR_TIMEOUT, GSYNC_ERR_PEER_LOST);
    CHECK(gs_lane_is_broken(self->comm->group->control));
    check_in_time();
}

static void a_rank_that_leaves_is_noticed_by_the_others(void **state) {
    (void)state;
    begin_clock();
    run_nccl_ranks(3, &impatient, leave_barrier);
    expect_nothing_left();
}

/* Telling who the ranks are takes each two messages to each of the others, a barrier takes one. */
enum { MESSAGES_BEFORE = 2 * (RANKS - 1), BARRIERS = 4, MESSAGE_THAT_FAILS = MESSAGES_BEFORE + BARRIERS * (RANKS - 1) };

static gsync_status meet_until_it_fails(nccl_rank *self) {
    for (int i = 0; i < BARRIERS; i++) {
        GS_TRY(gsync_barrier(self->comm));
    }
    return GSYNC_OK;
}

static void lose_message(nccl_rank *self) {
    CHECK_EITHER(meet_until_it_fails(self), GSYNC_ERR_TRANSPORT, GSYNC_ERR_PEER_LOST);
    check_in_time();
}

static void a_message_that_fails_is_a_lost_peer_to_the_others(void **state) {
    (void)state;
    begin_clock();
    simcuda_peers_notice(1);
    simcuda_fault("ncclSend", 1, MESSAGE_THAT_FAILS, SIMCUDA_FAILS_LATER, ncclSystemError);
    run_nccl_ranks(RANKS, &impatient, lose_message);
    expect_nothing_left();
}

static void message_hangs(nccl_rank *self) {
    CHECK_EITHER(meet_until_it_fails(self), GSYNC_ERR_TIMEOUT, GSYNC_ERR_PEER_LOST);
    gsync_comm_destroy(&self->comm);
    check_in_time();
}

static void a_message_that_hangs_ends_at_the_deadline(void **state) {
    (void)state;
    begin_clock();
    simcuda_fault("ncclSend", 1, MESSAGE_THAT_FAILS, SIMCUDA_HANGS, 0);
    run_nccl_ranks(RANKS, &impatient, message_hangs);
    expect_nothing_left();
}

static void abort_waiting(nccl_rank *self) {
    if (self->rank == 0) {
        gsync_comm_abort(self->comm, "enough");
        CHECK_STATUS(gsync_barrier(self->comm), GSYNC_ERR_ABORTED);
        CHECK_SAYS("enough");
    } else {
        CHECK_EITHER(gsync_barrier(self->comm), GSYNC_ERR_TIMEOUT, GSYNC_ERR_PEER_LOST);
    }
    check_in_time();
}

static void an_abort_ends_the_others_by_their_deadline(void **state) {
    (void)state;
    begin_clock();
    run_nccl_ranks(2, &impatient, abort_waiting);
    expect_nothing_left();
}

/* ---- memory of a GPU ---- */

/* Every element is the rank's number; the mean follows. */
static void train_on_device(nccl_rank *self) {
    enum { COUNT = 5000, STEPS = 3 };
    gsync_reducer *reducer = NULL;
    float *grad = NULL;
    float *host = NULL;
    cudaStream_t compute = NULL;
    OK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&grad, COUNT * sizeof *grad));
    OK(cudaMallocHost((void **)&host, COUNT * sizeof *host));
    CHECK_STATUS(gsync_reducer_create(&reducer, self->comm, NULL), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_add(reducer, "grad", grad, COUNT, GSYNC_FLOAT32), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_OK);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < COUNT; i++) {
            host[i] = (float)(self->rank + step);
        }
        OK(cudaMemcpyAsync(grad, host, COUNT * sizeof *grad, cudaMemcpyHostToDevice, compute));
        CHECK_STATUS(gsync_begin(reducer, GSYNC_SYNC), GSYNC_OK);
        CHECK_STATUS(gsync_ready_on(reducer, grad, compute), GSYNC_OK);
        CHECK_STATUS(gsync_finish_on(reducer, compute, NULL), GSYNC_OK);
        OK(cudaMemcpyAsync(host, grad, COUNT * sizeof *grad, cudaMemcpyDeviceToHost, compute));
        OK(cudaStreamSynchronize(compute));
        CHECK(host[0] == 1.5F + (float)step && host[COUNT - 1] == 1.5F + (float)step);
    }
    gsync_reducer_destroy(&reducer);
    OK(cudaFree(grad));
    OK(cudaFreeHost(host));
    OK(cudaStreamDestroy(compute));
    check_in_time();
}

static void gradients_on_gpus_need_no_mpi(void **state) {
    (void)state;
    begin_clock();
    run_nccl_ranks(RANKS, &impatient, train_on_device);
    expect_nothing_left();
    expect_sound();
}

static void refuse_device_memory(nccl_rank *self) {
    float *device = NULL;
    OK(cudaMalloc((void **)&device, 64));
    const void *buffer = device;
    const size_t bytes = 64;
    CHECK_STATUS(gsync_allreduce(self->comm, device, 16, GSYNC_FLOAT32, GSYNC_SUM), GSYNC_ERR_ARGUMENT);
    CHECK_SAYS("gsync_allreduce: the buffer is memory of device");
    CHECK_STATUS(gsync_broadcast(self->comm, device, 16, GSYNC_FLOAT32, 0), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_check_replicas(self->comm, NULL, &buffer, &bytes, 1), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
    OK(cudaFree(device));
}

static void GS_93_device_memory_given_to_a_call_on_the_host_is_refused(void **state) {
    (void)state;
    begin_clock();
    run_nccl_ranks(2, &impatient, refuse_device_memory);
    expect_nothing_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_refused_by_name),
        cmocka_unit_test(a_rank_on_another_device_than_its_communicators_fails_all),
        cmocka_unit_test(a_rank_that_does_not_come_is_known_at_the_deadline),
        cmocka_unit_test(a_split_that_fails_on_one_rank_ends_on_all),
        cmocka_unit_test(it_may_outlive_the_trainers_communicator),
        cmocka_unit_test(a_rank_that_leaves_is_noticed_by_the_others),
        cmocka_unit_test(a_message_that_fails_is_a_lost_peer_to_the_others),
        cmocka_unit_test(a_message_that_hangs_ends_at_the_deadline),
        cmocka_unit_test(an_abort_ends_the_others_by_their_deadline),
        cmocka_unit_test(gradients_on_gpus_need_no_mpi),
        cmocka_unit_test(GS_93_device_memory_given_to_a_call_on_the_host_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
