/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * Behaviours 57 to 64 of DistributedDataParallel: what is compared and broadcast before the first step. Every rank gets
 * the error, rank 0 included, and it says the same everywhere. README.md lists them all.
 */

#include "small_net.h"

#include <stdio.h>

/* The rank that is different. */
static bool is_odd_one(const ranks_context *ctx) {
    return ctx->rank == ctx->world - 1;
}

typedef struct entry {
    const char *name;
    size_t rows;
    size_t columns;
    gsync_dtype dtype;
} entry;

static gsync_status commit_entries(ranks_context *ctx, const entry *entries, size_t n, const gsync_options *options,
                                   gsync_reducer **reducer) {
    gsync_status status = gsync_reducer_create(reducer, ctx->comm, options);
    for (size_t i = 0; i < n && status == GSYNC_OK; i++) {
        status = gsync_reducer_add_matrix(*reducer, entries[i].name, NULL, entries[i].rows, entries[i].columns,
                                          entries[i].columns, entries[i].dtype);
    }
    return status == GSYNC_OK ? gsync_reducer_commit(*reducer) : status;
}

/* A hash of the error's text: equal when all ranks were told the same. */
static uint64_t hash_of_error(void) {
    uint64_t hash = 1469598103934665603u;
    for (const char *at = gsync_last_error(); *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    }
    return hash;
}

/* All ranks register `common`, the odd one `other`: a mismatch everywhere, in the same words, with both parts in it. */
static void expect_mismatch(ranks_context *ctx, const entry *common, size_t n, const entry *other, size_t other_n,
                            const char *first_part, const char *second_part) {
    gsync_reducer *reducer = NULL;
    char who[32];
    const gsync_status status = is_odd_one(ctx) ? commit_entries(ctx, other, other_n, NULL, &reducer)
                                                : commit_entries(ctx, common, n, NULL, &reducer);
    CHECK_STATUS(status, GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), first_part);
    CHECK_CONTAINS(gsync_last_error(), second_part);
    CHECK_CONTAINS(gsync_last_error(), "rank 0");
    snprintf(who, sizeof who, "rank %d", ctx->world - 1);
    CHECK_CONTAINS(gsync_last_error(), who);
    CHECK_SAME_ON_ALL(ctx, hash_of_error());
    CHECK_STATUS(gsync_begin(reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
    gsync_reducer_destroy(&reducer);
    /* The communicator is as good as before. */
    CHECK_OK(commit_entries(ctx, common, n, NULL, &reducer));
    (void)ranks_meet(ctx);
    gsync_reducer_destroy(&reducer);
}

static const entry usual[] = {
    {"w", 4, 6, GSYNC_FLOAT32}, {"b", 1, 6, GSYNC_FLOAT32}, {"v", 6, 4, GSYNC_FLOAT32}, {"c", 1, 4, GSYNC_FLOAT16}};

static void expect_mismatch_of(ranks_context *ctx, size_t index, entry changed, const char *first_part,
                               const char *second_part) {
    entry other[4];
    memcpy(other, usual, sizeof other);
    other[index] = changed;
    expect_mismatch(ctx, usual, 4, other, 4, first_part, second_part);
}

/* ---- 57 to 60
 * ---------------------------------------------------------------------------------------------------------- */

static void model_diff_num_params_across_ranks_is_an_error_on_every_rank(ranks_context *ctx) {
    expect_mismatch(ctx, usual, 4, usual, 3, "registered 3 gradients", "registered 4");
    expect_mismatch(ctx, usual, 3, usual, 4, "registered 4 gradients", "registered 3");
    expect_mismatch(ctx, usual, 4, usual, 0, "registered 0 gradients", "registered 4");
}

static void model_diff_shape_across_ranks_is_an_error_on_every_rank(ranks_context *ctx) {
    expect_mismatch_of(ctx, 1, (entry){"b", 1, 7, GSYNC_FLOAT32}, "'b' (float32 x 7", "'b' (float32 x 6");
    expect_mismatch_of(ctx, 0, (entry){"w", 6, 4, GSYNC_FLOAT32}, "float32 x 6 x 4", "float32 x 4 x 6");
}

/* Equal numbers of elements: the shapes must be equal all the same. */
static void param_layout_mismatch_is_an_error_on_every_rank(ranks_context *ctx) {
    expect_mismatch_of(ctx, 2, (entry){"v", 24, 1, GSYNC_FLOAT32}, "24 x 1", "6 x 4");
    expect_mismatch_of(ctx, 2, (entry){"v", 1, 24, GSYNC_FLOAT32}, "float32 x 24", "6 x 4");
}

/* How far rows lie apart is nobody else's business. */
static void row_pitches_may_differ_across_ranks(ranks_context *ctx) {
    enum { ROWS = 4, COLUMNS = 6 };
    gsync_reducer *reducer = NULL;
    const size_t pitch = COLUMNS + (size_t)ctx->rank;
    float *matrix = ranks_memory(ctx, ROWS * pitch * sizeof(float));
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_add_matrix(reducer, "w", matrix, ROWS, COLUMNS, pitch, GSYNC_FLOAT32));
    CHECK_OK(gsync_reducer_commit(reducer));
    for (size_t i = 0; i < ROWS * pitch; i++) {
        const size_t element = i / pitch * COLUMNS + i % pitch;
        matrix[i] = i % pitch < COLUMNS ? (float)((ctx->rank + 1) * (int)(element + 1)) : -5.0f;
    }
    CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
    CHECK_OK(gsync_finish(reducer, NULL));
    for (size_t i = 0; i < ROWS * pitch; i++) {
        const double element = (double)(i / pitch * COLUMNS + i % pitch);
        CHECK_REAL(matrix[i], i % pitch < COLUMNS ? (ctx->world + 1) / 2.0 * (element + 1) : -5.0);
    }
    (void)ranks_meet(ctx);
    gsync_reducer_destroy(&reducer);
}

