/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 */

/* GS-28: batches of unequal numbers of samples or tokens. The result must not depend on how samples were cut. */

#include "ranks.h"

#include <math.h>
#include <string.h>

#define TENSORS 2
static const size_t counts[TENSORS] = {3, 5};

static ranks_model *open_weighted(ranks_context *ctx, gsync_weighting weighting) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    options.weighting = weighting;
    options.accumulation = weighting == GSYNC_WEIGHT_OF_MEANS ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

/* Element j of tensor i is value x (10 i + j + 1). */
static void fill_with(const ranks_model *model, double value) {
    for (size_t i = 0; i < TENSORS; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            ranks_store(model->tensors[i].grad, GSYNC_FLOAT32, j, value * (double)(10 * i + j + 1));
        }
    }
}

static void check_filled_with(const ranks_model *model, double value) {
    for (size_t i = 0; i < TENSORS; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            const double expected = value * (double)(10 * i + j + 1);
            CHECK_NEAR(ranks_load(model->tensors[i].grad, GSYNC_FLOAT32, j), expected, 1e-6 * fabs(expected));
        }
    }
}

static gsync_status weighted_step(ranks_model *model, double weight, double value, gsync_step_info *info) {
    CHECK_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(gsync_set_weight(model->reducer, weight));
    fill_with(model, value);
    CHECK_OK(ranks_model_ready(model, 1));
    CHECK_OK(ranks_model_ready(model, 0));
    return gsync_finish(model->reducer, info);
}

/* The report: weights 3 and 1, means 1 and 5. The mean of the means would be 3. */
static void GS_28_means_of_unequal_batches_are_weighted(ranks_context *ctx) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = open_weighted(ctx, GSYNC_WEIGHT_OF_MEANS);
    REQUIRE_OK(weighted_step(model, ctx->rank == 0 ? 3 : 1, ctx->rank == 0 ? 1 : 5, &info));
    check_filled_with(model, 2.0);
    CHECK_REAL(info.weight_total, 4.0);
    CHECK_REAL(info.divisor, 4.0);
}

static void GS_28_sums_of_unequal_batches_are_divided_by_the_total_weight(ranks_context *ctx) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = open_weighted(ctx, GSYNC_WEIGHT_OF_SUMS);
    REQUIRE_OK(weighted_step(model, ctx->rank == 0 ? 3 : 1, ctx->rank == 0 ? 3 * 1 : 1 * 5, &info));
    check_filled_with(model, 2.0);
    CHECK_REAL(info.weight_total, 4.0);
    CHECK_REAL(info.divisor, 4.0);
}

static void GS_28_a_zero_total_weight_gives_zeros_and_no_nan(ranks_context *ctx) {
    const gsync_weighting weightings[] = {GSYNC_WEIGHT_OF_MEANS, GSYNC_WEIGHT_OF_SUMS};
    for (size_t i = 0; i < 2; i++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model *model = open_weighted(ctx, weightings[i]);
        REQUIRE_OK(weighted_step(model, 0, 1.0 + ctx->rank, &info));
        check_filled_with(model, 0.0);
        CHECK_REAL(info.weight_total, 0.0);
        /* Nor is a zero remembered. */
        REQUIRE_OK(weighted_step(model, 2, 4, &info));
        check_filled_with(model, weightings[i] == GSYNC_WEIGHT_OF_MEANS ? 4.0 : 2.0);
        gsync_reducer_destroy(&model->reducer);
    }
}

static void GS_28_a_forgotten_weight_is_refused_and_can_be_mended(ranks_context *ctx) {
    const int last = ctx->world - 1;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = open_weighted(ctx, GSYNC_WEIGHT_OF_MEANS);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    fill_with(model, ctx->rank == last ? 1000.0 : 3.0);
    if (ctx->rank == last) {
        CHECK_STATUS(gsync_ready(model->reducer, model->tensors[0].grad), GSYNC_ERR_STATE);
        CHECK_STATUS(gsync_finish(model->reducer, &info), GSYNC_ERR_STATE);
        CHECK_CONTAINS(gsync_last_error(), "gsync_set_weight");
    }
    REQUIRE_OK(gsync_set_weight(model->reducer, ctx->rank == last ? 0.0 : 2.0));
    REQUIRE_OK(gsync_finish(model->reducer, &info));
    check_filled_with(model, last == 0 ? 0.0 : 3.0);
    CHECK_REAL(info.weight_total, 2.0 * last);
}

