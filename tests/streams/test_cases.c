/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=180 */

/*
 * What went wrong on streams elsewhere, by the numbers of bug reports (GS-...) and of complaints that peers have had:
 * several reducers at once, gradients that move, results read or gradients written too early, devices chosen late.
 */

#include "device_trainer.h"

enum { STEPS = 6 };

typedef struct plot plot;
typedef void rank_plot(plot *p, int rank);
struct plot {
    rank_plot *act;
    gsync_comm *comms[2][RANKS_MAX];
    model model;
    gsync_options options;
    uint64_t seed;
    int ranks;
};

static model plain_model(void) {
    return (model){
        .count = 5, .columns = {40, 90, 25, 130, 64}, .dtype = GSYNC_FLOAT32, .is_exact = true, .seed = 4711};
}

static void run_plot(int rank, int ranks, void *context) {
    plot *p = context;
    (void)ranks;
    p->act(p, rank);
    gsync_comm_destroy(&p->comms[0][rank]);
    gsync_comm_destroy(&p->comms[1][rank]);
}

static void make_comms(plot *p, int ranks) {
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = 10000;
    assert_int_equal(gsync_comm_threads(p->comms[0], ranks, &options), GSYNC_OK);
    assert_int_equal(gsync_comm_threads(p->comms[1], ranks, &options), GSYNC_OK);
}

static void stage(plot *p, int ranks, rank_plot *act) {
    p->act = act;
    p->ranks = ranks;
    make_comms(p, ranks);
    run_rank_threads(ranks, run_plot, p);
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

static plot plain_plot(void) {
    plot p = {.model = plain_model(), .options = GSYNC_OPTIONS_INIT};
    p.options.bucket_bytes_max = 400;
    p.options.bucket_bytes_first_max = 400;
    return p;
}

static void train(trainer *t, ending how, cudaEvent_t consumed) {
    report_failure(t, "begin", gsync_begin(t->device, GSYNC_SYNC));
    report_failure(t, "the twin's begin", gsync_begin(t->host, GSYNC_SYNC));
    trainer_backward(t, false, consumed);
    (void)trainer_finish(t, how, NULL);
}

/* ---- GS-72: several reducers in flight, in another order on every rank ---- */

static bool swaps(const plot *p, int step, int rank, int moment) {
    return mix(p->seed * 1000 + (uint64_t)(step * 64 + rank * 4 + moment)) % 2 != 0;
}

static void act_any_order(plot *p, int rank) {
    trainer t[2];
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    bool is_open = true;
    for (int i = 0; i < 2; i++) {
        is_open = trainer_open(&t[i], &p->model, p->comms[i][rank], &p->options, 1) && is_open;
    }
    for (int step = 0; step < 4 * STEPS && is_open; step++) {
        for (int i = 0; i < 2; i++) {
            report_failure(&t[i], "begin", gsync_begin(t[i].device, GSYNC_SYNC));
            report_failure(&t[i], "begin", gsync_begin(t[i].host, GSYNC_SYNC));
        }
        for (int i = 0; i < 2; i++) {
            trainer_backward(&t[swaps(p, step, rank, 0) ? 1 - i : i], false, consumed);
        }
        for (int i = 0; i < 2; i++) {
            trainer *next = &t[swaps(p, step, rank, 1) ? 1 - i : i];
            report_failure(next, "finish", gsync_finish(next->device, NULL));
        }
        for (int i = 0; i < 2; i++) {
            report_failure(&t[i], "finish", gsync_finish(t[i].host, NULL));
            (void)trainer_compare(&t[i]);
        }
    }
    trainer_close(&t[0]);
    trainer_close(&t[1]);
    OK(cudaEventDestroy(consumed));
}

static void gs_72_reducers_may_start_and_finish_in_any_order(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        plot p = plain_plot();
        p.seed = seed;
        p.options.order = GSYNC_ORDER_REGISTERED;
        simcuda_reset();
        stage(&p, 4, act_any_order);
    }
}

/* On a device that has room for one kernel only, one group's step has to come after the other's, as it does where both
 * are used on one stream of the trainer's. */
