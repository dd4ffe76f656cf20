/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=60 */

/* Steps that no host waits for: a trainer that synchronises with its stream gets it back also when a rank never comes,
 * learns why from the next call, and is not told of anything while all is well. */

#include "device_trainer.h"

#include <time.h>

enum { RANKS = 3, TIMEOUT_MS = 1200 };

typedef struct scene {
    gsync_comm *comms[RANKS_MAX];
    void (*play)(trainer *t, const struct scene *s);
} scene;

static const model small = {
    .count = 4, .columns = {40, 90, 25, 130}, .dtype = GSYNC_FLOAT32, .is_exact = true, .seed = 5};

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void pause_ms(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void open_trainer(trainer *t, gsync_comm *comm) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 400;
    options.bucket_bytes_first_max = 400;
    options.order = GSYNC_ORDER_REGISTERED;
    OK(cudaStreamCreateWithFlags(&t->compute[0], cudaStreamNonBlocking));
    OK(cudaMalloc(&t->memory, place_of(&small, small.count)));
    for (int g = 0; g < small.count; g++) {
        t->on_host[g] = calloc(1, bytes_of(&small, g));
    }
    CHECK(gsync_reducer_create(&t->device, comm, &options) == GSYNC_OK);
    add_gradients(t, t->device, true);
    CHECK(gsync_reducer_commit(t->device) == GSYNC_OK);
}

static void close_trainer(trainer *t) {
    gsync_reducer_destroy(&t->device);
    OK(cudaStreamSynchronize(t->compute[0]));
    OK(cudaStreamDestroy(t->compute[0]));
    OK(cudaFree(t->memory));
    for (int g = 0; g < small.count; g++) {
        free(t->on_host[g]);
    }
}

static gsync_status step(trainer *t) {
    const gsync_status status = gsync_begin(t->device, GSYNC_SYNC);
    if (status != GSYNC_OK) {
        return status;
    }
    for (int g = small.count; g-- > 0;) {
        backward_one(t, g, t->compute[0], false);
        const gsync_status marked = gsync_ready_on(t->device, t->on_device[g], t->compute[0]);
        CHECK(marked == GSYNC_OK);
    }
    return gsync_finish_on(t->device, t->compute[0], NULL);
}

static void run_rank(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t = {.model = &small, .rank = rank, .ranks = ranks, .producers = 1};
    simcuda_thread_rank(rank);
    open_trainer(&t, s->comms[rank]);
    s->play(&t, s);
    close_trainer(&t);
    gsync_comm_destroy(&s->comms[rank]);
}

static void run(void (*play)(trainer *t, const scene *s)) {
    scene s = {.play = play};
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    assert_int_equal(gsync_comm_threads(s.comms, RANKS, &options), GSYNC_OK);
    run_rank_threads(RANKS, run_rank, &s);
    simcuda_wait_idle();
    assert_int_equal(simcuda_allocations(), 0);
    assert_int_equal(simcuda_objects(), 0);
}

/* Rank 2 stays away from the second step until the others are sure to have given up. */
static void miss_a_rank(trainer *t, const scene *s) {
    (void)s;
    CHECK(step(t) == GSYNC_OK);
    if (t->rank == 2) {
        pause_ms(2 * TIMEOUT_MS);
        return;
    }
    const double start = seconds_now();
    CHECK(step(t) == GSYNC_OK);
    OK(cudaStreamSynchronize(t->compute[0]));
    const double waited = seconds_now() - start;
    CHECK(waited > 0.9 * TIMEOUT_MS / 1000 && waited < TIMEOUT_MS / 1000.0 + 2);
    const gsync_status status = step(t);
    CHECK(status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_PEER_LOST);
    CHECK(status != GSYNC_ERR_TIMEOUT || strstr(gsync_last_error(), "1200 ms after gsync_finish_on") != NULL);
}

static void a_rank_that_never_comes_gives_the_stream_back_at_the_deadline(void **state) {
    (void)state;
    simcuda_reset();
    run(miss_a_rank);
}

/* NCCL knows at once that rank 1 is gone, and nobody waits for the deadline. A rank that is slow learns of it in its
 * own call already. */
static void lose_a_rank(trainer *t, const scene *s) {
    (void)s;
    const double start = seconds_now();
    gsync_status status = step(t);
    OK(cudaStreamSynchronize(t->compute[0]));
    CHECK(seconds_now() - start < 0.9 * TIMEOUT_MS / 1000);
    status = status == GSYNC_OK ? step(t) : status;
    CHECK(status == GSYNC_ERR_TRANSPORT || status == GSYNC_ERR_PEER_LOST || status == GSYNC_ERR_ABORTED);
}

static void what_nccl_notices_gives_the_stream_back_at_once(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_peers_notice(1);
    simcuda_fault("ncclAllReduce", 1, 2, SIMCUDA_FAILS_LATER, ncclSystemError);
    run(lose_a_rank);
}

/* Longer than the deadline between steps, within a step, and with all turns in use. */
static void take_long(trainer *t, const scene *s) {
    (void)s;
    for (int i = 0; i < 3; i++) {
        CHECK(step(t) == GSYNC_OK);
    }
    pause_ms(TIMEOUT_MS + 300);
    CHECK(step(t) == GSYNC_OK);
    CHECK(gsync_begin(t->device, GSYNC_SYNC) == GSYNC_OK);
    pause_ms(TIMEOUT_MS + 300);
    CHECK(gsync_finish(t->device, NULL) == GSYNC_OK);
    for (int i = 0; i < 6; i++) {
        CHECK(step(t) == GSYNC_OK);
    }
    OK(cudaStreamSynchronize(t->compute[0]));
}

static void a_trainer_that_takes_its_time_is_left_alone(void **state) {
    (void)state;
    simcuda_reset();
    run(take_long);
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

/* A graph of the trainer's own, on a stream that the library does not know. */
static void capture_meanwhile(trainer *t, const scene *s) {
    (void)s;
    cudaGraph_t graph = NULL;
    cudaStream_t other = NULL;
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    if (t->rank == 2) {
        pause_ms(500); /* the others' steps stay under way, and are looked after, while they capture */
        CHECK(step(t) == GSYNC_OK);
    } else {
        CHECK(step(t) == GSYNC_OK);
        OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
        pause_ms(350);
        OK(cudaStreamEndCapture(other, &graph));
    }
    CHECK(step(t) == GSYNC_OK);
    OK(cudaStreamSynchronize(t->compute[0]));
    OK(cudaStreamDestroy(other));
}

static void looking_after_steps_breaks_no_capture(void **state) {
    (void)state;
    simcuda_reset();
    run(capture_meanwhile);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_never_comes_gives_the_stream_back_at_the_deadline),
        cmocka_unit_test(what_nccl_notices_gives_the_stream_back_at_once),
        cmocka_unit_test(looking_after_steps_breaks_no_capture),
        cmocka_unit_test(a_trainer_that_takes_its_time_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
