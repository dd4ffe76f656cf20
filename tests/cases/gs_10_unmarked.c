/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 */

/* GS-10, GS-15, GS-16, GS-17: gradients, or whole ranks, that a step does not produce. */

#include "ranks.h"

#include <stdio.h>
#include <string.h>

static const size_t three_counts[] = {3, 4, 5};

static ranks_model *open_strict(ranks_context *ctx, gsync_strategy strategy) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    options.strategy = strategy;
    options.bucket_bytes_max = strategy == GSYNC_STRATEGY_FIXED ? 1 : 0; /* a bucket each, or one for all */
    ranks_model *model = ranks_model_new(ctx, three_counts, 3, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

/* Begins, marks the tensors of which the bit is set, and finishes. */
static gsync_status step_with(ranks_model *model, unsigned marked, gsync_step_info *info) {
    CHECK_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (size_t i = model->tensor_count; i-- > 0;) {
        if ((marked >> i & 1u) != 0) {
            CHECK_OK(ranks_model_ready(model, i));
        }
    }
    return gsync_finish(model->reducer, info);
}

static void expect_good_step(ranks_model *model, uint64_t round) {
    ranks_model_fill(model, RANKS_INTEGERS, round);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
}

static void GS_10_a_forgotten_gradient_is_named_and_the_next_step_is_good(ranks_context *ctx) {
    const gsync_strategy strategies[] = {GSYNC_STRATEGY_SINGLE, GSYNC_STRATEGY_FIXED};
    for (size_t i = 0; i < 2; i++) {
        ranks_model *model = open_strict(ctx, strategies[i]);
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        CHECK_STATUS(step_with(model, 5, NULL), GSYNC_ERR_INCOMPLETE);
        CHECK_CONTAINS(gsync_last_error(), "'p1'");
        CHECK(strstr(gsync_last_error(), "'p0'") == NULL);
        CHECK(strstr(gsync_last_error(), "'p2'") == NULL);
        CHECK_EQ(gsync_is_synced(model->reducer), 0);
        expect_good_step(model, 2);
        gsync_reducer_destroy(&model->reducer);
    }
}

static void GS_10_all_ranks_learn_the_names_that_one_rank_forgot(ranks_context *ctx) {
    const gsync_strategy strategies[] = {GSYNC_STRATEGY_SINGLE, GSYNC_STRATEGY_FIXED};
    for (size_t i = 0; i < 2; i++) {
        ranks_model *model = open_strict(ctx, strategies[i]);
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        CHECK_STATUS(step_with(model, ctx->rank == 1 ? 4 : 7, NULL), GSYNC_ERR_INCOMPLETE);
        CHECK_CONTAINS(gsync_last_error(), "rank 1");
        CHECK_CONTAINS(gsync_last_error(), "'p0'");
        CHECK_CONTAINS(gsync_last_error(), "'p1'");
        expect_good_step(model, 2);
        gsync_reducer_destroy(&model->reducer);
    }
}

static void GS_10_all_ranks_learn_what_each_rank_forgot(ranks_context *ctx) {
    ranks_model *model = open_strict(ctx, GSYNC_STRATEGY_FIXED);
    const unsigned marked = ctx->rank == 0 ? 3 : ctx->rank == 1 ? 6 : 7;
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_STATUS(step_with(model, marked, NULL), GSYNC_ERR_INCOMPLETE);
    /* Rank 0 refuses the first bucket, so rank 1 may be told of that before it knows that it forgot p0. */
    CHECK_CONTAINS(gsync_last_error(), "rank 0: 'p2'");
    CHECK(strstr(gsync_last_error(), "'p1'") == NULL);
    expect_good_step(model, 2);
}

static void GS_10_a_failed_step_says_which_buckets_hold_results(ranks_context *ctx) {
    ranks_model *model = open_strict(ctx, GSYNC_STRATEGY_FIXED);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_STATUS(step_with(model, 5, &info), GSYNC_ERR_INCOMPLETE);
    /* Buckets leave in the order p2, p1, p0. */
    CHECK_EQ(info.buckets_reduced, 1);
    CHECK_EQ(info.has_torn_bucket, 0);
    const ranks_tensor *tensors = model->tensors;
    CHECK_REDUCED(ctx, tensors[2].grad, 5, GSYNC_FLOAT32, ((ranks_source){.round = 1, .tensor = 2}), ctx->world);
    CHECK_OWN(ctx, tensors[1].grad, 4, GSYNC_FLOAT32, ((ranks_source){.round = 1, .tensor = 1}));
    CHECK_OWN(ctx, tensors[0].grad, 3, GSYNC_FLOAT32, ((ranks_source){.round = 1, .tensor = 0}));
}

static void GS_10_without_strictness_finish_reduces_what_was_not_marked(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, three_counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    const unsigned marked[] = {5, 0, 2};
    for (uint64_t step = 0; step < 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        CHECK_OK(step_with(model, marked[step], NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

/* ---- GS-15 ------------------------------------------------------------------------------------------------------ */

static void GS_15_an_unmarked_bucket_mate_fails_the_same_step(ranks_context *ctx) {
    const size_t counts[] = {1, 1};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    CHECK_EQ(gsync_bucket_count(model->reducer), 1);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_STATUS(step_with(model, 1, NULL), GSYNC_ERR_INCOMPLETE);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
}

static void GS_15_with_detection_the_used_bucket_mate_is_reduced(ranks_context *ctx) {
    const size_t counts[] = {1, 1};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    CHECK_EQ(gsync_bucket_count(model->reducer), 1);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(step_with(model, 1, NULL));
    CHECK_REDUCED(ctx, model->tensors[0].grad, 1, GSYNC_FLOAT32, ((ranks_source){.round = 1}), ctx->world);
    CHECK_OWN(ctx, model->tensors[1].grad, 1, GSYNC_FLOAT32, ((ranks_source){.round = 1, .tensor = 1}));
    CHECK_EQ(gsync_is_used(model->reducer, "p0"), 1);
    CHECK_EQ(gsync_is_used(model->reducer, "p1"), 0);
}

/* ---- GS-16 ------------------------------------------------------------------------------------------------------ */

static void finish_without_data_on_last(ranks_context *ctx, gsync_divisor divisor, bool begins_first) {
    const int last = ctx->world - 1;
    const double expected_divisor = divisor == GSYNC_DIVIDE_BY_WORLD ? ctx->world : last;
    const uint32_t members = (1u << last) - 1;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.divisor = divisor;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = ranks_model_new(ctx, three_counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1); /* also on the rank whose values must not count */
    if (ctx->rank != last) {
        REQUIRE_OK(ranks_model_step(model, NULL, &info));
    } else {
        REQUIRE(!begins_first || CHECK_OK(gsync_begin(model->reducer, GSYNC_SYNC)));
        REQUIRE_OK(gsync_finish_empty(model->reducer, &info));
    }
    CHECK_REAL(info.divisor, expected_divisor);
    CHECK_EQ(info.participants, last);
    CHECK_EQ(info.micro_batches, ctx->rank == last ? 0 : 1);
    CHECK_EQ(gsync_is_synced(model->reducer), 1);
    for (size_t i = 0; i < 3; i++) {
        const ranks_source source = {.round = 1, .tensor = i, .members = members};
        CHECK_REDUCED(ctx, model->tensors[i].grad, three_counts[i], GSYNC_FLOAT32, source, expected_divisor);
    }
    expect_good_step(model, 2);
    gsync_reducer_destroy(&model->reducer);
}

static void GS_16_a_rank_without_gradients_contributes_zeros(ranks_context *ctx) {
    finish_without_data_on_last(ctx, GSYNC_DIVIDE_BY_WORLD, true);
    finish_without_data_on_last(ctx, GSYNC_DIVIDE_BY_WORLD, false);
}

static void GS_16_a_rank_without_gradients_is_left_out_of_the_divisor_if_asked(ranks_context *ctx) {
    finish_without_data_on_last(ctx, GSYNC_DIVIDE_BY_PARTICIPANTS, true);
    finish_without_data_on_last(ctx, GSYNC_DIVIDE_BY_PARTICIPANTS, false);
}

/* Alone, or at the end of "rank 2, 3": of another host it is not known which of its ranks is late. */
static bool names_rank(const char *text, int rank) {
    char alone[24];
    char listed[24];
    snprintf(alone, sizeof(alone), "rank %d", rank);
    snprintf(listed, sizeof(listed), ", %d", rank);
    return strstr(text, alone) != NULL || strstr(text, listed) != NULL;
}

/*
 * The rank whose deadline passes first gets GSYNC_ERR_TIMEOUT and gives up; ranks that hear of that before their own
 * deadline get GSYNC_ERR_ABORTED with its words. Both name the absent rank.
 */
static void GS_16_without_the_call_the_others_get_a_timeout_that_names_the_rank(ranks_context *ctx) {
    const int last = ctx->world - 1;
    gsync_status status = GSYNC_OK;
    ranks_model *model = ranks_model_new(ctx, three_counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    if (ctx->rank != last) {
        status = ranks_model_step(model, NULL, NULL);
        /* To the others, one that has waited for its GPU in vain is lost. */
        CHECK(status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_ABORTED ||
              (ctx->is_on_device && status == GSYNC_ERR_PEER_LOST));
        CHECK(!ranks_know_who_is_late(ctx) || names_rank(gsync_last_error(), last));
        CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
    }
    /* The absent rank waits here until all have failed: leaving would be another error, GSYNC_ERR_PEER_LOST. */
    gsync_status statuses[RANKS_WORLD_MAX];
    REQUIRE(ranks_exchange(ctx, &status, sizeof(status), statuses));
    bool has_timeout = false;
    for (int rank = 0; rank < ctx->world; rank++) {
        has_timeout = has_timeout || statuses[rank] == GSYNC_ERR_TIMEOUT;
    }
    CHECK(has_timeout);
}

static void GS_16_a_micro_batch_with_marks_is_not_empty(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, three_counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 1));
    CHECK_STATUS(gsync_finish_empty(model->reducer, NULL), GSYNC_ERR_STATE);
    CHECK_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

/* ---- GS-17 ------------------------------------------------------------------------------------------------------ */

static void fill_with(const ranks_tensor *tensor, double value) {
    for (size_t i = 0; i < tensor->count; i++) {
        ranks_store(tensor->grad, tensor->dtype, i, value + (double)i);
    }
}

static void check_filled_with(const ranks_tensor *tensor, double value, double factor) {
    for (size_t i = 0; i < tensor->count; i++) {
        CHECK_REAL(ranks_load(tensor->grad, tensor->dtype, i), (value + (double)i) * factor);
    }
}

/* p0 is used nowhere, p1 on rank 0 only, p2 everywhere. */
static void find_unused(ranks_context *ctx, gsync_strategy strategy, gsync_accumulation accumulation) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    options.strategy = strategy;
    options.accumulation = accumulation;
    options.bucket_bytes_max = strategy == GSYNC_STRATEGY_FIXED ? 1 : 0;
    ranks_model *model = ranks_model_new(ctx, three_counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (int step = 0; step < 2; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        fill_with(&model->tensors[0], 7);
        fill_with(&model->tensors[1], ctx->rank == 0 ? 4 : 7);
        fill_with(&model->tensors[2], 8);
        REQUIRE_OK(step_with(model, ctx->rank == 0 ? 6 : 4, &info));
        check_filled_with(&model->tensors[0], 7, 1.0);
        check_filled_with(&model->tensors[2], 8, 1.0);
        for (size_t i = 0; i < three_counts[1]; i++) {
            CHECK_NEAR(ranks_load(model->tensors[1].grad, GSYNC_FLOAT32, i), (4.0 + (double)i) / ctx->world, 1e-6);
        }
        CHECK_EQ(gsync_is_used(model->reducer, "p0"), 0);
        CHECK_EQ(gsync_is_used(model->reducer, "p1"), 1);
        CHECK_EQ(gsync_is_used(model->reducer, "p2"), 1);
        CHECK_EQ(gsync_is_used(model->reducer, "p3"), -1);
        CHECK_EQ(info.gradients_unused, 1);
    }
    /* What is unused in one window is not so for ever. */
    ranks_model_fill(model, RANKS_INTEGERS, 3);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 3);
    CHECK_EQ(gsync_is_used(model->reducer, "p0"), 1);
    gsync_reducer_destroy(&model->reducer);
}

static void GS_17_globally_unused_stays_and_locally_unused_is_filled(ranks_context *ctx) {
    find_unused(ctx, GSYNC_STRATEGY_SINGLE, GSYNC_CLIENT_ACCUMULATES);
    find_unused(ctx, GSYNC_STRATEGY_FIXED, GSYNC_CLIENT_ACCUMULATES);
    find_unused(ctx, GSYNC_STRATEGY_SINGLE, GSYNC_CLIENT_OVERWRITES);
    find_unused(ctx, GSYNC_STRATEGY_FIXED, GSYNC_CLIENT_OVERWRITES);
}

static void GS_17_a_gradient_used_in_any_micro_batch_of_the_window_is_used(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    ranks_model *model = ranks_model_new(ctx, three_counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    REQUIRE_OK(ranks_model_ready(model, 1));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    REQUIRE_OK(step_with(model, 4, NULL));
    CHECK_EQ(gsync_is_used(model->reducer, "p0"), 0);
    CHECK_EQ(gsync_is_used(model->reducer, "p1"), 1);
    CHECK_REDUCED(ctx, model->tensors[1].grad, 4, GSYNC_FLOAT32, ((ranks_source){.round = 1, .tensor = 1}), ctx->world);
    CHECK_OWN(ctx, model->tensors[0].grad, 3, GSYNC_FLOAT32, ((ranks_source){.round = 1}));
}

RANKS_MAIN(RANKS_TEST(GS_10_a_forgotten_gradient_is_named_and_the_next_step_is_good),
           RANKS_TEST_WITH(GS_10_all_ranks_learn_the_names_that_one_rank_forgot, .world_min = 2),
           RANKS_TEST_WITH(GS_10_all_ranks_learn_what_each_rank_forgot, .world_min = 2),
           RANKS_TEST_WITH(GS_10_a_failed_step_says_which_buckets_hold_results,
                           .host_only = "a GPU notices it when all is reduced"),
           RANKS_TEST(GS_10_without_strictness_finish_reduces_what_was_not_marked),
           RANKS_TEST(GS_15_an_unmarked_bucket_mate_fails_the_same_step),
           RANKS_TEST(GS_15_with_detection_the_used_bucket_mate_is_reduced),
           RANKS_TEST_WITH(GS_16_a_rank_without_gradients_contributes_zeros, .world_min = 2),
           RANKS_TEST_WITH(GS_16_a_rank_without_gradients_is_left_out_of_the_divisor_if_asked, .world_min = 2),
           RANKS_TEST_WITH(GS_16_without_the_call_the_others_get_a_timeout_that_names_the_rank, .world_min = 2,
                           .timeout_ms = 500),
           RANKS_TEST(GS_16_a_micro_batch_with_marks_is_not_empty),
           RANKS_TEST(GS_17_globally_unused_stays_and_locally_unused_is_filled),
           RANKS_TEST(GS_17_a_gradient_used_in_any_micro_batch_of_the_window_is_used))
