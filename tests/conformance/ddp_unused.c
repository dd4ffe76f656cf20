/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/* Behaviours 39 to 56 of DistributedDataParallel: unused, shared, ignored parameters. README.md lists them all. */

#include "ranks.h"

#include <stdio.h>
#include <string.h>

enum { TENSORS = 5 };
static const size_t counts[TENSORS] = {15, 4, 33, 1, 8};

static gsync_options finds_unused(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    return options;
}

static gsync_options strict(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    return options;
}

static ranks_model *open_with(ranks_context *ctx, gsync_options options) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    options.bucket_bytes_max = 64;
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static void begin_and_mark_all_but(ranks_model *model, uint64_t round, unsigned left_out) {
    ranks_model_fill(model, RANKS_INTEGERS, round);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (size_t t = TENSORS; t-- > 0;) {
        if ((left_out >> t & 1u) == 0) {
            REQUIRE_OK(ranks_model_ready(model, t));
        }
    }
}

static bool check_tensor(const ranks_model *model, uint64_t round, size_t tensor, uint32_t users) {
    const ranks_tensor *at = &model->tensors[tensor];
    const ranks_source source = {RANKS_INTEGERS, round, tensor, users};
    return users == 0 ? CHECK_OWN(model->ctx, at->grad, at->count, at->dtype, source)
                      : CHECK_REDUCED(model->ctx, at->grad, at->count, at->dtype, source, model->ctx->world);
}

static uint32_t everybody(const ranks_context *ctx) {
    return (1u << ctx->world) - 1;
}

/* ---- 39, 42, 43, 45, 46
 * ----------------------------------------------------------------------------------------------- */

static void forward_backward_unused_parameters_leaves_globally_unused_gradients_alone(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, finds_unused());
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 3; step++) {
        begin_and_mark_all_but(model, step, 1u << 2);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        for (size_t t = 0; t < TENSORS; t++) {
            check_tensor(model, step, t, t == 2 ? 0 : everybody(ctx));
        }
    }
}

/* The branch taken is the same on all ranks, and another one every other step. */
static void control_flow_same_across_ranks_is_used_by_all_or_by_none(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, finds_unused());
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 6; step++) {
        const size_t skipped = step % 2 == 0 ? 1 : 3;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        begin_and_mark_all_but(model, step, 1u << skipped);
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_EQ(info.gradients_unused, 1);
        CHECK_EQ(gsync_is_used(model->reducer, "p1"), skipped != 1);
        CHECK_EQ(gsync_is_used(model->reducer, "p3"), skipped != 3);
        check_tensor(model, step, skipped, 0);
        check_tensor(model, step, 4 - skipped, everybody(ctx));
    }
}

static void control_flow_different_across_ranks_is_used_by_one(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, finds_unused());
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 6; step++) {
        const int user = (int)(step % (uint64_t)ctx->world);
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        begin_and_mark_all_but(model, step, ctx->rank == user ? 0 : 1u << 1);
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_EQ(info.gradients_unused, 0);
        CHECK_EQ(gsync_is_used(model->reducer, "p1"), 1);
        check_tensor(model, step, 1, 1u << user);
        check_tensor(model, step, 0, everybody(ctx));
    }
}

/* A step's unused gradients are counted anew: the count does not grow from step to step. */
static void the_number_of_unused_gradients_is_that_of_one_step(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, finds_unused());
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 4; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        begin_and_mark_all_but(model, step, 1u << 0 | 1u << 4);
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_EQ(info.gradients_unused, 2);
    }
}

/* ---- 40, 50, 53
 * -------------------------------------------------------------------------------------------------------- */

static void a_second_mark_is_refused_by_name_and_the_first_stands(ranks_context *ctx) {
    for (int is_owned = 0; is_owned < 2; is_owned++) {
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
        model->tensors[3].grad = is_owned ? NULL : model->tensors[3].grad;
        REQUIRE_OK(ranks_model_open(model, NULL));
        model->tensors[3].grad = gsync_reducer_grad(model->reducer, "p3");
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(ranks_model_ready(model, 3));
        REQUIRE_STATUS(ranks_model_ready(model, 3), GSYNC_ERR_ALREADY_READY);
        CHECK_CONTAINS(gsync_last_error(), "'p3'");
        CHECK_CONTAINS(gsync_last_error(), "more than 1 time");
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    }
}

