/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/*
 * GSYNC_WEIGHTED_MEAN: the sum of gradients over the sum of weights, of all ranks and of the whole window. Gradients
 * here are whole numbers, so the sum is exact and the result is one quotient, rounded once: compared bit by bit.
 */

#include "ranks.h"

#include <math.h>

enum { COUNT = 131, BATCHES_MAX = 4 };

typedef struct plan {
    gsync_weighting weighting;
    gsync_accumulation accumulation;
    gsync_dtype dtype;
    bool has_fractions;
} plan;

/* A micro-batch's weight: another one for every rank and micro-batch, sometimes 0. */
static double weight_of(const plan *of, int rank, int batch) {
    const int whole = (rank * 7 + batch * 5 + 3) % 11;
    return of->has_fractions ? 0.1 * whole : whole;
}

static int length_of(int rank) {
    return 1 + rank % BATCHES_MAX; /* windows of unequal length: weights make them right */
}

/* Within +-31, so that weighted sums stay below 2^24 and means of halves are exact in float32 before they are rounded.
 */
static double part(const ranks_context *ctx, int rank, int batch, size_t element) {
    const ranks_source source = {RANKS_INTEGERS, (uint64_t)batch, 0, 0};
    return fmod(ranks_value(ctx, source, rank, element), 32.0);
}

static double total_weight(const ranks_context *ctx, const plan *of) {
    double total = 0;
    for (int rank = 0; rank < ctx->world; rank++) {
        double window = 0;
        for (int batch = 0; batch < length_of(rank); batch++) {
            window += weight_of(of, rank, batch);
        }
        total += window;
    }
    return total;
}

static double exact_sum(const ranks_context *ctx, const plan *of, size_t element) {
    double sum = 0;
    for (int rank = 0; rank < ctx->world; rank++) {
        for (int batch = 0; batch < length_of(rank); batch++) {
            const double factor = of->weighting == GSYNC_WEIGHT_OF_MEANS ? weight_of(of, rank, batch) : 1.0;
            sum += factor * part(ctx, rank, batch, element);
        }
    }
    return sum;
}

static void take_micro_batch(ranks_model *model, const plan *of, int batch) {
    const ranks_context *ctx = model->ctx;
    const bool adds = of->accumulation == GSYNC_CLIENT_ACCUMULATES && batch > 0;
    const bool is_last = batch == length_of(ctx->rank) - 1;
    REQUIRE_OK(gsync_begin(model->reducer, is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE));
    REQUIRE_OK(gsync_set_weight(model->reducer, weight_of(of, ctx->rank, batch)));
    for (size_t i = 0; i < COUNT; i++) {
        const double before = adds ? ranks_load(model->tensors[0].grad, of->dtype, i) : 0.0;
        ranks_store(model->tensors[0].grad, of->dtype, i, before + part(ctx, ctx->rank, batch, i));
    }
    REQUIRE_OK(ranks_model_ready(model, 0));
}

/* float32's quotient where it holds the divisor, else float64's: both are the exact one, rounded to float32. */
static void check_quotients(const ranks_model *model, const plan *of, double tolerance) {
    const double total = total_weight(model->ctx, of);
    for (size_t i = 0; i < COUNT; i++) {
        const double quotient = exact_sum(model->ctx, of, i) / total;
        const double wide = of->dtype == GSYNC_FLOAT64 ? quotient : (double)(float)quotient;
        REQUIRE_THAT(CHECK_NEAR(ranks_load(model->tensors[0].grad, of->dtype, i), ranks_rounded(of->dtype, wide),
                                tolerance * fabs(quotient)));
    }
}

static void try_plan(ranks_context *ctx, plan of, double tolerance) {
    const size_t count = COUNT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    options.weighting = of.weighting;
    options.accumulation = of.accumulation;
    ranks_model *model = ranks_model_new(ctx, &count, 1, of.dtype);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (int step = 0; step < 2; step++) {
        for (int batch = 0; batch < length_of(ctx->rank) && !ranks_has_failed(ctx); batch++) {
            take_micro_batch(model, &of, batch);
            REQUIRE_OK(gsync_finish(model->reducer, &info));
        }
        REQUIRE(!ranks_has_failed(ctx));
        check_quotients(model, &of, tolerance);
        CHECK_REAL(info.weight_total, total_weight(ctx, &of));
        CHECK_REAL(info.divisor, total_weight(ctx, &of));
        CHECK_EQ(info.participants, ctx->world);
    }
}

static void try_dtypes(ranks_context *ctx, plan of, double tolerance) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t d = 0; d < 4 && !ranks_has_failed(ctx); d++) {
        of.dtype = dtypes[d];
        try_plan(ctx, of, tolerance);
    }
}

