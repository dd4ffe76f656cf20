/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=90 */

/*
 * Error feedback of gradients on a GPU: results are the host's twin's, bit by bit, for steps that a host waits for and
 * for steps that none does; also after steps that do not count, where only the device knows.
 */

#include "device_pair.h"

#include <math.h>

enum { STEPS = 7, ODD_STEP = 3, RESTART_STEP = 4 };

typedef enum odd_step { ORDINARY_STEP, INFINITE_STEP, EMPTY_STEP } odd_step;

typedef struct scene {
    model model;
    model infinite; /* the same, but for its numbers */
    gsync_options options;
    unsigned on_stream; /* bit: that step ends with gsync_finish_on */
    odd_step odd;
    int micro_batches;
    bool weighs;
    bool weighs_nothing; /* in the odd step */
    bool restarts;       /* from what was saved, before RESTART_STEP */
    gsync_comm *comms[RANKS_MAX];
} scene;

enum { ON_STREAM = 0x7f, IN_TURN = 0x55 };

static scene scene_of(gsync_wire wire, gsync_dtype dtype, unsigned on_stream) {
    scene s = {.model = {.count = 6,
                         .columns = {7, 300, 33, 1, 64, 1500},
                         .rows = {0, 0, 5, 0, 0, 0},
                         .pitch = {0, 0, 40, 0, 0, 0},
                         .dtype = dtype,
                         .wire = wire,
                         .wire_options = GSYNC_WIRE_OPTIONS_INIT,
                         .seed = 20261209},
               .options = GSYNC_OPTIONS_INIT,
               .on_stream = on_stream,
               .micro_batches = 1};
    s.model.wire_options.feedback = GSYNC_FEEDBACK_ON;
    s.model.wire_options.elements_min = 30;
    s.options.is_deterministic = 1;
    s.options.bucket_bytes_max = 1500;
    s.options.bucket_bytes_first_max = 500;
    return s;
}

/* ---- steps ---- */

static ending ending_of(const scene *s, int step) {
    return (s->on_stream >> step & 1u) != 0 ? WAITS_ON_STREAM : WAITS_ON_HOST;
}

static void weigh(trainer *t, const scene *s, int step) {
    const double weight = s->weighs_nothing && step == ODD_STEP ? 0 : 0.5 + 1.7 * t->rank + (double)t->micro_batch;
    report_failure(t, "set_weight", gsync_set_weight(t->device, weight));
    report_failure(t, "the twin's set_weight", gsync_set_weight(t->host, weight));
}

static void take_step(trainer *t, const scene *s, int step, cudaEvent_t consumed) {
    const bool is_infinite = s->odd == INFINITE_STEP && step == ODD_STEP;
    for (int i = 0; i < s->micro_batches; i++) {
        const bool is_last = i + 1 == s->micro_batches;
        const gsync_phase phase = is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        report_failure(t, "begin", gsync_begin(t->device, phase));
        report_failure(t, "the twin's begin", gsync_begin(t->host, phase));
        if (s->weighs) {
            weigh(t, s, step);
        }
        t->model = is_infinite && t->rank == 1 ? &s->infinite : &s->model;
        trainer_backward(t, false, consumed);
        (void)trainer_finish(t, ending_of(s, step), is_last ? &info : NULL);
    }
    if (!is_infinite) {
        (void)trainer_compare(t);
    }
}

/* Another reducer goes on from what this one has saved; the twin goes on as it was. */
static void restart(trainer *t, const scene *s, gsync_comm *comm) {
    const size_t bytes = gsync_state_size(t->device);
    void *const state = malloc(bytes);
    report_failure(t, "save", gsync_state_save(t->device, state, bytes));
    gsync_reducer_destroy(&t->device);
    CHECK(gsync_reducer_create(&t->device, comm, &s->options) == GSYNC_OK);
    add_gradients(t, t->device, true);
    CHECK(gsync_reducer_set_wire(t->device, NULL, s->model.wire, &s->model.wire_options) == GSYNC_OK);
    report_failure(t, "commit", gsync_reducer_commit(t->device));
    report_failure(t, "load", gsync_state_load(t->device, state, bytes));
    free(state);
}

