/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,4 transports=threads,mpi timeout=60 */

/*
 * One element of one rank is inf or NaN, in every dtype and wherever gradients live: all ranks skip the same step, the
 * scale halves once, rank and gradient are named, parameters stay as they are to the bit, and nothing of the step is
 * left over for the next.
 */

#include "scaled_model.h"

#include <math.h>
#include <string.h>

enum { TENSORS = 4, WINDOW = 3 };
static const size_t counts[TENSORS] = {1, 70, 0, 1030};
static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* A training whose parameters are one number for each gradient element. */
typedef struct trainer {
    ranks_model *model;
    gsync_scaler *scaler;
    double *params;
    size_t param_count;
    bool adds; /* backward does: windows of one micro-batch, since gradients here are exact integers */
} trainer;

typedef struct layout {
    gsync_dtype dtype;
    gsync_accumulation accumulation;
    bool has_views;
    int finds_unused; /* results are held back then */
    int computes_norm;
} layout;

static void open_trainer(ranks_context *ctx, trainer *t, layout of) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = of.accumulation;
    options.finds_unused = of.finds_unused;
    options.computes_norm = of.computes_norm;
    options.bucket_bytes_max = 512; /* several buckets */
    t->scaler = scaled_scaler(8.0);
    t->model = ranks_model_new(ctx, counts, TENSORS, of.dtype);
    t->param_count = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        t->param_count += counts[i];
        t->model->tensors[i].grad = of.has_views ? NULL : t->model->tensors[i].grad;
    }
    t->params = ranks_memory(ctx, t->param_count * sizeof *t->params);
    memset(t->params, 0, t->param_count * sizeof *t->params);
    REQUIRE_OK(ranks_model_open(t->model, &options));
    for (size_t i = 0; i < TENSORS; i++) {
        t->model->tensors[i].grad = gsync_reducer_grad(t->model->reducer, t->model->tensors[i].name);
    }
    REQUIRE_OK(gsync_reducer_set_scaler(t->model->reducer, t->scaler));
}

static void close_trainer(ranks_context *ctx, trainer *t) {
    gsync_reducer_destroy(&t->model->reducer);
    gsync_scaler_destroy(&t->scaler);
    ranks_memory_free(ctx, t->params);
}

static void step_params(trainer *t) {
    size_t at = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        for (size_t k = 0; k < counts[i]; k++) {
            t->params[at++] -= ranks_load(t->model->tensors[i].grad, t->model->tensors[i].dtype, k);
        }
    }
}

/* A bad value; micro_batch < 0: none. */
typedef struct fault {
    int rank;
    int micro_batch;
    size_t tensor;
    size_t element;
    double value;
} fault;

/* Every micro-batch brings the same integers, so that their sum over the window is exact in the wide type. With the
 * client adding up, all but the last bring nothing. */
static void train(trainer *t, uint64_t round, int window, fault bad, gsync_step_info *info) {
    gsync_reducer *reducer = t->model->reducer;
    for (int batch = 0; batch < window; batch++) {
        REQUIRE_OK(gsync_begin(reducer, batch == window - 1 ? GSYNC_SYNC : GSYNC_ACCUMULATE));
        if (batch == 0 || !t->adds) {
            scaled_fill(t->model, round, gsync_scaler_scale(t->scaler));
        }
        if (batch == bad.micro_batch && t->model->ctx->rank == bad.rank) {
            scaled_poison(t->model, bad.tensor, bad.element, bad.value);
        }
        for (size_t i = TENSORS; i-- > 0;) {
            REQUIRE_OK(ranks_model_ready(t->model, i));
        }
        REQUIRE_OK(gsync_finish(reducer, info));
    }
    if (!info->found_inf) {
        step_params(t);
    }
}

static const fault no_fault = {.micro_batch = -1};

static void take_clean_window(trainer *t, uint64_t round, int window) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    const double scale = gsync_scaler_scale(t->scaler);
    train(t, round, window, no_fault, &info);
    CHECK_EQ(info.found_inf, 0);
    CHECK(info.found_inf_gradient == NULL);
    CHECK_REAL(info.loss_scale, scale);
    const double added = t->adds ? 1.0 : window;
    for (size_t i = 0; i < TENSORS; i++) {
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = round, .tensor = i};
        CHECK_REDUCED(t->model->ctx, t->model->tensors[i].grad, counts[i], t->model->tensors[i].dtype, source,
                      t->model->ctx->world / added);
    }
    CHECK_OK(gsync_scaler_update(t->scaler));
    CHECK_REAL(gsync_scaler_scale(t->scaler), scale);
}

static void take_bad_window(trainer *t, uint64_t round, int window, fault bad) {
    ranks_context *ctx = t->model->ctx;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    const double scale = gsync_scaler_scale(t->scaler);
    const uint64_t before = scaled_hash(t->params, t->param_count * sizeof *t->params);
    train(t, round, window, bad, &info);
    CHECK_EQ(info.found_inf, 1);
    CHECK_EQ(info.found_inf_rank, bad.rank);
    CHECK(info.found_inf_gradient != NULL && strcmp(info.found_inf_gradient, t->model->tensors[bad.tensor].name) == 0);
    CHECK_SAME_ON_ALL(ctx, info.step);
    CHECK_EQ(scaled_hash(t->params, t->param_count * sizeof *t->params), before);
    CHECK_STATUS(gsync_clip_grad_norm(t->model->reducer, 1.0, NULL), GSYNC_ERR_NONFINITE);
    CHECK_OK(gsync_scaler_update(t->scaler));
    CHECK_REAL(gsync_scaler_scale(t->scaler), scale / 2);
}

