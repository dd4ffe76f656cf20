/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/*
 * Buckets of which only the largest elements travel have the bits of the host, with what is owed, in many schedules of
 * the device: 24 of them, or as many as the first argument says, from the second one on. And what they cost.
 */

#include "device_trainer.h"

#include "collective/collective_nccl.h"
#include "device/device_cuda.h"

#include <math.h>
#include <stdatomic.h>

/* Every twelve seeds have all kinds of sessions. ThreadSanitizer sees in any of them what is not ordered, and takes ten
 * times as long. */
#if defined(__SANITIZE_THREAD__)
enum { SEEDS = 12 };
#else
enum { SEEDS = 24 };
#endif
enum { STEPS = 4 };

static uint64_t seed_count = SEEDS;
static uint64_t seed_first = 1;

/* ---- what travels ---- */

static atomic_ullong gathered; /* bytes that all ranks gave */

gsync_status __real_gs_nccl_all_gather(gs_nccl *nccl, void *data, size_t bytes, void *stream);
gsync_status __wrap_gs_nccl_all_gather(gs_nccl *nccl, void *data, size_t bytes, void *stream);

gsync_status __wrap_gs_nccl_all_gather(gs_nccl *nccl, void *data, size_t bytes, void *stream) {
    atomic_fetch_add(&gathered, bytes);
    return __real_gs_nccl_all_gather(nccl, data, bytes, stream);
}

/* ---- sessions ---- */

typedef struct session {
    model model;
    gsync_options options;
    ending ending;
    int micro_batches;
    int empty_rank; /* has no data in the third step; -1: all have */
    gsync_comm *comms[RANKS_MAX];
} session;

static session session_of(uint64_t seed) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_BFLOAT16, GSYNC_FLOAT64, GSYNC_FLOAT16};
    session s = {.model = {.count = 7,
                           .rows = {0, 0, 0, 3},
                           .columns = {40, 5000, 25, 13, 64, 1, 770},
                           .pitch = {0, 0, 0, 20},
                           .dtype = dtypes[seed / 2 % 4],
                           .is_exact = seed % 3 == 0, /* many are equal */
                           .seed = seed,
                           .wire = GSYNC_WIRE_TOPK,
                           .wire_options = GSYNC_WIRE_OPTIONS_INIT},
                 .options = GSYNC_OPTIONS_INIT,
                 .ending = seed % 2 == 0 ? WAITS_ON_HOST : WAITS_ON_STREAM,
                 .micro_batches = 1,
                 .empty_rank = -1};
    s.model.wire_options.elements_min = 20;
    s.model.wire_options.density = seed % 5 == 0 ? 0.03 : 0.3;
    s.model.wire_options.feedback = seed % 4 == 3 ? GSYNC_FEEDBACK_OFF : GSYNC_FEEDBACK_AUTO;
    s.model.wire_options.warmup_steps = seed % 7 == 0;
    s.options.bucket_bytes_max = 1500;
    s.options.bucket_bytes_first_max = 500;
    s.options.is_deterministic = 1; /* for what travels native */
    if (seed % 3 == 1) {
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        s.micro_batches = 2;
    }
    if (seed % 6 == 2) {
        s.options.finds_unused = 1;
        s.model.has_unused = true;
    }
    s.empty_rank = seed % 6 == 4 ? 1 : -1;
    return s;
}

static void train_window(trainer *t, const session *s, cudaEvent_t consumed) {
    for (int i = 0; i < s->micro_batches; i++) {
        const gsync_phase phase = i + 1 == s->micro_batches ? GSYNC_SYNC : GSYNC_ACCUMULATE;
        report_failure(t, "begin", gsync_begin(t->device, phase));
        report_failure(t, "the twin's begin", gsync_begin(t->host, phase));
        trainer_backward(t, false, consumed);
        (void)trainer_finish(t, s->ending, NULL);
    }
}

