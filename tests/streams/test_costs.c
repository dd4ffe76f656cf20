/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* What a step costs: launches and bytes for each bucket, and no allocation, no wait and no change of the device by a
 * host that does not ask for one. */

#include "device_trainer.h"

enum { BUCKETS = 3, STEPS = 3, RANKS = 4 };

typedef struct costs {
    uint64_t encodes, combines, decodes, all_reduces, sends, all_gathers, copies, records, waits, allocations, syncs;
} costs;

typedef struct plan {
    model model;
    gsync_options options;
    bool is_empty_last;
    gsync_comm *comms[RANKS_MAX];
    pthread_barrier_t together;
    costs of_a_step; /* of all ranks */
    gsync_step_info info;
} plan;

static costs count_now(void) {
    return (costs){.encodes = simcuda_launches("encode"),
                   .combines = simcuda_launches("combine"),
                   .decodes = simcuda_launches("decode"),
                   .all_reduces = simcuda_calls("ncclAllReduce"),
                   .sends = simcuda_calls("ncclSend"),
                   .all_gathers = simcuda_calls("ncclAllGather"),
                   .copies = simcuda_calls("cudaMemcpyAsync"),
                   .records = simcuda_calls("cudaEventRecord"),
                   .waits = simcuda_calls("cudaStreamWaitEvent"),
                   .allocations = simcuda_calls("cudaMalloc") + simcuda_calls("cudaHostAlloc") +
                                  simcuda_calls("cudaEventCreateWithFlags") + simcuda_calls("cudaFree"),
                   .syncs = simcuda_host_synchronisations()};
}

static costs difference(costs a, costs b) {
    return (costs){a.encodes - b.encodes,         a.combines - b.combines, a.decodes - b.decodes,
                   a.all_reduces - b.all_reduces, a.sends - b.sends,       a.all_gathers - b.all_gathers,
                   a.copies - b.copies,           a.records - b.records,   a.waits - b.waits,
                   a.allocations - b.allocations, a.syncs - b.syncs};
}

static void backward_and_mark(trainer *t) {
    for (int g = t->model->count; g-- > 0;) {
        backward_one(t, g, t->compute[0], false);
        report_failure(t, "ready_on", gsync_ready_on(t->device, t->on_device[g], t->compute[0]));
    }
}

static void step(plan *p, trainer *t, bool is_counted) {
    costs before = {0};
    if (is_counted && pthread_barrier_wait(&p->together) == PTHREAD_BARRIER_SERIAL_THREAD) {
        p->of_a_step = count_now();
    }
    pthread_barrier_wait(&p->together);
    before = p->of_a_step;
    report_failure(t, "begin", gsync_begin(t->device, GSYNC_SYNC));
    backward_and_mark(t);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    report_failure(t, "finish_on", gsync_finish_on(t->device, t->compute[0], &info));
    if (is_counted && pthread_barrier_wait(&p->together) == PTHREAD_BARRIER_SERIAL_THREAD) {
        p->of_a_step = difference(count_now(), before);
        p->info = info;
    }
    pthread_barrier_wait(&p->together);
    OK(cudaStreamSynchronize(t->compute[0]));
}

static void run_rank(int rank, int ranks, void *context) {
    plan *p = context;
    trainer t;
    (void)ranks;
    if (trainer_open(&t, &p->model, p->comms[rank], &p->options, 1)) {
        for (int i = 0; i < STEPS; i++) {
            step(p, &t, i == STEPS - 1);
        }
    }
    trainer_close(&t);
    gsync_comm_destroy(&p->comms[rank]);
}

/* Three buckets of two gradients each. */
static plan plain_plan(void) {
    plan p = {.model = {.count = 6,
                        .columns = {100, 100, 100, 100, 100, 100},
                        .dtype = GSYNC_FLOAT32,
                        .is_exact = true,
                        .seed = 99},
              .options = GSYNC_OPTIONS_INIT};
    p.options.bucket_bytes_max = 800;
    p.options.bucket_bytes_first_max = 800;
    return p;
}

