/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/* Behaviours 12 to 33 of DistributedDataParallel: gradients and parameters come out right. README.md lists them all. */

#include "small_net.h"

/* ---- 12 to 15: training --------------------------------------------------------------------------------------------
 */

enum { BATCH = 6 };

typedef struct placement {
    bool is_owned; /* gradients live in the library */
    bool finds_unused;
} placement;

static ranks_model *open_net(ranks_context *ctx, placement chosen, float *grads[NET_TENSORS]) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = chosen.finds_unused;
    options.bucket_bytes_max = 32;
    ranks_model *model = ranks_model_new(ctx, net_counts, NET_TENSORS, GSYNC_FLOAT32);
    for (size_t t = 0; t < NET_TENSORS && chosen.is_owned; t++) {
        model->tensors[t].grad = NULL;
    }
    if (CHECK_OK(ranks_model_open(model, &options))) {
        net_grads_of(model, grads);
        net_zero(grads);
    }
    return model;
}

/* Each rank on its own part of the batch, against one process on all of it. */
static void train_and_compare(ranks_context *ctx, placement chosen) {
    float *grads[NET_TENSORS];
    float *whole[NET_TENSORS];
    net mine;
    net alone;
    ranks_model *model = open_net(ctx, chosen, grads);
    REQUIRE(!ranks_has_failed(ctx));
    net_grads_new(ctx, whole);
    net_init(&mine, ctx->seed);
    alone = mine;
    for (size_t step = 0; step < 25; step++) {
        const size_t first = step * BATCH * (size_t)ctx->world;
        net_zero(grads);
        net_zero(whole);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        net_backward(&mine, grads, ctx->seed, first + BATCH * (size_t)ctx->rank, BATCH, 1.0 / BATCH);
        for (size_t t = NET_TENSORS; t-- > 0;) {
            REQUIRE_OK(ranks_model_ready(model, t));
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        net_backward(&alone, whole, ctx->seed, first, BATCH * (size_t)ctx->world, 1.0 / (BATCH * ctx->world));
        net_descend(&mine, grads, 0.2f);
        net_descend(&alone, whole, 0.2f);
        REQUIRE(net_is_replicated(ctx, &mine));
    }
    CHECK(net_distance(&mine, &alone) < 2e-5);
    net untrained;
    net_init(&untrained, ctx->seed);
    CHECK(net_distance(&mine, &untrained) > 0.05); /* there was something to compare */
}

static void forward_backward_equals_one_process_on_the_whole_batch(ranks_context *ctx) {
    train_and_compare(ctx, (placement){false, false});
}

static void forward_backward_equals_one_process_when_gradients_are_views(ranks_context *ctx) {
    train_and_compare(ctx, (placement){true, false});
}

/* The second tensor takes no part in step 1, and all gradients are zeroed before every step. */
static void forward_backward_optimizer_with_a_parameter_that_is_unused_in_step_1_only(ranks_context *ctx) {
    float *grads[NET_TENSORS];
    net mine;
    ranks_model *model = open_net(ctx, (placement){false, true}, grads);
    REQUIRE(!ranks_has_failed(ctx));
    net_init(&mine, ctx->seed);
    const net before = mine;
    for (size_t step = 0; step < 4; step++) {
        net_zero(grads);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        net_backward(&mine, grads, ctx->seed, step * 100 + (size_t)ctx->rank, 3, 1.0);
        if (step == 0) {
            memset(grads[1], 0, net_counts[1] * sizeof(float));
        }
        for (size_t t = NET_TENSORS; t-- > 0;) {
            if (step != 0 || t != 1) {
                REQUIRE_OK(ranks_model_ready(model, t));
            }
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_EQ(gsync_is_used(model->reducer, "p1"), step != 0);
        net_descend(&mine, grads, 0.05f);
        REQUIRE(net_is_replicated(ctx, &mine));
        if (step == 0) {
            CHECK(memcmp(mine.parameters[1], before.parameters[1], sizeof before.parameters[1]) == 0);
        }
    }
    CHECK(memcmp(mine.parameters[1], before.parameters[1], sizeof before.parameters[1]) != 0);
}

/* ---- 16
 * --------------------------------------------------------------------------------------------------------------- */

static void a_thousand_steps_give_the_mean_each_time(ranks_context *ctx) {
    const size_t counts[] = {3, 17};
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    for (uint64_t step = 0; step < 1000; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        REQUIRE_THAT(CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step));
    }
}

/* ---- 18, 19
 * ----------------------------------------------------------------------------------------------------------- */

static void average_large_halves(ranks_context *ctx, bool is_owned) {
    static const double values[] = {32768.0, 65504.0, -65504.0, 65504.0 - 32.0};
    const size_t count = 4;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT16);
    if (is_owned) {
        model->tensors[0].grad = NULL;
    }
    REQUIRE_OK(ranks_model_open(model, NULL));
    void *grad = gsync_reducer_grad(model->reducer, "p0");
    for (size_t i = 0; i < 4; i++) {
        ranks_store(grad, GSYNC_FLOAT16, i, values[i]);
    }
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    for (size_t i = 0; i < 4; i++) {
        CHECK_REAL(ranks_load(grad, GSYNC_FLOAT16, i), values[i]);
    }
}

