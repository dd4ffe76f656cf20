/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3,4 */

/*
 * GS-02 to GS-06 and GS-12: the ranks register different things. Every rank gets GSYNC_ERR_MISMATCH with the first
 * difference, long before the timeout, and the communicator stays usable.
 *
 * GS-05 asks for a second run with the check moved from the start to every step. In this interface commit always
 * checks, and every gsync_allreduce and gsync_broadcast compares its own arguments: those are the per-call runs here.
 */

#include "ranks.h"

#include <stdio.h>

/* A rank that only learns of the mismatch at its deadline would need the harness's 20 s. */
#define PROMPT_S 5.0

typedef struct part {
    const char *name;
    size_t count;
    gsync_dtype dtype;
} part;

/* Registers the parts and commits; a commit must fail on every rank, soon, with the texts given. */
static void expect_mismatch(ranks_context *ctx, const part *parts, size_t part_count, const char *const *texts,
                            size_t text_count) {
    const size_t counts[8] = {0};
    ranks_model *model = ranks_model_new(ctx, counts, part_count, GSYNC_FLOAT32);
    for (size_t i = 0; i < part_count; i++) {
        ranks_tensor *tensor = &model->tensors[i];
        snprintf(tensor->name, sizeof(tensor->name), "%s", parts[i].name);
        tensor->count = parts[i].count;
        tensor->dtype = parts[i].dtype;
        tensor->grad = ranks_memory(ctx, parts[i].count * gsync_dtype_size(parts[i].dtype));
    }
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    const double start = ranks_seconds();
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    REQUIRE_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    CHECK(ranks_seconds() - start < PROMPT_S);
    for (size_t i = 0; i < text_count; i++) {
        CHECK_CONTAINS(gsync_last_error(), texts[i]);
    }
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
    CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
    CHECK_OK(gsync_barrier(ctx->comm));
    gsync_reducer_destroy(&model->reducer);
}

static bool is_last(const ranks_context *ctx) {
    return ctx->rank == ctx->world - 1;
}

/* "rank 3", the rank that differs from rank 0 where the last one is odd. */
static const char *last_rank(const ranks_context *ctx) {
    static const char *const names[RANKS_WORLD_MAX] = {"rank 0", "rank 1", "rank 2", "rank 3",
                                                       "rank 4", "rank 5", "rank 6", "rank 7"};
    return names[ctx->world - 1];
}

static void GS_02_equal_sizes_in_another_order_are_a_mismatch_by_name(ranks_context *ctx) {
    const part usual[] = {{"a", 8, GSYNC_FLOAT32}, {"b", 8, GSYNC_FLOAT32}};
    const part swapped[] = {{"b", 8, GSYNC_FLOAT32}, {"a", 8, GSYNC_FLOAT32}};
    const part *mine = is_last(ctx) ? swapped : usual;
    const char *const texts[] = {"'a'", "'b'", last_rank(ctx)};
    expect_mismatch(ctx, mine, 2, texts, 3);
}

static void GS_02_a_difference_beyond_the_first_gradients_is_found(ranks_context *ctx) {
    const size_t counts[80] = {0};
    ranks_model *model = ranks_model_new(ctx, counts, 80, GSYNC_FLOAT32);
    for (size_t i = 0; i < 80; i++) {
        model->tensors[i].count = 2;
        model->tensors[i].grad = ranks_memory(ctx, 2 * sizeof(float));
    }
    if (is_last(ctx)) {
        snprintf(model->tensors[71].name, sizeof(model->tensors[71].name), "another");
    }
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "'another'");
    CHECK_CONTAINS(gsync_last_error(), "'p71'");
    CHECK_CONTAINS(gsync_last_error(), last_rank(ctx));
}

static void GS_02_long_names_that_differ_at_their_ends_are_a_mismatch(ranks_context *ctx) {
    float grad[2];
    char name[300];
    gsync_reducer *reducer = NULL;
    snprintf(name, sizeof(name), "%0256d.%s", 0, is_last(ctx) ? "bias" : "weight");
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_add(reducer, name, grad, 2, GSYNC_FLOAT32));
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), last_rank(ctx));
    gsync_reducer_destroy(&reducer);
}

/* ---- GS-03, GS-04 ----------------------------------------------------------------------------------------------- */

/* odd_rank registers odd_count gradients, the others usual_count. */
static void expect_count_mismatch(ranks_context *ctx, int odd_rank, size_t odd_count, size_t usual_count) {
    const size_t counts[] = {4, 5, 6};
    const size_t own_count = ctx->rank == odd_rank ? odd_count : usual_count;
    char odd[24];
    char usual[24];
    snprintf(odd, sizeof(odd), " %zu", odd_count);
    snprintf(usual, sizeof(usual), " %zu", usual_count);
    ranks_model *model = ranks_model_new(ctx, counts, own_count, GSYNC_FLOAT32);
    const double start = ranks_seconds();
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    REQUIRE_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    CHECK(ranks_seconds() - start < PROMPT_S);
    CHECK_CONTAINS(gsync_last_error(), odd);
    CHECK_CONTAINS(gsync_last_error(), usual);
    CHECK_OK(gsync_barrier(ctx->comm));
    gsync_reducer_destroy(&model->reducer);
}