static costs run(plan *p, int ranks) {
    simcuda_reset();
    pthread_barrier_init(&p->together, NULL, (unsigned)ranks);
    assert_int_equal(gsync_comm_threads(p->comms, ranks, NULL), GSYNC_OK);
    run_rank_threads(ranks, run_rank, p);
    pthread_barrier_destroy(&p->together);
    assert_int_equal(p->info.bucket_count, BUCKETS);
    assert_int_equal(p->of_a_step.allocations, 0);
    assert_int_equal(p->of_a_step.syncs, 0);
    assert_int_equal(simcuda_default_stream_uses(), 0);
    /* A record for each mark, one for each bucket and one for the step; a wait for each bucket and one for the
     * consumer. */
    assert_int_equal(p->of_a_step.records, ranks * (6 + BUCKETS + 1));
    assert_int_equal(p->of_a_step.waits, ranks * (BUCKETS + 1));
    return p->of_a_step;
}

static void scattered_buckets_take_two_kernels_and_one_collective(void **state) {
    (void)state;
    plan p = plain_plan();
    const costs c = run(&p, RANKS);
    assert_int_equal(c.encodes, RANKS * BUCKETS);
    assert_int_equal(c.decodes, RANKS * BUCKETS);
    assert_int_equal(c.all_reduces, RANKS * BUCKETS);
    assert_int_equal(c.combines, 0);
    assert_int_equal(c.all_gathers, RANKS); /* of shares */
    assert_int_equal(c.copies, RANKS * 2);
    assert_int_equal(p.info.bytes_copied, 2 * p.info.bytes_reduced);
    assert_int_equal(p.info.bytes_reduced, 600 * sizeof(float));
}

static void contiguous_buckets_take_no_kernel(void **state) {
    (void)state;
    plan p = plain_plan();
    p.model.is_flat = true;
    costs c = run(&p, RANKS);
    assert_int_equal(c.encodes + c.decodes + c.combines, 0);
    assert_int_equal(c.all_reduces, RANKS * BUCKETS);
    assert_int_equal(p.info.bytes_copied, 0);
    p.model.is_flat = false;
    p.model.has_views = true;
    c = run(&p, RANKS);
    assert_int_equal(c.encodes + c.decodes + c.combines, 0);
    p.options.op = GSYNC_SUM;
    c = run(&p, 3);
    assert_int_equal(c.encodes + c.decodes + c.combines, 0);
}

/* A third cannot be multiplied with exactly. */
static void means_over_three_ranks_are_divided_afterwards(void **state) {
    (void)state;
    plan p = plain_plan();
    p.model.is_flat = true;
    const costs c = run(&p, 3);
    assert_int_equal(c.encodes, 0);
    assert_int_equal(c.decodes, 3 * BUCKETS);
    assert_int_equal(c.all_reduces, 3 * BUCKETS);
}

static void sums_in_rank_order_take_two_collectives(void **state) {
    (void)state;
    plan p = plain_plan();
    p.options.is_deterministic = 1;
    const costs c = run(&p, RANKS);
    assert_int_equal(c.encodes, RANKS * BUCKETS);
    assert_int_equal(c.combines, RANKS * BUCKETS);
    assert_int_equal(c.decodes, RANKS * BUCKETS);
    assert_int_equal(c.all_reduces, 0);
    assert_int_equal(c.all_gathers, RANKS * (BUCKETS + 1));
}

/* Of the bytes of plain_plan(), in 16 bits. */
static plan short_plan(gsync_dtype dtype) {
    plan p = plain_plan();
    p.model.dtype = dtype;
    p.model.is_flat = true;
    p.model.wire_options = (gsync_wire_options)GSYNC_WIRE_OPTIONS_INIT;
    p.model.wire_options.sum = GSYNC_WIRE_SUM_FAST;
    p.model.wire_options.elements_min = 1;
    p.options.bucket_bytes_max = 400;
    p.options.bucket_bytes_first_max = 400;
    return p;
}

