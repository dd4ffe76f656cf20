/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */
#include "rank_threads.h"
#include "simcuda.h"

#include <nccl.h>
#include <string.h>

/* Below, at and above what one message between two ranks carries, and not a multiple of the ranks. */
static const size_t counts[] = {1, 7, 1000, 40001};
enum { COUNTS = sizeof counts / sizeof counts[0], COUNT_MAX = 40001 };

typedef struct side {
    int rank;
    int ranks;
    ncclComm_t comm;
    cudaStream_t stream;
    float *from; /* on the device, ranks * COUNT_MAX elements */
    float *to;
    float *host; /* as many, page-locked */
} side;

static float value_of(int rank, size_t i) {
    return (float)((int)(i % 37) - 18) * (float)(rank + 1);
}

static void open_side(side *s, const ncclUniqueId *id) {
    const size_t bytes = (size_t)s->ranks * COUNT_MAX * sizeof(float);
    OK(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    OK(ncclCommInitRank(&s->comm, s->ranks, *id, s->rank));
    OK(cudaMalloc((void **)&s->from, bytes));
    OK(cudaMalloc((void **)&s->to, bytes));
    OK(cudaMallocHost((void **)&s->host, bytes));
    for (size_t i = 0; i < (size_t)s->ranks * COUNT_MAX; i++) {
        s->host[i] = value_of(s->rank, i);
    }
    OK(cudaMemcpyAsync(s->from, s->host, bytes, cudaMemcpyHostToDevice, s->stream));
    OK(cudaStreamSynchronize(s->stream));
}

static void close_side(side *s) {
    OK(cudaStreamSynchronize(s->stream));
    OK(ncclCommDestroy(s->comm));
    OK(cudaFree(s->from));
    OK(cudaFree(s->to));
    OK(cudaFreeHost(s->host));
    OK(cudaStreamDestroy(s->stream));
    CHECK(simcuda_reports(NULL, 0) == 0);
}

static const float *result(side *s, size_t count) {
    OK(cudaMemcpyAsync(s->host, s->to, count * sizeof(float), cudaMemcpyDeviceToHost, s->stream));
    OK(cudaStreamSynchronize(s->stream));
    return s->host;
}

static float sum_of(int ranks, size_t i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; rank++) {
        sum += value_of(rank, i);
    }
    return sum;
}

static void check_all_reduce(side *s, size_t count) {
    OK(ncclAllReduce(s->from, s->to, count, ncclFloat32, ncclSum, s->comm, s->stream));
    const float *values = result(s, count);
    for (size_t i = 0; i < count; i++) {
        CHECK(values[i] == sum_of(s->ranks, i));
    }
}

static void check_reduce_scatter(side *s, size_t count) {
    OK(ncclReduceScatter(s->from, s->to, count, ncclFloat32, ncclMax, s->comm, s->stream));
    const float *values = result(s, count);
    for (size_t i = 0; i < count; i++) {
        const size_t index = (size_t)s->rank * count + i;
        const float first = value_of(0, index);
        const float last = value_of(s->ranks - 1, index);
        CHECK(values[i] == (first > last ? first : last));
    }
}

static void check_all_gather(side *s, size_t count) {
    OK(ncclAllGather(s->from, s->to, count, ncclFloat32, s->comm, s->stream));
    const float *values = result(s, count * (size_t)s->ranks);
    for (size_t i = 0; i < count * (size_t)s->ranks; i++) {
        CHECK(values[i] == value_of((int)(i / count), i % count));
    }
}

static void check_broadcast(side *s, size_t count) {
    for (int root = 0; root < s->ranks; root++) {
        OK(ncclBroadcast(s->from, s->to, count, ncclFloat32, root, s->comm, s->stream));
        const float *values = result(s, count);
        for (size_t i = 0; i < count; i++) {
            CHECK(values[i] == value_of(root, i));
        }
    }
}

static void check_all_to_all(side *s, size_t count) {
    OK(ncclAlltoAll(s->from, s->to, count, ncclFloat32, s->comm, s->stream));
    const float *values = result(s, count * (size_t)s->ranks);
    for (size_t i = 0; i < count * (size_t)s->ranks; i++) {
        CHECK(values[i] == value_of((int)(i / count), (size_t)s->rank * count + i % count));
    }
}

static void check_send_and_receive(side *s, size_t count) {
    const int next = (s->rank + 1) % s->ranks;
    const int before = (s->rank + s->ranks - 1) % s->ranks;
    OK(ncclGroupStart());
    OK(ncclSend(s->from, count, ncclFloat32, next, s->comm, s->stream));
    OK(ncclRecv(s->to, count, ncclFloat32, before, s->comm, s->stream));
    OK(ncclGroupEnd());
    const float *values = result(s, count);
    for (size_t i = 0; i < count; i++) {
        CHECK(values[i] == value_of(before, i));
    }
}

