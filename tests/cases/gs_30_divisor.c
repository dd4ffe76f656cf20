/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3,4 */

/* GS-30, GS-31, GS-32: what the sum is divided by, and of which types there is no mean. */

#include "ranks.h"

#include <string.h>

static const gsync_dtype floats[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* ---- GS-30 ------------------------------------------------------------------------------------------------------ */

/* Gradients r + 1 in element 0; 1, 1.5, 2, 2.5 as means and 1, 3, 6, 10 as sums of 1, 2, 3, 4 ranks. */
static void reduce_rank_numbers(ranks_context *ctx, gsync_op op, double expected_divisor) {
    const size_t counts[] = {4, 3};
    const double sum = ctx->world * (ctx->world + 1) / 2.0;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = op;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            ranks_store(model->tensors[i].grad, GSYNC_FLOAT32, j, (ctx->rank + 1) * (double)(10 * i + j + 1));
        }
    }
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK_REAL(info.divisor, expected_divisor);
    CHECK_EQ(info.participants, ctx->world);
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            CHECK_REAL(ranks_load(model->tensors[i].grad, GSYNC_FLOAT32, j),
                       sum / expected_divisor * (double)(10 * i + j + 1));
        }
    }
    gsync_reducer_destroy(&model->reducer);
}

static void GS_30_mean_and_sum_do_what_they_say_and_tell_the_divisor(ranks_context *ctx) {
    reduce_rank_numbers(ctx, GSYNC_MEAN, ctx->world);
    reduce_rank_numbers(ctx, GSYNC_SUM, 1.0);
}

static void GS_30_allreduce_does_the_same(ranks_context *ctx) {
    const double sum = ctx->world * (ctx->world + 1) / 2.0;
    float values[2] = {(float)ctx->rank + 1, 10 * ((float)ctx->rank + 1)};
    REQUIRE_OK(gsync_allreduce(ctx->comm, values, 2, GSYNC_FLOAT32, GSYNC_SUM));
    CHECK_REAL(values[0], sum);
    CHECK_REAL(values[1], 10 * sum);
    values[0] = (float)ctx->rank + 1;
    values[1] = 10 * values[0];
    REQUIRE_OK(gsync_allreduce(ctx->comm, values, 2, GSYNC_FLOAT32, GSYNC_MEAN));
    CHECK_REAL(values[0], sum / ctx->world);
    CHECK_REAL(values[1], 10 * sum / ctx->world);
}

/* ---- GS-31 ------------------------------------------------------------------------------------------------------ */

static const size_t numels[] = {1, 2, 6, 7};

/* Means over comm, whose ranks are the members of the world, in both places that make means. */
static void check_means(ranks_context *ctx, gsync_comm *comm, uint32_t members, gsync_dtype dtype) {
    const double size = gsync_world_size(comm);
    ranks_model *model = ranks_model_new(ctx, numels, 4, dtype);
    REQUIRE_OK(ranks_model_register(model, comm, NULL));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    for (size_t i = 0; i < 4; i++) {
        const ranks_source source = {.round = 1, .tensor = i, .members = members};
        CHECK_REDUCED(ctx, model->tensors[i].grad, numels[i], dtype, source, size);
    }
    for (size_t i = 0; i < 4; i++) {
        const ranks_source source = {.round = 2, .tensor = i, .members = members};
        void *buffer = ranks_memory(ctx, numels[i] * gsync_dtype_size(dtype));
        ranks_fill(ctx, buffer, numels[i], dtype, source);
        REQUIRE_OK(gsync_allreduce(comm, buffer, numels[i], dtype, GSYNC_MEAN));
        CHECK_REDUCED(ctx, buffer, numels[i], dtype, source, size);
    }
    gsync_reducer_destroy(&model->reducer);
}

static void GS_31_the_mean_divides_by_the_group_and_never_by_the_length(ranks_context *ctx) {
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
        check_means(ctx, ctx->comm, 0, floats[i]);
    }
}

/* Ranks 1 and 3 of four, and ranks 0 and 2 beside them at the same time. */
static void GS_31_the_mean_of_a_part_divides_by_the_part(ranks_context *ctx) {
    gsync_comm *part = NULL;
    REQUIRE_OK(gsync_comm_split(ctx->comm, ctx->rank % 2, ctx->rank, &part));
    CHECK_EQ(gsync_world_size(part), 2);
    CHECK_EQ(gsync_rank(part), ctx->rank / 2);
    const uint32_t members = ctx->rank % 2 == 0 ? 0x5 : 0xa;
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
        check_means(ctx, part, members, floats[i]);
    }
    gsync_comm_destroy(&part);
    check_means(ctx, ctx->comm, 0, GSYNC_FLOAT32); /* the whole is as it was */
}

