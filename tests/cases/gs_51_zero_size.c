/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi timeout=60 */

/*
 * GS-51: a gradient of no elements is legal everywhere and needs no mark. The row also asks for int8, top-k, the NaN
 * check and clipping, which this library does not have yet.
 */

#include "ranks.h"

static const size_t counts_with_gaps[] = {0, 3, 0, 5, 0};
#define GAPPED_COUNT (sizeof(counts_with_gaps) / sizeof(counts_with_gaps[0]))

/* Strict, so that an empty gradient which did need a mark would be refused by name. */
static gsync_options strict_options(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    return options;
}

static void GS_51_empty_first_middle_and_last_need_no_mark(ranks_context *ctx) {
    const gsync_options options = strict_options();
    ranks_model *model = ranks_model_new(ctx, counts_with_gaps, GAPPED_COUNT, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (uint64_t step = 1; step <= 3; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(ranks_model_ready(model, 3));
        REQUIRE_OK(ranks_model_ready(model, 1));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK_EQ(info.bytes_reduced, 8 * sizeof(float));
        CHECK_EQ(info.step, step);
    }
    CHECK_EQ(gsync_bucket_of(model->reducer, "p0"), -1);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p2"), -1);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p3"), 0);
}

static void GS_51_marking_an_empty_gradient_has_no_effect(ranks_context *ctx) {
    const gsync_options options = strict_options();
    ranks_model *model = ranks_model_new(ctx, counts_with_gaps, GAPPED_COUNT, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (int again = 0; again < 2; again++) {
        CHECK_OK(ranks_model_ready(model, 0));
        CHECK_OK(ranks_model_ready(model, 2));
        CHECK_OK(ranks_model_ready(model, 4));
    }
    /* The ranks may also differ in what they mark here. */
    if (ctx->rank == 0) {
        CHECK_OK(ranks_model_ready(model, 4));
    }
    CHECK_OK(ranks_model_ready(model, 1));
    CHECK_OK(ranks_model_ready(model, 3));
    CHECK_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void GS_51_empty_and_alone_in_its_dtype(ranks_context *ctx) {
    const gsync_options options = strict_options();
    const size_t counts[] = {3, 0, 2};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    model->tensors[1].dtype = GSYNC_FLOAT64;
    REQUIRE_OK(ranks_model_open(model, &options));
    CHECK_EQ(gsync_bucket_count(model->reducer), 1);
    for (uint64_t step = 1; step <= 2; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

/* In a flat buffer an empty slice has the address of the slice after it, whose mark must not be lost to it. */
static void check_flat_buffer(ranks_context *ctx, bool empty_comes_first) {
    const gsync_options options = strict_options();
    const size_t counts[] = {4, empty_comes_first ? 0 : 3, empty_comes_first ? 3 : 0};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    float *flat = ranks_memory(ctx, 7 * sizeof(float));
    model->tensors[0].grad = flat;
    model->tensors[1].grad = flat + 4;
    model->tensors[2].grad = flat + 4;
    REQUIRE_OK(ranks_model_open(model, &options));
    for (uint64_t step = 1; step <= 2; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        CHECK_OK(gsync_ready(model->reducer, flat + 4));
        CHECK_STATUS(gsync_ready(model->reducer, flat + 4), GSYNC_ERR_ALREADY_READY);
        CHECK_OK(gsync_ready(model->reducer, flat));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

static void GS_51_an_empty_slice_shares_the_address_of_the_next(ranks_context *ctx) {
    check_flat_buffer(ctx, true);
    check_flat_buffer(ctx, false);
}

static void GS_51_an_empty_gradient_may_have_no_address(ranks_context *ctx) {
    const gsync_options options = strict_options();
    ranks_model *model = ranks_model_new(ctx, counts_with_gaps, GAPPED_COUNT, GSYNC_FLOAT32);
    model->tensors[0].grad = NULL;
    model->tensors[2].grad = NULL;
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, 1));
    CHECK_OK(ranks_model_ready(model, 3));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

/* One window of two micro-batches, one of none on rank 0, and the communicator still works. */
static void check_steps_of_nothing(ranks_model *model) {
    for (int window = 0; window < 2; window++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_EQ(info.step, window + 1);
        CHECK_EQ(info.buckets_launched, 0);
        CHECK_EQ(info.bytes_reduced, 0);
        CHECK_EQ(gsync_is_synced(model->reducer), 1);
    }
    REQUIRE_OK(gsync_finish_empty(model->reducer, NULL));
    float mine = (float)(model->ctx->rank + 1);
    CHECK_OK(gsync_allreduce(model->ctx->comm, &mine, 1, GSYNC_FLOAT32, GSYNC_SUM));
    CHECK_REAL((double)mine, model->ctx->world * (model->ctx->world + 1) / 2.0);
}

static void GS_51_a_whole_model_of_nothing(ranks_context *ctx) {
    const size_t counts[] = {0, 0, 0};
    for (size_t tensor_count = 0; tensor_count <= 3; tensor_count += 3) {
        ranks_model *model = ranks_model_new(ctx, counts, tensor_count, GSYNC_FLOAT16);
        const gsync_options options = strict_options();
        REQUIRE_OK(ranks_model_open(model, &options));
        CHECK_EQ(gsync_bucket_count(model->reducer), 0);
        check_steps_of_nothing(model);
    }
}

static gsync_options options_of_kind(int kind) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = kind == 0;
    options.checks_writes = kind == 1;
    options.accumulation = kind == 2 ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
    options.strategy = kind == 3 ? GSYNC_STRATEGY_FIXED : GSYNC_STRATEGY_DDP;
    options.bucket_bytes_max = kind == 3 ? 1 : 0;
    options.strategy = kind == 4 ? GSYNC_STRATEGY_SINGLE : options.strategy;
    return options;
}

static void GS_51_empty_gradients_under_every_option(ranks_context *ctx) {
    for (int kind = 0; kind < 5; kind++) {
        const gsync_options options = options_of_kind(kind);
        ranks_model *model = ranks_model_new(ctx, counts_with_gaps, GAPPED_COUNT, GSYNC_BFLOAT16);
        REQUIRE_OK(ranks_model_open(model, &options));
        for (uint64_t step = 1; step <= 2; step++) {
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            ranks_model_fill(model, RANKS_INTEGERS, step);
            REQUIRE_OK(ranks_model_step(model, NULL, &info));
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
            CHECK_EQ(info.gradients_unused, 0);
        }
    }
}

static void GS_51_empty_gradients_in_the_librarys_memory(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts_with_gaps, GAPPED_COUNT, GSYNC_FLOAT32);
    for (size_t i = 0; i < GAPPED_COUNT; i++) {
        model->tensors[i].grad = NULL;
    }
    REQUIRE_OK(ranks_model_open(model, NULL));
    model->tensors[1].grad = gsync_reducer_grad(model->reducer, "p1");
    model->tensors[3].grad = gsync_reducer_grad(model->reducer, "p3");
    REQUIRE(model->tensors[1].grad != NULL && model->tensors[3].grad != NULL);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, 1));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void GS_51_empty_on_one_rank_only_is_a_mismatch_by_name(ranks_context *ctx) {
    const size_t counts[] = {2, ctx->rank == 0 ? 0 : 3, 2};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    REQUIRE_STATUS(ranks_model_open(model, NULL), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
}

RANKS_MAIN(RANKS_TEST(GS_51_empty_first_middle_and_last_need_no_mark),
           RANKS_TEST(GS_51_marking_an_empty_gradient_has_no_effect), RANKS_TEST(GS_51_empty_and_alone_in_its_dtype),
           RANKS_TEST(GS_51_an_empty_slice_shares_the_address_of_the_next),
           RANKS_TEST(GS_51_an_empty_gradient_may_have_no_address), RANKS_TEST(GS_51_a_whole_model_of_nothing),
           RANKS_TEST(GS_51_empty_gradients_under_every_option),
           RANKS_TEST(GS_51_empty_gradients_in_the_librarys_memory),
           RANKS_TEST_WITH(GS_51_empty_on_one_rank_only_is_a_mismatch_by_name, .world_min = 2))
