/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_threads.h"
#include "simcuda.h"

#include <nccl.h>
#include <sched.h>
#include <string.h>

enum { ELEMENTS = 512, RANKS = 4 };

typedef struct side {
    int rank;
    int ranks;
    ncclComm_t comm;
    cudaStream_t stream;
    float *from; /* on the device, ELEMENTS for each rank */
    float *to;
    float *host;
} side;

static void open_memory(side *s) {
    const size_t count = (size_t)s->ranks * ELEMENTS;
    OK(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&s->from, count * sizeof(float)));
    OK(cudaMalloc((void **)&s->to, count * sizeof(float)));
    OK(cudaMallocHost((void **)&s->host, count * sizeof(float)));
    for (size_t i = 0; i < count; i++) {
        s->host[i] = (float)(s->rank * 100 + (int)(i / ELEMENTS));
    }
    OK(cudaMemcpyAsync(s->from, s->host, count * sizeof(float), cudaMemcpyHostToDevice, s->stream));
    OK(cudaStreamSynchronize(s->stream));
}

static void close_memory(side *s) {
    OK(cudaStreamSynchronize(s->stream));
    OK(cudaFree(s->from));
    OK(cudaFree(s->to));
    OK(cudaFreeHost(s->host));
    OK(cudaStreamDestroy(s->stream));
}

/* The first value of each rank's part. */
static float value(side *s, int part) {
    float result = 0;
    OK(cudaMemcpyAsync(&result, s->to + (size_t)part * ELEMENTS, sizeof result, cudaMemcpyDeviceToHost, s->stream));
    OK(cudaStreamSynchronize(s->stream));
    return result;
}

static void run(int ranks, rank_function *function) {
    ncclUniqueId id;
    simcuda_reset();
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    run_rank_threads(ranks, function, &id);
}

/* All to all, in an order of calls that would hang if each waited for the one before. */
static void exchange(int rank, int ranks, void *context) {
    side s = {.rank = rank, .ranks = ranks};
    open_memory(&s);
    OK(ncclCommInitRank(&s.comm, ranks, *(ncclUniqueId *)context, rank));
    OK(ncclGroupStart());
    for (int peer = 0; peer < ranks; peer++) {
        OK(ncclSend(s.from + (size_t)peer * ELEMENTS, ELEMENTS, ncclFloat32, peer, s.comm, s.stream));
    }
    CHECK(cudaStreamQuery(s.stream) == cudaSuccess); /* nothing happens before the end */
    for (int peer = 0; peer < ranks; peer++) {
        OK(ncclRecv(s.to + (size_t)peer * ELEMENTS, ELEMENTS, ncclFloat32, peer, s.comm, s.stream));
    }
    OK(ncclGroupEnd());
    for (int peer = 0; peer < ranks; peer++) {
        CHECK(value(&s, peer) == (float)(peer * 100 + rank));
    }
    OK(ncclCommDestroy(s.comm));
    close_memory(&s);
}

