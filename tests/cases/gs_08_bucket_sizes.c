/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 */

/*
 * GS-08: buckets whose length is no multiple of the number of ranks. GS-09: every bucket size is either used or
 * refused.
 *
 * GS-08 also names a reduce-scatter path, which this interface does not have.
 */

#include "ranks.h"

#include <string.h>

static const size_t odd_counts[] = {1, 2, 7, 1009};

/* From the last to the first: 1009 alone, then 7 + 2 + 1 elements. A cap is a number of elements. */
static const struct {
    size_t elements_max; /* 0: one bucket */
    size_t bucket_count;
} odd_caps[] = {{0, 1}, {1009, 2}, {9, 3}, {1, 4}};

static void reduce_odd_sizes(ranks_context *ctx, gsync_dtype dtype, size_t row) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = odd_caps[row].elements_max == 0 ? GSYNC_STRATEGY_SINGLE : GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = odd_caps[row].elements_max * gsync_dtype_size(dtype);
    ranks_model *model = ranks_model_new(ctx, odd_counts, 4, dtype);
    REQUIRE_OK(ranks_model_open(model, &options));
    CHECK_EQ(gsync_bucket_count(model->reducer), odd_caps[row].bucket_count);
    for (int kind = RANKS_INTEGERS; kind <= RANKS_FLOATS; kind++) {
        ranks_model_fill(model, (ranks_kind)kind, row);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, (ranks_kind)kind, row);
        CHECK_GUARDS(ctx);
    }
    gsync_reducer_destroy(&model->reducer);
}

static void GS_08_lengths_that_the_ranks_do_not_divide_are_right_in_every_element(ranks_context *ctx) {
    const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t i = 0; i < 4; i++) {
        for (size_t row = 0; row < 4; row++) {
            reduce_odd_sizes(ctx, dtypes[i], row);
        }
    }
}

/* One flat buffer, a guard word behind each gradient: padding between slots would show there. */
static void GS_08_words_between_slices_of_a_flat_buffer_stay(ranks_context *ctx) {
    const size_t total = 1 + 2 + 7 + 1009 + 4;
    float *flat = ranks_memory(ctx, total * sizeof(*flat));
    for (size_t row = 0; row < 4; row++) {
        ranks_model *model = ranks_model_new(ctx, odd_counts, 4, GSYNC_FLOAT32);
        size_t at = 0;
        for (size_t i = 0; i < 4; i++) {
            model->tensors[i].grad = flat + at;
            flat[at + odd_counts[i]] = (float)(1000 * ctx->rank) + (float)i;
            at += odd_counts[i] + 1;
        }
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.strategy = GSYNC_STRATEGY_FIXED;
        options.bucket_bytes_max = odd_caps[row].elements_max * sizeof(float);
        REQUIRE_OK(ranks_model_open(model, &options));
        ranks_model_fill(model, RANKS_INTEGERS, row);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, row);
        for (size_t i = 0; i < 4; i++) {
            const float *guard = (const float *)model->tensors[i].grad + odd_counts[i];
            CHECK_REAL(*guard, 1000 * ctx->rank + (double)i);
        }
        gsync_reducer_destroy(&model->reducer);
    }
}

static void GS_08_gradients_in_the_librarys_buckets_are_right_at_every_length(ranks_context *ctx) {
    for (size_t row = 0; row < 4; row++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.strategy = GSYNC_STRATEGY_FIXED;
        options.bucket_bytes_max = odd_caps[row].elements_max * sizeof(float);
        ranks_model *model = ranks_model_new(ctx, odd_counts, 4, GSYNC_FLOAT32);
        for (size_t i = 0; i < 4; i++) {
            model->tensors[i].grad = NULL;
        }
        REQUIRE_OK(ranks_model_open(model, &options));
        for (size_t i = 0; i < 4; i++) {
            model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
            REQUIRE(model->tensors[i].grad != NULL);
        }
        for (uint64_t step = 0; step < 2; step++) {
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            ranks_model_fill(model, RANKS_FLOATS, step);
            REQUIRE_OK(ranks_model_step(model, NULL, &info));
            CHECK_MODEL_MEAN(model, RANKS_FLOATS, step);
            /* On a GPU sums in rank order are made elsewhere. */
            CHECK(info.bytes_copied == 0 || ctx->is_on_device);
        }
        gsync_reducer_destroy(&model->reducer);
    }
}

/* ---- GS-09 ------------------------------------------------------------------------------------------------------ */

/* 16, 16, 32, 16 and 16 bytes. */
static const size_t five_counts[] = {4, 4, 8, 4, 4};
#define FIVE 5
#define FIVE_ELEMENTS 24

typedef struct cap_row {
    size_t bytes_max;
    long fixed[FIVE]; /* the bucket of p0 .. p4; planned from p4 to p0 */
    long ddp[FIVE];
} cap_row;

static const cap_row cap_rows[] = {
    {0, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}},        /* the default, 25 MiB */
    {1, {4, 3, 2, 1, 0}, {4, 3, 2, 1, 0}},        /* what a `true` becomes: all are above the cap */
    {3, {4, 3, 2, 1, 0}, {4, 3, 2, 1, 0}},        /* no multiple of an element */
    {16, {4, 3, 2, 1, 0}, {4, 3, 2, 1, 0}},       /* exactly one gradient */
    {32, {2, 2, 1, 0, 0}, {2, 2, 1, 0, 0}},       /* exactly the largest gradient */
    {31, {4, 3, 2, 1, 0}, {2, 2, 1, 0, 0}},       /* one less: it is above the cap and travels alone */
    {33, {2, 2, 1, 0, 0}, {1, 1, 0, 0, 0}},       /* DDP closes what has reached the cap: 32 + 32 has */
    {SIZE_MAX, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}, /* no limit */
};

