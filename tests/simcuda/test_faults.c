/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_threads.h"
#include "simcuda.h"

#include <nccl.h>
#include <sched.h>
#include <string.h>

enum { ELEMENTS = 256 };

typedef struct side {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    float *values;
} side;

static ncclResult_t state_of(ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    OK(ncclCommGetAsyncError(comm, &result));
    return result;
}

static ncclResult_t wait_for_state(ncclComm_t comm) {
    ncclResult_t result = ncclInProgress;
    while ((result = state_of(comm)) == ncclInProgress) {
        sched_yield();
    }
    return result;
}

static ncclResult_t wait_for_error(ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    while ((result = state_of(comm)) == ncclSuccess || result == ncclInProgress) {
        sched_yield();
    }
    return result;
}

static ncclResult_t begin(side *s, int ranks, const ncclUniqueId *id, int is_blocking) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = is_blocking;
    OK(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&s->values, ELEMENTS * sizeof(float)));
    OK(cudaMemsetAsync(s->values, 0, ELEMENTS * sizeof(float), s->stream));
    return ncclCommInitRankConfig(&s->comm, ranks, *id, s->rank, &config);
}

static void end(side *s) {
    OK(cudaFree(s->values));
    OK(cudaStreamDestroy(s->stream));
}

static ncclResult_t reduce(side *s) {
    return ncclAllReduce(s->values, s->values, ELEMENTS, ncclFloat32, ncclSum, s->comm, s->stream);
}

static void run(int ranks, rank_function *function) {
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    run_rank_threads(ranks, function, &id);
}

/* One that would be enqueued while the call before has not happened yet is refused. */
static void poll_non_blocking(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    CHECK(begin(&s, ranks, context, 0) == ncclInProgress);
    CHECK(s.comm != NULL);
    CHECK(state_of(s.comm) == ncclInProgress);
    CHECK(wait_for_state(s.comm) == ncclSuccess);
    CHECK(reduce(&s) == ncclInProgress);
    CHECK(reduce(&s) == ncclInvalidArgument);
    CHECK(state_of(s.comm) == ncclInProgress);
    CHECK(wait_for_state(s.comm) == ncclSuccess);
    OK(cudaStreamSynchronize(s.stream));
    CHECK(ncclCommFinalize(s.comm) == ncclInProgress);
    CHECK(wait_for_state(s.comm) == ncclSuccess);
    OK(ncclCommDestroy(s.comm));
    CHECK(ncclCommDestroy(s.comm) == ncclInvalidArgument);
    end(&s);
}

static void a_non_blocking_communicator_is_in_progress_until_it_was_asked_often_enough(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_polls(3);
    run(2, poll_non_blocking);
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

static void fill(void *argument) {
    memset(*(float **)argument, 0, ELEMENTS * sizeof(float));
}

static void record_too_early(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    cudaEvent_t event = NULL;
    cudaStream_t consumer = NULL;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking));
    CHECK(begin(&s, ranks, context, 0) == ncclInProgress);
    CHECK(wait_for_state(s.comm) == ncclSuccess);
    CHECK(reduce(&s) == ncclInProgress);
    OK(cudaEventRecord(event, s.stream)); /* before the collective is on the stream */
    CHECK(wait_for_state(s.comm) == ncclSuccess);
    OK(cudaStreamWaitEvent(consumer, event, 0));
    const simcuda_access access = {s.values, ELEMENTS * sizeof(float), 1};
    OK(simcuda_launch(consumer, fill, &s.values, sizeof s.values, "consumer", &access, 1));
    OK(cudaDeviceSynchronize());
    OK(ncclCommDestroy(s.comm));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(consumer));
    end(&s);
}

static void an_event_recorded_while_a_collective_is_in_progress_misses_it(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    simcuda_reset();
    run(2, record_too_early);
    simcuda_report report;
    assert_true(simcuda_reports(&report, 1) > 0);
    assert_int_equal(report.kind, SIMCUDA_RACE);
    assert_true(strcmp(report.first, "ncclAllReduce") == 0 || strcmp(report.second, "ncclAllReduce") == 0);
}

/* Rank 1 fails at once; rank 0, which nobody joins, gives up. */
static void fail_to_begin(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    const ncclResult_t result = begin(&s, ranks, context, 0);
    if (rank == 1) {
        CHECK(result == ncclSystemError);
        CHECK(s.comm == NULL);
    } else {
        CHECK(result == ncclInProgress);
        for (int i = 0; i < 100; i++) {
            CHECK(state_of(s.comm) == ncclInProgress);
        }
        OK(ncclCommAbort(s.comm));
    }
    end(&s);
}

static void an_init_that_fails_on_one_rank_never_ends_on_the_other_but_can_be_aborted(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_fault("ncclCommInitRankConfig", 1, 1, SIMCUDA_RETURNS, ncclSystemError);
    run(2, fail_to_begin);
    assert_int_equal(simcuda_objects(), 0);
}

