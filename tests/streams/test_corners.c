/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* Where several features meet: each alone is tested elsewhere. */

#include "device_pair.h"

#include <math.h>
#include <sched.h>

typedef struct crew crew;
typedef void rank_story(crew *c, int rank, gsync_comm *comm);
struct crew {
    rank_story *story;
    gsync_comm *comms[RANKS_MAX];
    atomic_int has_ended;
};

static void run_story(int rank, int ranks, void *context) {
    crew *c = context;
    (void)ranks;
    simcuda_thread_rank(rank);
    c->story(c, rank, c->comms[rank]);
    gsync_comm_destroy(&c->comms[rank]);
}

static void tell(int ranks, rank_story *story) {
    crew c = {.story = story};
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = 1500;
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(c.comms, ranks, &options), GSYNC_OK);
    run_rank_threads(ranks, run_story, &c);
    simcuda_wait_idle();
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    assert_int_equal(simcuda_allocations(), 0);
    assert_int_equal(simcuda_objects(), 0);
}

/* ---- what no host has waited for ---- */

static void tell_forgotten_alone(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    pair_open(&p, comm, &options);
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    mark(&p, 1, 1.0);
    CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_OK, "");
    OK(cudaStreamSynchronize(p.compute));
    simcuda_wait_idle();
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_ERR_INCOMPLETE, "the first is 'a'");
    step_on_host(&p, 3.0);
    CHECK(first_of(&p, 0) == 3.0f);
    pair_close(&p);
}

static void a_rank_alone_hears_of_what_it_forgot(void **state) {
    (void)state;
    tell(1, tell_forgotten_alone);
}

/* The order of the first step was never agreed, and its replicas never compared, when the set changes. */
static void tell_frozen_behind_streams(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 4;
    options.replica_check_interval = 1;
    pair_open(&p, comm, &options);
    step_on_stream(&p, rank);
    CHECK(gsync_reducer_set_trainable(p.reducer, "b", 0) == GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    for (int step = 0; step < 2; step++) {
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
        mark(&p, 0, rank + step);
        CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_OK, "");
        CHECK(first_of(&p, 0) == 0.5f + (float)step);
    }
    CHECK(gsync_reducer_set_trainable(p.reducer, "b", 1) == GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    step_on_stream(&p, rank);
    step_on_host(&p, rank);
    CHECK(first_of(&p, 1) == 0.5f);
    pair_close(&p);
}

static void the_set_may_change_behind_steps_that_streams_wait_for(void **state) {
    (void)state;
    tell(2, tell_frozen_behind_streams);
}

static void tell_all_frozen(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    double norm = 1;
    options.computes_norm = 1;
    pair_open(&p, comm, &options);
    step_on_stream(&p, rank);
    CHECK_STATUS(gsync_clip_grad_norm(p.reducer, 1.0, &norm), GSYNC_ERR_STATE, "no host has waited");
    CHECK(gsync_reducer_set_trainable(p.reducer, "a", 0) == GSYNC_OK);
    CHECK(gsync_reducer_set_trainable(p.reducer, "b", 0) == GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_OK, "");
    CHECK_STATUS(gsync_clip_grad_norm(p.reducer, 1.0, &norm), GSYNC_OK, "");
    CHECK(norm == 0);
    pair_close(&p);
}

static void steps_of_nothing_have_a_norm(void **state) {
    (void)state;
    tell(2, tell_all_frozen);
}

/* The host is so far ahead that its begin waits, in vain. */
static void tell_ahead(crew *c, int rank, gsync_comm *comm) {
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.order = GSYNC_ORDER_REGISTERED;
    pair_open(&p, comm, &options);
    if (rank == 0) {
        for (int step = 0; step < 4; step++) {
            step_on_stream(&p, 1.0);
        }
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_ERR_TIMEOUT, "rank 1 has not begun it");
        atomic_store(&c->has_ended, 1);
    } else {
        while (atomic_load(&c->has_ended) == 0) {
            sched_yield();
        }
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
        CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_ERR_PEER_LOST, "noticed by rank 0");
        atomic_store(&c->has_ended, 2);
    }
    while (atomic_load(&c->has_ended) != 2) {
        sched_yield();
    }
    pair_close(&p);
}

static void a_begin_that_waits_in_vain_tells_the_others(void **state) {
    (void)state;
    tell(2, tell_ahead);
}

/* ---- producers ---- */

