/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=180 */
#include "opened_ranks.h"

/* What goes wrong in NCCL on one rank ends on all, in time, and leaves nothing behind. */

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

/* ---- opening ---- */

static void fail_to_open(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_ERR_TRANSPORT);
    CHECK_SAYS("rank 1");
    CHECK_SAYS("ncclCommInitRankConfig failed: unhandled system error");
    CHECK(self->nccl == NULL);
    check_in_time();
}

static void an_init_that_fails_on_one_rank_fails_on_all_with_its_words(void **state) {
    (void)state;
    begin_clock();
    simcuda_fault("ncclCommInitRankConfig", 1, 1, SIMCUDA_RETURNS, ncclSystemError);
    run_opened_ranks(RANKS, &impatient, fail_to_open);
    expect_nothing_left();
}

static void fail_to_open_later(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_ERR_TRANSPORT);
    CHECK_SAYS("rank 2");
    check_in_time();
}

static void an_init_that_fails_later_fails_on_all(void **state) {
    (void)state;
    begin_clock();
    simcuda_fault("ncclCommInitRankConfig", 2, 1, SIMCUDA_FAILS_LATER, ncclInternalError);
    run_opened_ranks(RANKS, &impatient, fail_to_open_later);
    expect_nothing_left();
}

static void time_out_in_opening(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_ERR_TIMEOUT);
    CHECK_SAYS("NCCL has not connected the ranks within 1500 ms");
    check_in_time();
}

static void an_init_that_hangs_on_one_rank_times_out_on_all(void **state) {
    (void)state;
    begin_clock();
    simcuda_fault("ncclCommInitRankConfig", 0, 1, SIMCUDA_HANGS, 0);
    run_opened_ranks(RANKS, &impatient, time_out_in_opening);
    expect_nothing_left();
}

static void stay_away(opened_rank *self) {
    if (self->rank != 3) {
        /* The first whose deadline passes tells the other ranks of the host. */
        CHECK_EITHER(open_nccl(self), GSYNC_ERR_TIMEOUT, GSYNC_ERR_ABORTED);
        CHECK_SAYS("rank 3 did not arrive");
        check_in_time();
    } else {
        while (gs_clock_ns() - atomic_load(&begun_ns) < (uint64_t)(TIMEOUT_MS + 200) * 1000000u) {
            gs_nccl_nap();
        }
    }
}

static void a_rank_that_never_opens_is_named_by_the_others(void **state) {
    (void)state;
    begin_clock();
    run_opened_ranks(RANKS, &impatient, stay_away);
    expect_nothing_left();
}

static void cannot(opened_rank *self) {
    if (self->rank == 1) {
        self->wish.own = gs_fail(GSYNC_ERR_MEMORY, "no memory for buckets");
    }
    CHECK_STATUS(open_nccl(self), GSYNC_ERR_MEMORY);
    CHECK_SAYS("rank 1: no memory for buckets");
    check_in_time();
}

static void a_rank_that_cannot_take_part_tells_the_others(void **state) {
    (void)state;
    begin_clock();
    run_opened_ranks(RANKS, &impatient, cannot);
    assert_int_equal(simcuda_calls("ncclCommInitRankConfig"), 0);
    expect_nothing_left();
}

static void lack_memory_in_opening(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_ERR_MEMORY);
    CHECK_SAYS("rank 1");
    CHECK_SAYS("out of memory");
    CHECK(self->nccl == NULL);
    check_in_time();
}

static void memory_that_nccl_lacks_on_one_rank_fails_on_all(void **state) {
    (void)state;
    static const simcuda_effect effects[] = {SIMCUDA_RETURNS, SIMCUDA_FAILS_LATER};
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++) {
        begin_clock();
        simcuda_fault("ncclCommInitRankConfig", 1, 1, effects[i], ncclUnhandledCudaError);
        run_opened_ranks(RANKS, &impatient, lack_memory_in_opening);
        expect_nothing_left();
    }
}

static void open_again(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_ERR_TRANSPORT);
    CHECK_STATUS(open_nccl(self), GSYNC_OK);
    check_in_time();
}

static void after_a_failed_opening_another_may_succeed(void **state) {
    (void)state;
    begin_clock();
    simcuda_fault("ncclCommInitRankConfig", 0, 1, SIMCUDA_RETURNS, ncclSystemError);
    run_opened_ranks(2, &impatient, open_again);
    expect_nothing_left();
}

/* ---- two ranks on one GPU ---- */

