/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=60 */

/* Options of the communicator for GPUs. Buckets in memory that NCCL knows: who registers it, what follows for
 * gradients, and how it ends; the priority of the library's stream. */

#include "device_trainer.h"

#include "api/reducer.h"
#include "sync/stream_internal.h"

enum { RANKS = 3, STEPS = 4 };

typedef struct scene {
    gsync_comm *comms[RANKS_MAX];
    const model *models[RANKS_MAX];
    gsync_options options;
    bool expects_registered;
    bool has_normal_priority;
} scene;

static const model views = {
    .count = 4, .columns = {40, 90, 25, 130}, .dtype = GSYNC_FLOAT32, .has_views = true, .is_exact = true, .seed = 3};
static const model apart = {
    .count = 4, .columns = {40, 90, 25, 130}, .dtype = GSYNC_FLOAT32, .is_exact = true, .seed = 3};

/* A view that a trainer wants elsewhere. */
static void check_moving(trainer *t, bool is_registered) {
    void *elsewhere = NULL;
    OK(cudaMalloc(&elsewhere, bytes_of(t->model, 1)));
    const gsync_status status = gsync_reducer_rebind(t->device, "gradient 1", elsewhere);
    CHECK(status == (is_registered ? GSYNC_ERR_UNSUPPORTED : GSYNC_OK));
    CHECK(!is_registered || strstr(gsync_last_error(), "'gradient 1': with gsync_comm_options.nccl_registers_memory"));
    CHECK(gsync_reducer_rebind(t->device, "gradient 1", NULL) == GSYNC_OK);
    OK(cudaFree(elsewhere));
}

static void check_priority(const trainer *t, bool is_normal) {
    int least;
    int greatest;
    int priority = 1;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamGetPriority(t->device->stream->queue, &priority));
    CHECK(least != greatest && priority == (is_normal ? least : greatest));
}

static void train(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t;
    cudaEvent_t consumed;
    (void)ranks;
    simcuda_thread_rank(rank);
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, s->models[rank], s->comms[rank], &s->options, 1)) {
        for (int step = 0; step < STEPS; step++) {
            report_failure(&t, "begin", gsync_begin(t.device, GSYNC_SYNC));
            report_failure(&t, "begin", gsync_begin(t.host, GSYNC_SYNC));
            trainer_backward(&t, false, consumed);
            (void)trainer_finish(&t, step % 2 == 0 ? WAITS_ON_HOST : WAITS_ON_STREAM, NULL);
            (void)trainer_compare(&t);
        }
        check_priority(&t, s->has_normal_priority);
        if (t.model->has_views) {
            check_moving(&t, s->expects_registered);
        }
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

static void run(scene *s, int registers) {
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = 5000;
    options.has_normal_priority = s->has_normal_priority;
    options.nccl_registers_memory = registers;
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(s->comms, RANKS, &options), GSYNC_OK);
    run_rank_threads(RANKS, train, s);
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    assert_int_equal(simcuda_allocations(), 0);
    assert_int_equal(simcuda_objects(), 0);
    assert_int_equal(simcuda_calls("ncclCommRegister"), s->expects_registered ? RANKS : 0);
    assert_int_equal(simcuda_calls("ncclCommDeregister"), s->expects_registered ? RANKS : 0);
    assert_int_equal(simcuda_calls("ncclMemFree"), simcuda_calls("ncclMemAlloc"));
}

static scene scene_of(const model *everywhere, bool expects_registered) {
    scene s = {.models = {everywhere, everywhere, everywhere},
               .options = GSYNC_OPTIONS_INIT,
               .expects_registered = expects_registered};
    s.options.bucket_bytes_max = 400;
    s.options.bucket_bytes_first_max = 400;
    return s;
}

static void buckets_that_gradients_live_in_are_registered(void **state) {
    (void)state;
    scene s = scene_of(&views, true);
    run(&s, 1);
    s.options.wire = GSYNC_WIRE_BFLOAT16;
    run(&s, 1);
}

static void nobody_registers_unasked(void **state) {
    (void)state;
    scene s = scene_of(&views, false);
    run(&s, 0);
    assert_int_equal(simcuda_calls("ncclMemAlloc"), 0);
}

/* NCCL wants all ranks to pass memory that it knows, or none. */
static void where_one_rank_has_gradients_of_its_own_nobody_registers(void **state) {
    (void)state;
    scene s = scene_of(&views, false);
    s.models[1] = &apart;
    s.options.memory = GSYNC_MEMORY_DEVICE;
    run(&s, 1);
    scene all = scene_of(&apart, false);
    run(&all, 1);
    assert_int_equal(simcuda_calls("ncclMemAlloc"), 0);
}

static void the_librarys_stream_has_the_priority_that_is_asked_for(void **state) {
    (void)state;
    scene s = scene_of(&apart, false);
    run(&s, 0);
    s.has_normal_priority = true;
    run(&s, 0);
}

typedef struct refusal {
    const char *call;
    int result;
    gsync_status status;
    const char *words;
} refusal;

static const refusal *refused;

static void fail_to_commit(int rank, int ranks, void *context) {
    scene *s = context;
    gsync_reducer *reducer = NULL;
    gsync_options options = s->options;
    (void)ranks;
    options.memory = GSYNC_MEMORY_DEVICE;
    simcuda_thread_rank(rank);
    OK(cudaSetDevice(rank));
    CHECK(gsync_reducer_create(&reducer, s->comms[rank], &options) == GSYNC_OK);
    CHECK(gsync_reducer_add(reducer, "a", NULL, 100, GSYNC_FLOAT32) == GSYNC_OK);
    const gsync_status status = gsync_reducer_commit(reducer);
    CHECK(status == refused->status);
    CHECK(strstr(gsync_last_error(), "rank 1") != NULL && strstr(gsync_last_error(), refused->words) != NULL);
    gsync_reducer_destroy(&reducer);
    gsync_comm_destroy(&s->comms[rank]);
}

static void what_nccl_refuses_one_rank_is_known_to_all(void **state) {
    (void)state;
    static const refusal refusals[] = {
        {"ncclMemAlloc", ncclUnhandledCudaError, GSYNC_ERR_MEMORY, "out of memory"},
        {"ncclCommRegister", ncclSystemError, GSYNC_ERR_TRANSPORT, "ncclCommRegister failed"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        scene s = scene_of(&views, false);
        gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
        options.timeout_ms = 5000;
        options.nccl_registers_memory = 1;
        refused = &refusals[i];
        simcuda_reset();
        simcuda_fault(refused->call, 1, 1, SIMCUDA_RETURNS, refused->result);
        assert_int_equal(gsync_comm_threads(s.comms, RANKS, &options), GSYNC_OK);
        run_rank_threads(RANKS, fail_to_commit, &s);
        simcuda_wait_idle();
        assert_int_equal(simcuda_allocations(), 0);
        assert_int_equal(simcuda_objects(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_that_gradients_live_in_are_registered),
        cmocka_unit_test(nobody_registers_unasked),
        cmocka_unit_test(where_one_rank_has_gradients_of_its_own_nobody_registers),
        cmocka_unit_test(the_librarys_stream_has_the_priority_that_is_asked_for),
        cmocka_unit_test(what_nccl_refuses_one_rank_is_known_to_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
