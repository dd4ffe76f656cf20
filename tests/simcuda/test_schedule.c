/* SPDX-License-Identifier: Apache-2.0 */
#include "two_streams.h"

#include <math.h>
#include <sched.h>
#include <string.h>

enum { STREAMS = 3, EACH = 4, OPERATIONS = STREAMS * EACH };

/* Which operation ran when. */
typedef struct diary {
    atomic_int length;
    int entries[OPERATIONS];
} diary;

typedef struct note_arguments {
    diary *journal;
    int entry;
} note_arguments;

static void note(void *argument) {
    const note_arguments *const a = argument;
    a->journal->entries[atomic_fetch_add(&a->journal->length, 1)] = a->entry;
}

static void note_on(cudaStream_t stream, diary *journal, int entry) {
    const note_arguments arguments = {journal, entry};
    assert_int_equal(simcuda_launch(stream, note, &arguments, sizeof arguments, "note", NULL, 0), cudaSuccess);
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

/* The same work on the same streams, enqueued in the same order. */
static void run_with_seed(uint64_t seed, cudaStream_t *streams, diary *journal) {
    simcuda_schedule(seed);
    atomic_store(&journal->length, 0);
    for (int i = 0; i < OPERATIONS; i++) {
        note_on(streams[i % STREAMS], journal, i);
    }
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(atomic_load(&journal->length), OPERATIONS);
}

static void keeps_the_order_within_streams(const diary *journal) {
    int next[STREAMS] = {0};
    for (int i = 0; i < OPERATIONS; i++) {
        const int stream = journal->entries[i] % STREAMS;
        assert_int_equal(journal->entries[i] / STREAMS, next[stream]++);
    }
}

/* A fresh process for each run: the order also follows from how much the streams have run before. */
static void write_order(uint64_t seed, int end) {
    cudaStream_t streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = new_stream();
    }
    diary journal;
    run_with_seed(seed, streams, &journal);
    keeps_the_order_within_streams(&journal);
    if (write(end, journal.entries, sizeof journal.entries) != (ssize_t)sizeof journal.entries) {
        _exit(1);
    }
}

static void read_order(uint64_t seed, int *entries) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        write_order(seed, ends[1]);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
    assert_int_equal(read(ends[0], entries, sizeof(int) * OPERATIONS), sizeof(int) * OPERATIONS);
    close(ends[0]);
    close(ends[1]);
}

static void a_seed_gives_an_order_and_different_seeds_give_different_ones(void **state) {
    (void)state;
    int different = 0;
    int first[OPERATIONS];
    int before[OPERATIONS] = {0};
    int again[OPERATIONS];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        read_order(seed, first);
        read_order(seed, again);
        if (memcmp(first, again, sizeof first) != 0) {
            fail_msg("seed %llu gives two orders", (unsigned long long)seed);
        }
        different += memcmp(first, before, sizeof first) != 0;
        memcpy(before, first, sizeof first);
    }
    assert_true(different > 15);
}

static void a_held_stream_does_nothing_and_the_others_go_on(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        simcuda_reset();
        simcuda_schedule(seed);
        cudaStream_t held = new_stream();
        cudaStream_t other = new_stream();
        diary journal = {0};
        simcuda_hold(held);
        note_on(held, &journal, 1);
        note_on(other, &journal, 2);
        assert_int_equal(cudaStreamSynchronize(other), cudaSuccess);
        assert_int_equal(atomic_load(&journal.length), 1);
        assert_int_equal(journal.entries[0], 2);
        simcuda_release(held);
        assert_int_equal(cudaStreamSynchronize(held), cudaSuccess);
        assert_int_equal(journal.entries[1], 1);
        assert_int_equal(cudaStreamDestroy(held), cudaSuccess);
        assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    }
}

