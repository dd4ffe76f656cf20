/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* Whole steps on 1 to 8 ranks: what a GPU's gradients become is what the host's become, bit by bit. */

#include "device_trainer.h"

enum { STEPS = 3 };

typedef struct scene {
    model model;
    gsync_options options;
    ending ending;
    int producers;
    int micro_batches;
    uint32_t empty_rank; /* + 1: this rank is out of data in the second step */
    bool weighs;
    bool clips;
    gsync_comm *comms[RANKS_MAX];
} scene;

static model small_model(gsync_dtype dtype) {
    return (model){.count = 6,
                   .columns = {7, 300, 33, 1, 64, 1000},
                   .rows = {0, 0, 5, 0, 0, 0},
                   .pitch = {0, 0, 40, 0, 0, 0},
                   .dtype = dtype,
                   .seed = 20261130};
}

static scene small_scene(gsync_dtype dtype) {
    scene s = {.model = small_model(dtype), .options = GSYNC_OPTIONS_INIT, .producers = 2, .micro_batches = 1};
    s.options.is_deterministic = 1;
    s.options.bucket_bytes_max = 1500;
    s.options.bucket_bytes_first_max = 500;
    return s;
}

static void train_window(trainer *t, const scene *s, cudaEvent_t consumed) {
    for (int i = 0; i < s->micro_batches; i++) {
        const bool is_last = i + 1 == s->micro_batches;
        const gsync_phase phase = is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        report_failure(t, "begin", gsync_begin(t->device, phase));
        report_failure(t, "the twin's begin", gsync_begin(t->host, phase));
        if (s->weighs) {
            const double weight = 0.5 + 1.7 * t->rank + (double)t->micro_batch;
            report_failure(t, "set_weight", gsync_set_weight(t->device, weight));
            report_failure(t, "the twin's set_weight", gsync_set_weight(t->host, weight));
        }
        trainer_backward(t, s->options.accumulation == GSYNC_CLIENT_ACCUMULATES && i > 0, consumed);
        (void)trainer_finish(t, s->ending, &info);
        if (is_last && s->options.finds_unused && s->ending == WAITS_ON_STREAM) {
            CHECK(gsync_is_used(t->device, "gradient 0") == -1 && info.gradients_unused == 0);
        }
    }
    if (s->clips) {
        double norm = 0;
        double twin = 0;
        report_failure(t, "clip", gsync_clip_grad_norm(t->device, 1.0, &norm));
        report_failure(t, "the twin's clip", gsync_clip_grad_norm(t->host, 1.0, &twin));
        CHECK(norm == twin);
    }
}

static void skip_window(trainer *t) {
    report_failure(t, "finish_empty", gsync_finish_empty(t->device, NULL));
    report_failure(t, "the twin's finish_empty", gsync_finish_empty(t->host, NULL));
}

/* One for both, which they move alike. */
static gsync_scaler *scale_losses(trainer *t, const scene *s) {
    gsync_scaler *scaler = NULL;
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    if (s->model.loss_scale != 0) {
        options.scale = s->model.loss_scale;
        options.scale_max = s->model.loss_scale;
        report_failure(t, "scaler", gsync_scaler_create(&scaler, &options));
        report_failure(t, "set_scaler", gsync_reducer_set_scaler(t->device, scaler));
        report_failure(t, "the twin's set_scaler", gsync_reducer_set_scaler(t->host, scaler));
    }
    return scaler;
}

static void run_rank(int rank, int ranks, void *context) {
    scene *s = context;
    trainer t;
    cudaEvent_t consumed;
    (void)ranks;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    if (trainer_open(&t, &s->model, s->comms[rank], &s->options, s->producers)) {
        gsync_scaler *scaler = scale_losses(&t, s);
        for (int step = 0; step < STEPS; step++) {
            if (step == 1 && s->empty_rank == (uint32_t)rank + 1) {
                skip_window(&t);
            } else {
                train_window(&t, s, consumed);
            }
            (void)trainer_compare(&t);
            if (scaler != NULL) {
                report_failure(&t, "update", gsync_scaler_update(scaler));
            }
        }
        gsync_scaler_destroy(&scaler);
    }
    trainer_close(&t);
    OK(cudaEventDestroy(consumed));
    gsync_comm_destroy(&s->comms[rank]);
}

