/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3,4 */

/* GS-01 and GS-11: gradients become ready in another order on every rank. */

#include "ranks.h"

enum { ELEMENTS = 4 };

/* The report's values in element 0; the others are multiples, so that no two elements may be exchanged. */
static void fill_pair(const ranks_model *model) {
    for (int i = 0; i < ELEMENTS; i++) {
        const double rank_value = model->ctx->rank + 1;
        ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, (size_t)i, rank_value * (i + 1));
        ranks_store(model->tensors[1].grad, GSYNC_FLOAT32, (size_t)i, 10 * rank_value * (i + 1));
    }
}

static void check_pair(const ranks_model *model) {
    const double mean = (model->ctx->world + 1) / 2.0;
    for (int i = 0; i < ELEMENTS; i++) {
        CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, (size_t)i), mean * (i + 1));
        CHECK_REAL(ranks_load(model->tensors[1].grad, GSYNC_FLOAT32, (size_t)i), 10 * mean * (i + 1));
    }
}

static void mark_pair_in_rank_dependent_order(ranks_context *ctx, size_t bytes_max, size_t bucket_count) {
    const size_t counts[] = {ELEMENTS, ELEMENTS};
    const size_t forward[] = {0, 1};
    const size_t backward[] = {1, 0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = bytes_max;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    CHECK_EQ(gsync_bucket_count(model->reducer), bucket_count);
    /* Three steps, since the order agreed after the first is in force from the second on. */
    for (int step = 0; step < 3; step++) {
        fill_pair(model);
        REQUIRE_OK(ranks_model_step(model, ctx->rank % 2 == 0 ? forward : backward, NULL));
        check_pair(model);
    }
}

static void GS_01_one_bucket_is_right_whatever_the_ready_order(ranks_context *ctx) {
    mark_pair_in_rank_dependent_order(ctx, 0, 1);
}

static void GS_01_one_bucket_per_gradient_is_right_whatever_the_ready_order(ranks_context *ctx) {
    mark_pair_in_rank_dependent_order(ctx, ELEMENTS * sizeof(float), 2);
}

/*
 * Backward writes a gradient just before it marks it. Between two marks all ranks wait for each other, so that a
 * bucket launched before its time would be read everywhere while it still holds the step before.
 */
static void read_nothing_before_its_mark(ranks_context *ctx) {
    const size_t counts[] = {ELEMENTS, 70, 9};
    const size_t orders[][3] = {{2, 1, 0}, {0, 2, 1}, {1, 0, 2}};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = 1;
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (uint64_t step = 0; step < 4; step++) {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        for (size_t i = 0; i < 3; i++) {
            const size_t tensor = orders[(step + (uint64_t)ctx->rank) % 3][i];
            const ranks_source source = {.round = step, .tensor = tensor};
            ranks_fill(ctx, model->tensors[tensor].grad, counts[tensor], GSYNC_FLOAT32, source);
            REQUIRE_OK(ranks_model_ready(model, tensor));
            REQUIRE(ranks_meet(ctx));
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

static void GS_01_nothing_is_read_before_its_mark_while_a_helper_makes_progress(ranks_context *ctx) {
    read_nothing_before_its_mark(ctx);
}

static void GS_01_nothing_is_read_before_its_mark_while_the_caller_makes_progress(ranks_context *ctx) {
    read_nothing_before_its_mark(ctx);
}

/* ---- GS-11 --------------------------------------------------------------------------------------------------- */

enum { TENSORS = 6, STEPS = 5 };

static ranks_model *open_six(ranks_context *ctx, gsync_order order) {
    const size_t counts[TENSORS] = {5, 5, 5, 5, 5, 5};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.order = order;
    options.bucket_bytes_max = 2 * 5 * sizeof(float);
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    if (CHECK_OK(ranks_model_open(model, &options))) {
        CHECK_EQ(gsync_bucket_count(model->reducer), TENSORS / 2);
    }
    return model;
}

static void order_of_step(const ranks_context *ctx, int step, size_t *order) {
    if (step == 0) {
        for (size_t i = 0; i < TENSORS; i++) {
            order[i] = ctx->rank == 1 ? TENSORS - 1 - i : i;
        }
        return;
    }
    ranks_random random = ranks_random_from(ctx->seed, (uint64_t)(step * 100 + ctx->rank));
    ranks_shuffle(&random, order, TENSORS);
}

static void GS_11_ranks_keep_one_plan_when_each_is_ready_in_its_own_order(ranks_context *ctx) {
    ranks_model *model = open_six(ctx, GSYNC_ORDER_AGREED);
    REQUIRE(!ranks_has_failed(ctx));
    CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
    for (int step = 0; step < STEPS; step++) {
        size_t order[TENSORS];
        order_of_step(ctx, step, order);
        ranks_model_fill(model, RANKS_INTEGERS, (uint64_t)step);
        REQUIRE_OK(ranks_model_step(model, order, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, (uint64_t)step);
        CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
    }
}

static void GS_11_all_ranks_take_over_the_order_that_rank_0_saw(ranks_context *ctx) {
    const size_t on_rank_0[TENSORS] = {0, 3, 5, 1, 4, 2};
    const size_t elsewhere[TENSORS] = {5, 4, 3, 2, 1, 0};
    ranks_model *model = open_six(ctx, GSYNC_ORDER_AGREED);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, ctx->rank == 0 ? on_rank_0 : elsewhere, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    for (size_t i = 0; i < TENSORS; i++) {
        CHECK_EQ(gsync_bucket_of(model->reducer, model->tensors[on_rank_0[i]].name), (long)i / 2);
    }
}

/* More gradients than one message of the agreement carries. */
static void GS_11_an_order_of_thousands_of_gradients_is_taken_over(ranks_context *ctx) {
    enum { MANY = 2500 };
    size_t counts[MANY];
    size_t order[MANY];
    for (size_t i = 0; i < MANY; i++) {
        counts[i] = 1 + i % 3;
    }
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = 600;
    ranks_model *model = ranks_model_new(ctx, counts, MANY, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (uint64_t step = 1; step <= 3; step++) {
        ranks_random random = ranks_random_from(ctx->seed, step * 100 + (uint64_t)ctx->rank);
        ranks_shuffle(&random, order, MANY);
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, order, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
        if (step == 1 && ctx->rank == 0) {
            const long last_bucket = (long)gsync_bucket_count(model->reducer) - 1;
            CHECK_EQ(gsync_bucket_of(model->reducer, model->tensors[order[0]].name), 0);
            CHECK_EQ(gsync_bucket_of(model->reducer, model->tensors[order[MANY - 1]].name), last_bucket);
        }
    }
}

static void GS_11_the_registered_order_stays_when_it_is_asked_for(ranks_context *ctx) {
    const size_t forward[TENSORS] = {0, 1, 2, 3, 4, 5};
    ranks_model *model = open_six(ctx, GSYNC_ORDER_REGISTERED);
    REQUIRE(!ranks_has_failed(ctx));
    const uint64_t digest = gsync_plan_digest(model->reducer);
    for (uint64_t step = 0; step < 2; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, forward, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK(gsync_plan_digest(model->reducer) == digest);
    }
    CHECK_EQ(gsync_bucket_of(model->reducer, "p5"), 0);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p0"), 2);
}

RANKS_MAIN(RANKS_TEST(GS_01_one_bucket_is_right_whatever_the_ready_order),
           RANKS_TEST(GS_01_one_bucket_per_gradient_is_right_whatever_the_ready_order),
           RANKS_TEST_WITH(GS_01_nothing_is_read_before_its_mark_while_a_helper_makes_progress,
                           .progress = GSYNC_PROGRESS_HELPER),
           RANKS_TEST_WITH(GS_01_nothing_is_read_before_its_mark_while_the_caller_makes_progress,
                           .progress = GSYNC_PROGRESS_CALLER),
           RANKS_TEST_WITH(GS_11_ranks_keep_one_plan_when_each_is_ready_in_its_own_order, .world_min = 2),
           RANKS_TEST_WITH(GS_11_all_ranks_take_over_the_order_that_rank_0_saw, .world_min = 2),
           RANKS_TEST(GS_11_an_order_of_thousands_of_gradients_is_taken_over),
           RANKS_TEST(GS_11_the_registered_order_stays_when_it_is_asked_for))