static void run_rank(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t;
    cudaEvent_t consumed;
    (void)ranks;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &s->model, s->comms[rank], &s->options, 2)) {
        for (int step = 0; step < STEPS; step++) {
            if (s->restarts && step == RESTART_STEP) {
                restart(&t, s, s->comms[rank]);
            }
            if (s->odd == EMPTY_STEP && step == ODD_STEP && rank == 0) {
                report_failure(&t, "finish_empty", gsync_finish_empty(t.device, NULL));
                report_failure(&t, "the twin's finish_empty", gsync_finish_empty(t.host, NULL));
            } else {
                take_step(&t, s, step, consumed);
            }
        }
    }
    t.model = &s->model;
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

static void run_scene(scene s, const char *what) {
    s.infinite = s.model;
    s.infinite.loss_scale = INFINITY;
    for (int ranks = 2; ranks <= 3; ranks++) {
        simcuda_reset();
        simcuda_schedule((uint64_t)ranks);
        assert_int_equal(gsync_comm_threads(s.comms, ranks, NULL), GSYNC_OK);
        run_rank_threads(ranks, run_rank, &s);
        if (simcuda_reports(NULL, 0) != 0) {
            fprintf(stderr, "%s, %d ranks:\n", what, ranks);
            print_reports();
        }
        assert_int_equal(simcuda_reports(NULL, 0), 0);
        assert_int_equal(simcuda_allocations(), 0);
        assert_int_equal(simcuda_objects(), 0);
        assert_int_equal(simcuda_default_stream_uses(), 0);
    }
}

/* ---- claims ---- */

static const gsync_wire wires[] = {GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8, GSYNC_WIRE_TOPK,
                                   GSYNC_WIRE_FLOAT16};
enum { WIRES = 5, ON_ANY_STREAM = 4 /* FLOAT16 learns its scale where a host waits only */ };

static void what_is_owed_is_paid_as_on_the_host(void **state) {
    (void)state;
    static const gsync_dtype types[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT32, GSYNC_FLOAT32, GSYNC_BFLOAT16};
    for (int i = 0; i < WIRES; i++) {
        run_scene(scene_of(wires[i], types[i], 0), "a host waits");
    }
}

static void where_no_host_waits_too(void **state) {
    (void)state;
    for (int i = 0; i < ON_ANY_STREAM; i++) {
        run_scene(scene_of(wires[i], GSYNC_FLOAT32, ON_STREAM), "no host waits");
        run_scene(scene_of(wires[i], GSYNC_FLOAT32, IN_TURN), "a host waits now and then");
    }
}

static void a_step_with_inf_leaves_what_is_owed(void **state) {
    (void)state;
    for (int i = 0; i < ON_ANY_STREAM; i++) {
        scene s = scene_of(wires[i], GSYNC_FLOAT32, i % 2 == 0 ? ON_STREAM : IN_TURN);
        s.odd = INFINITE_STEP;
        run_scene(s, "inf, no host waits");
        s.on_stream = 0;
        run_scene(s, "inf, a host waits");
    }
}

/* The divisor is the device's alone. */
static void a_step_in_which_nothing_weighs_leaves_what_is_owed(void **state) {
    (void)state;
    for (int i = 0; i < ON_ANY_STREAM; i++) {
        scene s = scene_of(wires[i], GSYNC_FLOAT32, ON_STREAM);
        s.options.op = GSYNC_WEIGHTED_MEAN;
        s.weighs = true;
        s.weighs_nothing = true;
        run_scene(s, "no weight, no host waits");
        s.on_stream = 0;
        run_scene(s, "no weight, a host waits");
    }
}

static void ranks_without_data_do_not_pay(void **state) {
    (void)state;
    for (int i = 0; i < WIRES; i++) {
        scene s = scene_of(wires[i], GSYNC_FLOAT32, 0);
        s.odd = EMPTY_STEP;
        run_scene(s, "empty");
    }
}

static void what_no_rank_has_used_owes_on(void **state) {
    (void)state;
    for (int i = 0; i < ON_ANY_STREAM; i++) {
        scene s = scene_of(wires[i], GSYNC_FLOAT32, i % 2 == 0 ? ON_STREAM : IN_TURN);
        s.model.has_unused = true;
        s.options.finds_unused = 1;
        run_scene(s, "unused");
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        s.micro_batches = 2;
        run_scene(s, "unused, accumulated");
    }
}