static void act_groups(plot *p, int rank) {
    trainer t[2];
    cudaEvent_t consumed;
    gsync_comm *half = NULL;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    CHECK(gsync_comm_split(p->comms[0][rank], rank / 2, rank, &half) == GSYNC_OK);
    const bool is_open = trainer_open(&t[0], &p->model, half, &p->options, 1) &&
                         trainer_open(&t[1], &p->model, p->comms[1][rank], &p->options, 1);
    cudaStream_t own = t[1].compute[0];
    t[1].compute[0] = t[0].compute[0];
    for (int step = 0; step < 4 * STEPS && is_open; step++) {
        for (int i = 0; i < 2; i++) {
            train(&t[i], WAITS_ON_STREAM, consumed);
            if (swaps(p, step, rank, i)) {
                (void)trainer_compare(&t[i]);
            }
        }
    }
    trainer_close(&t[0]);
    t[1].compute[0] = own;
    trainer_close(&t[1]);
    gsync_comm_destroy(&half);
    OK(cudaEventDestroy(consumed));
}

static void gs_72_groups_share_a_device_with_room_for_one_kernel(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        plot p = plain_plot();
        p.seed = seed;
        simcuda_reset();
        simcuda_schedule(seed);
        simcuda_one_kernel_at_a_time(1);
        stage(&p, 4, act_groups);
    }
}

/* ---- GS-73: gradients that are somewhere else in every step ---- */

static void act_moving(plot *p, int rank) {
    trainer t;
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &p->model, p->comms[0][rank], &p->options, 2)) {
        for (int step = 0; step < STEPS; step++) {
            train(&t, step % 2 == 0 ? WAITS_ON_STREAM : WAITS_ON_HOST, consumed);
            (void)trainer_compare(&t);
            void *old = t.memory;
            void *places[GRADIENTS_MAX];
            OK(cudaMalloc(&t.memory, place_of(t.model, t.model->count)));
            for (int g = 0; g < t.model->count; g++) {
                t.on_device[g] = (char *)t.memory + place_of(t.model, g);
                places[g] = t.on_device[g];
            }
            report_failure(&t, "rebind", gsync_reducer_rebind_list(t.device, places, (size_t)t.model->count));
            OK(simcuda_poison(t.compute[0], old, place_of(t.model, t.model->count)));
            OK(cudaStreamSynchronize(t.compute[0]));
            OK(cudaFree(old)); /* the library must not touch it any more */
        }
        static float on_host[RANKS_MAX][64];
        CHECK(gsync_reducer_rebind(t.device, "gradient 0", on_host[rank]) == GSYNC_ERR_ARGUMENT);
        CHECK(strstr(gsync_last_error(), "host memory") != NULL);
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
}

static void gs_73_addresses_are_taken_in_every_step(void **state) {
    (void)state;
    plot p = plain_plot();
    simcuda_reset();
    stage(&p, 2, act_moving);
}

/* ---- GS-75, and complaints 23 and 25: slow producers, several of them, on any stream; early readers ---- */

static void act_slow_producers(plot *p, int rank) {
    trainer t;
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &p->model, p->comms[0][rank], &p->options, 4)) {
        for (int i = 0; i < 4; i++) {
            simcuda_delay(t.compute[i], (unsigned)(mix(p->seed + (uint64_t)(rank * 8 + i)) % 4000));
        }
        for (int step = 0; step < STEPS; step++) {
            train(&t, step % 2 == 0 ? WAITS_ON_STREAM : WAITS_ON_HOST, consumed);
            (void)trainer_compare(&t);
        }
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
}

static void gs_75_buckets_wait_for_all_their_producers(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 4; seed++) {
        plot p = plain_plot();
        p.seed = seed;
        p.options.bucket_bytes_max = 100000; /* all in one bucket */
        simcuda_reset();
        stage(&p, 2, act_slow_producers);
    }
}

/* ---- GS-76: gradients written after they were marked are a defect of the trainer, which the simulator reports ---- */

