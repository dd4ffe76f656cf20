/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/* GS-53: counts that no vector width, shard or chunk divides. Integer values, so every element is compared exactly. */

#include "ranks.h"

#define LARGE_ODD_COUNT 10556587

static const size_t odd_counts[] = {1, 7, 15, 17, 31, 33};
#define ODD_COUNT (sizeof(odd_counts) / sizeof(odd_counts[0]))

static void GS_53_ten_and_a_half_million_elements(ranks_context *ctx) {
    const size_t count = LARGE_ODD_COUNT;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void check_odd_counts(ranks_context *ctx, gsync_dtype dtype, const gsync_options *options) {
    ranks_model *model = ranks_model_new(ctx, odd_counts, ODD_COUNT, dtype);
    REQUIRE_OK(ranks_model_open(model, options));
    for (uint64_t step = 1; step <= 2; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

static void GS_53_small_odd_counts_together_and_alone(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.strategy = GSYNC_STRATEGY_SINGLE;
        check_odd_counts(ctx, dtypes[i], &options);
        options.strategy = GSYNC_STRATEGY_FIXED;
        options.bucket_bytes_max = 1;
        check_odd_counts(ctx, dtypes[i], &options);
    }
}

/* Around the sizes of the pieces in which a large buffer travels. */
static void GS_53_allreduce_of_odd_counts(ranks_context *ctx) {
    static const size_t counts[] = {32767, 32769, 65537, 100003};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = 3, .tensor = i};
        float *buffer = ranks_memory(ctx, counts[i] * sizeof(float));
        ranks_fill(ctx, buffer, counts[i], GSYNC_FLOAT32, source);
        REQUIRE_OK(gsync_allreduce(ctx->comm, buffer, counts[i], GSYNC_FLOAT32, GSYNC_MEAN));
        CHECK_REDUCED(ctx, buffer, counts[i], GSYNC_FLOAT32, source, (double)ctx->world);
    }
}

RANKS_MAIN(RANKS_TEST(GS_53_ten_and_a_half_million_elements), RANKS_TEST(GS_53_small_odd_counts_together_and_alone),
           RANKS_TEST(GS_53_allreduce_of_odd_counts))
