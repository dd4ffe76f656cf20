/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 */

/* GS-13: replicas that start from different weights. GS-14: a parameter that is known too late. */

#include "ranks.h"

#include <stdio.h>
#include <string.h>

enum { PARAMETERS = 3 };
static const size_t parameter_counts[PARAMETERS] = {5, 300, 1};
static const char *const parameter_names[PARAMETERS] = {"embedding", "weight", "bias"};

static ranks_source parameter_source(size_t i) {
    return (ranks_source){.kind = RANKS_FLOATS, .tensor = i};
}

/* Every rank has values of its own. */
static void make_parameters(ranks_context *ctx, float **parameters) {
    for (size_t i = 0; i < PARAMETERS; i++) {
        parameters[i] = ranks_memory(ctx, parameter_counts[i] * sizeof(float));
        ranks_fill(ctx, parameters[i], parameter_counts[i], GSYNC_FLOAT32, parameter_source(i));
    }
}

static gsync_status check_parameters(ranks_context *ctx, float *const *parameters) {
    const void *buffers[PARAMETERS];
    size_t bytes[PARAMETERS];
    for (size_t i = 0; i < PARAMETERS; i++) {
        buffers[i] = parameters[i];
        bytes[i] = parameter_counts[i] * sizeof(float);
    }
    return gsync_check_replicas(ctx->comm, parameter_names, buffers, bytes, PARAMETERS);
}

static bool broadcast_parameters(ranks_context *ctx, float *const *parameters, int root) {
    for (size_t i = 0; i < PARAMETERS; i++) {
        if (!CHECK_OK(gsync_broadcast(ctx->comm, parameters[i], parameter_counts[i], GSYNC_FLOAT32, root))) {
            return false;
        }
    }
    return true;
}

static void GS_13_after_a_broadcast_every_replica_equals_the_roots(ranks_context *ctx) {
    float *parameters[PARAMETERS];
    for (int root = 0; root < ctx->world; root++) {
        make_parameters(ctx, parameters);
        REQUIRE(broadcast_parameters(ctx, parameters, root));
        for (size_t i = 0; i < PARAMETERS; i++) {
            ranks_source source = parameter_source(i);
            source.members = 1u << root;
            CHECK_REDUCED(ctx, parameters[i], parameter_counts[i], GSYNC_FLOAT32, source, 1.0);
        }
        CHECK_OK(check_parameters(ctx, parameters));
    }
}

static void GS_13_without_a_broadcast_the_check_names_the_first_parameter_and_rank(ranks_context *ctx) {
    float *parameters[PARAMETERS];
    make_parameters(ctx, parameters);
    CHECK_STATUS(check_parameters(ctx, parameters), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "embedding");
    CHECK_CONTAINS(gsync_last_error(), "rank 1");
    CHECK_OK(gsync_barrier(ctx->comm));
}

static void GS_13_the_check_finds_one_bit_on_one_rank(ranks_context *ctx) {
    const int last = ctx->world - 1;
    float *parameters[PARAMETERS];
    make_parameters(ctx, parameters);
    REQUIRE(broadcast_parameters(ctx, parameters, 0));
    parameters[1][299] = 0.0f;
    parameters[2][0] = 1.0f;
    CHECK_OK(check_parameters(ctx, parameters));
    if (ctx->rank == last) {
        parameters[1][299] = -0.0f; /* equal as a number, another replica as bits */
    }
    char name[24];
    snprintf(name, sizeof(name), "rank %d", last);
    CHECK_STATUS(check_parameters(ctx, parameters), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "weight");
    CHECK_CONTAINS(gsync_last_error(), name);
    parameters[1][299] = 0.0f;
    CHECK_OK(check_parameters(ctx, parameters));
}

static void GS_13_the_check_finds_one_of_thousands(ranks_context *ctx) {
    enum { MANY = 3000, ODD = 2100 };
    static const int values[2] = {1, 2};
    const void *buffers[MANY];
    size_t bytes[MANY];
    for (size_t i = 0; i < MANY; i++) {
        buffers[i] = &values[0];
        bytes[i] = sizeof(values[0]);
    }
    CHECK_OK(gsync_check_replicas(ctx->comm, NULL, buffers, bytes, MANY));
    if (ctx->rank == 1) {
        buffers[ODD] = &values[1];
    }
    CHECK_STATUS(gsync_check_replicas(ctx->comm, NULL, buffers, bytes, MANY), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "2100");
    CHECK_CONTAINS(gsync_last_error(), "rank 1");
}

