/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * GS-74: gradients that live in the library's bucket, leave it for a step, and come back. A trainer that clears its
 * gradients by dropping them does that without noticing.
 */

#include "ranks.h"

static const size_t counts[] = {33, 200, 7};
#define TENSORS 3

static void take_addresses(ranks_model *model) {
    for (size_t i = 0; i < TENSORS; i++) {
        model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
        CHECK(model->tensors[i].grad != NULL);
    }
}

/* A model whose gradients all live in the library. */
static ranks_model *open_views(ranks_context *ctx, const gsync_options *options) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    for (size_t i = 0; i < TENSORS; i++) {
        model->tensors[i].grad = NULL;
    }
    if (!CHECK_OK(ranks_model_open(model, options))) {
        return NULL;
    }
    take_addresses(model);
    return model;
}

static uint64_t check_step(ranks_model *model, uint64_t step) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model_fill(model, RANKS_INTEGERS, step);
    CHECK_OK(ranks_model_step(model, NULL, &info));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    CHECK_EQ(info.bytes_reduced, 240 * sizeof(float));
    return model->ctx->is_on_device ? 0 : info.bytes_copied; /* there sums in rank order are made elsewhere */
}

static uint64_t sum_over_ranks(ranks_context *ctx, uint64_t value) {
    int64_t sum = (int64_t)value;
    CHECK_OK(gsync_allreduce(ctx->comm, &sum, 1, GSYNC_INT64, GSYNC_SUM));
    return (uint64_t)sum;
}

static void GS_74_in_the_slot_then_elsewhere_then_back(ranks_context *ctx) {
    for (int strategy = GSYNC_STRATEGY_DDP; strategy <= GSYNC_STRATEGY_SINGLE; strategy++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.strategy = (gsync_strategy)strategy;
        options.bucket_bytes_max = strategy == GSYNC_STRATEGY_FIXED ? 1 : 0;
        ranks_model *model = open_views(ctx, &options);
        REQUIRE(model != NULL);
        void *slot = model->tensors[1].grad;
        void *elsewhere = ranks_memory(ctx, counts[1] * sizeof(float));
        for (uint64_t round = 0; round < 2; round++) {
            CHECK_EQ(check_step(model, 3 * round + 1), 0);

            model->tensors[1].grad = elsewhere;
            REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p1", elsewhere));
            /* In and out again on all ranks, but perhaps not on the one that adds up; with the rest of the bucket, if
             * there is any. But threads add up where a gradient lies, if it is alone in its bucket. */
            const bool is_alone = strategy == GSYNC_STRATEGY_FIXED;
            const uint64_t bytes = (is_alone ? counts[1] : 240) * 2 * (uint64_t)(ctx->world - 1) * sizeof(float);
            const uint64_t copied = sum_over_ranks(ctx, check_step(model, 3 * round + 2));
            if (ctx->is_on_device || (is_alone && ctx->transport == RANKS_THREADS)) {
                CHECK_EQ(copied, 0);
            } else {
                CHECK(copied >= bytes && copied <= bytes + bytes / (uint64_t)(ctx->world - 1));
            }

            model->tensors[1].grad = slot;
            REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p1", NULL));
            CHECK_EQ(check_step(model, 3 * round + 3), 0);
        }
    }
}

/* Copies are each rank's own business. */
static void GS_74_only_one_rank_moves_away(ranks_context *ctx) {
    ranks_model *model = open_views(ctx, NULL);
    REQUIRE(model != NULL);
    CHECK_EQ(check_step(model, 1), 0);
    if (ctx->rank == 0) {
        model->tensors[2].grad = ranks_memory(ctx, counts[2] * sizeof(float));
        REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p2", model->tensors[2].grad));
    }
    const uint64_t copied = check_step(model, 2);
    CHECK(ctx->is_on_device || (copied != 0) == (ctx->rank == 0));
}