/* Clean, bad, clean: the second clean one must know nothing of the bad one. */
static void go_through(ranks_context *ctx, layout of, int window, fault bad) {
    trainer t = {.adds = of.accumulation == GSYNC_CLIENT_ACCUMULATES};
    open_trainer(ctx, &t, of);
    REQUIRE(!ranks_has_failed(ctx));
    take_clean_window(&t, 1, window);
    take_bad_window(&t, 2, window, bad);
    take_clean_window(&t, 3, window);
    CHECK_SAME_ON_ALL(ctx, scaled_hash(t.params, t.param_count * sizeof *t.params));
    close_trainer(ctx, &t);
}

static void go_through_values(ranks_context *ctx, layout of, int window) {
    const double values[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    for (int i = 0; i < 6 && !ranks_has_failed(ctx); i++) {
        const fault bad = {.rank = i % ctx->world,
                           .micro_batch = of.accumulation == GSYNC_CLIENT_OVERWRITES ? i % window : window - 1,
                           .tensor = i % 2 == 0 ? 3 : 0,
                           .element = i % 2 == 0 ? (size_t)(i * 200 + 29) : 0,
                           .value = values[i % 3]};
        go_through(ctx, of, window, bad);
    }
}

static void one_bad_element_of_any_dtype_skips_the_step_everywhere(ranks_context *ctx) {
    for (size_t d = 0; d < 4; d++) {
        for (int trial = 0; trial < 8; trial++) {
            const layout of = {.dtype = dtypes[d],
                               .has_views = (trial & 1) != 0,
                               .finds_unused = (trial & 2) != 0,
                               .computes_norm = (trial & 4) != 0};
            go_through_values(ctx, of, 1);
        }
    }
}

static void what_the_library_has_added_up_is_forgotten_with_a_skipped_window(ranks_context *ctx) {
    for (size_t d = 0; d < 4; d++) {
        for (int trial = 0; trial < 4; trial++) {
            const layout of = {.dtype = dtypes[d],
                               .accumulation = GSYNC_CLIENT_OVERWRITES,
                               .has_views = (trial & 1) != 0,
                               .finds_unused = (trial & 2) != 0};
            go_through_values(ctx, of, WINDOW);
        }
    }
}

static void a_window_that_the_trainer_adds_up_is_skipped_as_one(ranks_context *ctx) {
    for (size_t d = 0; d < 4; d++) {
        go_through_values(ctx, (layout){.dtype = dtypes[d]}, WINDOW);
    }
}

/* Nobody's gradient is to blame when a sum of finite ones is too large. */
static void finite_gradients_that_overflow_together_skip_too(ranks_context *ctx) {
    const double large[] = {3e38, 1e308, 60000.0, 3e38};
    for (size_t d = 0; d < 4; d++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        gsync_scaler *scaler = scaled_scaler(1.0);
        options.op = GSYNC_SUM;
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, dtypes[d]);
        REQUIRE_OK(ranks_model_open(model, &options));
        REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, scaler));
        scaled_fill(model, 1, 1.0);
        scaled_poison(model, 3, 1000, large[d]);
        REQUIRE_OK(ranks_model_step(model, NULL, &info));
        CHECK_EQ(info.found_inf, 1);
        CHECK_EQ(info.found_inf_rank, -1);
        CHECK_CONTAINS(info.found_inf_gradient != NULL ? info.found_inf_gradient : "", "p3");
        REQUIRE_OK(gsync_scaler_update(scaler));
        gsync_reducer_destroy(&model->reducer);
        gsync_scaler_destroy(&scaler);
    }
}

/* The first in the plan is named, whoever's it is: on all ranks the same. */
static void of_several_bad_gradients_all_ranks_name_the_same(ranks_context *ctx) {
    gsync_scaler *scaler = scaled_scaler(8.0);
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 64;
    options.order = GSYNC_ORDER_REGISTERED;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, scaler));
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    scaled_fill(model, 1, 8.0);
    scaled_poison(model, ctx->rank % 2 == 0 ? 1 : 3, 7, (double)NAN);
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK_EQ(info.found_inf, 1);
    CHECK_EQ(info.found_inf_rank, ctx->world > 1 ? 1 : 0);
    CHECK_CONTAINS(info.found_inf_gradient != NULL ? info.found_inf_gradient : "", ctx->world > 1 ? "p3" : "p1");
    gsync_reducer_destroy(&model->reducer);
    gsync_scaler_destroy(&scaler);
}

RANKS_MAIN(RANKS_TEST(one_bad_element_of_any_dtype_skips_the_step_everywhere),
           RANKS_TEST(what_the_library_has_added_up_is_forgotten_with_a_skipped_window),
           RANKS_TEST(a_window_that_the_trainer_adds_up_is_skipped_as_one),
           RANKS_TEST_WITH(finite_gradients_that_overflow_together_skip_too, .world_min = 2),
           RANKS_TEST(of_several_bad_gradients_all_ranks_name_the_same))