static void fp16_means_near_the_largest_number_do_not_overflow(ranks_context *ctx) {
    average_large_halves(ctx, false);
}

static void fp16_means_near_the_largest_number_do_not_overflow_when_gradients_are_views(ranks_context *ctx) {
    average_large_halves(ctx, true);
}

/* ---- 20
 * --------------------------------------------------------------------------------------------------------------- */

/* y = w * (w * x): the gradient w x + w x has two parts, each of which backward adds and marks. */
static void weight_sharing_gives_the_analytic_gradient(ranks_context *ctx) {
    enum { COUNT = 50 };
    const size_t count = COUNT;
    for (int is_owned = 0; is_owned < 2; is_owned++) {
        ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
        model->tensors[0].grad = is_owned ? NULL : model->tensors[0].grad;
        REQUIRE_OK(ranks_model_register(model, NULL, NULL));
        REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p0", 2));
        REQUIRE_OK(gsync_reducer_commit(model->reducer));
        float *grad = gsync_reducer_grad(model->reducer, "p0");
        for (int step = 0; step < 3; step++) {
            memset(grad, 0, sizeof(float) * COUNT);
            REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
            for (int use = 0; use < 2; use++) {
                for (size_t i = 0; i < COUNT; i++) {
                    grad[i] += (float)((ctx->rank + 1) * (step + 1)) * (float)i;
                }
                REQUIRE_OK(gsync_ready(model->reducer, grad));
            }
            REQUIRE_OK(gsync_finish(model->reducer, NULL));
            for (size_t i = 0; i < COUNT; i++) {
                REQUIRE_THAT(CHECK_REAL(grad[i], (ctx->world + 1.0) * (step + 1) * (double)i));
            }
        }
    }
}

/* ---- 21
 * --------------------------------------------------------------------------------------------------------------- */

enum { LAYOUT_ROWS = 6, LAYOUT_COLUMNS = 11, LAYOUTS = 4 };

static void fill_layout(const ranks_context *ctx, void *matrix, gsync_dtype dtype, size_t pitch, ranks_source source) {
    for (size_t i = 0; i < LAYOUT_ROWS * pitch; i++) {
        const size_t row = i / pitch;
        const size_t column = i % pitch;
        const double gap = -3.0;
        ranks_store(matrix, dtype, i,
                    column < LAYOUT_COLUMNS
                        ? ranks_value(ctx, source, ctx->rank, row * LAYOUT_COLUMNS + column) / 1024.0
                        : gap);
    }
}

static bool check_layout(const ranks_context *ctx, const void *matrix, gsync_dtype dtype, size_t pitch,
                         ranks_source source) {
    for (size_t i = 0; i < LAYOUT_ROWS * pitch; i++) {
        const size_t row = i / pitch;
        const size_t column = i % pitch;
        double expected = -3.0;
        if (column < LAYOUT_COLUMNS) {
            double sum = 0;
            for (int rank = 0; rank < ctx->world; rank++) {
                const double value = ranks_value(ctx, source, rank, row * LAYOUT_COLUMNS + column) / 1024.0;
                sum += ranks_rounded(dtype, value);
            }
            expected = dtype == GSYNC_FLOAT64 ? sum / ctx->world : (double)(float)(sum / ctx->world);
        }
        if (!CHECK_REAL(ranks_load(matrix, dtype, i), ranks_rounded(dtype, expected))) {
            return false;
        }
    }
    return true;
}