/* Every run has a schedule of its own, the same each time. */
static void run_scene(scene s, const char *what) {
    static const int most[] = {1, 2, 4, 8};
    static const int few[] = {1, 2, 3, 4};
    static uint64_t seed = 0;
    const int *worlds = s.model.has_unused || s.model.is_few ? few : most;
    for (size_t w = 0; w < 4; w++) {
        seed++;
        simcuda_reset();
        simcuda_schedule(seed);
        assert_int_equal(gsync_comm_threads(s.comms, worlds[w], NULL), GSYNC_OK);
        run_rank_threads(worlds[w], run_rank, &s);
        if (simcuda_reports(NULL, 0) != 0) {
            fprintf(stderr, "%s, %d ranks, seed %llu:\n", what, worlds[w], (unsigned long long)seed);
            print_reports();
        }
        assert_int_equal(simcuda_reports(NULL, 0), 0);
        assert_int_equal(simcuda_allocations(), 0);
        assert_int_equal(simcuda_objects(), 0);
        assert_int_equal(simcuda_default_stream_uses(), 0);
    }
}

static void means_of_every_type_are_the_hosts(void **state) {
    (void)state;
    static const gsync_dtype types[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (int i = 0; i < 4; i++) {
        run_scene(small_scene(types[i]), "mean");
    }
}

static void streams_wait_instead_of_the_host(void **state) {
    (void)state;
    scene s = small_scene(GSYNC_FLOAT32);
    s.ending = WAITS_ON_STREAM;
    run_scene(s, "finish_on");
}

static void native_sums_of_integers_are_the_hosts(void **state) {
    (void)state;
    scene s = small_scene(GSYNC_FLOAT32);
    s.model.is_exact = true;
    s.options.is_deterministic = 0;
    run_scene(s, "native mean");
    s.options.op = GSYNC_SUM;
    run_scene(s, "native sum");
    s.model.is_flat = true;
    s.model.rows[2] = 0;
    s.model.pitch[2] = 0;
    run_scene(s, "native sum in place");
}

static void gradients_in_the_library_need_no_copies(void **state) {
    (void)state;
    scene s = small_scene(GSYNC_FLOAT32);
    s.model.has_views = true;
    s.model.is_exact = true;
    s.model.rows[2] = 0;
    s.model.pitch[2] = 0;
    s.options.is_deterministic = 0;
    run_scene(s, "views");
}

static void weights_divide_on_the_device(void **state) {
    (void)state;
    scene s = small_scene(GSYNC_FLOAT32);
    s.options.op = GSYNC_WEIGHTED_MEAN;
    s.weighs = true;
    run_scene(s, "weighted mean");
    s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
    s.options.weighting = GSYNC_WEIGHT_OF_MEANS;
    s.micro_batches = 3;
    run_scene(s, "weight of means");
}

static void windows_are_added_up_on_the_device(void **state) {
    (void)state;
    static const gsync_dtype types[] = {GSYNC_FLOAT32, GSYNC_FLOAT16};
    for (int i = 0; i < 2; i++) {
        scene s = small_scene(types[i]);
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        s.options.averages_window = 1;
        s.micro_batches = 3;
        run_scene(s, "overwrites");
        s.ending = WAITS_ON_STREAM;
        run_scene(s, "overwrites, finish_on");
    }
    scene s = small_scene(GSYNC_FLOAT32);
    s.micro_batches = 2;
    run_scene(s, "accumulates");
}

static void ranks_without_data_count_as_options_say(void **state) {
    (void)state;
    for (int averages = 0; averages < 2; averages++) {
        scene s = small_scene(GSYNC_FLOAT32);
        s.empty_rank = 1;
        s.options.averages_window = averages;
        run_scene(s, "empty, by world");
        s.options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
        run_scene(s, "empty, by participants");
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        s.micro_batches = 2;
        run_scene(s, "empty, overwrites");
    }
}

static void narrow_wires_round_as_on_the_host(void **state) {
    (void)state;
    static const gsync_wire wires[] = {GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16};
    for (int i = 0; i < 2; i++) {
        scene s = small_scene(GSYNC_FLOAT32);
        s.options.wire = wires[i];
        s.model.columns[5] = 3000;
        run_scene(s, "wire");
    }
}

/* float32 on their way, after what they were accumulated in as float64. */
static void doubles_on_narrow_wires_are_the_hosts(void **state) {
    (void)state;
    static const gsync_wire wires[] = {GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8};
    for (int i = 0; i < 4; i++) {
        scene s = small_scene(GSYNC_FLOAT64);
        s.options.wire = wires[i];
        s.model.columns[5] = 3000;
        s.model.is_few = true;
        run_scene(s, "doubles");
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        s.options.op = GSYNC_WEIGHTED_MEAN;
        s.options.computes_norm = 1;
        s.weighs = true;
        s.micro_batches = 2;
        s.model.has_unused = true;
        s.options.finds_unused = 1;
        run_scene(s, "doubles, accumulated and weighted, unused");
    }
}

/* Results are smaller than contributions by the loss scale, or by weights that only the device adds up. */
static void results_on_float16_have_the_hosts_scale(void **state) {
    (void)state;
    scene s = small_scene(GSYNC_FLOAT32);
    s.options.wire = GSYNC_WIRE_FLOAT16;
    s.model.columns[5] = 3000;
    s.model.loss_scale = 0x1p24;
    run_scene(s, "a large loss scale");
    s.model.loss_scale = 0x1p16;
    s.options.op = GSYNC_WEIGHTED_MEAN;
    s.weighs = true;
    run_scene(s, "a loss scale and weights");
    s.model.loss_scale = 0;
    run_scene(s, "weights");
}

static scene scene_of_blocks(gsync_wire wire, gsync_dtype dtype) {
    scene s = small_scene(dtype);
    s.model.wire = wire;
    s.model.wire_options = (gsync_wire_options)GSYNC_WIRE_OPTIONS_INIT;
    s.model.wire_options.elements_min = 30;
    s.model.columns[5] = 3000;
    s.options.bucket_bytes_max = 4000;
    s.model.is_few = true;
    return s;
}

/* Blocks begin with gradients: with one or two ranks they are many, with four some ranks have none. */
static void wires_of_blocks_are_the_hosts(void **state) {
    (void)state;
    static const gsync_wire wires[] = {GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8};
    for (int i = 0; i < 2; i++) {
        scene s = scene_of_blocks(wires[i], GSYNC_FLOAT32);
        run_scene(s, "blocks");
        s.model.wire_options.warmup_steps = 1;
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        s.options.op = GSYNC_WEIGHTED_MEAN;
        s.weighs = true;
        s.micro_batches = 2;
        run_scene(s, "blocks, accumulated and weighted");
        s = scene_of_blocks(wires[i], GSYNC_BFLOAT16);
        s.model.has_unused = true;
        s.options.finds_unused = 1;
        s.options.computes_norm = 1;
        s.options.bucket_bytes_max = 1; /* buckets of one block, beside each other until the end of the step */
        s.options.bucket_bytes_first_max = 1;
        run_scene(s, "blocks of halves, unused");
    }
}

static void random_rounding_is_the_hosts(void **state) {
    (void)state;
    scene s = scene_of_blocks(GSYNC_WIRE_INT8, GSYNC_FLOAT32);
    s.model.wire_options.is_stochastic = 1;
    s.model.wire_options.seed = 4711;
    run_scene(s, "at random");
}

static scene fast_scene(gsync_wire wire, gsync_dtype dtype) {
    scene s = small_scene(dtype);
    s.options.is_deterministic = 0;
    s.model.is_exact = true; /* sums up to 256, also of bfloat16 */
    s.model.is_few = true;
    s.model.wire = wire;
    s.model.wire_options = (gsync_wire_options)GSYNC_WIRE_OPTIONS_INIT;
    s.model.wire_options.sum = GSYNC_WIRE_SUM_FAST;
    s.model.wire_options.elements_min = 1;
    return s;
}

static void fast_sums_of_integers_are_the_hosts(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        scene s = fast_scene(GSYNC_WIRE_NATIVE, i == 0 ? GSYNC_FLOAT16 : GSYNC_BFLOAT16);
        run_scene(s, "fast, halves");
        s.options.op = GSYNC_WEIGHTED_MEAN;
        s.weighs = true;
        s.model.has_unused = true;
        s.options.finds_unused = 1;
        s.ending = WAITS_ON_STREAM;
        run_scene(s, "fast, halves, weighted, unused, finish_on");
        s = fast_scene(i == 0 ? GSYNC_WIRE_FLOAT16 : GSYNC_WIRE_BFLOAT16, GSYNC_FLOAT32);
        s.options.op = GSYNC_SUM;
        s.model.wire_options.warmup_steps = 1;
        run_scene(s, "fast, wire");
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        s.micro_batches = 2;
        run_scene(s, "fast, wire, overwrites");
    }
    scene s = fast_scene(GSYNC_WIRE_BFLOAT16, GSYNC_FLOAT16); /* whose warm-up is as without a wire */
    s.model.wire_options.warmup_steps = 2;
    s.options.op = GSYNC_SUM;
    run_scene(s, "fast, wire of halves");
    s = fast_scene(GSYNC_WIRE_NATIVE, GSYNC_BFLOAT16);
    s.model.has_views = true;
    s.model.rows[2] = 0;
    s.model.pitch[2] = 0;
    run_scene(s, "fast, views");
}