static void sends_and_receives_of_a_group_happen_together(void **state) {
    (void)state;
    run(RANKS, exchange);
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

static void send_without_group(int rank, int ranks, void *context) {
    side s = {.rank = rank, .ranks = ranks};
    open_memory(&s);
    OK(ncclCommInitRank(&s.comm, ranks, *(ncclUniqueId *)context, rank));
    OK(ncclSend(s.from, ELEMENTS, ncclFloat32, 1 - rank, s.comm, s.stream));
    OK(ncclRecv(s.to, ELEMENTS, ncclFloat32, 1 - rank, s.comm, s.stream));
    for (int i = 0; i < 1000; i++) {
        CHECK(cudaStreamQuery(s.stream) == cudaErrorNotReady);
        sched_yield();
    }
    OK(ncclCommAbort(s.comm));
    close_memory(&s);
}

static void two_ranks_that_both_send_first_hang_without_a_group(void **state) {
    (void)state;
    run(2, send_without_group);
}

/* One thread that owns the communicators of several devices. */
static void a_group_begins_and_uses_the_communicators_of_several_ranks_on_one_thread(void **state) {
    (void)state;
    simcuda_reset();
    ncclUniqueId id;
    side sides[RANKS] = {{0}};
    OK(ncclGetUniqueId(&id));
    for (int rank = 0; rank < RANKS; rank++) {
        OK(cudaSetDevice(rank));
        sides[rank] = (side){.rank = rank, .ranks = RANKS};
        open_memory(&sides[rank]);
    }
    OK(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(cudaSetDevice(rank));
        OK(ncclCommInitRank(&sides[rank].comm, RANKS, id, rank));
    }
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    OK(ncclGroupStart()); /* groups nest */
    for (int rank = 0; rank < RANKS; rank++) {
        side *const s = &sides[rank];
        OK(ncclAllReduce(s->from, s->to, ELEMENTS, ncclFloat32, ncclSum, s->comm, s->stream));
        OK(ncclBroadcast(s->from, s->to + ELEMENTS, ELEMENTS, ncclFloat32, 2, s->comm, s->stream));
    }
    OK(ncclGroupEnd());
    OK(ncclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++) {
        side *const s = &sides[rank];
        int device = -1;
        OK(ncclCommCuDevice(s->comm, &device));
        CHECK(device == rank);
        OK(cudaSetDevice(rank));
        CHECK(value(s, 0) == 600);
        CHECK(value(s, 1) == 200);
        OK(ncclCommDestroy(s->comm));
        close_memory(s);
    }
    OK(cudaSetDevice(0));
    assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
    assert_int_equal(atomic_exchange(&rank_failures, 0), 0);
}

static void refuse(int rank, int ranks, void *context) {
    side s = {.rank = rank, .ranks = ranks};
    open_memory(&s);
    OK(ncclCommInitRank(&s.comm, ranks, *(ncclUniqueId *)context, rank));
    OK(ncclGroupStart());
    OK(ncclAllReduce(s.from, s.to, ELEMENTS, ncclFloat32, ncclSum, s.comm, s.stream));
    CHECK(ncclSend(s.from, ELEMENTS, ncclFloat32, ranks, s.comm, s.stream) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(cudaStreamQuery(s.stream) == cudaSuccess); /* nothing of the group was enqueued */
    OK(ncclCommDestroy(s.comm));
    close_memory(&s);
}

static void a_group_with_a_wrong_call_does_nothing(void **state) {
    (void)state;
    run(2, refuse);
}

static float sum_in(ncclComm_t comm, side *s) {
    OK(ncclAllReduce(s->from, s->to, ELEMENTS, ncclFloat32, ncclSum, comm, s->stream));
    return value(s, 0);
}

/* Even and odd ranks, each in reverse order; rank 3 in neither. */
static void split(int rank, int ranks, void *context) {
    side s = {.rank = rank, .ranks = ranks};
    ncclComm_t child = NULL;
    open_memory(&s);
    OK(ncclCommInitRank(&s.comm, ranks, *(ncclUniqueId *)context, rank));
    for (int round = 0; round < 3; round++) {
        OK(ncclCommSplit(s.comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : rank % 2, -rank, &child, NULL));
        CHECK((child == NULL) == (rank == 3));
        if (child != NULL) {
            int child_rank = -1;
            int child_count = -1;
            OK(ncclCommUserRank(child, &child_rank));
            OK(ncclCommCount(child, &child_count));
            CHECK(child_count == (rank == 1 ? 1 : 2));
            CHECK(child_rank == (rank == 0 ? 1 : 0));
            CHECK(sum_in(child, &s) == (rank == 1 ? 100 : 200));
            OK(ncclCommDestroy(child));
        }
    }
    CHECK(sum_in(s.comm, &s) == 600);
    OK(ncclCommDestroy(s.comm));
    close_memory(&s);
}

static void splits_by_color_and_key(void **state) {
    (void)state;
    run(RANKS, split);
    assert_int_equal(simcuda_objects(), 0);
}

/* Rank 1 has left without a word, in the middle of a reduction. */
static void shrink(int rank, int ranks, void *context) {
    side s = {.rank = rank, .ranks = ranks};
    ncclComm_t child = NULL;
    int excluded[] = {1};
    open_memory(&s);
    OK(ncclCommInitRank(&s.comm, ranks, *(ncclUniqueId *)context, rank));
    if (rank != 1) {
        OK(ncclAllReduce(s.from, s.to, ELEMENTS, ncclFloat32, ncclSum, s.comm, s.stream));
        OK(ncclCommShrink(s.comm, excluded, 1, &child, NULL, NCCL_SHRINK_ABORT));
        CHECK(sum_in(child, &s) == 500);
        int child_rank = -1;
        OK(ncclCommUserRank(child, &child_rank));
        CHECK(child_rank == (rank == 0 ? 0 : rank - 1));
        OK(ncclCommDestroy(child));
    }
    OK(ncclCommAbort(s.comm));
    close_memory(&s);
}

static void shrinks_to_the_survivors(void **state) {
    (void)state;
    run(RANKS, shrink);
    assert_int_equal(simcuda_objects(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sends_and_receives_of_a_group_happen_together),
        cmocka_unit_test(two_ranks_that_both_send_first_hang_without_a_group),
        cmocka_unit_test(a_group_begins_and_uses_the_communicators_of_several_ranks_on_one_thread),
        cmocka_unit_test(a_group_with_a_wrong_call_does_nothing),
        cmocka_unit_test(splits_by_color_and_key),
        cmocka_unit_test(shrinks_to_the_survivors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