static void GS_03_different_numbers_of_gradients_fail_on_all_ranks(ranks_context *ctx) {
    expect_count_mismatch(ctx, 1, 2, 3);
    expect_count_mismatch(ctx, 1, 0, 3);
    expect_count_mismatch(ctx, 1, 3, 0);
}

static void GS_04_every_rank_learns_of_it_whichever_rank_is_odd(ranks_context *ctx) {
    const int odd_ranks[] = {0, 1, ctx->world - 1};
    for (size_t i = 0; i < 3; i++) {
        expect_count_mismatch(ctx, odd_ranks[i], 2, 3);
        expect_count_mismatch(ctx, odd_ranks[i], 0, 3);
        REQUIRE(!ranks_has_failed(ctx));
    }
}

/* ---- GS-05 ------------------------------------------------------------------------------------------------------ */

static void GS_05_counts_that_differ_fail_on_all_ranks(ranks_context *ctx) {
    const part usual[] = {{"first", 16, GSYNC_FLOAT32}, {"tail", 4096, GSYNC_FLOAT32}};
    const part shorter[] = {{"first", 16, GSYNC_FLOAT32}, {"tail", 4094, GSYNC_FLOAT32}};
    const part longer[] = {{"first", 16, GSYNC_FLOAT32}, {"tail", 40960, GSYNC_FLOAT32}};
    const char *const near_texts[] = {"4096", "4094", "gradient 1", "'tail'", last_rank(ctx)};
    const char *const far_texts[] = {"4096", "40960", "gradient 1", "'tail'", last_rank(ctx)};
    expect_mismatch(ctx, is_last(ctx) ? shorter : usual, 2, near_texts, 5);
    expect_mismatch(ctx, is_last(ctx) ? longer : usual, 2, far_texts, 5);
}

static void GS_05_an_allreduce_of_another_count_fails_on_all_ranks(ranks_context *ctx) {
    const size_t odd_counts[] = {4094, 40960, 0};
    for (size_t i = 0; i < 3; i++) {
        const size_t count = is_last(ctx) ? odd_counts[i] : 4096;
        float *buffer = ranks_memory(ctx, count * sizeof(*buffer));
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = i};
        ranks_fill(ctx, buffer, count, GSYNC_FLOAT32, source);
        const double start = ranks_seconds();
        CHECK_STATUS(gsync_allreduce(ctx->comm, buffer, count, GSYNC_FLOAT32, GSYNC_SUM), GSYNC_ERR_MISMATCH);
        CHECK(ranks_seconds() - start < PROMPT_S);
        CHECK_CONTAINS(gsync_last_error(), last_rank(ctx));
    }
    CHECK_OK(gsync_barrier(ctx->comm));
}

static void GS_05_a_broadcast_of_another_count_fails_on_all_ranks(ranks_context *ctx) {
    const size_t count = is_last(ctx) ? 4094 : 4096;
    float *buffer = ranks_memory(ctx, 4096 * sizeof(*buffer));
    const ranks_source source = {.kind = RANKS_INTEGERS};
    ranks_fill(ctx, buffer, 4096, GSYNC_FLOAT32, source);
    CHECK_STATUS(gsync_broadcast(ctx->comm, buffer, count, GSYNC_FLOAT32, 0), GSYNC_ERR_MISMATCH);
    CHECK_OWN(ctx, buffer, 4096, GSYNC_FLOAT32, source);
    CHECK_OK(gsync_barrier(ctx->comm));
}

/* ---- GS-06 ------------------------------------------------------------------------------------------------------ */

