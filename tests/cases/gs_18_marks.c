/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,4 */

/* GS-18, GS-19, GS-20, GS-22: marks that come twice, for another model, at the wrong moment, or from elsewhere. */

#include "ranks.h"

static const size_t two_counts[] = {4, 6};

static ranks_model *open_two(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, NULL));
    return model;
}

static void expect_good_step(ranks_model *model, uint64_t round) {
    ranks_model_fill(model, RANKS_INTEGERS, round);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
}

/* ---- GS-18 ------------------------------------------------------------------------------------------------------ */

static void GS_18_a_second_mark_is_refused_by_name_and_the_first_stands(ranks_context *ctx) {
    ranks_model *model = open_two(ctx);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(ranks_model_ready(model, 0), GSYNC_ERR_ALREADY_READY);
    CHECK_CONTAINS(gsync_last_error(), "'p0'");
    REQUIRE_OK(ranks_model_ready(model, 1));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    expect_good_step(model, 2);
}

static void GS_18_a_second_mark_on_one_rank_only_disturbs_nobody(ranks_context *ctx) {
    ranks_model *model = open_two(ctx);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 1));
    if (ctx->rank == ctx->world - 1) {
        CHECK_STATUS(ranks_model_ready(model, 1), GSYNC_ERR_ALREADY_READY);
    }
    REQUIRE_OK(ranks_model_ready(model, 0));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void GS_18_a_list_tells_of_the_double_and_marks_the_rest(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1; /* so that a mark that was dropped shows in finish */
    ranks_model *model = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    const void *const marks[] = {model->tensors[1].grad, model->tensors[1].grad, model->tensors[0].grad};
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_STATUS(gsync_ready_list(model->reducer, marks, 3), GSYNC_ERR_ALREADY_READY);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

/* A shared weight: two contributions, reduced once, after the second mark. The buckets hold one gradient each. */
static void GS_18_a_gradient_with_two_uses_is_reduced_once_after_the_second_mark(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = 1;
    ranks_model *model = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p1", 2));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    float *shared = model->tensors[1].grad;
    float second[6];
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    for (uint64_t step = 1; step <= 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        ranks_fill(ctx, second, 6, GSYNC_FLOAT32, (ranks_source){.round = step, .tensor = 9});
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(gsync_ready(model->reducer, shared));
        ranks_meet(ctx); /* every rank has marked once: a library that launches now sends half of the sum */
        for (size_t i = 0; i < 6; i++) {
            shared[i] += second[i];
        }
        REQUIRE_OK(gsync_ready(model->reducer, shared));
        CHECK_STATUS(gsync_ready(model->reducer, shared), GSYNC_ERR_ALREADY_READY);
        REQUIRE_OK(ranks_model_ready(model, 0));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_EQ(info.buckets_launched, 2);
        for (size_t i = 0; i < 6; i++) {
            const double sum = ranks_sum(ctx, GSYNC_FLOAT32, (ranks_source){.round = step, .tensor = 1}, i) +
                               ranks_sum(ctx, GSYNC_FLOAT32, (ranks_source){.round = step, .tensor = 9}, i);
            CHECK_REAL(shared[i], ranks_rounded(GSYNC_FLOAT32, sum / ctx->world));
        }
    }
}

static void GS_18_strict_names_a_gradient_that_lacks_its_second_mark(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    ranks_model *model = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    CHECK_STATUS(gsync_reducer_set_uses(model->reducer, "p7", 2), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_STATUS(gsync_reducer_set_uses(model->reducer, "p1", 0), GSYNC_ERR_ARGUMENT);
    REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p1", 2));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_INCOMPLETE);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
}

/* ---- GS-19 ------------------------------------------------------------------------------------------------------ */

static void GS_19_two_models_in_turn_do_not_touch_each_other(ranks_context *ctx) {
    ranks_model *a = open_two(ctx);
    ranks_model *b = open_two(ctx); /* the same names: names are a reducer's own */
    for (uint64_t step = 1; step <= 3; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(a, RANKS_INTEGERS, 10 + step);
        ranks_model_fill(b, RANKS_INTEGERS, 20 + step);
        REQUIRE_OK(gsync_begin(a->reducer, GSYNC_SYNC));
        REQUIRE_OK(ranks_model_ready(a, 1));
        /* The generator's backward also reaches the discriminator's gradients. */
        CHECK_STATUS(gsync_ready(b->reducer, b->tensors[0].grad), GSYNC_ERR_STATE);
        CHECK_STATUS(gsync_ready(a->reducer, b->tensors[0].grad), GSYNC_ERR_UNKNOWN_GRADIENT);
        REQUIRE_OK(ranks_model_ready(a, 0));
        REQUIRE_OK(gsync_finish(a->reducer, &info));
        CHECK_EQ(info.step, step);
        CHECK_EQ(info.buckets_launched, gsync_bucket_count(a->reducer));
        CHECK_MODEL_MEAN(a, RANKS_INTEGERS, 10 + step);
        CHECK_MODEL_OWN(b, RANKS_INTEGERS, 20 + step);

        REQUIRE_OK(ranks_model_step(b, NULL, &info));
        CHECK_EQ(info.step, step);
        CHECK_EQ(info.buckets_launched, gsync_bucket_count(b->reducer));
        CHECK_MODEL_MEAN(b, RANKS_INTEGERS, 20 + step);
        CHECK_MODEL_MEAN(a, RANKS_INTEGERS, 10 + step);
    }
}

/* Every mark is made before any finish, so no rank needs another one's finish to get its buckets through. */
static void finish_in_rank_dependent_order(ranks_context *ctx, gsync_order order) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.order = order;
    ranks_model *a = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    ranks_model *b = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(a, &options));
    REQUIRE_OK(ranks_model_open(b, &options));
    for (uint64_t step = 1; step <= 4; step++) {
        ranks_model *first = (step + (uint64_t)ctx->rank) % 2 == 0 ? a : b;
        ranks_model *second = first == a ? b : a;
        ranks_model_fill(a, RANKS_INTEGERS, 10 + step);
        ranks_model_fill(b, RANKS_INTEGERS, 20 + step);
        REQUIRE_OK(gsync_begin(a->reducer, GSYNC_SYNC));
        REQUIRE_OK(gsync_begin(b->reducer, GSYNC_SYNC));
        for (size_t i = 0; i < 2; i++) {
            REQUIRE_OK(ranks_model_ready(first, i));
            REQUIRE_OK(ranks_model_ready(second, i));
        }
        REQUIRE_OK(gsync_finish(first->reducer, NULL));
        REQUIRE_OK(gsync_finish(second->reducer, NULL));
        CHECK_MODEL_MEAN(a, RANKS_INTEGERS, 10 + step);
        CHECK_MODEL_MEAN(b, RANKS_INTEGERS, 20 + step);
    }
}

