/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=4 transports=threads,mpi timeout=60 */

/*
 * GS-80: the same data in other buckets gives the same bits. Sums are always taken in the documented fixed order, so
 * the row's tolerance for "other packing" is not needed: it is checked against float64 all the same.
 */

#include "own_comm.h"

#include <string.h>

enum { TENSORS = 100, COUNT_MAX = 10000 };

static const size_t caps[] = {1024, 64 * 1024, 1024 * 1024, SIZE_MAX};
#define CAPS (sizeof(caps) / sizeof(caps[0]))

/* 1 to 10000 elements, the same on all ranks. */
static ranks_model *model_of_random_sizes(ranks_context *ctx) {
    size_t counts[TENSORS];
    ranks_random random = ranks_random_from(ctx->seed, 80);
    for (size_t i = 0; i < TENSORS; i++) {
        counts[i] = 1 + ranks_random_below(&random, COUNT_MAX);
    }
    return ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
}

static void step_with(ranks_model *model, gsync_comm *comm, const gsync_options *options, const size_t *order) {
    REQUIRE_OK(ranks_model_register(model, comm, options));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    CHECK_OK(ranks_model_step(model, order, NULL));
    gsync_reducer_destroy(&model->reducer);
}

/* A copy of a model's values, taken by the first call of compare_bits. */
typedef struct reference {
    float *values[TENSORS];
} reference;

static void compare_bits(const ranks_model *model, reference *expected) {
    for (size_t i = 0; i < TENSORS; i++) {
        const ranks_tensor *at = &model->tensors[i];
        if (expected->values[i] == NULL) {
            expected->values[i] = ranks_memory(model->ctx, at->count * sizeof(float));
            memcpy(expected->values[i], at->grad, at->count * sizeof(float));
        }
        REQUIRE(memcmp(expected->values[i], at->grad, at->count * sizeof(float)) == 0);
    }
}

static void restore(ranks_model *model, const reference *inputs) {
    for (size_t i = 0; i < TENSORS; i++) {
        memcpy(model->tensors[i].grad, inputs->values[i], model->tensors[i].count * sizeof(float));
    }
}

static gsync_options options_of(gsync_strategy strategy, size_t cap) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = strategy;
    options.bucket_bytes_max = cap;
    options.bucket_bytes_first_max = cap;
    return options;
}

/* Filling and comparing with float64 cost more than the steps, so both are done once. */
static void check_caps(ranks_context *ctx, gsync_comm *comm, reference *expected) {
    reference inputs = {{NULL}};
    ranks_model *model = model_of_random_sizes(ctx);
    ranks_random random = ranks_random_from(ctx->seed, (uint64_t)ctx->rank);
    ranks_model_fill(model, RANKS_FLOATS, 1);
    compare_bits(model, &inputs);
    for (int strategy = GSYNC_STRATEGY_DDP; strategy <= GSYNC_STRATEGY_SINGLE; strategy++) {
        for (size_t i = 0; i < CAPS && !ranks_has_failed(ctx); i++) {
            const gsync_options options = options_of((gsync_strategy)strategy, caps[i]);
            size_t order[TENSORS];
            ranks_shuffle(&random, order, TENSORS); /* its own on every rank and in every run */
            restore(model, &inputs);
            step_with(model, comm, &options, order);
            compare_bits(model, expected);
        }
    }
    CHECK_MODEL_MEAN(model, RANKS_FLOATS, 1);
}

static void GS_80_random_floats_give_the_same_bits_over_caps(ranks_context *ctx) {
    reference expected = {{NULL}};
    check_caps(ctx, NULL, &expected);
}

/* ((g0 + g1) + g2) + g3 in float32, divided once: the order that docs/guide.md promises for one host. */
static void GS_80_the_order_of_summation_is_the_documented_one(ranks_context *ctx) {
    ranks_model *model = model_of_random_sizes(ctx);
    const gsync_options options = options_of(GSYNC_STRATEGY_DDP, 1024);
    ranks_model_fill(model, RANKS_FLOATS, 1);
    step_with(model, NULL, &options, NULL);
    for (size_t i = 0; i < TENSORS && !ranks_has_failed(ctx); i++) {
        const ranks_source source = {.kind = RANKS_FLOATS, .round = 1, .tensor = i};
        const float *got = model->tensors[i].grad;
        for (size_t k = 0; k < model->tensors[i].count; k++) {
            float sum = (float)ranks_value(ctx, source, 0, k);
            for (int rank = 1; rank < ctx->world; rank++) {
                sum += (float)ranks_value(ctx, source, rank, k);
            }
            REQUIRE_THAT(CHECK_REAL((double)got[k], (double)(sum / (float)ctx->world)));
        }
    }
}

static void GS_80_integers_are_exact_over_caps(ranks_context *ctx) {
    ranks_model *model = model_of_random_sizes(ctx);
    for (size_t i = 0; i < CAPS; i += 2) {
        const gsync_options options = options_of(GSYNC_STRATEGY_FIXED, caps[i]);
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        step_with(model, NULL, &options, NULL);
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    }
}

/* Separate and fused: each gradient through gsync_allreduce, and all of them through a reducer. */
static void GS_80_separate_allreduces_give_the_bits_of_the_fused_ones(ranks_context *ctx) {
    reference expected = {{NULL}};
    ranks_model *model = model_of_random_sizes(ctx);
    const gsync_options options = options_of(GSYNC_STRATEGY_SINGLE, 0);
    ranks_model_fill(model, RANKS_FLOATS, 1);
    step_with(model, NULL, &options, NULL);
    compare_bits(model, &expected);
    ranks_model_fill(model, RANKS_FLOATS, 1);
    for (size_t i = 0; i < TENSORS; i++) {
        REQUIRE_OK(
            gsync_allreduce(ctx->comm, model->tensors[i].grad, model->tensors[i].count, GSYNC_FLOAT32, GSYNC_MEAN));
    }
    compare_bits(model, &expected);
}

/* Sums are per host first, so the bits depend on the placement; but on nothing else. */
static void GS_80_the_same_bits_over_caps_between_hosts(ranks_context *ctx) {
    for (uint32_t ranks_per_host = 1; ranks_per_host <= 2; ranks_per_host++) {
        gsync_comm *comm = NULL;
        reference expected = {{NULL}};
        gsync_comm_options options = ctx->comm_options;
        options.ranks_per_host = ranks_per_host;
        REQUIRE_OK(own_comm_create(ctx, &options, &comm));
        check_caps(ctx, comm, &expected);
        gsync_comm_destroy(&comm);
    }
}

RANKS_MAIN(RANKS_TEST(GS_80_random_floats_give_the_same_bits_over_caps),
           RANKS_TEST(GS_80_the_order_of_summation_is_the_documented_one),
           RANKS_TEST(GS_80_integers_are_exact_over_caps),
           RANKS_TEST(GS_80_separate_allreduces_give_the_bits_of_the_fused_ones),
           RANKS_TEST_WITH(GS_80_the_same_bits_over_caps_between_hosts, .needs_mpi = true, .needs_no_comm = true))