static void *mark_on_own_default_stream(void *argument) {
    const pair *p = argument;
    OK(cudaSetDevice(0));
    fill_on(p, 0, 2.0, cudaStreamPerThread);
    CHECK_STATUS(gsync_ready_on(p->reducer, p->grads[0], cudaStreamPerThread), GSYNC_OK, "");
    return NULL;
}

static void tell_default_streams(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    pair p = {0};
    pthread_t thread;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.computes_norm = 1; /* so that kernels read */
    pair_open(&p, comm, &options);
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    fill_on(&p, 1, 2.0, cudaStreamPerThread);
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[1], cudaStreamPerThread), GSYNC_OK, "");
    OK(pthread_create(&thread, NULL, mark_on_own_default_stream, &p));
    OK(pthread_join(thread, NULL));
    CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_OK, "");
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    pair_close(&p);
}

/* They are many streams with one handle. */
static void each_thread_has_a_default_stream_of_its_own(void **state) {
    (void)state;
    crew c = {.story = tell_default_streams};
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(c.comms, 1, NULL), GSYNC_OK);
    run_rank_threads(1, run_story, &c);
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

static void tell_out_of_data(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.computes_norm = 1;
    pair_open(&p, comm, &options);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_ACCUMULATE), GSYNC_OK, "");
        mark(&p, 0, 1.0 + rank);
        mark(&p, 1, 1.0 + rank);
        CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_OK, "");
    }
    if (rank == 1) {
        CHECK_STATUS(gsync_finish_empty(p.reducer, NULL), GSYNC_OK, "");
    } else { /* the rest of the window used neither */
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
        CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_OK, "");
    }
    CHECK(first_of(&p, 0) == 1.5f);
    pair_close(&p);
}

static void a_window_waits_for_the_producers_of_all_its_micro_batches(void **state) {
    (void)state;
    tell(2, tell_out_of_data);
}

/* ---- wires ---- */

static double first_double_of(const pair *p, int g) {
    double value;
    OK(cudaMemcpyAsync(&value, p->grads[g], sizeof value, cudaMemcpyDefault, p->compute));
    OK(cudaStreamSynchronize(p->compute));
    return value;
}

static void tell_long_on_short_wires(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    for (int i = 0; i < 2; i++) {
        pair p = {.is_second_double = true};
        gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
        wire.elements_min = 1;
        pair_make(&p, comm, NULL);
        CHECK(gsync_reducer_set_wire(p.reducer, "*", i == 0 ? GSYNC_WIRE_FLOAT16 : GSYNC_WIRE_BFLOAT16, &wire) ==
              GSYNC_OK);
        CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
        step_on_host(&p, 1.0);
        step_on_host(&p, 1.0);
        CHECK(gsync_bucket_of(p.reducer, "a") != gsync_bucket_of(p.reducer, "b"));
        CHECK(first_of(&p, 0) == 1.0f && first_double_of(&p, 1) == 1.0);
        pair_close(&p);
    }
}

static void float64_travels_beside_float32_on_short_wires(void **state) {
    (void)state;
    tell(2, tell_long_on_short_wires);
}

/* ---- findings ---- */