/* ---- Windows ---------------------------------------------------------------------------------------------------- */

enum { SAMPLES = 24 };

static double sample_gradient(int sample) {
    return (double)((sample * 7) % 11) - 4.0;
}

/* The samples [first, first + count) as one micro-batch. */
static gsync_status sample_batch(ranks_model *model, gsync_phase phase, gsync_weighting weighting, int first, int count,
                                 gsync_step_info *info) {
    double sum = 0;
    for (int sample = first; sample < first + count; sample++) {
        sum += sample_gradient(sample);
    }
    CHECK_OK(gsync_begin(model->reducer, phase));
    CHECK_OK(gsync_set_weight(model->reducer, count));
    fill_with(model, weighting == GSYNC_WEIGHT_OF_MEANS ? sum / count : sum);
    return gsync_finish(model->reducer, info);
}

/*
 * Cuts the samples among the ranks (the higher a rank, the more), and each rank's share into micro-batches of
 * batch_size samples and a rest. With sums the buffer is overwritten too, by a library that adds up.
 */
static void train_on_cut(ranks_context *ctx, gsync_weighting weighting, int batch_size) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    options.weighting = weighting;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    const int shares = ctx->world * (ctx->world + 1) / 2;
    const int begin = SAMPLES * (ctx->rank * (ctx->rank + 1) / 2) / shares;
    const int end = SAMPLES * ((ctx->rank + 1) * (ctx->rank + 2) / 2) / shares;
    double mean = 0;
    for (int sample = 0; sample < SAMPLES; sample++) {
        mean += sample_gradient(sample) / SAMPLES;
    }
    /* Twice: a window's weights must not be found in the next one. */
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int first = begin; first < end; first += batch_size) {
            const int count = end - first < batch_size ? end - first : batch_size;
            const gsync_phase phase = first + count == end ? GSYNC_SYNC : GSYNC_ACCUMULATE;
            REQUIRE_OK(sample_batch(model, phase, weighting, first, count, &info));
        }
        check_filled_with(model, mean);
        CHECK_REAL(info.weight_total, SAMPLES);
    }
    gsync_reducer_destroy(&model->reducer);
}

/* Ranks then close windows of unequal length, which weights make right. */
static void GS_28_the_result_does_not_depend_on_how_samples_were_cut(ranks_context *ctx) {
    const int batch_sizes[] = {1, 2, 3, 5, SAMPLES};
    for (size_t i = 0; i < sizeof(batch_sizes) / sizeof(batch_sizes[0]); i++) {
        train_on_cut(ctx, GSYNC_WEIGHT_OF_MEANS, batch_sizes[i]);
        train_on_cut(ctx, GSYNC_WEIGHT_OF_SUMS, batch_sizes[i]);
    }
}

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

static void GS_28_weights_that_are_none_or_come_late_are_refused(ranks_context *ctx) {
    ranks_model *model = open_weighted(ctx, GSYNC_WEIGHT_OF_MEANS);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_set_weight(model->reducer, 3.0));
    CHECK_STATUS(gsync_set_weight(model->reducer, -1.0), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_set_weight(model->reducer, NAN), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_set_weight(model->reducer, INFINITY), GSYNC_ERR_ARGUMENT);
    fill_with(model, 1.0 + ctx->rank);
    REQUIRE_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(gsync_set_weight(model->reducer, 5.0), GSYNC_ERR_STATE);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE_OK(gsync_finish(model->reducer, &info));
    CHECK_REAL(info.weight_total, 3.0 * ctx->world); /* the refused ones changed nothing */
    check_filled_with(model, (ctx->world + 1) / 2.0);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_28_means_of_unequal_batches_are_weighted, .world_min = 2, .world_max = 2),
           RANKS_TEST_WITH(GS_28_sums_of_unequal_batches_are_divided_by_the_total_weight, .world_min = 2,
                           .world_max = 2),
           RANKS_TEST(GS_28_a_zero_total_weight_gives_zeros_and_no_nan),
           RANKS_TEST_WITH(GS_28_a_forgotten_weight_is_refused_and_can_be_mended, .world_min = 2),
           RANKS_TEST_WITH(GS_28_the_result_does_not_depend_on_how_samples_were_cut, .world_max = 4),
           RANKS_TEST(GS_28_weights_that_are_none_or_come_late_are_refused))