static void act_late_write(plot *p, int rank) {
    trainer t;
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &p->model, p->comms[0][rank], &p->options, 1)) {
        report_failure(&t, "begin", gsync_begin(t.device, GSYNC_SYNC));
        report_failure(&t, "begin", gsync_begin(t.host, GSYNC_SYNC));
        trainer_backward(&t, false, consumed);
        backward_one(&t, 3, t.compute[0], false);
        report_failure(&t, "finish", gsync_finish_on(t.device, t.compute[0], NULL));
        report_failure(&t, "finish", gsync_finish(t.host, NULL));
        OK(cudaStreamSynchronize(t.compute[0]));
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
}

static bool is_reported(void) {
    plot p = plain_plot();
    simcuda_report report;
    p.act = act_late_write;
    make_comms(&p, 2);
    run_rank_threads(2, run_plot, &p);
    return simcuda_reports(&report, 1) > 0 && report.kind == SIMCUDA_RACE &&
           (strcmp(report.first, "backward") == 0 || strcmp(report.second, "backward") == 0);
}

/* In a process of its own, which ThreadSanitizer may end. */
static void gs_76_late_writes_are_races(void **state) {
    (void)state;
    int status;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(1);
        }
        _exit(is_reported() ? 66 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 66);
}

/* ---- GS-77: the device is chosen when the reducer is there already ---- */

static void act_late_device(plot *p, int rank) {
    static const int orders = 4;
    for (int order = 0; order < orders; order++) {
        gsync_comm *comm = p->comms[0][rank];
        gsync_reducer *reducer = NULL;
        float *memory = NULL;
        const int device = (rank + 3) % 8;
        const int chosen_at = order;
        for (int moment = 0; moment < 4; moment++) {
            if (moment == chosen_at) {
                OK(cudaSetDevice(device));
            }
            if (moment == 1) {
                CHECK(gsync_reducer_create(&reducer, comm, NULL) == GSYNC_OK);
            }
            if (moment == 2) {
                int before;
                OK(cudaGetDevice(&before));
                OK(cudaSetDevice(device));
                OK(cudaMalloc((void **)&memory, 256));
                OK(cudaSetDevice(before));
                CHECK(gsync_reducer_add(reducer, "g", memory, 64, GSYNC_FLOAT32) == GSYNC_OK);
            }
        }
        const gsync_status status = gsync_reducer_commit(reducer);
        CHECK(status == GSYNC_OK);
        int after;
        OK(cudaGetDevice(&after));
        CHECK(after == device);
        /* Steps are for any device that is current. */
        OK(cudaSetDevice((device + 1) % 8));
        CHECK(gsync_begin(reducer, GSYNC_SYNC) == GSYNC_OK);
        CHECK(gsync_ready(reducer, memory) == GSYNC_OK);
        CHECK(gsync_finish(reducer, NULL) == GSYNC_OK);
        OK(cudaGetDevice(&after));
        CHECK(after == (device + 1) % 8);
        gsync_reducer_destroy(&reducer);
        OK(cudaFree(memory));
        OK(cudaSetDevice(0));
    }
}

static void gs_77_only_commit_needs_the_device(void **state) {
    (void)state;
    plot p = plain_plot();
    simcuda_reset();
    stage(&p, 2, act_late_device);
}

/* ---- complaint 19: norms without what fills up buckets, or is left in them ---- */

static void act_norm(plot *p, int rank) {
    trainer t;
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &p->model, p->comms[0][rank], &p->options, 2)) {
        for (int step = 0; step < STEPS; step++) {
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            gsync_step_info twin = GSYNC_STEP_INFO_INIT;
            report_failure(&t, "begin", gsync_begin(t.device, GSYNC_SYNC));
            report_failure(&t, "begin", gsync_begin(t.host, GSYNC_SYNC));
            trainer_backward(&t, false, consumed);
            report_failure(&t, "finish", gsync_finish(t.device, &info));
            report_failure(&t, "finish", gsync_finish(t.host, &twin));
            CHECK(twin.grad_norm > 0);
            CHECK(info.grad_norm == twin.grad_norm); /* of halves of integers: exact in any order */
            (void)trainer_compare(&t);
            double norm = 0;
            report_failure(&t, "clip", gsync_clip_grad_norm(t.device, 2.0, &norm));
            report_failure(&t, "clip", gsync_clip_grad_norm(t.host, 2.0, NULL));
            CHECK(norm == info.grad_norm);
            (void)trainer_compare(&t);
        }
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
}