static void share(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_ERR_ARGUMENT);
    CHECK_SAYS("ranks 1 and 3 are both on GPU 0000:aa:00.0");
    CHECK(self->nccl == NULL);
}

static void GS_90_two_ranks_on_one_gpu_are_named_before_nccl_is_asked(void **state) {
    (void)state;
    begin_clock();
    simcuda_set_bus_id(1, "0000:aa:00.0");
    simcuda_set_bus_id(3, "0000:aa:00.0");
    run_opened_ranks(RANKS, &impatient, share);
    assert_int_equal(simcuda_calls("ncclCommInitRankConfig"), 0);
    expect_nothing_left();
}

/* ---- in a step ---- */

/* This rank's memory on the device; what a failed communicator may still touch is not freed by it. */
static void *memory_of(opened_rank *self) {
    void *memory = NULL;
    CHECK_STATUS(gs_cuda_new(self->cuda, &memory, 4096, "bucket"), GSYNC_OK);
    return memory;
}

static void close_nccl(opened_rank *self) {
    CHECK(!gs_nccl_close(self->nccl));
    self->nccl = NULL;
}

static gsync_status reduce_once(opened_rank *self, void *memory) {
    GS_TRY(gs_nccl_all_reduce(self->nccl, memory, 1024, GSYNC_FLOAT32, 1, self->stream));
    return wait_for_stream(self);
}

static void lose_a_peer(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_OK);
    void *memory = memory_of(self);
    CHECK_STATUS(reduce_once(self, memory), self->rank == 2 ? GSYNC_ERR_TRANSPORT : GSYNC_ERR_PEER_LOST);
    CHECK_SAYS(self->rank == 2 ? "system error" : "remote process exited");
    gs_nccl_abort(self->nccl);
    CHECK_STATUS(gs_nccl_check(self->nccl), GSYNC_ERR_ABORTED);
    close_nccl(self);
    gs_cuda_free(self->cuda, memory);
    check_in_time();
}

static void an_error_of_one_rank_is_a_lost_peer_to_the_others(void **state) {
    (void)state;
    begin_clock();
    simcuda_peers_notice(1);
    simcuda_fault("ncclAllReduce", 2, 1, SIMCUDA_FAILS_LATER, ncclSystemError);
    run_opened_ranks(RANKS, &impatient, lose_a_peer);
    expect_nothing_left();
}

static void fail_at_once(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_OK);
    void *memory = memory_of(self);
    const gsync_status status = gs_nccl_all_reduce(self->nccl, memory, 1024, GSYNC_FLOAT32, 1, self->stream);
    CHECK(status == (self->rank == 0 ? GSYNC_ERR_MEMORY : GSYNC_OK)); /* NCCL connects ranks when they first speak */
    close_nccl(self);
    gs_cuda_free(self->cuda, memory);
    check_in_time();
}

static void a_call_that_is_refused_on_one_rank_can_be_closed_on_all(void **state) {
    (void)state;
    begin_clock();
    simcuda_fault("ncclAllReduce", 0, 1, SIMCUDA_RETURNS, ncclUnhandledCudaError);
    run_opened_ranks(RANKS, &impatient, fail_at_once);
    expect_nothing_left();
}

/* ---- leaving ---- */

static void leave_alone(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_OK);
    void *memory = memory_of(self);
    if (self->rank == 0) {
        CHECK_STATUS(gs_nccl_all_reduce(self->nccl, memory, 1024, GSYNC_FLOAT32, 1, self->stream), GSYNC_OK);
    }
    close_nccl(self);
    CHECK(!gs_nccl_close(self->nccl));
    gs_cuda_free(self->cuda, memory);
    check_in_time();
}

static void GS_64_closing_with_work_in_flight_is_bounded(void **state) {
    (void)state;
    begin_clock();
    run_opened_ranks(2, &impatient, leave_alone);
    expect_nothing_left();
}

/* Two communicators, each with work that nobody else takes part in; the device is not idle before both are aborted. */
static void abort_both(opened_rank *self, bool first_goes_first) {
    gs_nccl *pair[2] = {NULL, NULL};
    void *streams[2];
    void *memory[2];
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(open_nccl(self), GSYNC_OK);
        pair[i] = self->nccl;
        self->nccl = NULL;
        memory[i] = memory_of(self);
        CHECK_STATUS(gs_cuda_stream_new(self->cuda, true, &streams[i]), GSYNC_OK);
    }
    for (int i = 0; i < 2 && self->rank == 0; i++) {
        CHECK_STATUS(gs_nccl_all_reduce(pair[i], memory[i], 1024, GSYNC_FLOAT32, 1, streams[i]), GSYNC_OK);
    }
    atomic_store(&begun_ns, gs_clock_ns());
    for (int i = 0; i < 2; i++) {
        gs_nccl_abort(pair[first_goes_first ? i : 1 - i]);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(!gs_nccl_close(pair[first_goes_first ? i : 1 - i]));
    }
    check_in_time();
    for (int i = 0; i < 2; i++) {
        gs_cuda_free(self->cuda, memory[i]);
        gs_cuda_stream_free(self->cuda, streams[i]);
    }
}

