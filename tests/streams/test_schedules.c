/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=200 */

/*
 * Steps under many schedules of the device, chosen by seeds: 100 of them, or as many as the first argument says, from
 * the second one on. Marks come from several threads of a rank, and ranks also know each other through NCCL alone.
 */

#include "device_trainer.h"

#include <nccl.h>

enum { STEPS = 4, MARKERS = 3 };

static uint64_t seed_count = 100;
static uint64_t seed_first = 1;

typedef struct session {
    model model;
    gsync_options options;
    int ranks;
    bool has_markers; /* several threads mark */
    bool is_over_nccl;
    uint64_t seed;
    ncclUniqueId id;
    gsync_comm *comms[RANKS_MAX];
} session;

/* ---- marks of several threads ---- */

typedef struct marker {
    trainer *trainer;
    int first;
    pthread_t thread;
} marker;

/* Every MARKERS-th gradient, on a stream of the thread's own. */
static void *mark(void *argument) {
    marker *m = argument;
    trainer *t = m->trainer;
    OK(cudaSetDevice(t->rank));
    for (int g = t->model->count - 1 - m->first; g >= 0; g -= MARKERS) {
        cudaStream_t stream = t->compute[m->first];
        backward_one(t, g, stream, false);
        report_failure(t, "ready_on", gsync_ready_on(t->device, t->on_device[g], stream));
    }
    return NULL;
}

static void backward_by_threads(trainer *t, cudaEvent_t consumed) {
    marker markers[MARKERS];
    OK(cudaEventRecord(consumed, t->compute[0]));
    for (int p = 1; p < t->producers; p++) {
        OK(cudaStreamWaitEvent(t->compute[p], consumed, 0));
    }
    t->micro_batch++;
    for (int i = 0; i < MARKERS; i++) {
        markers[i] = (marker){.trainer = t, .first = i};
        CHECK(pthread_create(&markers[i].thread, NULL, mark, &markers[i]) == 0);
    }
    for (int i = 0; i < MARKERS; i++) {
        pthread_join(markers[i].thread, NULL);
    }
}

/* ---- sessions ---- */

static void train(trainer *t, const session *s) {
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    for (int step = 0; step < STEPS; step++) {
        const ending how = mix(s->seed + (uint64_t)step) % 2 == 0 ? WAITS_ON_HOST : WAITS_ON_STREAM;
        report_failure(t, "begin", gsync_begin(t->device, GSYNC_SYNC));
        report_failure(t, "the twin's begin", gsync_begin(t->host, GSYNC_SYNC));
        if (s->has_markers) {
            backward_by_threads(t, consumed);
        } else {
            trainer_backward(t, false, consumed);
        }
        (void)trainer_finish(t, how, NULL);
        if (mix(s->seed + (uint64_t)step) % 3 != 0 || step == STEPS - 1) {
            (void)trainer_compare(t);
        }
    }
    OK(cudaEventDestroy(consumed));
}

static gsync_comm *make_comm(session *s, int rank, ncclComm_t *nccl) {
    gsync_comm *comm = NULL;
    if (!s->is_over_nccl) {
        return s->comms[rank];
    }
    OK(ncclCommInitRank(nccl, s->ranks, s->id, rank));
    const gsync_status status = gsync_comm_from_nccl(&comm, *nccl, NULL);
    if (status != GSYNC_OK) {
        fprintf(stderr, "rank %d: gsync_comm_from_nccl: %s\n", rank, gsync_last_error());
    }
    CHECK(status == GSYNC_OK);
    return comm;
}

static void run_rank(int rank, int ranks, void *context) {
    session *s = context;
    trainer t;
    ncclComm_t nccl = NULL;
    gsync_comm *comm = make_comm(s, rank, &nccl);
    (void)ranks;
    if (comm != NULL) {
        if (trainer_open(&t, &s->model, comm, &s->options, s->has_markers ? MARKERS : 2)) {
            train(&t, s);
        }
        trainer_close(&t);
    }
    gsync_comm_destroy(&comm);
    if (nccl != NULL) {
        OK(ncclCommDestroy(nccl));
    }
}

static session plain_session(void) {
    session s = {.model = {.count = 7,
                           .columns = {40, 90, 25, 130, 64, 10, 77},
                           .dtype = GSYNC_FLOAT32,
                           .is_exact = true,
                           .seed = 12},
                 .options = GSYNC_OPTIONS_INIT};
    s.options.bucket_bytes_max = 500;
    s.options.bucket_bytes_first_max = 300;
    return s;
}

static void run(session *s, int ranks, uint64_t seed) {
    s->seed = seed;
    s->ranks = ranks;
    simcuda_reset();
    simcuda_schedule(seed);
    if (s->is_over_nccl) {
        OK(ncclGetUniqueId(&s->id));
    } else {
        gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
        options.timeout_ms = 20000;
        assert_int_equal(gsync_comm_threads(s->comms, ranks, &options), GSYNC_OK);
    }
    run_rank_threads(ranks, run_rank, s);
    if (simcuda_reports(NULL, 0) != 0) {
        fprintf(stderr, "%d ranks, seed %llu:\n", ranks, (unsigned long long)seed);
        print_reports();
    }
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

/* ---- claims ---- */

static void results_do_not_depend_on_the_schedule(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 4, 8};
    for (uint64_t seed = seed_first; seed < seed_first + seed_count; seed++) {
        session s = plain_session();
        s.options.is_deterministic = seed % 2 != 0;
        run(&s, worlds[seed % 4], seed);
    }
}

static void marks_may_come_from_several_threads(void **state) {
    (void)state;
    for (uint64_t seed = seed_first; seed < seed_first + seed_count / 5; seed++) {
        session s = plain_session();
        s.has_markers = true;
        run(&s, 2, seed);
    }
}

/* What is owed is read and written on the library's stream alone, and settled by whoever knows whether a step counts.
 */
static void what_is_owed_does_not_depend_on_it_either(void **state) {
    (void)state;
    static const gsync_wire wires[] = {GSYNC_WIRE_INT8, GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_FLOAT8};
    for (uint64_t seed = seed_first; seed < seed_first + seed_count / 5; seed++) {
        session s = plain_session();
        s.model.is_exact = false;
        s.model.wire = wires[seed % 3];
        s.model.wire_options = (gsync_wire_options)GSYNC_WIRE_OPTIONS_INIT;
        s.model.wire_options.feedback = GSYNC_FEEDBACK_ON;
        s.model.wire_options.elements_min = 30;
        s.model.has_unused = seed % 2 == 0;
        s.options.finds_unused = seed % 2 == 0;
        s.options.is_deterministic = 1;
        run(&s, 2 + (int)(seed % 2), seed);
    }
}

static void ranks_may_know_each_other_through_nccl_alone(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        session s = plain_session();
        s.is_over_nccl = true;
        run(&s, 2 + (int)seed, seed);
    }
}

int main(int count, char **arguments) {
    seed_count = count > 1 ? strtoull(arguments[1], NULL, 10) : seed_count;
    seed_first = count > 2 ? strtoull(arguments[2], NULL, 10) : seed_first;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_do_not_depend_on_the_schedule),
        cmocka_unit_test(marks_may_come_from_several_threads),
        cmocka_unit_test(what_is_owed_does_not_depend_on_it_either),
        cmocka_unit_test(ranks_may_know_each_other_through_nccl_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
