/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* What looks for mistakes, with gradients on a GPU: comparing replicas. */

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_replicas_are_compared_every_other_step),
        cmocka_unit_test(unused_gradients_may_differ),
        cmocka_unit_test(a_replica_that_differs_is_named_and_training_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