static void complaint_19_norms_see_gradients_only(void **state) {
    (void)state;
    plot p = plain_plot();
    p.options.computes_norm = 1;
    simcuda_reset();
    stage(&p, 2, act_norm);
}

/* ---- complaints 20 and 21: ranks that run out of data at different times ---- */

static void act_uneven(plot *p, int rank) {
    trainer t;
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &p->model, p->comms[0][rank], &p->options, 2)) {
        const int own_steps = STEPS - rank;
        int all_done = 0;
        for (int step = 0; step < STEPS + 1; step++) {
            CHECK(gsync_all_done(p->comms[0][rank], step >= own_steps, &all_done) == GSYNC_OK);
            if (all_done) {
                break;
            }
            if (step < own_steps) {
                train(&t, WAITS_ON_HOST, consumed);
            } else {
                report_failure(&t, "finish_empty", gsync_finish_empty(t.device, NULL));
                report_failure(&t, "finish_empty", gsync_finish_empty(t.host, NULL));
            }
            (void)trainer_compare(&t);
        }
        CHECK(all_done);
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
}

static void complaint_20_ranks_join_with_nothing(void **state) {
    (void)state;
    plot p = plain_plot();
    p.options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    simcuda_reset();
    stage(&p, 4, act_uneven);
}

/* ---- complaint 22: who aborts, and how many communicators ---- */

static void act_abort(plot *p, int rank) {
    trainer t[2];
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    const bool is_open = trainer_open(&t[0], &p->model, p->comms[0][rank], &p->options, 1) &&
                         trainer_open(&t[1], &p->model, p->comms[1][rank], &p->options, 1);
    if (is_open) {
        for (int i = 0; i < 2; i++) {
            CHECK(gsync_begin(t[i].device, GSYNC_SYNC) == GSYNC_OK);
        }
        if (rank == 0) {
            gsync_comm_abort(p->comms[0][rank], "enough");
            gsync_comm_abort(p->comms[1][rank], "enough");
        } else {
            for (int i = 0; i < 2; i++) {
                CHECK(gsync_finish(t[i].device, NULL) == GSYNC_ERR_ABORTED);
                CHECK(strstr(gsync_last_error(), "enough") != NULL);
            }
        }
    }
    trainer_close(&t[0]);
    trainer_close(&t[1]);
    OK(cudaEventDestroy(consumed));
}

static void complaint_22_all_communicators_are_aborted(void **state) {
    (void)state;
    plot p = plain_plot();
    simcuda_reset();
    stage(&p, 2, act_abort);
}

/* ---- complaint 24: what is still reduced is not used again ---- */

static void act_ahead(plot *p, int rank) {
    trainer t;
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &p->model, p->comms[0][rank], &p->options, 2)) {
        /* No host waits, so it is ahead of the device by as many steps as it may be. */
        for (int step = 0; step < 4 * STEPS; step++) {
            train(&t, WAITS_ON_STREAM, consumed);
        }
        (void)trainer_compare(&t);
        gsync_reducer_destroy(&t.device); /* with steps behind it that nobody has waited for */
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
}

static void complaint_24_buckets_are_not_used_too_early(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        plot p = plain_plot();
        simcuda_reset();
        simcuda_schedule(seed);
        stage(&p, 2, act_ahead);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gs_76_late_writes_are_races), /* first: it forks */
        cmocka_unit_test(gs_72_reducers_may_start_and_finish_in_any_order),
        cmocka_unit_test(gs_72_groups_share_a_device_with_room_for_one_kernel),
        cmocka_unit_test(gs_73_addresses_are_taken_in_every_step),
        cmocka_unit_test(gs_75_buckets_wait_for_all_their_producers),
        cmocka_unit_test(gs_77_only_commit_needs_the_device),
        cmocka_unit_test(complaint_19_norms_see_gradients_only),
        cmocka_unit_test(complaint_20_ranks_join_with_nothing),
        cmocka_unit_test(complaint_22_all_communicators_are_aborted),
        cmocka_unit_test(complaint_24_buckets_are_not_used_too_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