static scene unused_scene(gsync_dtype dtype) {
    scene s = small_scene(dtype);
    s.model.has_unused = true;
    s.options.finds_unused = 1;
    return s;
}

static void what_no_rank_used_stays_as_it_is(void **state) {
    (void)state;
    scene s = unused_scene(GSYNC_FLOAT32);
    run_scene(s, "unused");
    s.ending = WAITS_ON_STREAM;
    run_scene(s, "unused, finish_on");
    s.options.op = GSYNC_WEIGHTED_MEAN;
    s.weighs = true;
    run_scene(s, "unused, weighted, finish_on");
    s = unused_scene(GSYNC_FLOAT16);
    s.options.computes_norm = 1;
    s.options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    s.empty_rank = 1;
    run_scene(s, "unused, halves, one rank without data");
    s = unused_scene(GSYNC_FLOAT32);
    s.options.wire = GSYNC_WIRE_FLOAT16;
    run_scene(s, "unused, narrow");
}

static void unused_gradients_in_place_are_not_touched(void **state) {
    (void)state;
    scene s = unused_scene(GSYNC_FLOAT32);
    s.options.is_deterministic = 0;
    s.model.is_exact = true;
    s.model.is_flat = true;
    s.model.rows[2] = 0;
    s.model.pitch[2] = 0;
    run_scene(s, "unused, in place");
    s.model.is_flat = false;
    s.model.has_views = true;
    run_scene(s, "unused, views");
}