/* Every use is a mark of its own; only the last one makes the gradient final. */
static void checkpointing_weight_sharing_makes_a_gradient_ready_with_its_last_use(ranks_context *ctx) {
    enum { USES = 3 };
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    gsync_options options = strict();
    options.bucket_bytes_max = 1;
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p2", USES));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 0; step < 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        memset(model->tensors[2].grad, 0, counts[2] * sizeof(float));
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        for (size_t use = 0; use < USES; use++) {
            const ranks_source source = {RANKS_INTEGERS, step, 2, 0};
            if (use == USES - 1) { /* written as late as is allowed */
                ranks_fill(ctx, model->tensors[2].grad, counts[2], GSYNC_FLOAT32, source);
            }
            REQUIRE_OK(ranks_model_ready(model, 2));
            for (size_t t = 0; t < TENSORS && use == 1; t++) {
                if (t != 2) {
                    REQUIRE_OK(ranks_model_ready(model, t));
                }
            }
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

/* A graph that was declared static and is not: one use more, one use less. */
static void invalid_static_graph_is_found_in_both_directions(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    const gsync_options options = strict();
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p0", 2));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    begin_and_mark_all_but(model, 1, 0);
    REQUIRE(!ranks_has_failed(ctx));
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
    CHECK_CONTAINS(gsync_last_error(), "'p0'");
    begin_and_mark_all_but(model, 2, 0);
    REQUIRE_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(ranks_model_ready(model, 0), GSYNC_ERR_ALREADY_READY);
    CHECK_CONTAINS(gsync_last_error(), "'p0'");
    CHECK_CONTAINS(gsync_last_error(), "more than 2 times");
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);
}

static void static_graph_api_after_commit_is_too_late(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, (gsync_options)GSYNC_OPTIONS_INIT);
    REQUIRE(!ranks_has_failed(ctx));
    CHECK_STATUS(gsync_reducer_set_uses(model->reducer, "p0", 2), GSYNC_ERR_STATE);
    CHECK_CONTAINS(gsync_last_error(), "gsync_reducer_set_uses");
    begin_and_mark_all_but(model, 1, 0);
    CHECK_STATUS(gsync_reducer_set_uses(model->reducer, "p0", 2), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void a_shared_gradient_that_no_rank_used_is_unused_too(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    const gsync_options options = finds_unused();
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p2", 2));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 0; step < 3; step++) {
        begin_and_mark_all_but(model, step, 1u << 2);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_EQ(gsync_is_used(model->reducer, "p2"), 0);
        check_tensor(model, step, 2, 0);
        check_tensor(model, step, 0, everybody(ctx));
        /* and used when one of its two users is */
        begin_and_mark_all_but(model, step + 10, 0);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_EQ(gsync_is_used(model->reducer, "p2"), 1);
        check_tensor(model, step + 10, 2, everybody(ctx));
    }
}

/* ---- 41, 47
 * ------------------------------------------------------------------------------------------------------------ */

/* In the very step in which it happens, on every rank, with exactly the names that are missing. */
static void unused_parameters_error_names_exactly_the_unused_ones_in_the_same_step(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, strict());
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 3; step++) {
        begin_and_mark_all_but(model, step, 1u << 1 | 1u << 4);
        REQUIRE_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
        CHECK_CONTAINS(gsync_last_error(), "'p1', 'p4'");
        for (int t = 0; t < TENSORS; t += 1) {
            char name[24];
            snprintf(name, sizeof name, "'p%d'", t);
            CHECK((strstr(gsync_last_error(), name) != NULL) == (t == 1 || t == 4));
        }
        begin_and_mark_all_but(model, step, 0);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

static void frozen_parameters_are_not_among_the_unused_ones(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    const gsync_options options = strict();
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p4", 0));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    begin_and_mark_all_but(model, 1, 1u << 1 | 1u << 4);
    REQUIRE_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
    CHECK(strstr(gsync_last_error(), "'p4'") == NULL);
    begin_and_mark_all_but(model, 2, 1u << 4);
    CHECK_STATUS(ranks_model_ready(model, 4), GSYNC_ERR_ARGUMENT);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    check_tensor(model, 2, 4, 0);
    check_tensor(model, 2, 1, everybody(ctx));
}

/* ---- 48
 * ---------------------------------------------------------------------------------------------------------------- */

/* Ranks take different branches. Whether buckets follow the observed order or not, the results are the same. */
static void different_graph_across_ranks_gives_equal_results_for_every_order(ranks_context *ctx) {
    ranks_model *models[2];
    for (int i = 0; i < 2; i++) {
        gsync_options options = finds_unused();
        options.order = i == 0 ? GSYNC_ORDER_AGREED : GSYNC_ORDER_REGISTERED;
        models[i] = open_with(ctx, options);
    }
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 5; step++) {
        for (int i = 0; i < 2; i++) {
            begin_and_mark_all_but(models[i], step, ctx->rank % 2 == 0 ? 1u << 1 | 1u << 2 : 1u << 3);
            REQUIRE_OK(gsync_finish(models[i]->reducer, NULL));
        }
        for (size_t t = 0; t < TENSORS; t++) {
            CHECK(memcmp(models[0]->tensors[t].grad, models[1]->tensors[t].grad, counts[t] * sizeof(float)) == 0);
        }
        check_tensor(models[0], step, 1, everybody(ctx) & 0xaaaaaaaau);
        check_tensor(models[0], step, 3, everybody(ctx) & 0x55555555u);
    }
}