/* Not in DDP, which trains on with mixed-up gradients, aborts, or hangs. */
static void order_name_and_dtype_are_compared_too(ranks_context *ctx) {
    const entry swapped[] = {usual[0], usual[2], usual[1], usual[3]};
    const entry square[] = {{"a", 1, 9, GSYNC_FLOAT32}, {"b", 1, 9, GSYNC_FLOAT32}};
    const entry square_swapped[] = {square[1], square[0]};
    expect_mismatch(ctx, usual, 4, swapped, 4, "gradient 1 is 'v'", "'b'");
    expect_mismatch(ctx, square, 2, square_swapped, 2, "gradient 0 is 'b'", "'a'");
    expect_mismatch_of(ctx, 3, (entry){"d", 1, 4, GSYNC_FLOAT16}, "'d'", "'c'");
    expect_mismatch_of(ctx, 3, (entry){"c", 1, 4, GSYNC_BFLOAT16}, "bfloat16", "(float16");
}

/* Names longer than what is shown of them, which differ at their end, and a difference far down a long list. */
static void a_difference_in_a_long_name_or_late_in_a_long_list_is_found(ranks_context *ctx) {
    enum { N = 300 };
    static const char *const longest = "model.transformer.layers.17.attention.projection.of.the.values.weight.";
    char names[2][96];
    snprintf(names[0], sizeof names[0], "%sleft", longest);
    snprintf(names[1], sizeof names[1], "%sright", longest);
    const entry left = {names[0], 1, 3, GSYNC_FLOAT32};
    const entry right = {names[1], 1, 3, GSYNC_FLOAT32};
    expect_mismatch(ctx, &left, 1, &right, 1, "values.weight.right'", "values.weight.left'");
    entry *many = ranks_memory(ctx, N * sizeof *many);
    entry *other = ranks_memory(ctx, N * sizeof *other);
    char(*own_names)[24] = ranks_memory(ctx, N * sizeof *own_names);
    for (size_t i = 0; i < N; i++) {
        snprintf(own_names[i], sizeof own_names[i], "g%zu", i);
        many[i] = (entry){own_names[i], 1, 1 + i % 5, GSYNC_FLOAT32};
        other[i] = many[i];
    }
    other[N - 1].columns++;
    expect_mismatch(ctx, many, N, other, N, "gradient 299 is 'g299'", "rank 0");
}