static void abort_in_order(opened_rank *self) {
    abort_both(self, true);
}

static void abort_in_reverse(opened_rank *self) {
    abort_both(self, false);
}

static void GS_65_several_communicators_abort_in_any_order(void **state) {
    (void)state;
    opened_rank_function *const orders[] = {abort_in_order, abort_in_reverse};
    for (int i = 0; i < 2; i++) {
        begin_clock();
        simcuda_abort_waits_for_device(1);
        run_opened_ranks(2, &impatient, orders[i]);
        expect_nothing_left();
    }
}

/* Only one of the two is closed, and the other keeps the device at work. */
static void close_one(opened_rank *self) {
    CHECK_STATUS(open_nccl(self), GSYNC_OK);
    gs_nccl *other = self->nccl;
    void *memory[2] = {memory_of(self), memory_of(self)};
    void *stream = NULL;
    CHECK_STATUS(gs_cuda_stream_new(self->cuda, true, &stream), GSYNC_OK);
    CHECK_STATUS(open_nccl(self), GSYNC_OK);
    if (self->rank == 0) {
        CHECK_STATUS(gs_nccl_all_reduce(other, memory[0], 1024, GSYNC_FLOAT32, 1, stream), GSYNC_OK);
        CHECK_STATUS(gs_nccl_all_reduce(self->nccl, memory[1], 1024, GSYNC_FLOAT32, 1, self->stream), GSYNC_OK);
        atomic_store(&begun_ns, gs_clock_ns());
        CHECK(gs_nccl_close(self->nccl)); /* not yet */
        check_in_time();
        self->nccl = NULL;
    }
    CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
    gs_nccl_abort(other);
    CHECK(!gs_nccl_close(other));
    if (self->nccl != NULL) {
        close_nccl(self);
    }
    gs_cuda_stream_free(self->cuda, stream);
    gs_cuda_free(self->cuda, memory[0]);
    gs_cuda_free(self->cuda, memory[1]);
}

static void GS_65_closing_one_says_when_the_device_is_still_at_it(void **state) {
    (void)state;
    static const gsync_comm_options patient = {.struct_size = sizeof patient, .timeout_ms = 10000};
    begin_clock();
    simcuda_abort_waits_for_device(1);
    run_opened_ranks(2, &patient, close_one);
    expect_nothing_left();
}

static void a_remote_error_in_a_step_is_a_lost_peer(void **state) {
    (void)state;
    begin_clock();
    simcuda_peers_notice(1);
    simcuda_fault("ncclAllReduce", 1, 1, SIMCUDA_FAILS_LATER, ncclRemoteError);
    run_opened_ranks(2, &impatient, lose_a_peer);
    expect_nothing_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_init_that_fails_on_one_rank_fails_on_all_with_its_words),
        cmocka_unit_test(an_init_that_fails_later_fails_on_all),
        cmocka_unit_test(an_init_that_hangs_on_one_rank_times_out_on_all),
        cmocka_unit_test(a_rank_that_never_opens_is_named_by_the_others),
        cmocka_unit_test(a_rank_that_cannot_take_part_tells_the_others),
        cmocka_unit_test(memory_that_nccl_lacks_on_one_rank_fails_on_all),
        cmocka_unit_test(after_a_failed_opening_another_may_succeed),
        cmocka_unit_test(GS_90_two_ranks_on_one_gpu_are_named_before_nccl_is_asked),
        cmocka_unit_test(an_error_of_one_rank_is_a_lost_peer_to_the_others),
        cmocka_unit_test(a_remote_error_in_a_step_is_a_lost_peer),
        cmocka_unit_test(a_call_that_is_refused_on_one_rank_can_be_closed_on_all),
        cmocka_unit_test(GS_64_closing_with_work_in_flight_is_bounded),
        cmocka_unit_test(GS_65_several_communicators_abort_in_any_order),
        cmocka_unit_test(GS_65_closing_one_says_when_the_device_is_still_at_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
