/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,4 transports=threads,mpi timeout=60 */

/*
 * GS-57: ranks with unequal numbers of batches. Those that have run out join with nothing until all are done. The row
 * also asks for int8, which this library does not have yet.
 */

#include "ranks.h"

/* Rank 0 has 3 batches, rank 1 has 5, and so on. */
static uint64_t batches_of(int rank) {
    return 3 + 2 * (uint64_t)rank;
}

static uint64_t most_batches(const ranks_context *ctx) {
    return batches_of(ctx->world - 1);
}

/* The ranks that still have a batch in a round, counted from 1. */
static uint32_t active_in(const ranks_context *ctx, uint64_t round) {
    uint32_t members = 0;
    for (int rank = 0; rank < ctx->world; rank++) {
        members |= batches_of(rank) >= round ? 1u << rank : 0;
    }
    return members;
}

static int count_of(uint32_t members) {
    int count = 0;
    for (; members != 0; members &= members - 1) {
        count++;
    }
    return count;
}

static void check_model(const ranks_model *model, uint64_t round, uint32_t members, double divisor) {
    for (size_t i = 0; i < model->tensor_count; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = round, .tensor = i, .members = members};
        CHECK_REDUCED(model->ctx, tensor->grad, tensor->count, tensor->dtype, source, divisor);
    }
}

static gsync_status join(ranks_model *model, bool has_batch, gsync_step_info *info) {
    return has_batch ? ranks_model_step(model, NULL, info) : gsync_finish_empty(model->reducer, info);
}

static const size_t counts[] = {3, 70, 1};
#define TENSORS 3

static gsync_options options_of(gsync_divisor divisor) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.divisor = divisor;
    options.bucket_bytes_max = 64; /* several buckets */
    return options;
}

/* An epoch of a trainer, until all_done says that it is over; returns the rounds it had. */
static uint64_t train_unevenly(ranks_model *model, gsync_divisor divisor, uint64_t steps_before) {
    ranks_context *ctx = model->ctx;
    uint64_t round = 0;
    for (;;) {
        int all = -1;
        const bool has_batch = round < batches_of(ctx->rank);
        if (!CHECK_OK(gsync_all_done(ctx->comm, !has_batch, &all)) || all != 0 || ranks_has_failed(ctx)) {
            return round;
        }
        round++;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        const uint32_t active = active_in(ctx, round);
        const double by = divisor == GSYNC_DIVIDE_BY_WORLD ? ctx->world : count_of(active);
        ranks_model_fill(model, RANKS_INTEGERS, round);
        CHECK_OK(join(model, has_batch, &info));
        check_model(model, round, active, by);
        CHECK_EQ(info.participants, count_of(active));
        CHECK_EQ(info.micro_batches, has_batch);
        CHECK_REAL(info.divisor, by);
        CHECK_EQ(info.step, steps_before + round);
        CHECK_EQ(gsync_is_synced(model->reducer), 1);
    }
}

static void GS_57_ranks_with_unequal_data_leave_together(ranks_context *ctx) {
    for (int divisor = GSYNC_DIVIDE_BY_WORLD; divisor <= GSYNC_DIVIDE_BY_PARTICIPANTS; divisor++) {
        const gsync_options options = options_of((gsync_divisor)divisor);
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_open(model, &options));
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            const uint64_t rounds = train_unevenly(model, options.divisor, epoch * most_batches(ctx));
            CHECK_EQ(rounds, most_batches(ctx));
            CHECK_SAME_ON_ALL(ctx, rounds);
        }
    }
}

/* The row's own numbers: gradients of 1, rounds 4 and 5 without rank 0. */
static void GS_57_two_ranks_get_a_half_or_a_whole(ranks_context *ctx) {
    static const double alone[] = {0.5, 1.0};
    const size_t one = 1;
    for (int divisor = GSYNC_DIVIDE_BY_WORLD; divisor <= GSYNC_DIVIDE_BY_PARTICIPANTS; divisor++) {
        const gsync_options options = options_of((gsync_divisor)divisor);
        ranks_model *model = ranks_model_new(ctx, &one, 1, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_open(model, &options));
        for (uint64_t round = 1; round <= 5; round++) {
            ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, 1.0);
            REQUIRE_OK(join(model, batches_of(ctx->rank) >= round, NULL));
            CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, 0), round <= 3 ? 1.0 : alone[divisor]);
        }
    }
}

static void GS_57_a_rank_without_any_batch_receives_every_mean(ranks_context *ctx) {
    for (int divisor = GSYNC_DIVIDE_BY_WORLD; divisor <= GSYNC_DIVIDE_BY_PARTICIPANTS; divisor++) {
        const gsync_options options = options_of((gsync_divisor)divisor);
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_open(model, &options));
        const uint32_t others = ((1u << ctx->world) - 1) & ~1u;
        for (uint64_t round = 1; round <= 3; round++) {
            ranks_model_fill(model, RANKS_INTEGERS, round);
            REQUIRE_OK(join(model, ctx->rank != 0, NULL));
            check_model(model, round, others, divisor == GSYNC_DIVIDE_BY_WORLD ? ctx->world : ctx->world - 1);
        }
    }
}

