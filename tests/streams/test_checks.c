/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* What looks for mistakes, with gradients on a GPU: comparing replicas, and late writes. */

#include "device_trainer.h"

#include "device/device_cuda.h"

enum { INTERVAL = 2 };

/* ---- a rank whose memory loses a bit when it gets a result ---- */

static _Thread_local const void *damaged; /* this rank's gradient; NULL: none */

static void flip(void *argument) {
    unsigned char *const byte = *(unsigned char **)argument;
    *byte ^= 1u;
}

static void damage(unsigned char *at, void *stream) {
    const simcuda_access accesses[] = {{at, 1, 0}, {at, 1, 1}};
    OK(simcuda_launch(stream, flip, &at, sizeof at, "damage", accesses, 2));
}

gsync_status __real_gs_cuda_decode(gs_cuda *cuda, const gs_cuda_pass *pass, const void *bucket, void *stream);
gsync_status __wrap_gs_cuda_decode(gs_cuda *cuda, const gs_cuda_pass *pass, const void *bucket, void *stream);

gsync_status __wrap_gs_cuda_decode(gs_cuda *cuda, const gs_cuda_pass *pass, const void *bucket, void *stream) {
    const gsync_status status = __real_gs_cuda_decode(cuda, pass, bucket, stream);
    for (size_t i = 0; i < pass->term_count; i++) {
        if (pass->host_terms[i].data == damaged && damaged != NULL) {
            damage(pass->host_terms[i].data, stream);
        }
    }
    return status;
}

/* ---- steps ---- */

static const model checked_model = {.count = 5,
                                    .columns = {7, 300, 33, 1, 64},
                                    .rows = {0, 0, 3},
                                    .pitch = {0, 0, 40},
                                    .dtype = GSYNC_FLOAT32,
                                    .seed = 9};

typedef struct scene {
    model model;
    gsync_options options;
    ending ending;
    gsync_comm *comms[RANKS_MAX];
} scene;

static gsync_status finish(trainer *t, ending how) {
    return how == WAITS_ON_HOST ? gsync_finish(t->device, NULL) : gsync_finish_on(t->device, t->compute[0], NULL);
}

static void run_scene(rank_function *function, scene s) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (uint64_t seed = 0; seed < 2; seed++) {
            simcuda_reset();
            simcuda_schedule(seed);
            assert_int_equal(gsync_comm_threads(s.comms, ranks, NULL), GSYNC_OK);
            run_rank_threads(ranks, function, &s);
            print_reports();
            assert_int_equal(simcuda_reports(NULL, 0), 0);
            assert_int_equal(simcuda_allocations(), 0);
            assert_int_equal(simcuda_objects(), 0);
        }
    }
}

static void run_all(rank_function *function, gsync_options options) {
    scene s = {.model = checked_model, .options = options};
    s.options.is_deterministic = 1;
    s.options.bucket_bytes_max = 600;
    for (int i = 0; i < 2; i++) {
        s.ending = i == 0 ? WAITS_ON_HOST : WAITS_ON_STREAM;
        run_scene(function, s);
    }
}

/* ---- replicas ---- */

static gsync_options comparing(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.replica_check_interval = INTERVAL;
    return options;
}

