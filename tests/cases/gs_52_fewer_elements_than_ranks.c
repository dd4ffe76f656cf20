/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=4 transports=threads,mpi timeout=60 */

/*
 * GS-52: buckets with fewer elements than there are ranks, so that some ranks have nothing to sum. The row also asks
 * for a reduce-scatter of its own, which this library does not have: its all-reduce is one inside.
 */

#include "own_comm.h"

static const size_t small_counts[] = {1, 2, 3, 4, 5};
#define SMALL_COUNT (sizeof(small_counts) / sizeof(small_counts[0]))

static const gsync_dtype gradient_dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
#define GRADIENT_DTYPES (sizeof(gradient_dtypes) / sizeof(gradient_dtypes[0]))

/* Every gradient is a bucket of its own. */
static gsync_options one_gradient_a_bucket(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = 1;
    return options;
}

static void check_small_buckets(ranks_context *ctx, gsync_comm *comm, gsync_dtype dtype) {
    const gsync_options options = one_gradient_a_bucket();
    ranks_model *model = ranks_model_new(ctx, small_counts, SMALL_COUNT, dtype);
    REQUIRE_OK(ranks_model_register(model, comm, &options));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(gsync_bucket_count(model->reducer), SMALL_COUNT);
    for (uint64_t step = 1; step <= 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
    gsync_reducer_destroy(&model->reducer);
}

static void GS_52_every_bucket_is_smaller_than_the_world(ranks_context *ctx) {
    for (size_t i = 0; i < GRADIENT_DTYPES; i++) {
        check_small_buckets(ctx, ctx->comm, gradient_dtypes[i]);
    }
}

static void GS_52_one_element_is_the_whole_model(ranks_context *ctx) {
    const size_t one = 1;
    for (size_t i = 0; i < GRADIENT_DTYPES; i++) {
        ranks_model *model = ranks_model_new(ctx, &one, 1, gradient_dtypes[i]);
        REQUIRE_OK(ranks_model_open(model, NULL));
        ranks_model_fill(model, RANKS_INTEGERS, i);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, i);
    }
}

/* The library's own accumulators travel in another type than the gradients. */
static void GS_52_small_buckets_of_accumulated_gradients(ranks_context *ctx) {
    gsync_options options = one_gradient_a_bucket();
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    options.op = GSYNC_SUM;
    ranks_model *model = ranks_model_new(ctx, small_counts, SMALL_COUNT, GSYNC_FLOAT16);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        ranks_store(model->tensors[i].grad, GSYNC_FLOAT16, 0, (double)(ctx->rank + 1));
    }
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        ranks_store(model->tensors[i].grad, GSYNC_FLOAT16, 0, (double)(10 * (ctx->rank + 1)) + (double)i);
    }
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        CHECK_REAL(ranks_load(model->tensors[i].grad, GSYNC_FLOAT16, 0),
                   11.0 * 10.0 + (double)i * (double)ctx->world); /* 1 + 2 + 3 + 4 = 10 */
    }
}

static void check_allreduce(ranks_context *ctx, gsync_comm *comm, size_t count, gsync_dtype dtype) {
    const ranks_source source = {.kind = RANKS_INTEGERS, .round = 7, .tensor = count};
    void *buffer = ranks_memory(ctx, count * gsync_dtype_size(dtype));
    ranks_fill(ctx, buffer, count, dtype, source);
    REQUIRE_OK(gsync_allreduce(comm, buffer, count, dtype, GSYNC_SUM));
    CHECK_REDUCED(ctx, buffer, count, dtype, source, 1.0);
}

static void GS_52_allreduce_of_fewer_elements_than_ranks(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32,  GSYNC_FLOAT64, GSYNC_FLOAT16,
                                         GSYNC_BFLOAT16, GSYNC_INT32,   GSYNC_INT64};
    for (size_t count = 0; count <= 5; count++) {
        for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
            check_allreduce(ctx, ctx->comm, count, dtypes[i]);
        }
    }
}

/* Shards of shards: the hosts share what a host's ranks share again. */
static void GS_52_small_buckets_between_hosts(ranks_context *ctx) {
    for (uint32_t ranks_per_host = 1; ranks_per_host <= 3; ranks_per_host++) {
        gsync_comm *comm = NULL;
        gsync_comm_options options = ctx->comm_options;
        options.ranks_per_host = ranks_per_host;
        REQUIRE_OK(own_comm_create(ctx, &options, &comm));
        for (size_t i = 0; i < GRADIENT_DTYPES; i++) {
            check_small_buckets(ctx, comm, gradient_dtypes[i]);
        }
        for (size_t count = 0; count <= 5; count++) {
            check_allreduce(ctx, comm, count, GSYNC_FLOAT32);
        }
        gsync_comm_destroy(&comm);
    }
}

RANKS_MAIN(RANKS_TEST(GS_52_every_bucket_is_smaller_than_the_world), RANKS_TEST(GS_52_one_element_is_the_whole_model),
           RANKS_TEST_WITH(GS_52_small_buckets_of_accumulated_gradients, .world_min = 4, .world_max = 4),
           RANKS_TEST(GS_52_allreduce_of_fewer_elements_than_ranks),
           RANKS_TEST_WITH(GS_52_small_buckets_between_hosts, .needs_mpi = true, .needs_no_comm = true))