static void a_restart_from_a_saved_state_changes_no_bits(void **state) {
    (void)state;
    for (int i = 0; i < WIRES; i++) {
        scene s = scene_of(wires[i], GSYNC_FLOAT32, wires[i] == GSYNC_WIRE_FLOAT16 ? 0 : IN_TURN);
        s.restarts = true;
        run_scene(s, "restart");
    }
}

/* ---- calls ---- */

static gsync_wire_options owing(void) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.feedback = GSYNC_FEEDBACK_ON;
    options.elements_min = 1;
    return options;
}

static void save_too_early(int rank, int ranks, void *context) {
    gsync_comm **comms = context;
    const gsync_wire_options options = owing();
    pair p = {.reducer = NULL};
    (void)ranks;
    pair_make(&p, comms[rank], NULL);
    CHECK_STATUS(gsync_reducer_set_wire(p.reducer, NULL, GSYNC_WIRE_INT8, &options), GSYNC_OK, "");
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    const size_t bytes = gsync_state_size(p.reducer);
    CHECK(bytes > 2 * 2 * COUNT * sizeof(float));
    void *const state = malloc(bytes);
    CHECK_STATUS(gsync_state_save(p.reducer, state, bytes), GSYNC_OK, "");
    step_on_stream(&p, 1);
    CHECK_STATUS(gsync_state_save(p.reducer, state, bytes), GSYNC_ERR_STATE, "agreed on the order");
    CHECK_STATUS(gsync_state_load(p.reducer, state, bytes), GSYNC_ERR_STATE, "agreed on the order");
    step_on_stream(&p, 2);
    CHECK_STATUS(gsync_state_save(p.reducer, state, bytes), GSYNC_OK, "");
    CHECK_STATUS(gsync_state_load(p.reducer, state, bytes), GSYNC_OK, "");
    free(state);
    pair_close(&p);
    gsync_comm_destroy(&comms[rank]);
}

static void a_state_waits_for_the_order_of_the_first_step(void **state) {
    (void)state;
    gsync_comm *comms[RANKS_MAX];
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(comms, 2, NULL), GSYNC_OK);
    run_rank_threads(2, save_too_early, comms);
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

/* The device's pieces are, in this order, buckets, what steps exchange, and what is owed. */
static void lack_memory(int rank, int ranks, void *context) {
    gsync_comm **comms = context;
    const gsync_wire_options options = owing();
    pair p = {.reducer = NULL};
    (void)ranks;
    pair_make(&p, comms[rank], NULL);
    CHECK_STATUS(gsync_reducer_set_wire(p.reducer, NULL, GSYNC_WIRE_INT8, &options), GSYNC_OK, "");
    if (rank == 1) {
        simcuda_fault("cudaMalloc", 1, 3, SIMCUDA_RETURNS, cudaErrorMemoryAllocation);
    }
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_ERR_MEMORY, "error feedback");
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    step_on_host(&p, 1);
    pair_close(&p);
    gsync_comm_destroy(&comms[rank]);
}

static void memory_that_is_lacking_for_it_is_named(void **state) {
    (void)state;
    gsync_comm *comms[RANKS_MAX];
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(comms, 2, NULL), GSYNC_OK);
    run_rank_threads(2, lack_memory, comms);
    assert_int_equal(simcuda_allocations(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_owed_is_paid_as_on_the_host),
        cmocka_unit_test(where_no_host_waits_too),
        cmocka_unit_test(a_step_with_inf_leaves_what_is_owed),
        cmocka_unit_test(a_step_in_which_nothing_weighs_leaves_what_is_owed),
        cmocka_unit_test(ranks_without_data_do_not_pay),
        cmocka_unit_test(what_no_rank_has_used_owes_on),
        cmocka_unit_test(a_restart_from_a_saved_state_changes_no_bits),
        cmocka_unit_test(a_state_waits_for_the_order_of_the_first_step),
        cmocka_unit_test(memory_that_is_lacking_for_it_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