static void options_are_compared_by_name(ranks_context *ctx) {
    static const struct {
        const char *name;
        gsync_options options;
    } cases[] = {
        {"strategy", {.struct_size = sizeof(gsync_options), .strategy = GSYNC_STRATEGY_SINGLE}},
        {"order", {.struct_size = sizeof(gsync_options), .order = GSYNC_ORDER_REGISTERED}},
        {"bucket_bytes_max", {.struct_size = sizeof(gsync_options), .bucket_bytes_max = 123}},
        {"bucket_bytes_first_max", {.struct_size = sizeof(gsync_options), .bucket_bytes_first_max = 123}},
        {"op", {.struct_size = sizeof(gsync_options), .op = GSYNC_SUM}},
        {"accumulation", {.struct_size = sizeof(gsync_options), .accumulation = GSYNC_CLIENT_OVERWRITES}},
        {"divisor", {.struct_size = sizeof(gsync_options), .divisor = GSYNC_DIVIDE_BY_PARTICIPANTS}},
        {"averages_window", {.struct_size = sizeof(gsync_options), .averages_window = 1}},
        {"is_strict", {.struct_size = sizeof(gsync_options), .is_strict = 1}},
        {"finds_unused", {.struct_size = sizeof(gsync_options), .finds_unused = 1}},
        {"checks_writes", {.struct_size = sizeof(gsync_options), .checks_writes = 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gsync_reducer *reducer = NULL;
        const gsync_options *options = is_odd_one(ctx) ? &cases[i].options : NULL;
        CHECK_STATUS(commit_entries(ctx, usual, 4, options, &reducer), GSYNC_ERR_MISMATCH);
        CHECK_CONTAINS(gsync_last_error(), cases[i].name);
        CHECK_SAME_ON_ALL(ctx, hash_of_error());
        gsync_reducer_destroy(&reducer);
    }
    CHECK_OK(gsync_barrier(ctx->comm));
}

static void what_fails_on_one_rank_alone_is_told_to_all(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    float *memory = ranks_memory(ctx, 10 * sizeof(float));
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_add(reducer, "w", memory, 5, GSYNC_FLOAT32));
    CHECK_OK(gsync_reducer_add(reducer, "v", memory + (is_odd_one(ctx) ? 4 : 5), 5, GSYNC_FLOAT32));
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "overlap");
    CHECK_SAME_ON_ALL(ctx, hash_of_error());
    gsync_reducer_destroy(&reducer);
    CHECK_OK(gsync_barrier(ctx->comm));
}

/* ---- 61 to 63
 * ---------------------------------------------------------------------------------------------------------- */

static void sync_module_states_from_any_source_rank(ranks_context *ctx) {
    for (int root = 0; root < ctx->world; root++) {
        net mine;
        net of_root;
        net_init(&mine, ctx->seed + 17 * (uint64_t)ctx->rank);
        net_init(&of_root, ctx->seed + 17 * (uint64_t)root);
        const void *bufs[] = {&mine};
        const size_t bytes = sizeof mine;
        CHECK_STATUS(gsync_check_replicas(ctx->comm, NULL, bufs, &bytes, 1), GSYNC_ERR_MISMATCH);
        for (size_t t = 0; t < NET_TENSORS; t++) {
            REQUIRE_OK(gsync_broadcast(ctx->comm, mine.parameters[t], net_counts[t], GSYNC_FLOAT32, root));
        }
        CHECK(memcmp(&mine, &of_root, sizeof mine) == 0);
        CHECK(net_is_replicated(ctx, &mine));
    }
}