static void GS_19_two_models_under_way_at_once_may_finish_in_another_order_on_each_rank(ranks_context *ctx) {
    finish_in_rank_dependent_order(ctx, GSYNC_ORDER_REGISTERED);
}

static void GS_19_so_they_may_while_the_launch_order_is_agreed(ranks_context *ctx) {
    finish_in_rank_dependent_order(ctx, GSYNC_ORDER_AGREED);
}

/* ---- GS-20 ------------------------------------------------------------------------------------------------------ */

static void GS_20_marks_outside_a_step_are_refused_and_change_nothing(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    CHECK_STATUS(ranks_model_ready(model, 0), GSYNC_ERR_STATE); /* before commit */
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 1; step <= 3; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(model, RANKS_INTEGERS, step);
        CHECK_STATUS(ranks_model_ready(model, 0), GSYNC_ERR_STATE);
        CHECK_STATUS(ranks_model_ready(model, 1), GSYNC_ERR_STATE);
        ranks_meet(ctx); /* nobody has begun: a launch by the marks above would have happened everywhere */
        CHECK_MODEL_OWN(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, &info));
        CHECK_EQ(info.step, step);
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK_STATUS(ranks_model_ready(model, 0), GSYNC_ERR_STATE); /* after finish */
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

static void GS_20_other_calls_of_a_step_are_refused_outside_one(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, two_counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_STATE); /* there is no first call to repeat */
    CHECK_STATUS(gsync_set_weight(model->reducer, 1.0), GSYNC_ERR_STATE);
    expect_good_step(model, 1);
}

