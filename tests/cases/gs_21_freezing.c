/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 */

/* GS-21: the set of trainable gradients changes during training. */

#include "ranks.h"

enum { FROZEN = 1 };
static const size_t counts[] = {4, 6, 5};

/* p1 is frozen from the start. */
static ranks_model *open_with_frozen(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, NULL, NULL));
    CHECK_OK(gsync_reducer_set_trainable(model->reducer, "p1", 0));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(gsync_bucket_of(model->reducer, "p1"), -1);
    return model;
}

static void expect_frozen_step(ranks_model *model, uint64_t round) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model_fill(model, RANKS_INTEGERS, round);
    CHECK_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, 2));
    CHECK_STATUS(ranks_model_ready(model, FROZEN), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
    CHECK_OK(ranks_model_ready(model, 0));
    CHECK_OK(gsync_finish(model->reducer, &info));
    CHECK_EQ(info.bytes_reduced, (counts[0] + counts[2]) * sizeof(float));
    for (size_t i = 0; i < 3; i++) {
        const ranks_source source = {.round = round, .tensor = i};
        if (i == FROZEN) {
            CHECK_OWN(model->ctx, model->tensors[i].grad, counts[i], GSYNC_FLOAT32, source);
        } else {
            CHECK_REDUCED(model->ctx, model->tensors[i].grad, counts[i], GSYNC_FLOAT32, source, model->ctx->world);
        }
    }
}

static void expect_full_step(ranks_model *model, uint64_t round) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model_fill(model, RANKS_INTEGERS, round);
    CHECK_OK(ranks_model_step(model, NULL, &info));
    CHECK_EQ(info.bytes_reduced, (counts[0] + counts[1] + counts[2]) * sizeof(float));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
}

static void GS_21_a_gradient_is_synchronised_from_the_step_in_which_it_is_unfrozen(ranks_context *ctx) {
    ranks_model *model = open_with_frozen(ctx);
    expect_frozen_step(model, 1);
    expect_frozen_step(model, 2);
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p1", 1));
    CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE); /* commit comes first */
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
    expect_full_step(model, 3);
    expect_full_step(model, 4);
}

static void GS_21_a_gradient_can_be_frozen_again(ranks_context *ctx) {
    ranks_model *model = open_with_frozen(ctx);
    for (uint64_t round = 0; round < 6; round += 2) {
        expect_frozen_step(model, round);
        REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p1", 1));
        REQUIRE_OK(gsync_reducer_commit(model->reducer));
        expect_full_step(model, round + 1);
        REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p1", 0));
        REQUIRE_OK(gsync_reducer_commit(model->reducer));
        REQUIRE(!ranks_has_failed(ctx));
    }
}

static void GS_21_strictness_does_not_ask_for_frozen_gradients(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p1", 0));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    expect_frozen_step(model, 1);
}

static void GS_21_a_model_that_is_frozen_altogether_steps_without_a_bucket(ranks_context *ctx) {
    ranks_model *model = open_with_frozen(ctx);
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p0", 0));
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p2", 0));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(gsync_bucket_count(model->reducer), 0);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
}

/* Rank 0 commits a changed set; the others do not know of it and start their step. */
static void GS_21_unfreezing_on_rank_0_only_is_a_mismatch_on_all(ranks_context *ctx) {
    ranks_model *model = open_with_frozen(ctx);
    expect_frozen_step(model, 1);
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    if (ctx->rank == 0) {
        REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p1", 1));
        CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    } else {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_MISMATCH);
    }
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 2);
    /* Corrected on all ranks, the same reducer goes on. */
    if (ctx->rank != 0) {
        REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p1", 1));
    }
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    expect_full_step(model, 3);
}

static void GS_21_sets_that_differ_at_the_second_commit_are_a_mismatch_on_all(ranks_context *ctx) {
    ranks_model *model = open_with_frozen(ctx);
    expect_frozen_step(model, 1);
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, ctx->rank == 0 ? "p1" : "p2", ctx->rank == 0));
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
}

RANKS_MAIN(RANKS_TEST(GS_21_a_gradient_is_synchronised_from_the_step_in_which_it_is_unfrozen),
           RANKS_TEST(GS_21_a_gradient_can_be_frozen_again),
           RANKS_TEST(GS_21_strictness_does_not_ask_for_frozen_gradients),
           RANKS_TEST(GS_21_a_model_that_is_frozen_altogether_steps_without_a_bucket),
           RANKS_TEST_WITH(GS_21_unfreezing_on_rank_0_only_is_a_mismatch_on_all, .world_min = 2,
                           .host_only = "buckets of a GPU meet no commit: only the deadline tells"),
           RANKS_TEST_WITH(GS_21_sets_that_differ_at_the_second_commit_are_a_mismatch_on_all, .world_min = 2))