static void run_rank(int rank, int ranks, void *context) {
    session *s = context;
    trainer t;
    cudaEvent_t consumed;
    (void)ranks;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &s->model, s->comms[rank], &s->options, 2)) {
        for (int step = 0; step < STEPS; step++) {
            if (step == 2 && s->empty_rank == rank) {
                report_failure(&t, "finish_empty", gsync_finish_empty(t.device, NULL));
                report_failure(&t, "the twin's finish_empty", gsync_finish_empty(t.host, NULL));
            } else {
                train_window(&t, s, consumed);
            }
            (void)trainer_compare(&t);
        }
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

static void run(session *s, int ranks, uint64_t seed) {
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = 20000;
    simcuda_reset();
    simcuda_schedule(seed);
    atomic_store(&gathered, 0);
    assert_int_equal(gsync_comm_threads(s->comms, ranks, &options), GSYNC_OK);
    run_rank_threads(ranks, run_rank, s);
    if (simcuda_reports(NULL, 0) != 0) {
        fprintf(stderr, "%d ranks, seed %llu:\n", ranks, (unsigned long long)seed);
        print_reports();
    }
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    assert_int_equal(simcuda_allocations(), 0);
}

/* ---- claims ---- */

static void results_and_debts_are_the_hosts_in_every_schedule(void **state) {
    (void)state;
    static const int worlds[] = {2, 3, 4};
    for (uint64_t seed = seed_first; seed < seed_first + seed_count; seed++) {
        session s = session_of(seed);
        run(&s, worlds[seed % 3], seed);
    }
}

/* Three buckets of one gradient each, in steps that are all alike. */
static session plain_session(double density) {
    session s = session_of(0);
    s.model = (model){.count = 3,
                      .columns = {3000, 2011, 2500},
                      .dtype = GSYNC_FLOAT32,
                      .is_flat = true,
                      .seed = 5,
                      .wire = GSYNC_WIRE_TOPK,
                      .wire_options = GSYNC_WIRE_OPTIONS_INIT};
    s.model.wire_options.density = density;
    s.model.wire_options.elements_min = 1;
    s.options.bucket_bytes_max = 7000;
    s.options.bucket_bytes_first_max = 7000;
    return s;
}

static void eight_bytes_travel_for_each_element_that_is_kept(void **state) {
    (void)state;
    enum { RANKS = 3 };
    static const double densities[] = {0.01, 0.1, 0.5};
    for (size_t i = 0; i < 3; i++) {
        session s = plain_session(densities[i]);
        double kept = 0;
        for (int g = 0; g < s.model.count; g++) {
            kept += ceil((double)s.model.columns[g] * densities[i]);
        }
        run(&s, RANKS, i);
        const double shares = (double)STEPS * RANKS * (double)sizeof(gs_cuda_share);
        const double bytes = (double)atomic_load(&gathered) - shares;
        assert_true(fabs(bytes / (STEPS * RANKS * 8 * kept) - 1) < 0.01);
        assert_int_equal(simcuda_calls("ncclAllReduce") + simcuda_calls("ncclSend"), 0);
    }
}

static void a_bucket_takes_eight_kernels_and_one_collective(void **state) {
    (void)state;
    enum { RANKS = 2, BUCKETS = 3 };
    session s = plain_session(0.1);
    const uint64_t all = (uint64_t)STEPS * RANKS * BUCKETS;
    run(&s, RANKS, 1);
    assert_int_equal(simcuda_launches("encode"), all);
    assert_int_equal(simcuda_launches("find digit"), 3 * all);
    assert_int_equal(simcuda_launches("count largest"), all);
    assert_int_equal(simcuda_launches("take largest"), all);
    assert_int_equal(simcuda_launches("add largest"), all);
    assert_int_equal(simcuda_launches("decode"), all);
    assert_int_equal(simcuda_calls("ncclAllGather"), all + STEPS * RANKS); /* and one of shares */
}

int main(int count, char **arguments) {
    seed_count = count > 1 ? strtoull(arguments[1], NULL, 10) : seed_count;
    seed_first = count > 2 ? strtoull(arguments[2], NULL, 10) : seed_first;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_and_debts_are_the_hosts_in_every_schedule),
        cmocka_unit_test(eight_bytes_travel_for_each_element_that_is_kept),
        cmocka_unit_test(a_bucket_takes_eight_kernels_and_one_collective),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