static void check_plan(const ranks_model *model, const long *bucket_of, size_t row) {
    long last = 0;
    for (size_t i = 0; i < FIVE; i++) {
        const long bucket = gsync_bucket_of(model->reducer, model->tensors[i].name);
        if (bucket != bucket_of[i]) {
            ranks_fail(__FILE__, __LINE__, "row %zu: %s is in bucket %ld, expected %ld", row, model->tensors[i].name,
                       bucket, bucket_of[i]);
        }
        last = bucket_of[i] > last ? bucket_of[i] : last;
    }
    CHECK_EQ(gsync_bucket_count(model->reducer), last + 1);
}

/* Runs one step of random floats and compares its bits with those that another cap gave. */
static void check_bits(ranks_model *model, float *reference, bool is_first) {
    ranks_model_fill(model, RANKS_FLOATS, 9);
    if (!CHECK_OK(ranks_model_step(model, NULL, NULL))) {
        return;
    }
    CHECK_MODEL_MEAN(model, RANKS_FLOATS, 9);
    float *at = reference;
    for (size_t i = 0; i < FIVE; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        if (is_first) {
            memcpy(at, tensor->grad, tensor->count * sizeof(float));
        }
        CHECK(memcmp(at, tensor->grad, tensor->count * sizeof(float)) == 0);
        at += tensor->count;
    }
}

static void run_caps(ranks_context *ctx, gsync_strategy strategy) {
    float reference[FIVE_ELEMENTS];
    for (size_t row = 0; row < sizeof(cap_rows) / sizeof(cap_rows[0]); row++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.strategy = strategy;
        options.bucket_bytes_max = cap_rows[row].bytes_max;
        ranks_model *model = ranks_model_new(ctx, five_counts, FIVE, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_open(model, &options));
        check_plan(model, strategy == GSYNC_STRATEGY_FIXED ? cap_rows[row].fixed : cap_rows[row].ddp, row);
        check_bits(model, reference, row == 0);
        gsync_reducer_destroy(&model->reducer);
    }
}

static void GS_09_fixed_buckets_follow_every_cap_with_equal_results(ranks_context *ctx) {
    run_caps(ctx, GSYNC_STRATEGY_FIXED);
}

static void GS_09_ddp_buckets_follow_every_cap_with_equal_results(ranks_context *ctx) {
    run_caps(ctx, GSYNC_STRATEGY_DDP);
}

static void GS_09_the_first_ddp_bucket_has_a_cap_of_its_own(ranks_context *ctx) {
    const long expected[FIVE] = {2, 2, 1, 1, 0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 48;
    options.bucket_bytes_first_max = 16;
    ranks_model *model = ranks_model_new(ctx, five_counts, FIVE, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    check_plan(model, expected, 0);
    gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
    REQUIRE_OK(gsync_bucket_get(model->reducer, 1, &info));
    CHECK_EQ(info.gradient_count, 2);
    CHECK_EQ(info.bytes, 48);
    CHECK_EQ(info.dtype, GSYNC_FLOAT32);
}

/* Options are refused where they are given, by name, and nothing is created. */
static void expect_refused(ranks_context *ctx, const gsync_options *options, const char *name) {
    gsync_reducer *reducer = NULL;
    CHECK_STATUS(gsync_reducer_create(&reducer, ctx->comm, options), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), name);
    CHECK(reducer == NULL);
    gsync_reducer_destroy(&reducer);
}

#define EXPECT_REFUSED(member, value)                                                                                  \
    do {                                                                                                               \
        gsync_options options = GSYNC_OPTIONS_INIT;                                                                    \
        options.member = (value);                                                                                      \
        expect_refused(ctx, &options, #member);                                                                        \
    } while (0)

static void GS_09_values_outside_an_enum_are_refused_by_name(ranks_context *ctx) {
    EXPECT_REFUSED(strategy, (gsync_strategy)3);
    EXPECT_REFUSED(order, (gsync_order)2);
    EXPECT_REFUSED(op, (gsync_op)5);
    EXPECT_REFUSED(op, GSYNC_MIN);
    EXPECT_REFUSED(op, GSYNC_MAX);
    EXPECT_REFUSED(accumulation, (gsync_accumulation)2);
    EXPECT_REFUSED(weighting, (gsync_weighting)2);
    EXPECT_REFUSED(divisor, (gsync_divisor)2);
    EXPECT_REFUSED(averages_window, 2);
    EXPECT_REFUSED(is_strict, -1);
    EXPECT_REFUSED(finds_unused, 7);
    EXPECT_REFUSED(checks_writes, 2);
    EXPECT_REFUSED(struct_size, 3);
    EXPECT_REFUSED(weighting, GSYNC_WEIGHT_OF_MEANS); /* without GSYNC_CLIENT_OVERWRITES */
}

RANKS_MAIN(RANKS_TEST(GS_08_lengths_that_the_ranks_do_not_divide_are_right_in_every_element),
           RANKS_TEST(GS_08_words_between_slices_of_a_flat_buffer_stay),
           RANKS_TEST(GS_08_gradients_in_the_librarys_buckets_are_right_at_every_length),
           RANKS_TEST(GS_09_fixed_buckets_follow_every_cap_with_equal_results),
           RANKS_TEST(GS_09_ddp_buckets_follow_every_cap_with_equal_results),
           RANKS_TEST(GS_09_the_first_ddp_bucket_has_a_cap_of_its_own),
           RANKS_TEST(GS_09_values_outside_an_enum_are_refused_by_name))