static void fail_to_begin_later(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    CHECK(begin(&s, ranks, context, 0) == ncclInProgress);
    if (rank == 1) {
        CHECK(wait_for_state(s.comm) == ncclSystemError);
        CHECK(ncclGetLastError(s.comm)[0] != 0);
    }
    OK(ncclCommAbort(s.comm));
    end(&s);
}

static void an_init_can_fail_or_hang_after_its_call(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_fault("ncclCommInitRankConfig", 1, 1, SIMCUDA_FAILS_LATER, ncclSystemError);
    simcuda_fault("ncclCommInitRankConfig", 0, 1, SIMCUDA_HANGS, 0);
    run(2, fail_to_begin_later);
}

/* The second reduction of rank 1 fails; rank 0's never ends. */
static void fail_in_the_middle(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    OK(begin(&s, ranks, context, 1));
    OK(reduce(&s));
    OK(cudaStreamSynchronize(s.stream));
    OK(reduce(&s));
    if (rank == 1) {
        CHECK(wait_for_error(s.comm) == ncclRemoteError);
        CHECK(reduce(&s) == ncclRemoteError);
    } else {
        for (int i = 0; i < 100; i++) {
            CHECK(state_of(s.comm) == ncclSuccess);
            CHECK(cudaStreamQuery(s.stream) == cudaErrorNotReady);
        }
    }
    OK(ncclCommAbort(s.comm));
    OK(cudaStreamSynchronize(s.stream));
    end(&s);
}

