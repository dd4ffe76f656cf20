/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* What fails on one rank, at commit or in the middle of a step, ends on every rank within the deadline, in a status
 * that says what to do, and leaves nothing behind. */

#include "device_trainer.h"

#include <time.h>

enum { RANKS = 3, TIMEOUT_MS = 1500, STEPS = 3 };

typedef struct fault {
    const char *call;
    unsigned nth;
    simcuda_effect effect;
    int result;
    bool peers_notice;
    ending ending;
    bool is_deterministic;
    gsync_wire wire;
    const char *words; /* of the rank it happens on; NULL: any */
} fault;

typedef struct trial {
    fault fault;
    gsync_comm *comms[RANKS_MAX];
    gsync_status statuses[RANKS_MAX];
    char texts[RANKS_MAX][256];
} trial;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const model small = {
    .count = 4, .columns = {40, 90, 25, 130}, .dtype = GSYNC_FLOAT32, .is_exact = true, .seed = 5};

static gsync_status add_and_commit(trainer *t, const trial *at, gsync_comm *comm) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 400;
    options.bucket_bytes_first_max = 400;
    options.order = GSYNC_ORDER_REGISTERED;
    options.is_deterministic = at->fault.is_deterministic;
    OK(cudaStreamCreateWithFlags(&t->compute[0], cudaStreamNonBlocking));
    OK(cudaMalloc(&t->memory, place_of(&small, small.count)));
    for (int g = 0; g < small.count; g++) {
        t->on_host[g] = calloc(1, bytes_of(&small, g));
    }
    CHECK(gsync_reducer_create(&t->device, comm, &options) == GSYNC_OK);
    add_gradients(t, t->device, true);
    if (at->fault.wire != GSYNC_WIRE_NATIVE) {
        gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
        wire.elements_min = 1;
        CHECK(gsync_reducer_set_wire(t->device, NULL, at->fault.wire, &wire) == GSYNC_OK);
    }
    simcuda_thread_rank(t->rank);
    if (t->rank == 1) {
        simcuda_fault(at->fault.call, 1, at->fault.nth, at->fault.effect, at->fault.result);
    }
    return gsync_reducer_commit(t->device);
}

static gsync_status step(trainer *t, ending how) {
    gsync_status status = gsync_begin(t->device, GSYNC_SYNC);
    if (status != GSYNC_OK) {
        return status;
    }
    for (int g = small.count; g-- > 0;) {
        backward_one(t, g, t->compute[0], false);
        CHECK(gsync_ready_on(t->device, t->on_device[g], t->compute[0]) == GSYNC_OK);
    }
    return how == WAITS_ON_HOST ? gsync_finish(t->device, NULL) : gsync_finish_on(t->device, t->compute[0], NULL);
}

static void run_rank(int rank, int ranks, void *context) {
    trial *at = context;
    trainer t = {.model = &small, .rank = rank, .ranks = ranks, .producers = 1};
    const double start = seconds_now();
    gsync_status status = add_and_commit(&t, at, at->comms[rank]);
    for (int i = 0; i < STEPS && status == GSYNC_OK; i++) {
        status = step(&t, at->fault.ending);
    }
    /* Without a host that waits it is the next calls that tell; the last ones wait. */
    if (status == GSYNC_OK && at->fault.ending == WAITS_ON_STREAM) {
        status = step(&t, WAITS_ON_HOST);
    }
    at->statuses[rank] = status;
    snprintf(at->texts[rank], sizeof at->texts[rank], "%s", gsync_last_error());
    CHECK(seconds_now() - start < TIMEOUT_MS / 1000.0 + 2.0);
    gsync_reducer_destroy(&t.device);
    CHECK(seconds_now() - start < TIMEOUT_MS / 1000.0 + 6.0);
    (void)cudaStreamSynchronize(t.compute[0]);
    (void)cudaStreamDestroy(t.compute[0]);
    (void)cudaFree(t.memory);
    for (int g = 0; g < small.count; g++) {
        free(t.on_host[g]);
    }
    gsync_comm_destroy(&at->comms[rank]);
}