static void GS_13_the_check_needs_no_names_and_accepts_nothing_to_check(ranks_context *ctx) {
    const double values[2] = {1.0, ctx->rank};
    const void *buffers[] = {&values[0], &values[1]};
    const size_t bytes[] = {sizeof(double), sizeof(double)};
    CHECK_OK(gsync_check_replicas(ctx->comm, NULL, buffers, bytes, 1));
    CHECK_STATUS(gsync_check_replicas(ctx->comm, NULL, buffers, bytes, 2), GSYNC_ERR_MISMATCH);
    CHECK_OK(gsync_check_replicas(ctx->comm, NULL, NULL, NULL, 0));
}

static void GS_13_the_check_compares_how_much_is_checked(ranks_context *ctx) {
    const double values[2] = {1.0, 2.0};
    const void *buffers[] = {&values[0], &values[1]};
    const size_t bytes[] = {sizeof(double), sizeof(double)};
    const size_t n = ctx->rank == ctx->world - 1 ? 1 : 2;
    CHECK_STATUS(gsync_check_replicas(ctx->comm, NULL, buffers, bytes, n), GSYNC_ERR_MISMATCH);
    CHECK_OK(gsync_barrier(ctx->comm));
}

/* ---- GS-14 ------------------------------------------------------------------------------------------------------ */

static ranks_model *open_one_step_old(ranks_context *ctx) {
    const size_t counts[] = {6, 6};
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    model->tensor_count = 1; /* p1 is the late one */
    CHECK_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    return model;
}

static void expect_good_step(ranks_model *model, uint64_t round) {
    ranks_model_fill(model, RANKS_INTEGERS, round);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
}

static void GS_14_registering_after_commit_is_refused_on_every_rank(ranks_context *ctx) {
    ranks_model *model = open_one_step_old(ctx);
    ranks_tensor *late = &model->tensors[1];
    CHECK_STATUS(gsync_reducer_add(model->reducer, late->name, late->grad, late->count, late->dtype), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_STATE);
    expect_good_step(model, 2);
}

static void GS_14_registering_late_on_rank_0_only_is_refused_there_and_hangs_nobody(ranks_context *ctx) {
    ranks_model *model = open_one_step_old(ctx);
    ranks_tensor *late = &model->tensors[1];
    if (ctx->rank == 0) {
        CHECK_STATUS(gsync_reducer_add(model->reducer, late->name, late->grad, late->count, late->dtype),
                     GSYNC_ERR_STATE);
    }
    expect_good_step(model, 2);
}

static void GS_14_a_late_parameter_joins_through_a_new_reducer(ranks_context *ctx) {
    ranks_model *model = open_one_step_old(ctx);
    gsync_reducer_destroy(&model->reducer);
    model->tensor_count = 2;
    REQUIRE_OK(ranks_model_open(model, NULL));
    expect_good_step(model, 2);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_13_after_a_broadcast_every_replica_equals_the_roots, .world_min = 2),
           RANKS_TEST_WITH(GS_13_without_a_broadcast_the_check_names_the_first_parameter_and_rank, .world_min = 2),
           RANKS_TEST_WITH(GS_13_the_check_finds_one_bit_on_one_rank, .world_min = 2),
           RANKS_TEST_WITH(GS_13_the_check_finds_one_of_thousands, .world_min = 2),
           RANKS_TEST_WITH(GS_13_the_check_needs_no_names_and_accepts_nothing_to_check, .world_min = 2),
           RANKS_TEST_WITH(GS_13_the_check_compares_how_much_is_checked, .world_min = 2),
           RANKS_TEST(GS_14_registering_after_commit_is_refused_on_every_rank),
           RANKS_TEST(GS_14_registering_late_on_rank_0_only_is_refused_there_and_hangs_nobody),
           RANKS_TEST(GS_14_a_late_parameter_joins_through_a_new_reducer))