/* Tensors of all dtypes from every root, most of them larger or smaller than any piece that travels. */
static void broadcast_of_mixed_dtypes_from_every_root(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32,  GSYNC_FLOAT16, GSYNC_FLOAT64, GSYNC_INT64,
                                         GSYNC_BFLOAT16, GSYNC_INT32,   GSYNC_UINT8};
    static const size_t sizes[] = {60, 1, 3000, 31, 120001, 0, 64};
    for (int root = 0; root < ctx->world; root++) {
        for (size_t d = 0; d < 7; d++) {
            const size_t bytes = sizes[d] * gsync_dtype_size(dtypes[d]);
            unsigned char *tensor = ranks_memory(ctx, bytes);
            for (size_t i = 0; i < bytes; i++) {
                tensor[i] = (unsigned char)(i * 31 + (size_t)ctx->rank * 101 + d);
            }
            REQUIRE_OK(gsync_broadcast(ctx->comm, tensor, sizes[d], dtypes[d], root));
            size_t wrong = 0;
            for (size_t i = 0; i < bytes; i++) {
                wrong += tensor[i] != (unsigned char)(i * 31 + (size_t)root * 101 + d);
            }
            CHECK_EQ(wrong, 0);
        }
    }
}

/* Running statistics: broadcast from rank 0 before each forward, or averaged, while a step is under way. */
static void broadcast_buffer_and_buffer_allreduce_in_the_middle_of_a_step(ranks_context *ctx) {
    const size_t counts[] = {100, 20};
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    for (uint64_t step = 0; step < 4; step++) {
        float buffer[3] = {(float)ctx->rank, 10.0f + (float)step, 2.0f * (float)ctx->rank};
        float average[2] = {(float)ctx->rank, 4.0f};
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(gsync_broadcast(ctx->comm, buffer, 3, GSYNC_FLOAT32, 0));
        REQUIRE_OK(ranks_model_ready(model, 1));
        REQUIRE_OK(gsync_allreduce(ctx->comm, average, 2, GSYNC_FLOAT32, GSYNC_MEAN));
        REQUIRE_OK(ranks_model_ready(model, 0));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK(buffer[0] == 0 && buffer[1] == 10.0f + (float)step && buffer[2] == 0);
        CHECK_REAL(average[0], (ctx->world - 1) / 2.0);
        CHECK_REAL(average[1], 4);
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

/* ---- 64
 * ---------------------------------------------------------------------------------------------------------------- */

static void names_lead_to_gradients_and_errors_back_to_names(ranks_context *ctx) {
    const size_t counts[] = {3, 4, 5};
    gsync_options options = GSYNC_OPTIONS_INIT;
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    options.is_strict = 1;
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    CHECK_STATUS(gsync_reducer_add(model->reducer, "p1", NULL, 3, GSYNC_FLOAT32), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p2", 0));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (size_t t = 0; t < 3; t++) {
        CHECK(gsync_reducer_grad(model->reducer, model->tensors[t].name) == model->tensors[t].grad);
    }
    CHECK(gsync_bucket_of(model->reducer, "p0") >= 0);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p2"), -1); /* frozen: in no bucket */
    CHECK_EQ(gsync_bucket_of(model->reducer, "P0"), -1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(ranks_model_ready(model, 2), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "'p2' is frozen");
    REQUIRE_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
}

RANKS_MAIN(RANKS_TEST(model_diff_num_params_across_ranks_is_an_error_on_every_rank),
           RANKS_TEST(model_diff_shape_across_ranks_is_an_error_on_every_rank),
           RANKS_TEST(param_layout_mismatch_is_an_error_on_every_rank), RANKS_TEST(row_pitches_may_differ_across_ranks),
           RANKS_TEST(order_name_and_dtype_are_compared_too),
           RANKS_TEST(a_difference_in_a_long_name_or_late_in_a_long_list_is_found),
           RANKS_TEST(options_are_compared_by_name), RANKS_TEST(what_fails_on_one_rank_alone_is_told_to_all),
           RANKS_TEST(sync_module_states_from_any_source_rank), RANKS_TEST(broadcast_of_mixed_dtypes_from_every_root),
           RANKS_TEST(broadcast_buffer_and_buffer_allreduce_in_the_middle_of_a_step),
           RANKS_TEST(names_lead_to_gradients_and_errors_back_to_names))
