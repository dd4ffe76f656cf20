/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi timeout=60 */

/* Behaviours 1 to 11 of DistributedDataParallel: which gradients share a bucket. README.md lists them all. */

#include "ranks.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 200 };
#define KIB ((size_t)1024)
#define MIB (KIB * 1024)

typedef struct tensor {
    size_t count;
    gsync_dtype dtype;
} tensor;

/*
 * The vectors list tensors in the order in which buckets are filled. Here that is reverse registration, so tensor i of
 * a vector is registered as the i-th from the end; its name is i.
 */
static gsync_reducer *open_vector(ranks_context *ctx, const tensor *tensors, size_t n, size_t first_max, size_t max) {
    gsync_reducer *reducer = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_first_max = first_max;
    options.bucket_bytes_max = max;
    CHECK_OK(gsync_reducer_create(&reducer, ctx->comm, &options));
    for (size_t i = n; i-- > 0;) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        CHECK_OK(gsync_reducer_add(reducer, name, NULL, tensors[i].count, tensors[i].dtype));
    }
    CHECK_OK(gsync_reducer_commit(reducer));
    return reducer;
}

/* "[0,2][1,3]": the buckets in launch order, each with its tensors. */
static void write_buckets(const gsync_reducer *reducer, size_t n, char *text) {
    size_t used = 0;
    for (size_t b = 0; b < gsync_bucket_count(reducer); b++) {
        const char *separator = "[";
        for (size_t i = 0; i < n; i++) {
            char name[24];
            snprintf(name, sizeof name, "%zu", i);
            if (gsync_bucket_of(reducer, name) == (long)b) {
                used += (size_t)snprintf(text + used, TEXT_MAX - used, "%s%s", separator, name);
                separator = ",";
            }
        }
        used += (size_t)snprintf(text + used, TEXT_MAX - used, "]");
    }
}

static void expect(ranks_context *ctx, const tensor *tensors, size_t n, size_t first_max, size_t max,
                   const char *expected) {
    char text[TEXT_MAX] = "";
    gsync_reducer *reducer = open_vector(ctx, tensors, n, first_max, max);
    write_buckets(reducer, n, text);
    if (strcmp(text, expected) != 0) {
        ranks_fail(__FILE__, __LINE__, "got %s, expected %s", text, expected);
    }
    size_t gradients = 0;
    for (size_t b = 0; b < gsync_bucket_count(reducer); b++) {
        gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
        CHECK_OK(gsync_bucket_get(reducer, b, &info));
        gradients += info.gradient_count;
    }
    CHECK_EQ(gradients, n);
    REQUIRE(ranks_meet(ctx));
    gsync_reducer_destroy(&reducer);
}

#define F(count)                                                                                                       \
    { count, GSYNC_FLOAT32 }
#define D(count)                                                                                                       \
    { count, GSYNC_FLOAT64 }

static void single_limit_single_dtype(ranks_context *ctx) {
    const tensor tensors[] = {F(100), F(200), F(100), F(50)};
    expect(ctx, tensors, 4, 400, 400, "[0][1][2][3]");
}

static void single_limit_multi_dtype(ranks_context *ctx) {
    const tensor tensors[] = {F(50), D(25), F(50), D(25), F(50), D(25)};
    expect(ctx, tensors, 6, 400, 400, "[0,2][1,3][4][5]");
}

static void multi_limit_single_dtype(ranks_context *ctx) {
    const tensor tensors[] = {F(10), F(10), F(10), F(10)};
    expect(ctx, tensors, 4, 40, 80, "[0][1,2][3]");
}

static void multi_limit_multi_dtype(ranks_context *ctx) {
    const tensor tensors[] = {F(50), D(25), F(50), D(25), F(50), D(25)};
    expect(ctx, tensors, 6, 200, 400, "[0][1][2,4][3,5]");
}

/* ---- dtypes and buckets -------------------------------------------------------------------------------------------
 */