/* Tensors whose rows start 11, 12, 16 and 64 elements apart: dense, and channels-last-like ones. */
static void try_layouts(ranks_context *ctx, gsync_dtype dtype, size_t cap) {
    static const size_t pitches[LAYOUTS] = {LAYOUT_COLUMNS, 12, 16, 64};
    static const char *const names[LAYOUTS] = {"a", "b", "c", "d"};
    void *matrices[LAYOUTS];
    gsync_reducer *reducer = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = cap;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, &options));
    for (size_t m = 0; m < LAYOUTS; m++) {
        matrices[m] = ranks_memory(ctx, LAYOUT_ROWS * pitches[m] * gsync_dtype_size(dtype));
        CHECK_OK(
            gsync_reducer_add_matrix(reducer, names[m], matrices[m], LAYOUT_ROWS, LAYOUT_COLUMNS, pitches[m], dtype));
    }
    CHECK_OK(gsync_reducer_commit(reducer));
    for (uint64_t step = 0; step < 3 && !ranks_has_failed(ctx); step++) {
        for (size_t m = 0; m < LAYOUTS; m++) {
            fill_layout(ctx, matrices[m], dtype, pitches[m], (ranks_source){RANKS_INTEGERS, step, m, 0});
        }
        CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
        CHECK_OK(gsync_ready_list(reducer, (const void *const *)matrices, LAYOUTS));
        CHECK_OK(gsync_finish(reducer, NULL));
        for (size_t m = 0; m < LAYOUTS; m++) {
            check_layout(ctx, matrices[m], dtype, pitches[m], (ranks_source){RANKS_INTEGERS, step, m, 0});
        }
    }
    (void)ranks_meet(ctx);
    gsync_reducer_destroy(&reducer);
}

static void grad_layout_is_kept_for_every_dtype_and_bucket_size(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t d = 0; d < 4 && !ranks_has_failed(ctx); d++) {
        try_layouts(ctx, dtypes[d], 1);
        try_layouts(ctx, dtypes[d], (size_t)25 << 20);
    }
}

/* ---- 22, 23
 * ------------------------------------------------------------------------------------------------------------ */

/* A complex tensor is registered as twice as many real numbers: real, imaginary, real, ... */
static void complex_gradients_keep_their_imaginary_part(ranks_context *ctx) {
    enum { COUNT = 21 };
    const size_t counts[] = {2 * COUNT, COUNT}; /* complex, real */
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT64);
    REQUIRE_OK(ranks_model_open(model, NULL));
    double(*complexes)[2] = model->tensors[0].grad;
    double *reals = model->tensors[1].grad;
    for (size_t i = 0; i < COUNT; i++) {
        complexes[i][0] = (double)i * (ctx->rank + 1);
        complexes[i][1] = -1000.0 - (double)i * (ctx->rank + 1);
        reals[i] = 0.5 * (double)i * (ctx->rank + 1);
    }
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    const double mean = (ctx->world + 1) / 2.0;
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_REAL(complexes[i][0], (double)i * mean);
        CHECK_REAL(complexes[i][1], -1000.0 - (double)i * mean);
        CHECK_REAL(reals[i], 0.5 * (double)i * mean);
    }
}

/* ---- 24, 25
 * ------------------------------------------------------------------------------------------------------------ */

/* Backward on the bare model between synchronised steps: its gradients stay local and are part of the next mean. */
static void accumulate_gradients_module_between_synchronised_steps(ranks_context *ctx) {
    const size_t count = 40;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    float *grad = model->tensors[0].grad;
    for (int iteration = 0; iteration < 4; iteration++) {
        memset(grad, 0, count * sizeof(float));
        for (size_t i = 0; i < count; i++) {
            grad[i] += (float)((ctx->rank + 1) * (iteration + 1)) * (float)i;
        }
        CHECK_REAL(grad[7], 7.0 * (ctx->rank + 1) * (iteration + 1));
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        for (size_t i = 0; i < count; i++) {
            grad[i] += 0.5f * (float)(ctx->rank + 1);
        }
        REQUIRE_OK(gsync_ready(model->reducer, grad));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        const double mean = (ctx->world + 1) / 2.0;
        for (size_t i = 0; i < count; i++) {
            REQUIRE_THAT(CHECK_REAL(grad[i], mean * ((iteration + 1) * (double)i + 0.5)));
        }
    }
}