/* A program that waits by other means than CUDA's is not stuck for it. */
static void what_nobody_waits_for_runs_all_the_same(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_schedule(1);
    cudaStream_t stream = new_stream();
    diary journal = {0};
    for (int i = 0; i < EACH; i++) {
        note_on(stream, &journal, i);
    }
    while (atomic_load(&journal.length) < EACH) {
        sched_yield();
    }
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* The sum of one bucket, with or without the producer's wait. */
static float reduce_slow_bucket(int waits) {
    simcuda_reset();
    two_streams how = {.defect = NO_DEFECT, .slow_rank = -1};
    OK(ncclGetUniqueId(&how.id));
    two_streams_rank r = {.how = &how};
    two_streams_open(&r, 1);
    OK(cudaStreamSynchronize(r.compute));
    const fill_arguments arguments = {r.buckets[0], 1};
    const simcuda_access access = {r.buckets[0], ELEMENTS * sizeof(float), 1};
    simcuda_hold(r.compute);
    OK(simcuda_launch(r.compute, fill, &arguments, sizeof arguments, "backward", &access, 1));
    OK(cudaEventRecord(r.ready[0], r.compute));
    if (waits) {
        OK(cudaStreamWaitEvent(r.communication, r.ready[0], 0));
        simcuda_release(r.compute);
    }
    OK(ncclAllReduce(r.buckets[0], r.weights, ELEMENTS, ncclFloat32, ncclSum, r.comm, r.communication));
    OK(cudaMemcpyAsync(r.loss, r.weights, sizeof(float), cudaMemcpyDeviceToHost, r.communication));
    OK(cudaStreamSynchronize(r.communication));
    const float value = *r.loss;
    simcuda_release(r.compute);
    two_streams_close(&r);
    return value;
}

static void a_missing_wait_for_a_late_producer_shows_in_the_values(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    assert_true(reduce_slow_bucket(1) == 1);
    assert_true(isnan(reduce_slow_bucket(0)));
    assert_int_equal(atomic_exchange(&rank_failures, 0), 0);
}

static void a_delayed_stream_changes_nothing_in_a_correct_program(void **state) {
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        simcuda_reset();
        two_streams how = {.slow_rank = slow, .compute_delay_us = 500};
        assert_int_equal(ncclGetUniqueId(&how.id), ncclSuccess);
        run_rank_threads(2, two_streams_run, &how);
        assert_int_equal(simcuda_reports(NULL, 0), 0);
    }
}

typedef struct crossing {
    ncclUniqueId ids[2];
    int is_crossed;
    int has_to_hang;
    atomic_int has_arrived;
    int has_ended;
} crossing;

enum { LOOKS = 2000 };

/* Waits for ever for what has to end. */
static int ends(const crossing *how, cudaStream_t a, cudaStream_t b) {
    for (int i = 0; !how->has_to_hang || i < LOOKS; i++) {
        if (cudaStreamQuery(a) == cudaSuccess && cudaStreamQuery(b) == cudaSuccess) {
            return 1;
        }
        sched_yield();
    }
    return 0;
}

/* Two communicators, each on a stream of its own; where it is crossed, rank 1 enqueues them the other way round. What
 * is first has begun everywhere before anything is second. */
static void use_two_communicators(int rank, int ranks, void *context) {
    crossing *const how = context;
    ncclComm_t comms[2];
    cudaStream_t streams[2];
    float *values = NULL;
    OK(cudaMalloc((void **)&values, 2 * sizeof(float)));
    for (int i = 0; i < 2; i++) {
        OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        OK(ncclCommInitRank(&comms[i], ranks, how->ids[i], rank));
    }
    for (int i = 0; i < 2; i++) {
        const int which = how->is_crossed && rank == 1 ? 1 - i : i;
        OK(ncclAllReduce(values + which, values + which, 1, ncclFloat32, ncclSum, comms[which], streams[which]));
    }
    const int has_ended = ends(how, streams[0], streams[1]);
    if (rank == 0) {
        how->has_ended = has_ended;
    }
    /* None is aborted before all have looked. */
    atomic_fetch_add(&how->has_arrived, 1);
    while (atomic_load(&how->has_arrived) < ranks) {
        sched_yield();
    }
    for (int i = 0; i < 2; i++) {
        OK(ncclCommAbort(comms[i]));
        OK(cudaStreamDestroy(streams[i]));
    }
    OK(cudaFree(values));
}

static int two_communicators_end(int is_crossed, int one_kernel) {
    simcuda_reset();
    simcuda_one_kernel_at_a_time(one_kernel);
    crossing how = {.is_crossed = is_crossed, .has_to_hang = is_crossed && one_kernel};
    assert_int_equal(ncclGetUniqueId(&how.ids[0]), ncclSuccess);
    assert_int_equal(ncclGetUniqueId(&how.ids[1]), ncclSuccess);
    run_rank_threads(2, use_two_communicators, &how);
    return how.has_ended;
}

static void a_device_with_one_kernel_at_a_time_hangs_where_ranks_enqueue_in_different_orders(void **state) {
    (void)state;
    assert_true(two_communicators_end(0, 0));
    assert_true(two_communicators_end(0, 1));
    assert_true(two_communicators_end(1, 0));
    assert_false(two_communicators_end(1, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_gives_an_order_and_different_seeds_give_different_ones), /* first: it forks */
        cmocka_unit_test(a_held_stream_does_nothing_and_the_others_go_on),
        cmocka_unit_test(what_nobody_waits_for_runs_all_the_same),
        cmocka_unit_test(a_missing_wait_for_a_late_producer_shows_in_the_values),
        cmocka_unit_test(a_delayed_stream_changes_nothing_in_a_correct_program),
        cmocka_unit_test(a_device_with_one_kernel_at_a_time_hangs_where_ranks_enqueue_in_different_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