static void GS_06_dtypes_that_differ_fail_on_all_ranks(ranks_context *ctx) {
    const struct {
        part usual;
        part odd;
        const char *texts[3];
    } rows[] = {
        /* Equal bytes, so that nothing but the dtype can tell. */
        {{"w", 2, GSYNC_FLOAT32}, {"w", 4, GSYNC_FLOAT16}, {"float32", "float16", "'w'"}},
        {{"w", 4, GSYNC_FLOAT32}, {"w", 4, GSYNC_FLOAT64}, {"float32", "float64", "'w'"}},
        {{"w", 4, GSYNC_BFLOAT16}, {"w", 4, GSYNC_FLOAT16}, {"bfloat16", "float16", "'w'"}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        expect_mismatch(ctx, is_last(ctx) ? &rows[i].odd : &rows[i].usual, 1, rows[i].texts, 3);
        /* The report: the odd rank is 0. */
        expect_mismatch(ctx, ctx->rank == 0 ? &rows[i].odd : &rows[i].usual, 1, rows[i].texts, 3);
    }
}

static void GS_06_an_allreduce_in_another_dtype_fails_on_all_ranks(ranks_context *ctx) {
    const gsync_dtype dtype = ctx->rank == 0 ? GSYNC_BFLOAT16 : GSYNC_FLOAT32;
    unsigned char *buffer = ranks_memory(ctx, sizeof(float));
    ranks_store(buffer, dtype, 0, 0.1);
    CHECK_STATUS(gsync_allreduce(ctx->comm, buffer, 1, dtype, GSYNC_SUM), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "bfloat16");
    CHECK_CONTAINS(gsync_last_error(), "float32");
    CHECK_OK(gsync_barrier(ctx->comm));
}

/* ---- GS-12: what a trainer ignores it does not add, or freezes -------------------------------------------------- */

static void GS_12_an_ignore_list_that_differs_fails_before_any_broadcast(ranks_context *ctx) {
    const part usual[] = {{"a", 8, GSYNC_FLOAT32}, {"b", 8, GSYNC_FLOAT32}, {"c", 8, GSYNC_FLOAT32}};
    const part ignoring[] = {{"a", 8, GSYNC_FLOAT32}, {"c", 8, GSYNC_FLOAT32}};
    const char *const texts[] = {" 3", " 2", last_rank(ctx)};
    expect_mismatch(ctx, is_last(ctx) ? ignoring : usual, is_last(ctx) ? 2 : 3, texts, 3);

    float parameters[8];
    ranks_fill(ctx, parameters, 8, GSYNC_FLOAT32, (ranks_source){.kind = RANKS_INTEGERS});
    REQUIRE_OK(gsync_broadcast(ctx->comm, parameters, 8, GSYNC_FLOAT32, 0));
    CHECK_REDUCED(ctx, parameters, 8, GSYNC_FLOAT32, ((ranks_source){.kind = RANKS_INTEGERS, .members = 1}), 1.0);
}

static void GS_12_a_gradient_frozen_on_one_rank_only_fails_on_all_ranks(ranks_context *ctx) {
    const size_t counts[] = {8, 8, 8};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    if (is_last(ctx)) {
        CHECK_OK(gsync_reducer_set_trainable(model->reducer, "p1", 0));
    }
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
    CHECK_CONTAINS(gsync_last_error(), last_rank(ctx));
}

static void GS_12_a_reducer_commits_once_the_ranks_have_corrected_it(ranks_context *ctx) {
    const size_t counts[] = {8, 8, 8};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    model->tensor_count = is_last(ctx) ? 2 : 3;
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    REQUIRE_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    if (is_last(ctx)) {
        REQUIRE_OK(gsync_reducer_add(model->reducer, "p2", model->tensors[2].grad, 8, GSYNC_FLOAT32));
        model->tensor_count = 3;
    }
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void GS_12_options_that_differ_fail_on_all_ranks_by_name(ranks_context *ctx) {
    const size_t counts[] = {8};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = is_last(ctx) ? GSYNC_SUM : GSYNC_MEAN;
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    CHECK_STATUS(ranks_model_open(model, &options), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "op");
    CHECK_CONTAINS(gsync_last_error(), last_rank(ctx));
}

RANKS_MAIN(RANKS_TEST_WITH(GS_02_equal_sizes_in_another_order_are_a_mismatch_by_name, .world_min = 2),
           RANKS_TEST_WITH(GS_02_a_difference_beyond_the_first_gradients_is_found, .world_min = 2),
           RANKS_TEST_WITH(GS_02_long_names_that_differ_at_their_ends_are_a_mismatch, .world_min = 2),
           RANKS_TEST_WITH(GS_03_different_numbers_of_gradients_fail_on_all_ranks, .world_min = 2),
           RANKS_TEST_WITH(GS_04_every_rank_learns_of_it_whichever_rank_is_odd, .world_min = 2),
           RANKS_TEST_WITH(GS_05_counts_that_differ_fail_on_all_ranks, .world_min = 2),
           RANKS_TEST_WITH(GS_05_an_allreduce_of_another_count_fails_on_all_ranks, .world_min = 2),
           RANKS_TEST_WITH(GS_05_a_broadcast_of_another_count_fails_on_all_ranks, .world_min = 2),
           RANKS_TEST_WITH(GS_06_dtypes_that_differ_fail_on_all_ranks, .world_min = 2),
           RANKS_TEST_WITH(GS_06_an_allreduce_in_another_dtype_fails_on_all_ranks, .world_min = 2),
           RANKS_TEST_WITH(GS_12_an_ignore_list_that_differs_fails_before_any_broadcast, .world_min = 2),
           RANKS_TEST_WITH(GS_12_a_gradient_frozen_on_one_rank_only_fails_on_all_ranks, .world_min = 2),
           RANKS_TEST_WITH(GS_12_a_reducer_commits_once_the_ranks_have_corrected_it, .world_min = 2),
           RANKS_TEST_WITH(GS_12_options_that_differ_fail_on_all_ranks_by_name, .world_min = 2))