static void tell_stale_findings(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    wire.elements_min = 1;
    options.bucket_bytes_max = 4;
    options.computes_norm = 1;
    pair_make(&p, comm, &options);
    CHECK(gsync_reducer_set_wire(p.reducer, "b", GSYNC_WIRE_BFLOAT16, &wire) == GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    /* Both ranks' values fit into bfloat16, their mean is flushed: a matter of the sums of the first bucket. */
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    mark(&p, 0, 1.0);
    mark(&p, 1, rank == 0 ? 0x1p-133 : 0.0);
    CHECK_STATUS(gsync_finish(p.reducer, &info), GSYNC_OK, "");
    CHECK(info.values_flushed == COUNT);
    for (int step = 0; step < 3; step++) {
        step_on_stream(&p, 1.0);
    }
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    mark(&p, 0, 1.0);
    mark(&p, 1, 1.0);
    CHECK_STATUS(gsync_finish(p.reducer, &info), GSYNC_OK, "");
    CHECK(info.values_flushed == 0);
    pair_close(&p);
}

static void findings_are_those_of_the_step(void **state) {
    (void)state;
    tell(2, tell_stale_findings);
}

static void tell_nothing_weighs(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    options.checks_finite = 1;
    pair_open(&p, comm, &options);
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    CHECK_STATUS(gsync_set_weight(p.reducer, 0.0), GSYNC_OK, "");
    mark(&p, 0, (double)INFINITY);
    mark(&p, 1, 1.0);
    CHECK_STATUS(gsync_finish(p.reducer, &info), GSYNC_OK, "");
    CHECK(info.found_inf == 0 && info.found_inf_gradient == NULL);
    CHECK(first_of(&p, 0) == 0.0f);
    pair_close(&p);
}

static void what_weighs_nothing_is_not_found(void **state) {
    (void)state;
    tell(2, tell_nothing_weighs);
}

/* ---- failures ---- */

static void tell_failed_clip(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    double norm = 0;
    options.computes_norm = 1;
    pair_open(&p, comm, &options);
    step_on_host(&p, 100.0);
    simcuda_fault("cudaEventRecord", 0, 1, SIMCUDA_RETURNS, cudaErrorUnknown);
    CHECK_STATUS(gsync_clip_grad_norm(p.reducer, 1.0, &norm), GSYNC_ERR_TRANSPORT, "CUDA");
    pair_close(&p);
}

static void clipping_says_when_the_device_fails(void **state) {
    (void)state;
    tell(1, tell_failed_clip);
}

/* What the rank that aborts had queued before would be enough for the others. */
static void tell_aborted(crew *c, int rank, gsync_comm *comm) {
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.order = GSYNC_ORDER_REGISTERED;
    pair_open(&p, comm, &options);
    if (rank == 0) {
        step_on_stream(&p, 1.0);
        gsync_comm_abort(comm, "enough");
        atomic_store(&c->has_ended, 1);
    }
    while (atomic_load(&c->has_ended) == 0) {
        sched_yield();
    }
    if (rank == 1) {
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
        mark(&p, 0, 1.0);
        mark(&p, 1, 1.0);
        CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_ERR_ABORTED, "enough");
        atomic_store(&c->has_ended, 2);
    }
    while (atomic_load(&c->has_ended) != 2) {
        sched_yield();
    }
    pair_close(&p);
}

static void nobody_goes_on_after_an_abort(void **state) {
    (void)state;
    tell(2, tell_aborted);
}

/* The helper hears of it between the marks and the end of the step; the next call has its words all the same. */
static void tell_aborted_between(crew *c, int rank, gsync_comm *comm) {
    pair p = {0};
    pair_open(&p, comm, NULL);
    if (rank == 1) {
        while (atomic_load(&c->has_ended) == 0) {
            sched_yield();
        }
        gsync_comm_abort(comm, "enough");
        atomic_store(&c->has_ended, 2);
    } else {
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
        mark(&p, 0, 1.0);
        mark(&p, 1, 1.0);
        atomic_store(&c->has_ended, 1);
        while (atomic_load(&c->has_ended) != 2) {
            sched_yield();
        }
        usleep(50000);
        const gsync_status status = gsync_finish_on(p.reducer, p.compute, NULL);
        CHECK_STATUS(status == GSYNC_OK ? gsync_begin(p.reducer, GSYNC_SYNC) : status, GSYNC_ERR_ABORTED, "enough");
    }
    pair_close(&p);
}

static void an_abort_is_told_by_its_words(void **state) {
    (void)state;
    tell(2, tell_aborted_between);
}

/* A first commit that runs out of memory may be repeated. */
static void tell_second_try(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    pair_make(&p, comm, NULL);
    if (rank == 1) {
        simcuda_fault("ncclCommInitRankConfig", 1, 1, SIMCUDA_RETURNS, ncclUnhandledCudaError);
    }
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_ERR_MEMORY, "");
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    step_on_host(&p, rank);
    CHECK(first_of(&p, 0) == 0.5f);
    pair_close(&p);
}

static void a_commit_may_be_repeated(void **state) {
    (void)state;
    tell(2, tell_second_try);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_alone_hears_of_what_it_forgot),
        cmocka_unit_test(the_set_may_change_behind_steps_that_streams_wait_for),
        cmocka_unit_test(steps_of_nothing_have_a_norm),
        cmocka_unit_test(a_begin_that_waits_in_vain_tells_the_others),
        cmocka_unit_test(each_thread_has_a_default_stream_of_its_own),
        cmocka_unit_test(a_window_waits_for_the_producers_of_all_its_micro_batches),
        cmocka_unit_test(float64_travels_beside_float32_on_short_wires),
        cmocka_unit_test(findings_are_those_of_the_step),
        cmocka_unit_test(what_weighs_nothing_is_not_found),
        cmocka_unit_test(clipping_says_when_the_device_fails),
        cmocka_unit_test(nobody_goes_on_after_an_abort),
        cmocka_unit_test(an_abort_is_told_by_its_words),
        cmocka_unit_test(a_commit_may_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