static void train_equally(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t;
    cudaEvent_t consumed;
    damaged = NULL;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &s->model, s->comms[rank], &s->options, 2)) {
        for (int step = 1; step <= 5; step++) {
            report_failure(&t, "begin", gsync_begin(t.device, GSYNC_SYNC));
            report_failure(&t, "the twin's begin", gsync_begin(t.host, GSYNC_SYNC));
            trainer_backward(&t, false, consumed);
            (void)trainer_finish(&t, s->ending, NULL);
            (void)trainer_compare(&t);
        }
        /* Steps 2 and 4, on every rank alike; one launch for each bucket. */
        report_failure(&t, "barrier", gsync_barrier(s->comms[rank]));
        CHECK(simcuda_launches("digest") == (uint64_t)ranks * 2 * gsync_bucket_count(t.device));
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

static void equal_replicas_are_compared_every_other_step(void **state) {
    (void)state;
    gsync_options options = comparing();
    options.order = GSYNC_ORDER_REGISTERED;
    run_all(train_equally, options);
}

/* Unused gradients are not compared: here every rank has something else in them. */
static void unused_gradients_may_differ(void **state) {
    (void)state;
    scene s = {.model = checked_model, .options = comparing()};
    s.options.finds_unused = 1;
    s.options.order = GSYNC_ORDER_REGISTERED;
    s.options.is_deterministic = 1;
    s.options.bucket_bytes_max = 600;
    s.model.has_unused = true;
    s.model.starts_apart = true;
    run_scene(train_equally, s);
}

static void step_of(trainer *t, scene *s, cudaEvent_t consumed, gsync_status begins, gsync_status finishes) {
    const gsync_status begun = gsync_begin(t->device, GSYNC_SYNC);
    CHECK(begun == begins);
    if (begun == GSYNC_OK) {
        CHECK(gsync_begin(t->host, GSYNC_SYNC) == GSYNC_OK);
        trainer_backward(t, false, consumed);
        CHECK(finish(t, s->ending) == finishes);
        CHECK(gsync_finish(t->host, NULL) == GSYNC_OK);
    }
}

/* The order is agreed in the same step: another plan must not be in the way. */
static void train_with_a_damaged_replica(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t;
    cudaEvent_t consumed;
    const bool waits = s->ending == WAITS_ON_HOST;
    const gsync_status found = ranks > 1 ? GSYNC_ERR_MISMATCH : GSYNC_OK;
    damaged = NULL;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &s->model, s->comms[rank], &s->options, 2)) {
        damaged = rank == 1 ? t.on_device[2] : NULL;
        step_of(&t, s, consumed, GSYNC_OK, waits ? found : GSYNC_OK);
        damaged = NULL;
        if (!waits && found != GSYNC_OK) {
            step_of(&t, s, consumed, found, GSYNC_OK);
        }
        CHECK(ranks == 1 || strstr(gsync_last_error(), "'gradient 2' of rank 1") != NULL);
        step_of(&t, s, consumed, GSYNC_OK, GSYNC_OK);
        step_of(&t, s, consumed, GSYNC_OK, GSYNC_OK);
        (void)trainer_compare(&t);
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

static void a_replica_that_differs_is_named_and_training_goes_on(void **state) {
    (void)state;
    gsync_options options = comparing();
    options.replica_check_interval = 1;
    run_all(train_with_a_damaged_replica, options);
}

/* ---- late writes ---- */

/* A window of so many micro-batches, in which nothing is written late. */
static void train_window(trainer *t, const scene *s, cudaEvent_t consumed, int micro_batches) {
    for (int i = 1; i <= micro_batches; i++) {
        const gsync_phase phase = i == micro_batches ? GSYNC_SYNC : GSYNC_ACCUMULATE;
        report_failure(t, "begin", gsync_begin(t->device, phase));
        report_failure(t, "the twin's begin", gsync_begin(t->host, phase));
        trainer_backward(t, s->options.accumulation == GSYNC_CLIENT_ACCUMULATES && i > 1, consumed);
        (void)trainer_finish(t, WAITS_ON_HOST, NULL);
    }
    (void)trainer_compare(t);
}

static void train_without_mistakes(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t;
    cudaEvent_t consumed;
    (void)ranks;
    damaged = NULL;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &s->model, s->comms[rank], &s->options, 2)) {
        for (int window = 0; window < 3; window++) {
            train_window(&t, s, consumed, 1 + window % 2);
        }
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

static scene checking(void) {
    scene s = {.model = checked_model, .options = GSYNC_OPTIONS_INIT};
    s.options.checks_writes = 1;
    s.options.is_deterministic = 1;
    s.options.bucket_bytes_max = 600;
    return s;
}

static void results_are_the_same_where_writes_are_checked(void **state) {
    (void)state;
    scene s = checking();
    run_scene(train_without_mistakes, s);
    s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
    s.options.finds_unused = 1;
    s.model.has_unused = true;
    run_scene(train_without_mistakes, s);
    s = checking();
    s.model.dtype = GSYNC_BFLOAT16;
    s.model.has_views = true;
    s.model.rows[2] = 0;
    s.model.pitch[2] = 0;
    s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
    run_scene(train_without_mistakes, s);
}

/* Every gradient but the one that was written holds what backward left in it. */
static void check_untouched(trainer *t, int written) {
    for (int g = 0; g < t->model->count; g++) {
        float *const got = t->back;
        float *const expected = calloc(1, bytes_of(t->model, g));
        backward_job job = job_of(t, g, expected, false);
        backward_kernel(&job);
        OK(cudaMemcpyAsync(got, t->on_device[g], bytes_of(t->model, g), cudaMemcpyDefault, t->compute[0]));
        OK(cudaStreamSynchronize(t->compute[0]));
        for (size_t r = 0; r < rows_of(t->model, g) && g != written; r++) {
            const size_t at = r * pitch_of(t->model, g);
            CHECK(memcmp(got + at, expected + at, t->model->columns[g] * sizeof *got) == 0);
        }
        free(expected);
    }
}

/* Everything was marked, read and sent when the gradient is written once more: nothing races, and it is wrong. */
static void write_late(trainer *t, int g) {
    OK(cudaDeviceSynchronize());
    damage(t->on_device[g], t->compute[g % t->producers]);
}

static void check_late_write(trainer *t, scene *s, cudaEvent_t consumed, gsync_phase phase, int culprit) {
    const int written = 2;
    char words[64];
    report_failure(t, "begin", gsync_begin(t->device, phase));
    trainer_backward_alone(t, consumed);
    if (culprit == t->rank || culprit < 0) {
        write_late(t, written);
    }
    CHECK(gsync_finish_on(t->device, t->compute[0], NULL) == GSYNC_ERR_STATE);
    CHECK(strstr(gsync_last_error(), "checks_writes") != NULL);
    CHECK(gsync_finish(t->device, NULL) == GSYNC_ERR_CHANGED);
    snprintf(words, sizeof words, "rank %d: gradient 'gradient %d'", culprit < 0 ? t->rank : culprit, written);
    CHECK(strstr(gsync_last_error(), words) != NULL);
    check_untouched(t, written);
    train_window(t, s, consumed, 1);
}

static void train_with_late_writes(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t;
    cudaEvent_t consumed;
    damaged = NULL;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &s->model, s->comms[rank], &s->options, 2)) {
        check_late_write(&t, s, consumed, GSYNC_SYNC, 0);
        check_late_write(&t, s, consumed, GSYNC_SYNC, ranks - 1);
        check_late_write(&t, s, consumed, GSYNC_ACCUMULATE, -1); /* each rank finds its own */
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

static void a_write_after_the_mark_is_named_and_nothing_is_touched(void **state) {
    (void)state;
    scene s = checking();
    run_scene(train_with_late_writes, s);
    s.options.is_deterministic = 0;
    s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
    run_scene(train_with_late_writes, s);
}

/* A weight that two layers share is final with its second mark, and the host may make it so. */
static void train_with_shared_weight(int rank, int ranks, void *context) {
    scene *s = context;
    cudaStream_t other;
    gsync_reducer *reducer = NULL;
    float *memory;
    (void)ranks;
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&memory, 4096));
    CHECK(gsync_reducer_create(&reducer, s->comms[rank], &s->options) == GSYNC_OK);
    CHECK(gsync_reducer_add(reducer, "shared", memory, 1024, GSYNC_FLOAT32) == GSYNC_OK);
    CHECK(gsync_reducer_set_uses(reducer, "shared", 2) == GSYNC_OK);
    CHECK(gsync_reducer_commit(reducer) == GSYNC_OK);
    for (int step = 0; step < 4; step++) {
        CHECK(gsync_begin(reducer, GSYNC_SYNC) == GSYNC_OK);
        OK(cudaMemsetAsync(memory, step, 4096, other));
        CHECK(gsync_ready_on(reducer, memory, other) == GSYNC_OK);
        OK(cudaMemsetAsync(memory, step + 1, 4096, other)); /* as the second use adds to it */
        if (step % 2 == 0) {
            CHECK(gsync_ready_on(reducer, memory, other) == GSYNC_OK);
        } else {
            OK(cudaStreamSynchronize(other));
            CHECK(gsync_ready(reducer, memory) == GSYNC_OK);
        }
        CHECK(gsync_finish(reducer, NULL) == GSYNC_OK);
    }
    gsync_reducer_destroy(&reducer);
    OK(cudaStreamDestroy(other));
    OK(cudaFree(memory));
    gsync_comm_destroy(&s->comms[rank]);
}

static void a_shared_weight_may_be_written_until_its_last_mark(void **state) {
    (void)state;
    run_scene(train_with_shared_weight, checking());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_replicas_are_compared_every_other_step),
        cmocka_unit_test(unused_gradients_may_differ),
        cmocka_unit_test(a_replica_that_differs_is_named_and_training_goes_on),
        cmocka_unit_test(results_are_the_same_where_writes_are_checked),
        cmocka_unit_test(a_write_after_the_mark_is_named_and_nothing_is_touched),
        cmocka_unit_test(a_shared_weight_may_be_written_until_its_last_mark),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