static void a_collective_that_fails_on_one_rank_hangs_on_the_other_until_it_is_aborted(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_fault("ncclAllReduce", 1, 2, SIMCUDA_FAILS_LATER, ncclRemoteError);
    run(2, fail_in_the_middle);
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

static void fail_and_notice(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    OK(begin(&s, ranks, context, 1));
    const ncclResult_t result = reduce(&s);
    CHECK(result == ncclSuccess || result == ncclRemoteError); /* the others may have failed before */
    CHECK(wait_for_error(s.comm) == (rank == 2 ? ncclSystemError : ncclRemoteError));
    OK(cudaStreamSynchronize(s.stream));
    OK(ncclCommAbort(s.comm));
    end(&s);
}

static void the_others_notice_where_that_is_asked_for(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_peers_notice(1);
    simcuda_fault("ncclAllReduce", 2, 1, SIMCUDA_FAILS_LATER, ncclSystemError);
    run(4, fail_and_notice);
}

static void hang_and_abort(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    OK(begin(&s, ranks, context, 1));
    OK(reduce(&s));
    OK(reduce(&s));
    CHECK(cudaStreamQuery(s.stream) == cudaErrorNotReady);
    OK(ncclCommAbort(s.comm));
    OK(cudaStreamSynchronize(s.stream));
    end(&s);
}

static void a_hung_collective_and_what_is_behind_it_can_be_aborted(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_fault("ncclAllReduce", 0, 1, SIMCUDA_HANGS, 0);
    run(2, hang_and_abort);
    assert_int_equal(simcuda_objects(), 0);
}

static void revoke_alone(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    OK(begin(&s, ranks, context, 1));
    if (rank == 0) {
        OK(reduce(&s)); /* rank 1 never arrives */
        OK(ncclCommRevoke(s.comm, 0));
        OK(cudaStreamSynchronize(s.stream));
        CHECK(reduce(&s) == ncclInvalidUsage);
        CHECK(ncclCommFinalize(s.comm) == ncclInvalidUsage);
    }
    OK(ncclCommDestroy(s.comm));
    end(&s);
}

static void a_revoked_communicator_lets_its_operations_end(void **state) {
    (void)state;
    simcuda_reset();
    run(2, revoke_alone);
}

typedef struct abort_in_order {
    side first;
    side second;
    atomic_int second_has_begun;
    pthread_t thread;
} abort_in_order;

static void *abort_first(void *argument) {
    abort_in_order *const both = argument;
    OK(ncclCommAbort(both->first.comm));
    CHECK(atomic_load(&both->second_has_begun) == 1);
    return NULL;
}

/* Each has a reduction that nobody else takes part in. */
static void abort_one_after_the_other(int rank, int ranks, void *context) {
    (void)ranks;
    (void)context;
    abort_in_order both = {.first = {.rank = rank}, .second = {.rank = rank}};
    ncclUniqueId ids[2];
    OK(ncclGetUniqueId(&ids[0]));
    OK(ncclGetUniqueId(&ids[1]));
    OK(begin(&both.first, 1, &ids[0], 1));
    OK(begin(&both.second, 1, &ids[1], 1));
    OK(reduce(&both.first));
    OK(reduce(&both.second));
    CHECK(pthread_create(&both.thread, NULL, abort_first, &both) == 0);
    while (cudaStreamQuery(both.first.stream) == cudaErrorNotReady) {
        sched_yield();
    }
    atomic_store(&both.second_has_begun, 1);
    OK(ncclCommAbort(both.second.comm));
    pthread_join(both.thread, NULL);
    end(&both.first);
    end(&both.second);
}

static void aborting_waits_for_other_communicators_where_that_is_asked_for(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_abort_waits_for_device(1);
    simcuda_fault("ncclAllReduce", 0, 1, SIMCUDA_HANGS, 0);
    simcuda_fault("ncclAllReduce", 0, 2, SIMCUDA_HANGS, 0);
    run(1, abort_one_after_the_other);
}

static void disagree(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    OK(begin(&s, ranks, context, 1));
    OK(ncclAllReduce(s.values, s.values, rank == 0 ? ELEMENTS : ELEMENTS / 2, ncclFloat32, ncclSum, s.comm, s.stream));
    CHECK(wait_for_error(s.comm) == ncclInvalidUsage);
    OK(ncclCommAbort(s.comm));
    end(&s);
}

static void reports_ranks_that_disagree(void **state) {
    (void)state;
    simcuda_reset();
    run(2, disagree);
    simcuda_report report;
    assert_true(simcuda_reports(&report, 1) > 0);
    assert_int_equal(report.kind, SIMCUDA_MISMATCH);
    assert_non_null(strstr(report.text, "ncclAllReduce of 256 elements"));
    assert_non_null(strstr(report.text, "ncclAllReduce of 128 elements"));
    assert_non_null(strstr(report.text, "rank 0"));
    assert_non_null(strstr(report.text, "rank 1"));
}

static void share_a_device(int rank, int ranks, void *context) {
    side s = {.rank = rank};
    const ncclResult_t result = begin(&s, ranks, context, 1);
    CHECK(result == (rank == 0 ? ncclSuccess : ncclInvalidUsage));
    if (rank == 0) {
        OK(ncclCommAbort(s.comm));
    } else {
        CHECK(strstr(ncclGetLastError(NULL), "duplicate GPU") != NULL);
    }
    end(&s);
}

static void refuses_two_ranks_on_one_device(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_set_bus_id(1, "0000:aa:00.0");
    simcuda_set_bus_id(2, "0000:aa:00.0");
    run(3, share_a_device);
}

static void reports_freed_memory_that_is_still_registered(void **state) {
    (void)state;
    simcuda_reset();
    ncclUniqueId id;
    side s = {.rank = 0};
    void *memory = NULL;
    void *handle = NULL;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(begin(&s, 1, &id, 1), ncclSuccess);
    assert_int_equal(ncclMemAlloc(&memory, 64), ncclSuccess);
    assert_int_equal(ncclCommRegister(s.comm, memory, 64, &handle), ncclSuccess);
    assert_int_equal(ncclMemFree(memory), ncclSuccess);
    simcuda_report report;
    assert_int_equal(simcuda_reports(&report, 1), 1);
    assert_int_equal(report.kind, SIMCUDA_REGISTERED);

    simcuda_fault("ncclMemAlloc", SIMCUDA_ANY_RANK, 1, SIMCUDA_RETURNS, ncclUnhandledCudaError);
    assert_int_equal(ncclMemAlloc(&memory, 64), ncclUnhandledCudaError);
    assert_int_equal(ncclCommDeregister(s.comm, handle), ncclSuccess);
    assert_int_equal(ncclCommDeregister(s.comm, handle), ncclInvalidArgument);
    assert_int_equal(ncclCommDestroy(s.comm), ncclSuccess);
    end(&s);
}

static void reports_versions_as_asked_for(void **state) {
    (void)state;
    simcuda_reset();
    int version = 0;
    assert_int_equal(ncclGetVersion(&version), ncclSuccess);
    assert_int_equal(version, NCCL_VERSION_CODE);
    simcuda_set_nccl_version(21805);
    assert_int_equal(ncclGetVersion(&version), ncclSuccess);
    assert_int_equal(version, 21805);
    simcuda_set_driver_version(12020);
    assert_int_equal(cudaDriverGetVersion(&version), cudaSuccess);
    assert_int_equal(version, 12020);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_non_blocking_communicator_is_in_progress_until_it_was_asked_often_enough),
        cmocka_unit_test(an_event_recorded_while_a_collective_is_in_progress_misses_it),
        cmocka_unit_test(an_init_that_fails_on_one_rank_never_ends_on_the_other_but_can_be_aborted),
        cmocka_unit_test(an_init_can_fail_or_hang_after_its_call),
        cmocka_unit_test(a_collective_that_fails_on_one_rank_hangs_on_the_other_until_it_is_aborted),
        cmocka_unit_test(the_others_notice_where_that_is_asked_for),
        cmocka_unit_test(a_hung_collective_and_what_is_behind_it_can_be_aborted),
        cmocka_unit_test(a_revoked_communicator_lets_its_operations_end),
        cmocka_unit_test(aborting_waits_for_other_communicators_where_that_is_asked_for),
        cmocka_unit_test(reports_ranks_that_disagree),
        cmocka_unit_test(refuses_two_ranks_on_one_device),
        cmocka_unit_test(reports_freed_memory_that_is_still_registered),
        cmocka_unit_test(reports_versions_as_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