/* ---- 52
 * ---------------------------------------------------------------------------------------------------------------- */

/* Gradients that are allocated anew in every forward pass. */
static void new_tensors_in_every_forward_are_followed(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, (gsync_options)GSYNC_OPTIONS_INIT);
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 4; step++) {
        void *old = model->tensors[2].grad;
        void *fresh = ranks_memory(ctx, counts[2] * sizeof(float));
        model->tensors[2].grad = fresh;
        REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p2", fresh));
        begin_and_mark_all_but(model, step, 0);
        CHECK_STATUS(gsync_ready(model->reducer, old), GSYNC_ERR_UNKNOWN_GRADIENT);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        ranks_memory_free(ctx, old);
    }
}

/* ---- 56
 * ---------------------------------------------------------------------------------------------------------------- */

/* What is not registered may differ in shape from rank to rank, and is never touched. */
static void ignored_params_are_untouched_and_may_differ_in_shape(ranks_context *ctx) {
    const size_t ignored_count = 5 + (size_t)ctx->rank;
    float *ignored = ranks_memory(ctx, ignored_count * sizeof(float));
    ranks_model *model = open_with(ctx, (gsync_options)GSYNC_OPTIONS_INIT);
    REQUIRE(!ranks_has_failed(ctx));
    for (size_t i = 0; i < ignored_count; i++) {
        ignored[i] = (float)(100 * ctx->rank) + (float)i;
    }
    for (uint64_t step = 0; step < 2; step++) {
        begin_and_mark_all_but(model, step, 0);
        CHECK_STATUS(gsync_ready(model->reducer, ignored), GSYNC_ERR_UNKNOWN_GRADIENT);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
    for (size_t i = 0; i < ignored_count; i++) {
        CHECK_REAL(ignored[i], 100.0 * ctx->rank + (double)i);
    }
}

RANKS_MAIN(RANKS_TEST(forward_backward_unused_parameters_leaves_globally_unused_gradients_alone),
           RANKS_TEST(control_flow_same_across_ranks_is_used_by_all_or_by_none),
           RANKS_TEST(control_flow_different_across_ranks_is_used_by_one),
           RANKS_TEST(the_number_of_unused_gradients_is_that_of_one_step),
           RANKS_TEST(a_second_mark_is_refused_by_name_and_the_first_stands),
           RANKS_TEST(checkpointing_weight_sharing_makes_a_gradient_ready_with_its_last_use),
           RANKS_TEST(invalid_static_graph_is_found_in_both_directions),
           RANKS_TEST(static_graph_api_after_commit_is_too_late),
           RANKS_TEST(a_shared_gradient_that_no_rank_used_is_unused_too),
           RANKS_TEST(unused_parameters_error_names_exactly_the_unused_ones_in_the_same_step),
           RANKS_TEST(frozen_parameters_are_not_among_the_unused_ones),
           RANKS_TEST_WITH(different_graph_across_ranks_gives_equal_results_for_every_order, .world_min = 2),
           RANKS_TEST(new_tensors_in_every_forward_are_followed),
           RANKS_TEST(ignored_params_are_untouched_and_may_differ_in_shape))