/* ---- GS-22 ------------------------------------------------------------------------------------------------------ */

static void GS_22_a_mark_by_another_address_is_refused_until_rebind(ranks_context *ctx) {
    ranks_model *model = open_two(ctx);
    float *moved = ranks_memory(ctx, two_counts[1] * sizeof(*moved));
    float *old = model->tensors[1].grad;
    expect_good_step(model, 1);

    ranks_model_fill(model, RANKS_INTEGERS, 2);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_STATUS(gsync_ready(model->reducer, moved), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_CONTAINS(gsync_last_error(), "rebind");
    CHECK_STATUS(gsync_ready(model->reducer, old + 1), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_STATUS(gsync_ready(model->reducer, NULL), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_STATUS(gsync_reducer_rebind(model->reducer, "p1", moved), GSYNC_ERR_STATE); /* not inside a step */
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);

    REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p1", moved));
    model->tensors[1].grad = moved;
    for (uint64_t step = 3; step < 6; step++) {
        for (size_t i = 0; i < two_counts[1]; i++) {
            old[i] = -7.0f; /* the old place is no longer ours to read or write */
        }
        expect_good_step(model, step);
        for (size_t i = 0; i < two_counts[1]; i++) {
            CHECK_REAL(old[i], -7.0);
        }
    }
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_STATUS(gsync_ready(model->reducer, old), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_OK(gsync_finish(model->reducer, NULL));
}

static void GS_22_a_rebind_of_nothing_known_is_refused(ranks_context *ctx) {
    ranks_model *model = open_two(ctx);
    CHECK_STATUS(gsync_reducer_rebind(model->reducer, "p2", model->tensors[0].grad), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_STATUS(gsync_reducer_rebind(model->reducer, "p1", NULL), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_reducer_rebind(model->reducer, "p1", model->tensors[0].grad), GSYNC_ERR_ARGUMENT);
    expect_good_step(model, 1);
}

RANKS_MAIN(RANKS_TEST(GS_18_a_second_mark_is_refused_by_name_and_the_first_stands),
           RANKS_TEST(GS_18_a_second_mark_on_one_rank_only_disturbs_nobody),
           RANKS_TEST(GS_18_a_list_tells_of_the_double_and_marks_the_rest),
           RANKS_TEST(GS_18_a_gradient_with_two_uses_is_reduced_once_after_the_second_mark),
           RANKS_TEST(GS_18_strict_names_a_gradient_that_lacks_its_second_mark),
           RANKS_TEST(GS_19_two_models_in_turn_do_not_touch_each_other),
           RANKS_TEST(GS_19_two_models_under_way_at_once_may_finish_in_another_order_on_each_rank),
           RANKS_TEST_WITH(GS_19_so_they_may_while_the_launch_order_is_agreed, .timeout_ms = 3000),
           RANKS_TEST(GS_20_marks_outside_a_step_are_refused_and_change_nothing),
           RANKS_TEST(GS_20_other_calls_of_a_step_are_refused_outside_one),
           RANKS_TEST(GS_22_a_mark_by_another_address_is_refused_until_rebind),
           RANKS_TEST(GS_22_a_rebind_of_nothing_known_is_refused))
