/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1 transports=single,threads,mpi timeout=60 */

/* The same program on one rank: without a launcher, as one thread, as one process of mpirun. Results are exact. */

#include "serial_oracle.h"

#include <string.h>

enum { TENSORS = 5 };
static const size_t counts[TENSORS] = {1009, 0, 1, 4096, 7};
static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

static void a_communicator_of_one_answers_every_question(ranks_context *ctx) {
    CHECK_EQ(gsync_rank(ctx->comm), 0);
    CHECK_EQ(gsync_world_size(ctx->comm), 1);
    CHECK_EQ(gsync_local_rank(ctx->comm), 0);
    CHECK(gsync_comm_describe(ctx->comm)[0] != '\0');
    int all = -1;
    CHECK_OK(gsync_all_done(ctx->comm, 0, &all));
    CHECK_EQ(all, 0);
    CHECK_OK(gsync_all_done(ctx->comm, 1, &all));
    CHECK_EQ(all, 1);
    CHECK_OK(gsync_barrier(ctx->comm));
}

static void collective_calls_of_one_rank_change_nothing(ranks_context *ctx) {
    static const gsync_op ops[] = {GSYNC_MEAN, GSYNC_SUM, GSYNC_MIN, GSYNC_MAX};
    for (size_t d = 0; d < 4; d++) {
        const oracle_terms terms = {.dtype = dtypes[d], .world = 1, .divisor = 1, .key = oracle_key(ctx, 1, d)};
        const size_t bytes = 100003 * gsync_dtype_size(dtypes[d]);
        void *buffer = ranks_memory(ctx, bytes);
        void *before = ranks_memory(ctx, bytes);
        oracle_fill(&terms, 0, before, 100003);
        memcpy(buffer, before, bytes);
        for (size_t o = 0; o < 4; o++) {
            CHECK_OK(gsync_allreduce(ctx->comm, buffer, 100003, dtypes[d], ops[o]));
            CHECK_BITS(dtypes[d], buffer, before, 100003, "allreduce");
        }
        CHECK_OK(gsync_broadcast(ctx->comm, buffer, 100003, dtypes[d], 0));
        CHECK_BITS(dtypes[d], buffer, before, 100003, "broadcast");
        CHECK_STATUS(gsync_broadcast(ctx->comm, buffer, 1, dtypes[d], 1), GSYNC_ERR_ARGUMENT);
    }
}

static void fill(ranks_model *model, void **before) {
    for (size_t t = 0; t < TENSORS; t++) {
        const ranks_tensor *tensor = &model->tensors[t];
        const size_t bytes = tensor->count * gsync_dtype_size(tensor->dtype);
        const oracle_terms terms = {
            .dtype = tensor->dtype, .world = 1, .divisor = 1, .key = oracle_key(model->ctx, 0, t)};
        oracle_fill(&terms, 0, before[t], tensor->count);
        if (bytes != 0) {
            memcpy(tensor->grad, before[t], bytes);
        }
    }
}

/* One micro-batch: whatever the options, the mean over one rank is the gradient itself, to the bit. */
static void try_options(ranks_context *ctx, gsync_options options, double weight) {
    for (size_t d = 0; d < 4; d++) {
        void *before[TENSORS];
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, dtypes[d]);
        REQUIRE_OK(ranks_model_open(model, &options));
        for (size_t t = 0; t < TENSORS; t++) {
            before[t] = ranks_memory(ctx, counts[t] * gsync_dtype_size(dtypes[d]));
        }
        for (int step = 0; step < 2; step++) {
            fill(model, before);
            REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
            REQUIRE_OK(gsync_set_weight(model->reducer, weight));
            for (size_t t = TENSORS; t-- > 0;) {
                REQUIRE_OK(ranks_model_ready(model, t));
            }
            REQUIRE_OK(gsync_finish(model->reducer, NULL));
            for (size_t t = 0; t < TENSORS; t++) {
                CHECK_BITS(dtypes[d], model->tensors[t].grad, before[t], counts[t], model->tensors[t].name);
            }
        }
    }
}

static void the_mean_over_one_rank_is_its_gradient_to_the_bit(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    try_options(ctx, options, 0);
    options.bucket_bytes_max = 1;
    try_options(ctx, options, 0);
    options.op = GSYNC_SUM;
    try_options(ctx, options, 0);
    options.op = GSYNC_WEIGHTED_MEAN;
    try_options(ctx, options, 1);
}

static void no_option_changes_a_bit_of_a_single_ranks_gradient(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_writes = 1;
    try_options(ctx, options, 0);
    options.finds_unused = 1;
    try_options(ctx, options, 0);
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_options(ctx, options, 0);
    options.averages_window = 1;
    options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    try_options(ctx, options, 0);
}

static void an_empty_finish_of_the_only_rank_gives_zeros(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_finish_empty(model->reducer, NULL));
    for (size_t i = 0; i < counts[0]; i++) {
        REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, i), 0));
    }
}

static void a_split_of_one_rank_is_one_rank_or_none(ranks_context *ctx) {
    gsync_comm *part = NULL;
    REQUIRE_OK(gsync_comm_split(ctx->comm, 3, -7, &part));
    CHECK_EQ(gsync_world_size(part), 1);
    CHECK_OK(gsync_barrier(part));
    gsync_comm_destroy(&part);
    CHECK(part == NULL);
    REQUIRE_OK(gsync_comm_split(ctx->comm, -1, 0, &part));
    CHECK(part == NULL);
}

static void a_reducer_without_gradients_takes_steps(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_commit(reducer));
    CHECK_EQ(gsync_bucket_count(reducer), 0);
    for (uint64_t step = 1; step <= 2; step++) {
        CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
        CHECK_OK(gsync_finish(reducer, &info));
        CHECK_EQ(info.step, step);
        CHECK_EQ(gsync_is_synced(reducer), 1);
    }
    gsync_reducer_destroy(&reducer);
}

RANKS_MAIN(RANKS_TEST(a_communicator_of_one_answers_every_question),
           RANKS_TEST(collective_calls_of_one_rank_change_nothing),
           RANKS_TEST(the_mean_over_one_rank_is_its_gradient_to_the_bit),
           RANKS_TEST(no_option_changes_a_bit_of_a_single_ranks_gradient),
           RANKS_TEST(an_empty_finish_of_the_only_rank_gives_zeros),
           RANKS_TEST(a_split_of_one_rank_is_one_rank_or_none), RANKS_TEST(a_reducer_without_gradients_takes_steps))