static void GS_74_all_move_away_and_back_in_one_call(ranks_context *ctx) {
    ranks_model *model = open_views(ctx, NULL);
    void *elsewhere[TENSORS];
    void *const nowhere[TENSORS] = {NULL, NULL, NULL};
    REQUIRE(model != NULL);
    CHECK_EQ(check_step(model, 1), 0);
    for (size_t i = 0; i < TENSORS; i++) {
        elsewhere[i] = ranks_memory(ctx, counts[i] * sizeof(float));
        model->tensors[i].grad = elsewhere[i];
    }
    REQUIRE_OK(gsync_reducer_rebind_list(model->reducer, elsewhere, TENSORS));
    CHECK(check_step(model, 2) > 0 || ctx->is_on_device);
    REQUIRE_OK(gsync_reducer_rebind_list(model->reducer, nowhere, TENSORS));
    take_addresses(model);
    CHECK_EQ(check_step(model, 3), 0);
}

/* The mark says where the gradient is; a place that nobody announced is noticed there. */
static void GS_74_a_forgotten_rebind_is_noticed_at_the_mark(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    ranks_model *model = open_views(ctx, &options);
    REQUIRE(model != NULL);
    float *detached = ranks_memory(ctx, counts[1] * sizeof(float));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, 2));
    CHECK_STATUS(gsync_ready(model->reducer, detached), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_CONTAINS(gsync_last_error(), "gsync_reducer_rebind");
    CHECK_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(gsync_reducer_rebind(model->reducer, "p1", detached), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
    model->tensors[1].grad = detached;
    REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p1", detached));
    (void)check_step(model, 2);
}

/* Agreeing on rank 0's order after the first step must not pull the gradients from under the trainer. */
static void GS_74_addresses_last_whatever_order_is_agreed(ranks_context *ctx) {
    static const size_t order[TENSORS] = {1, 0, 2};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = 1;
    ranks_model *model = open_views(ctx, &options);
    REQUIRE(model != NULL);
    for (uint64_t step = 1; step <= 3; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, order, &info));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK(info.bytes_copied == 0 || ctx->is_on_device);
        for (size_t i = 0; i < TENSORS; i++) {
            CHECK(gsync_reducer_grad(model->reducer, model->tensors[i].name) == model->tensors[i].grad);
        }
    }
    CHECK_EQ(gsync_bucket_of(model->reducer, "p1"), 0);
}

/* Moved before the first step, when the launch order is still to change. */
static void GS_74_a_gradient_that_moved_early_stays_where_it_was_put(ranks_context *ctx) {
    static const size_t order[TENSORS] = {1, 0, 2};
    ranks_model *model = open_views(ctx, NULL);
    REQUIRE(model != NULL);
    void *elsewhere = ranks_memory(ctx, counts[0] * sizeof(float));
    model->tensors[0].grad = elsewhere;
    REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p0", elsewhere));
    for (uint64_t step = 1; step <= 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, order, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

/* Options for which the library keeps gradients apart from its slots. */
static void GS_74_moving_under_options_that_hold_results_back(ranks_context *ctx) {
    for (int kind = 0; kind < 3; kind++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.finds_unused = kind == 0;
        options.checks_writes = kind == 1;
        options.accumulation = kind == 2 ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
        ranks_model *model = open_views(ctx, &options);
        REQUIRE(model != NULL);
        void *slot = model->tensors[1].grad;
        (void)check_step(model, 1);
        model->tensors[1].grad = ranks_memory(ctx, counts[1] * sizeof(float));
        REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p1", model->tensors[1].grad));
        (void)check_step(model, 2);
        model->tensors[1].grad = slot;
        REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p1", NULL));
        (void)check_step(model, 3);
    }
}

RANKS_MAIN(RANKS_TEST(GS_74_in_the_slot_then_elsewhere_then_back), RANKS_TEST(GS_74_only_one_rank_moves_away),
           RANKS_TEST(GS_74_all_move_away_and_back_in_one_call),
           RANKS_TEST(GS_74_a_forgotten_rebind_is_noticed_at_the_mark),
           RANKS_TEST(GS_74_addresses_last_whatever_order_is_agreed),
           RANKS_TEST(GS_74_a_gradient_that_moved_early_stays_where_it_was_put),
           RANKS_TEST(GS_74_moving_under_options_that_hold_results_back))