static trial run(const fault *what) {
    trial at = {.fault = *what};
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    simcuda_reset();
    simcuda_peers_notice(what->peers_notice);
    assert_int_equal(gsync_comm_threads(at.comms, RANKS, &options), GSYNC_OK);
    run_rank_threads(RANKS, run_rank, &at);
    simcuda_wait_idle();
    assert_int_equal(simcuda_allocations(), 0);
    assert_int_equal(simcuda_objects(), 0);
    return at;
}

static void print_outcome(const trial *at) {
    printf("  %s %u, wire %d:", at->fault.call, at->fault.nth, (int)at->fault.wire);
    for (int rank = 0; rank < RANKS; rank++) {
        printf(" %s", gsync_status_name(at->statuses[rank]));
    }
    printf("\n");
}

/* ---- claims ---- */

static void check_lack(const char *call, unsigned nth, gsync_wire wire) {
    const fault what = {
        .call = call, .nth = nth, .effect = SIMCUDA_RETURNS, .result = cudaErrorMemoryAllocation, .wire = wire};
    const trial at = run(&what);
    print_outcome(&at);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(at.statuses[rank], GSYNC_ERR_MEMORY);
        assert_non_null(strstr(at.texts[rank], "rank 1"));
    }
}

static void memory_that_one_rank_lacks_is_known_to_all(void **state) {
    (void)state;
    static const char *const calls[] = {"cudaMalloc", "cudaHostAlloc", "cudaStreamCreateWithPriority",
                                        "cudaEventCreateWithFlags"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        check_lack(calls[i], 1, GSYNC_WIRE_NATIVE);
    }
}

/* For entries, and for what is owed. */
static void so_is_memory_for_the_largest_elements(void **state) {
    (void)state;
    for (unsigned nth = 2; nth <= 4; nth++) {
        check_lack("cudaMalloc", nth, GSYNC_WIRE_TOPK);
    }
    check_lack("cudaHostAlloc", 2, GSYNC_WIRE_TOPK);
}

static void check_for_good(const trial *at) {
    print_outcome(at);
    for (int rank = 0; rank < RANKS; rank++) {
        if (!(at->statuses[rank] <= GSYNC_ERR_TIMEOUT)) {
            fprintf(stderr, "rank %d: %s\n", rank, at->texts[rank]);
        }
        assert_true(at->statuses[rank] <= GSYNC_ERR_TIMEOUT);
    }
    assert_true(at->fault.words == NULL || strstr(at->texts[1], at->fault.words) != NULL);
}

static void what_fails_in_a_step_ends_on_every_rank(void **state) {
    (void)state;
    static const fault faults[] = {
        {.call = "ncclAllReduce", .nth = 3, .effect = SIMCUDA_RETURNS, .result = ncclSystemError},
        {.call = "ncclAllReduce", .nth = 3, .effect = SIMCUDA_FAILS_LATER, .result = ncclRemoteError},
        {.call = "ncclAllReduce", .nth = 4, .effect = SIMCUDA_HANGS},
        {.call = "ncclAllReduce", .nth = 4, .effect = SIMCUDA_HANGS, .ending = WAITS_ON_STREAM},
        {.call = "ncclAllReduce",
         .nth = 2,
         .effect = SIMCUDA_FAILS_LATER,
         .result = ncclSystemError,
         .peers_notice = true},
        {.call = "ncclAllReduce",
         .nth = 3,
         .effect = SIMCUDA_RETURNS,
         .result = ncclUnhandledCudaError,
         .words = "out of memory"},
        {.call = "ncclAllReduce",
         .nth = 2,
         .effect = SIMCUDA_FAILS_LATER,
         .result = ncclUnhandledCudaError,
         .words = "out of memory"},
        {.call = "ncclAllGather", .nth = 2, .effect = SIMCUDA_HANGS},
        {.call = "ncclAllGather", .nth = 2, .effect = SIMCUDA_HANGS, .is_deterministic = true},
        {.call = "cudaStreamWaitEvent", .nth = 4, .effect = SIMCUDA_RETURNS, .result = cudaErrorUnknown},
        {.call = "cudaMemcpyAsync", .nth = 4, .effect = SIMCUDA_RETURNS, .result = cudaErrorUnknown},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const trial at = run(&faults[i]);
        check_for_good(&at);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_one_rank_lacks_is_known_to_all),
        cmocka_unit_test(so_is_memory_for_the_largest_elements),
        cmocka_unit_test(what_fails_in_a_step_ends_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