static void a_gradient_used_once_in_a_window_counts(void **state) {
    (void)state;
    scene s = unused_scene(GSYNC_FLOAT32);
    s.micro_batches = 2;
    run_scene(s, "unused, accumulates");
    for (int i = 0; i < 2; i++) {
        s.ending = i == 0 ? WAITS_ON_HOST : WAITS_ON_STREAM;
        s.micro_batches = 3;
        s.options.accumulation = GSYNC_CLIENT_OVERWRITES;
        run_scene(s, "unused, overwrites");
    }
    s.ending = WAITS_ON_HOST;
    s.empty_rank = 1;
    run_scene(s, "unused, overwrites, one rank without data");
}

static void clipping_follows_the_order_that_was_agreed(void **state) {
    (void)state;
    scene s = small_scene(GSYNC_FLOAT32);
    s.model.is_exact = true;
    s.model.is_forward = true;
    s.options.computes_norm = 1;
    s.options.op = GSYNC_SUM; /* so that squares add up to the same norm in any order */
    s.clips = true;
    run_scene(s, "clipped");
    s.model.has_unused = true;
    s.options.finds_unused = 1;
    run_scene(s, "unused, clipped");
}

static void findings_are_the_hosts(void **state) {
    (void)state;
    scene s = small_scene(GSYNC_FLOAT32);
    s.options.checks_finite = 1;
    s.options.computes_norm = 1;
    run_scene(s, "findings");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_of_every_type_are_the_hosts),
        cmocka_unit_test(streams_wait_instead_of_the_host),
        cmocka_unit_test(native_sums_of_integers_are_the_hosts),
        cmocka_unit_test(gradients_in_the_library_need_no_copies),
        cmocka_unit_test(weights_divide_on_the_device),
        cmocka_unit_test(windows_are_added_up_on_the_device),
        cmocka_unit_test(ranks_without_data_count_as_options_say),
        cmocka_unit_test(narrow_wires_round_as_on_the_host),
        cmocka_unit_test(doubles_on_narrow_wires_are_the_hosts),
        cmocka_unit_test(results_on_float16_have_the_hosts_scale),
        cmocka_unit_test(wires_of_blocks_are_the_hosts),
        cmocka_unit_test(random_rounding_is_the_hosts),
        cmocka_unit_test(fast_sums_of_integers_are_the_hosts),
        cmocka_unit_test(what_no_rank_used_stays_as_it_is),
        cmocka_unit_test(unused_gradients_in_place_are_not_touched),
        cmocka_unit_test(a_gradient_used_once_in_a_window_counts),
        cmocka_unit_test(clipping_follows_the_order_that_was_agreed),
        cmocka_unit_test(findings_are_the_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