static void fast_sums_take_one_collective_and_no_combine(void **state) {
    (void)state;
    plan p = short_plan(GSYNC_BFLOAT16);
    costs c = run(&p, RANKS);
    assert_int_equal(c.encodes + c.decodes + c.combines + c.sends, 0);
    assert_int_equal(c.all_reduces, RANKS * BUCKETS);
    assert_int_equal(p.info.bytes_copied, 0);
    p = short_plan(GSYNC_FLOAT16); /* divided afterwards */
    c = run(&p, RANKS);
    assert_int_equal(c.encodes + c.combines + c.sends, 0);
    assert_int_equal(c.decodes, RANKS * BUCKETS);
    p.options.op = GSYNC_SUM;
    c = run(&p, RANKS);
    assert_int_equal(c.encodes + c.decodes + c.combines + c.sends, 0);
    assert_int_equal(c.all_reduces, RANKS * BUCKETS);
    p = short_plan(GSYNC_FLOAT32);
    p.model.wire = GSYNC_WIRE_BFLOAT16;
    p.options.bucket_bytes_max = 800;
    p.options.bucket_bytes_first_max = 800;
    c = run(&p, RANKS);
    assert_int_equal(c.encodes, RANKS * BUCKETS);
    assert_int_equal(c.decodes, RANKS * BUCKETS);
    assert_int_equal(c.combines + c.sends, 0);
    assert_int_equal(c.all_reduces, RANKS * BUCKETS);
    assert_int_equal(c.all_gathers, RANKS);
}

/* Behind the last bucket one small kernel settles what is owed of all of them. */
static void error_feedback_takes_no_pass_of_its_own(void **state) {
    (void)state;
    plan p = plain_plan();
    p.options.is_deterministic = 1;
    p.model.wire = GSYNC_WIRE_BFLOAT16;
    p.model.wire_options = (gsync_wire_options)GSYNC_WIRE_OPTIONS_INIT;
    p.model.wire_options.elements_min = 1;
    const costs without = run(&p, RANKS);
    p.model.wire_options.feedback = GSYNC_FEEDBACK_ON;
    const costs c = run(&p, RANKS);
    assert_int_equal(simcuda_launches("settle"), RANKS * (STEPS - 1)); /* the first step is native */
    assert_int_equal(c.encodes, RANKS * BUCKETS);
    assert_int_equal(c.combines, RANKS * BUCKETS);
    assert_int_equal(c.decodes, RANKS * BUCKETS);
    assert_int_equal(c.sends, without.sends);
    assert_int_equal(c.all_gathers, without.all_gathers);
    assert_int_equal(c.copies, without.copies + RANKS); /* of what was written */
}

static void a_rank_alone_needs_no_nccl_and_no_kernel(void **state) {
    (void)state;
    plan p = plain_plan();
    const costs c = run(&p, 1);
    assert_int_equal(c.encodes + c.decodes + c.combines + c.all_reduces + c.all_gathers + c.copies, 0);
    assert_int_equal(simcuda_calls("ncclGetUniqueId"), 0);
    assert_int_equal(simcuda_calls("ncclCommInitRankConfig") + simcuda_calls("ncclCommInitRank"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scattered_buckets_take_two_kernels_and_one_collective),
        cmocka_unit_test(contiguous_buckets_take_no_kernel),
        cmocka_unit_test(means_over_three_ranks_are_divided_afterwards),
        cmocka_unit_test(sums_in_rank_order_take_two_collectives),
        cmocka_unit_test(fast_sums_take_one_collective_and_no_combine),
        cmocka_unit_test(error_feedback_takes_no_pass_of_its_own),
        cmocka_unit_test(a_rank_alone_needs_no_nccl_and_no_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