static ranks_model *open_two_dtypes(ranks_context *ctx, gsync_strategy strategy) {
    const size_t counts[] = {8, 9, 10, 11};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = strategy;
    ranks_model *model = ranks_model_new(ctx, counts, 4, GSYNC_FLOAT64);
    model->tensors[1].dtype = GSYNC_FLOAT32; /* half of the room that it has */
    model->tensors[3].dtype = GSYNC_FLOAT32;
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static void multi_dtype_single_bucket_never_happens(ranks_context *ctx) {
    ranks_model *model = open_two_dtypes(ctx, GSYNC_STRATEGY_SINGLE);
    REQUIRE(!ranks_has_failed(ctx));
    CHECK_EQ(gsync_bucket_count(model->reducer), 2);
    for (size_t t = 0; t < 4; t++) {
        gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
        REQUIRE_OK(
            gsync_bucket_get(model->reducer, (size_t)gsync_bucket_of(model->reducer, model->tensors[t].name), &info));
        CHECK_EQ(info.dtype, model->tensors[t].dtype);
        CHECK_EQ(info.gradient_count, 2);
    }
}

static void multi_dtype_multi_bucket_is_reduced_right(ranks_context *ctx) {
    for (int strategy = 0; strategy <= GSYNC_STRATEGY_SINGLE; strategy++) {
        ranks_model *model = open_two_dtypes(ctx, (gsync_strategy)strategy);
        REQUIRE(!ranks_has_failed(ctx));
        for (uint64_t step = 0; step < 3; step++) {
            ranks_model_fill(model, RANKS_INTEGERS, step);
            REQUIRE_OK(ranks_model_step(model, NULL, NULL));
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        }
    }
}

/* ---- Caps ---------------------------------------------------------------------------------------------------------
 */

static void expect_bytes(const gsync_reducer *reducer, const size_t *bytes, size_t n) {
    REQUIRE_EQ(gsync_bucket_count(reducer), n);
    for (size_t b = 0; b < n; b++) {
        gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
        REQUIRE_OK(gsync_bucket_get(reducer, b, &info));
        CHECK_EQ(info.bytes, bytes[b]);
    }
}

static gsync_reducer *open_equal(ranks_context *ctx, size_t n, size_t bytes_each, const gsync_options *options) {
    gsync_reducer *reducer = NULL;
    CHECK_OK(gsync_reducer_create(&reducer, ctx->comm, options));
    for (size_t i = 0; i < n; i++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        CHECK_OK(gsync_reducer_add(reducer, name, NULL, bytes_each / sizeof(float), GSYNC_FLOAT32));
    }
    CHECK_OK(gsync_reducer_commit(reducer));
    return reducer;
}

static void default_caps_are_1_MiB_for_the_first_bucket_and_25_MiB_for_the_others(ranks_context *ctx) {
    const size_t expected[] = {MIB, 25 * MIB, 3 * MIB / 2};
    gsync_reducer *reducer = open_equal(ctx, 55, MIB / 2, NULL);
    expect_bytes(reducer, expected, 3);
    REQUIRE(ranks_meet(ctx));
    gsync_reducer_destroy(&reducer);
}

static void a_cap_alone_keeps_the_first_bucket_at_1_MiB_or_at_the_cap_if_that_is_smaller(ranks_context *ctx) {
    const size_t large[] = {MIB, 2 * MIB, MIB / 2};
    const size_t small[] = {256 * KIB, 256 * KIB, 256 * KIB};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 2 * MIB;
    gsync_reducer *reducer = open_equal(ctx, 7, MIB / 2, &options);
    expect_bytes(reducer, large, 3);
    options.bucket_bytes_max = 256 * KIB;
    gsync_reducer *other = open_equal(ctx, 6, 128 * KIB, &options);
    expect_bytes(other, small, 3);
    REQUIRE(ranks_meet(ctx));
    gsync_reducer_destroy(&reducer);
    gsync_reducer_destroy(&other);
}

/* Twelve of 256 KiB and a cap of 1.5 MiB. The order agreed after step 1 has the small bucket first too. */
static void bucket_sizes_can_be_read_before_and_after_the_order_is_agreed(ranks_context *ctx) {
    enum { N = 12 };
    const size_t expected[] = {1048576, 1572864, 524288};
    size_t counts[N];
    size_t forward[N];
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 3 * MIB / 2;
    for (size_t i = 0; i < N; i++) {
        counts[i] = 256 * KIB / sizeof(float);
        forward[i] = i;
    }
    ranks_model *model = ranks_model_new(ctx, counts, N, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    expect_bytes(model->reducer, expected, 3);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p11"), 0);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p0"), 2);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, forward, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    expect_bytes(model->reducer, expected, 3);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p0"), 0);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p11"), 2);
}

/* Not in DDP, which orders left-over buckets by a hash map: the float32 half is ready first and is launched first. */
static void buckets_of_two_dtypes_are_launched_in_the_order_in_which_they_are_ready(ranks_context *ctx) {
    const tensor tensors[] = {F(10), F(10), F(10), D(10), D(10), D(10)};
    expect(ctx, tensors, 6, MIB, MIB, "[0,1,2][3,4,5]");
    const tensor turned[] = {D(10), D(10), D(10), F(10), F(10), F(10)};
    expect(ctx, turned, 6, MIB, MIB, "[0,1,2][3,4,5]");
}

RANKS_MAIN(RANKS_TEST(single_limit_single_dtype), RANKS_TEST(single_limit_multi_dtype),
           RANKS_TEST(multi_limit_single_dtype), RANKS_TEST(multi_limit_multi_dtype),
           RANKS_TEST(multi_dtype_single_bucket_never_happens), RANKS_TEST(multi_dtype_multi_bucket_is_reduced_right),
           RANKS_TEST(default_caps_are_1_MiB_for_the_first_bucket_and_25_MiB_for_the_others),
           RANKS_TEST(a_cap_alone_keeps_the_first_bucket_at_1_MiB_or_at_the_cap_if_that_is_smaller),
           RANKS_TEST(bucket_sizes_can_be_read_before_and_after_the_order_is_agreed),
           RANKS_TEST(buckets_of_two_dtypes_are_launched_in_the_order_in_which_they_are_ready))