/* With or without a begin; but not after a mark, which says that there is data. */
static void GS_57_finish_empty_refuses_a_batch_with_marks(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, 1));
    CHECK_STATUS(gsync_finish_empty(model->reducer, NULL), GSYNC_ERR_STATE);
    CHECK_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ctx->rank == 0 ? gsync_finish_empty(model->reducer, NULL) : gsync_finish(model->reducer, NULL));
    check_model(model, 2, ((1u << ctx->world) - 1) & ~1u, ctx->world);
}

/* No rank has anything: zeros, and no 0 / 0. */
static void GS_57_nobody_has_data(ranks_context *ctx) {
    static const gsync_op ops[] = {GSYNC_MEAN, GSYNC_SUM, GSYNC_WEIGHTED_MEAN};
    for (size_t i = 0; i < 3; i++) {
        gsync_options options = options_of(GSYNC_DIVIDE_BY_PARTICIPANTS);
        options.op = ops[i];
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_open(model, &options));
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        REQUIRE_OK(gsync_finish_empty(model->reducer, &info));
        CHECK_EQ(info.participants, 0);
        for (size_t k = 0; k < counts[1]; k++) {
            CHECK_REAL(ranks_load(model->tensors[1].grad, GSYNC_FLOAT32, k), 0.0);
        }
    }
}

/* Rank r weighs r + 1, and rank 0 has no batch: sum of the others' gradients over the sum of their weights. */
static void GS_57_an_empty_rank_weighs_nothing(ranks_context *ctx) {
    gsync_options options = options_of(GSYNC_DIVIDE_BY_WORLD);
    options.op = GSYNC_WEIGHTED_MEAN;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    double weights = 0;
    for (int rank = 1; rank < ctx->world; rank++) {
        weights += rank + 1;
    }
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    if (ctx->rank == 0) {
        REQUIRE_OK(gsync_finish_empty(model->reducer, &info));
    } else {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(gsync_set_weight(model->reducer, ctx->rank + 1));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
    }
    check_model(model, 1, ((1u << ctx->world) - 1) & ~1u, weights);
    CHECK_REAL(info.weight_total, weights);
}

/* p0 is used by whoever has data, p1 by nobody: its buffer stays as it is on every rank, the empty ones included. */
static void GS_57_unused_parameters_stay_untouched_on_empty_ranks_too(ranks_context *ctx) {
    gsync_options options = options_of(GSYNC_DIVIDE_BY_PARTICIPANTS);
    options.finds_unused = 1;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (uint64_t round = 1; round <= 3; round++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        const bool has_batch = ctx->rank != 0;
        const ranks_source used = {.kind = RANKS_INTEGERS, .round = round, .members = ((1u << ctx->world) - 1) & ~1u};
        const ranks_source unused = {.kind = RANKS_INTEGERS, .round = round, .tensor = 1};
        ranks_model_fill(model, RANKS_INTEGERS, round);
        if (has_batch) {
            REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
            REQUIRE_OK(ranks_model_ready(model, 0));
        }
        REQUIRE_OK(has_batch ? gsync_finish(model->reducer, &info) : gsync_finish_empty(model->reducer, &info));
        CHECK_REDUCED(ctx, model->tensors[0].grad, counts[0], GSYNC_FLOAT32, used, ctx->world - 1.0);
        CHECK_OWN(ctx, model->tensors[1].grad, counts[1], GSYNC_FLOAT32, unused);
        CHECK_EQ(gsync_is_used(model->reducer, "p0"), 1);
        CHECK_EQ(gsync_is_used(model->reducer, "p1"), 0);
        CHECK_EQ(info.gradients_unused, 1);
    }
}

RANKS_MAIN(RANKS_TEST(GS_57_ranks_with_unequal_data_leave_together),
           RANKS_TEST_WITH(GS_57_two_ranks_get_a_half_or_a_whole, .world_min = 2, .world_max = 2),
           RANKS_TEST_WITH(GS_57_a_rank_without_any_batch_receives_every_mean, .world_min = 2),
           RANKS_TEST_WITH(GS_57_finish_empty_refuses_a_batch_with_marks, .world_min = 2),
           RANKS_TEST(GS_57_nobody_has_data), RANKS_TEST_WITH(GS_57_an_empty_rank_weighs_nothing, .world_min = 2),
           RANKS_TEST_WITH(GS_57_unused_parameters_stay_untouched_on_empty_ranks_too, .world_min = 2))