static void GS_31_a_part_may_leave_the_other_ranks_out(ranks_context *ctx) {
    const bool is_in = ctx->rank == 0 || ctx->rank == 3;
    gsync_comm *part = ctx->comm; /* something that the call has to replace */
    /* A higher key for the lower rank: order goes by key. */
    REQUIRE_OK(gsync_comm_split(ctx->comm, is_in ? 7 : -1, ctx->world - ctx->rank, &part));
    if (is_in) {
        CHECK_EQ(gsync_world_size(part), 2);
        CHECK_EQ(gsync_rank(part), ctx->rank == 3 ? 0 : 1);
        check_means(ctx, part, 0x9, GSYNC_FLOAT32);
        gsync_comm_destroy(&part);
    } else {
        CHECK(part == NULL);
    }
    CHECK_OK(gsync_barrier(ctx->comm));
}

/* ---- GS-32 ------------------------------------------------------------------------------------------------------ */

static void GS_32_integer_gradients_are_refused_at_registration(ranks_context *ctx) {
    const gsync_dtype integers[] = {GSYNC_INT32, GSYNC_INT64, GSYNC_UINT8, (gsync_dtype)0, (gsync_dtype)8};
    int64_t buffer[4] = {0};
    const size_t counts[] = {3};
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
        CHECK_STATUS(gsync_reducer_add(model->reducer, "counter", buffer, 4, integers[i]), GSYNC_ERR_ARGUMENT);
        CHECK_CONTAINS(gsync_last_error(), "'counter'");
    }
    /* The refused ones left no trace. */
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void GS_32_the_mean_of_integers_is_refused_and_the_values_stay(ranks_context *ctx) {
    int32_t values[2] = {ctx->rank % 2 == 0 ? 3 : 5, 100 + ctx->rank};
    int64_t wide = 7 + ctx->rank;
    CHECK_STATUS(gsync_allreduce(ctx->comm, values, 2, GSYNC_INT32, GSYNC_MEAN), GSYNC_ERR_UNSUPPORTED);
    CHECK_EQ(values[0], ctx->rank % 2 == 0 ? 3 : 5);
    CHECK_EQ(values[1], 100 + ctx->rank);
    CHECK_STATUS(gsync_allreduce(ctx->comm, &wide, 1, GSYNC_INT64, GSYNC_MEAN), GSYNC_ERR_UNSUPPORTED);
    CHECK_EQ(wide, 7 + ctx->rank);
    CHECK_STATUS(gsync_allreduce(ctx->comm, &wide, 1, GSYNC_INT64, GSYNC_WEIGHTED_MEAN), GSYNC_ERR_ARGUMENT);
    CHECK_OK(gsync_barrier(ctx->comm));
}

static void GS_32_sums_and_extremes_of_integers_are_exact(ranks_context *ctx) {
    const int64_t base = ((int64_t)1 << 53) + 1; /* no double holds it */
    const int64_t world = ctx->world;
    int64_t wide[3] = {base + ctx->rank, -ctx->rank, 5};
    REQUIRE_OK(gsync_allreduce(ctx->comm, wide, 3, GSYNC_INT64, GSYNC_SUM));
    CHECK_EQ(wide[0], base * world + world * (world - 1) / 2);
    CHECK_EQ(wide[1], -world * (world - 1) / 2);
    CHECK_EQ(wide[2], 5 * world);

    const int32_t own[3] = {16777217 + ctx->rank, -ctx->rank, ctx->rank % 2 == 0 ? 3 : 5}; /* no float holds [0] */
    int32_t narrow[3];
    memcpy(narrow, own, sizeof(own));
    REQUIRE_OK(gsync_allreduce(ctx->comm, narrow, 3, GSYNC_INT32, GSYNC_SUM));
    CHECK_EQ(narrow[0], 16777217 * world + world * (world - 1) / 2);
    CHECK_EQ(narrow[2], 3 * ((world + 1) / 2) + 5 * (world / 2));
    memcpy(narrow, own, sizeof(own));
    REQUIRE_OK(gsync_allreduce(ctx->comm, narrow, 3, GSYNC_INT32, GSYNC_MAX));
    CHECK_EQ(narrow[0], 16777217 + world - 1);
    CHECK_EQ(narrow[1], 0);
    memcpy(narrow, own, sizeof(own));
    REQUIRE_OK(gsync_allreduce(ctx->comm, narrow, 3, GSYNC_INT32, GSYNC_MIN));
    CHECK_EQ(narrow[0], 16777217);
    CHECK_EQ(narrow[1], 1 - world);
}

RANKS_MAIN(RANKS_TEST(GS_30_mean_and_sum_do_what_they_say_and_tell_the_divisor),
           RANKS_TEST(GS_30_allreduce_does_the_same),
           RANKS_TEST(GS_31_the_mean_divides_by_the_group_and_never_by_the_length),
           RANKS_TEST_WITH(GS_31_the_mean_of_a_part_divides_by_the_part, .world_min = 4, .world_max = 4),
           RANKS_TEST_WITH(GS_31_a_part_may_leave_the_other_ranks_out, .world_min = 4, .world_max = 4),
           RANKS_TEST(GS_32_integer_gradients_are_refused_at_registration),
           RANKS_TEST(GS_32_the_mean_of_integers_is_refused_and_the_values_stay),
           RANKS_TEST(GS_32_sums_and_extremes_of_integers_are_exact))