static void sums_over_whole_weights_are_exact(ranks_context *ctx) {
    try_dtypes(ctx, (plan){GSYNC_WEIGHT_OF_SUMS, GSYNC_CLIENT_ACCUMULATES, GSYNC_FLOAT32, false}, 0);
    try_dtypes(ctx, (plan){GSYNC_WEIGHT_OF_SUMS, GSYNC_CLIENT_OVERWRITES, GSYNC_FLOAT32, false}, 0);
}

static void sums_over_fractional_weights_are_one_rounded_quotient(ranks_context *ctx) {
    try_dtypes(ctx, (plan){GSYNC_WEIGHT_OF_SUMS, GSYNC_CLIENT_ACCUMULATES, GSYNC_FLOAT32, true}, 0);
}

static void means_with_whole_weights_are_exact(ranks_context *ctx) {
    try_dtypes(ctx, (plan){GSYNC_WEIGHT_OF_MEANS, GSYNC_CLIENT_OVERWRITES, GSYNC_FLOAT32, false}, 0);
}

static void means_with_fractional_weights_are_right_to_rounding(ranks_context *ctx) {
    const plan of = {GSYNC_WEIGHT_OF_MEANS, GSYNC_CLIENT_OVERWRITES, GSYNC_FLOAT64, true};
    try_plan(ctx, of, 1e-13);
}

/* Where the mean of means is wrong, which is what weights are for. */
static void the_result_is_not_the_mean_of_means(ranks_context *ctx) {
    const size_t count = 1;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    /* Rank r has r + 1 tokens of gradient r + 1 each: a sum of squares over a sum. */
    const double tokens = ctx->rank + 1;
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_set_weight(model->reducer, tokens));
    ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, tokens * tokens);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    const double n = ctx->world;
    CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, 0), (double)(float)((2 * n + 1) / 3));
}

static void a_weight_total_of_zero_gives_zeros(ranks_context *ctx) {
    const size_t counts[] = {3, 5};
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_set_weight(model->reducer, 0));
    REQUIRE_OK(gsync_finish(model->reducer, &info));
    CHECK_REAL(info.weight_total, 0);
    for (size_t i = 0; i < 8; i++) {
        const size_t t = i < 3 ? 0 : 1;
        CHECK_REAL(ranks_load(model->tensors[t].grad, GSYNC_FLOAT32, i - 3 * t), 0);
    }
}

static void a_rank_without_data_weighs_nothing(ranks_context *ctx) {
    const size_t count = 1;
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, ctx->rank == 0 ? 12 : 1e6);
    if (ctx->rank == 0) {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(gsync_set_weight(model->reducer, 8));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
    } else {
        REQUIRE_OK(gsync_finish_empty(model->reducer, &info));
    }
    CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, 0), 1.5);
    CHECK_EQ(info.participants, 1);
    CHECK_REAL(info.weight_total, 8);
}

static void nonsense_weights_are_refused_and_leave_the_step_usable(ranks_context *ctx) {
    const size_t count = 1;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    CHECK_STATUS(gsync_set_weight(model->reducer, 1), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_STATUS(gsync_set_weight(model->reducer, -1), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_set_weight(model->reducer, (double)NAN), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_set_weight(model->reducer, HUGE_VAL), GSYNC_ERR_ARGUMENT);
    CHECK_OK(gsync_set_weight(model->reducer, 4));
    ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, 8);
    CHECK_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(gsync_set_weight(model->reducer, 5), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, 0), 2);
}

static void weights_of_means_need_the_library_to_accumulate(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    options.weighting = GSYNC_WEIGHT_OF_MEANS;
    CHECK_STATUS(gsync_reducer_create(&reducer, ctx->comm, &options), GSYNC_ERR_ARGUMENT);
    CHECK(reducer == NULL);
    CHECK_CONTAINS(gsync_last_error(), "GSYNC_CLIENT_OVERWRITES");
}

RANKS_MAIN(RANKS_TEST(sums_over_whole_weights_are_exact),
           RANKS_TEST(sums_over_fractional_weights_are_one_rounded_quotient),
           RANKS_TEST(means_with_whole_weights_are_exact),
           RANKS_TEST(means_with_fractional_weights_are_right_to_rounding),
           RANKS_TEST(the_result_is_not_the_mean_of_means), RANKS_TEST(a_weight_total_of_zero_gives_zeros),
           RANKS_TEST(a_rank_without_data_weighs_nothing),
           RANKS_TEST(nonsense_weights_are_refused_and_leave_the_step_usable),
           RANKS_TEST(weights_of_means_need_the_library_to_accumulate))