static void multiple_outputs_multiple_backward_over_disjoint_parameters_in_one_step(ranks_context *ctx) {
    const size_t counts[] = {12, 34, 56, 7};
    ranks_model *model = ranks_model_new(ctx, counts, 4, GSYNC_FLOAT32);
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 1;
    REQUIRE_OK(ranks_model_open(model, &options));
    for (uint64_t step = 0; step < 3; step++) {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        for (size_t half = 0; half < 2; half++) { /* the second backward starts when the first has been marked */
            for (size_t t = half; t < 4; t += 2) {
                const ranks_source source = {RANKS_INTEGERS, step, t, 0};
                ranks_fill(ctx, model->tensors[t].grad, counts[t], GSYNC_FLOAT32, source);
                REQUIRE_OK(ranks_model_ready(model, t));
            }
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

/* ---- 26, 27
 * ------------------------------------------------------------------------------------------------------------ */

static void a_pass_without_begin_changes_no_gradient(ranks_context *ctx) {
    const size_t counts[] = {30, 4};
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_STATUS(ranks_model_ready(model, 0), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_STATE);
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

/* Rank 0 evaluates between steps; as evaluation makes no call of the library, the others need not wait for it. */
static void inference_on_one_rank_alone_does_not_hang(ranks_context *ctx) {
    float *grads[NET_TENSORS];
    float *unused[NET_TENSORS];
    net mine;
    ranks_model *model = open_net(ctx, (placement){false, false}, grads);
    REQUIRE(!ranks_has_failed(ctx));
    net_grads_new(ctx, unused);
    net_init(&mine, ctx->seed);
    for (size_t step = 0; step < 6; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        if (ctx->rank == 0) {
            net_backward(&mine, unused, ctx->seed, 0, 200, 1.0);
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        }
    }
}

/* ---- 29, 30
 * ------------------------------------------------------------------------------------------------------------ */

/* DDP refuses a model without trainable parameters. Here it is legal, and its steps do nothing: a fully frozen stage
 * of a pipeline needs no special case in the trainer. */
static void a_model_without_trainable_gradients_takes_steps_that_do_nothing(ranks_context *ctx) {
    const size_t count = 9;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p0", 0));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_finish(model->reducer, &info));
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
    CHECK_EQ(info.bucket_count, 0);
    CHECK_EQ(info.bytes_reduced, 0);
}

static void a_gradient_that_appears_only_after_commit_is_refused(ranks_context *ctx) {
    const size_t count = 9;
    float late[3] = {1, 2, 3};
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    CHECK_STATUS(gsync_reducer_add(model->reducer, "late", late, 3, GSYNC_FLOAT32), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_STATUS(gsync_ready(model->reducer, late), GSYNC_ERR_UNKNOWN_GRADIENT);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_ready(model, 0));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    CHECK(late[0] == 1 && late[1] == 2 && late[2] == 3);
}

/* ---- 33
 * ---------------------------------------------------------------------------------------------------------------- */

static void gradients_marked_as_a_list_give_the_same_as_one_by_one(ranks_context *ctx) {
    enum { N = 9 };
    size_t counts[N];
    for (size_t i = 0; i < N; i++) {
        counts[i] = 1 + 13 * i;
    }
    for (int is_owned = 0; is_owned < 2; is_owned++) {
        const void *list[N];
        ranks_model *model = ranks_model_new(ctx, counts, N, GSYNC_FLOAT32);
        for (size_t i = 0; i < N && is_owned; i++) {
            model->tensors[i].grad = NULL;
        }
        REQUIRE_OK(ranks_model_open(model, NULL));
        for (size_t i = 0; i < N; i++) {
            model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
            list[i] = model->tensors[i].grad;
        }
        for (uint64_t step = 0; step < 3; step++) {
            ranks_model_fill(model, RANKS_INTEGERS, step);
            REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
            REQUIRE_OK(gsync_ready_list(model->reducer, list, step == 1 ? N / 2 : N));
            REQUIRE_OK(gsync_ready_list(model->reducer, list + N / 2, step == 1 ? N - N / 2 : 0));
            REQUIRE_OK(gsync_finish(model->reducer, NULL));
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        }
    }
}

RANKS_MAIN(RANKS_TEST(forward_backward_equals_one_process_on_the_whole_batch),
           RANKS_TEST(forward_backward_equals_one_process_when_gradients_are_views),
           RANKS_TEST(forward_backward_optimizer_with_a_parameter_that_is_unused_in_step_1_only),
           RANKS_TEST(a_thousand_steps_give_the_mean_each_time),
           RANKS_TEST(fp16_means_near_the_largest_number_do_not_overflow),
           RANKS_TEST(fp16_means_near_the_largest_number_do_not_overflow_when_gradients_are_views),
           RANKS_TEST(weight_sharing_gives_the_analytic_gradient),
           RANKS_TEST(grad_layout_is_kept_for_every_dtype_and_bucket_size),
           RANKS_TEST(complex_gradients_keep_their_imaginary_part),
           RANKS_TEST(accumulate_gradients_module_between_synchronised_steps),
           RANKS_TEST(multiple_outputs_multiple_backward_over_disjoint_parameters_in_one_step),
           RANKS_TEST(a_pass_without_begin_changes_no_gradient), RANKS_TEST(inference_on_one_rank_alone_does_not_hang),
           RANKS_TEST(a_model_without_trainable_gradients_takes_steps_that_do_nothing),
           RANKS_TEST(a_gradient_that_appears_only_after_commit_is_refused),
           RANKS_TEST(gradients_marked_as_a_list_give_the_same_as_one_by_one))