static void check_all(int rank, int ranks, void *context) {
    side s = {.rank = rank, .ranks = ranks};
    open_side(&s, context);
    for (size_t c = 0; c < COUNTS; c++) {
        check_all_reduce(&s, counts[c]);
        check_reduce_scatter(&s, counts[c]);
        check_all_gather(&s, counts[c]);
        check_broadcast(&s, counts[c]);
        check_all_to_all(&s, counts[c]);
        check_send_and_receive(&s, counts[c]);
    }
    close_side(&s);
}

/* First, since its processes begin as copies of this one. */
static void agree_with_a_serial_oracle_on_ranks_that_are_processes(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        ncclUniqueId id;
        assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
        run_rank_processes(ranks, check_all, &id);
    }
}

static void agree_with_a_serial_oracle_on_ranks_that_are_threads(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        ncclUniqueId id;
        simcuda_reset();
        assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
        run_rank_threads(ranks, check_all, &id);
    }
}

/* Half: 2048 + 1 rounds to 2048, so only the order in which the ring adds gives these values. Element c is the whole of
 * part c: its sum begins on rank c + 1 and ends on rank c. */
static void check_ring_order(int rank, int ranks, void *context) {
    static const uint16_t one = 0x3C00;
    static const uint16_t big = 0x6800; /* 2048 */
    side s = {.rank = rank, .ranks = ranks};
    open_side(&s, context);
    uint16_t *halves = (uint16_t *)s.host;
    for (int i = 0; i < ranks; i++) {
        halves[i] = rank == 0 ? big : one;
    }
    OK(cudaMemcpyAsync(s.from, halves, sizeof(uint16_t) * (size_t)ranks, cudaMemcpyHostToDevice, s.stream));
    OK(ncclAllReduce(s.from, s.to, (size_t)ranks, ncclFloat16, ncclSum, s.comm, s.stream));
    halves = (uint16_t *)(uintptr_t)result(&s, (size_t)ranks);
    CHECK(halves[0] == 0x6802); /* ((1 + 1) + 1) + 2048 = 2051, halfway between 2050 and 2052, to the even one */
    CHECK(halves[1] == 0x6802); /* ((1 + 1) + 2048) + 1 */
    CHECK(halves[2] == 0x6800); /* ((1 + 2048) + 1) + 1: three times 2049, halfway between 2048 and 2050 */
    CHECK(halves[3] == 0x6800); /* ((2048 + 1) + 1) + 1 */
    close_side(&s);
}

static void add_halves_in_the_order_of_the_ring_and_round_each_time(void **state) {
    (void)state;
    ncclUniqueId id;
    simcuda_reset();
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    run_rank_threads(4, check_ring_order, &id);
}

/* The mean multiplies first, by 1/3 rounded to the type: in bfloat16 that is 0.33398, and 3 times 3 of it is 3.0. */
static void check_means(int rank, int ranks, void *context) {
    side s = {.rank = rank, .ranks = ranks};
    open_side(&s, context);
    uint16_t *values = (uint16_t *)s.host;
    values[0] = 0x3F80; /* 1 */
    OK(cudaMemcpyAsync(s.from, values, sizeof(uint16_t), cudaMemcpyHostToDevice, s.stream));
    OK(ncclAllReduce(s.from, s.to, 1, ncclBfloat16, ncclAvg, s.comm, s.stream));
    values = (uint16_t *)(uintptr_t)result(&s, 1);
    CHECK(values[0] == 0x3F80); /* 3 * 0.333984375 = 1.001953125, which rounds to 1 */

    ncclRedOp_t op;
    float factor = 0.5F;
    OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, s.comm));
    s.host[0] = 3;
    OK(cudaMemcpyAsync(s.from, s.host, sizeof(float), cudaMemcpyHostToDevice, s.stream));
    OK(ncclAllReduce(s.from, s.to, 1, ncclFloat32, op, s.comm, s.stream));
    OK(ncclRedOpDestroy(op, s.comm));
    CHECK(result(&s, 1)[0] == 1.5F * (float)ranks);
    CHECK(ncclAllReduce(s.from, s.to, 1, ncclFloat32, op, s.comm, s.stream) == ncclInvalidArgument);
    close_side(&s);
}

static void multiply_before_they_add_where_that_is_asked_for(void **state) {
    (void)state;
    ncclUniqueId id;
    simcuda_reset();
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    run_rank_threads(3, check_means, &id);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agree_with_a_serial_oracle_on_ranks_that_are_processes),
        cmocka_unit_test(agree_with_a_serial_oracle_on_ranks_that_are_threads),
        cmocka_unit_test(add_halves_in_the_order_of_the_ring_and_round_each_time),
        cmocka_unit_test(multiply_before_they_add_where_that_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
