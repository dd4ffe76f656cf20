/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: finish=host worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * GS-57 with accumulation: a rank may run out of data in the middle of a window. What it has accumulated still counts,
 * and gsync_finish_empty closes the window with it.
 */

#include "ranks.h"

enum { WINDOW = 3, WINDOWS = 3 };

static const size_t counts[] = {5, 40};
#define TENSORS 2

/* Rank 0 runs out after 1, rank 1 after 4, rank 2 after 7 micro-batches of 9: in the middle of windows 1, 2 and 3. */
static uint64_t batches_of(int rank) {
    return 1 + 3 * (uint64_t)rank;
}

/* How many micro-batches of a window, counted from 0, a rank has. */
static uint64_t batches_in(int rank, uint64_t window) {
    const uint64_t before = window * WINDOW;
    const uint64_t left = batches_of(rank) > before ? batches_of(rank) - before : 0;
    return left < WINDOW ? left : WINDOW;
}

/* The value of a micro-batch's gradient: small integers that tell rank, tensor, element and micro-batch apart. */
static double value_of(int rank, size_t tensor, size_t element, uint64_t batch) {
    return (double)((batch + 1) * 7 + (uint64_t)rank * 31 + tensor * 3 + element);
}

static double sum_of(int rank, size_t tensor, size_t element, uint64_t window) {
    double sum = 0;
    for (uint64_t i = 0; i < batches_in(rank, window); i++) {
        sum += value_of(rank, tensor, element, window * WINDOW + i);
    }
    return sum;
}

/* As backward does: adds to what the window has, or overwrites it. */
static void backward(ranks_model *model, uint64_t batch, bool adds) {
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        float *grad = model->tensors[tensor].grad;
        for (size_t i = 0; i < counts[tensor]; i++) {
            grad[i] = (adds ? grad[i] : 0.0f) + (float)value_of(model->ctx->rank, tensor, i, batch);
        }
    }
}

static void zero(ranks_model *model) {
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        for (size_t i = 0; i < counts[tensor]; i++) {
            ((float *)model->tensors[tensor].grad)[i] = 0.0f;
        }
    }
}

/* One window of this rank, whatever is left of its data. */
static void run_window(ranks_model *model, uint64_t window, bool client_adds, bool weighs, gsync_step_info *info) {
    const uint64_t mine = batches_in(model->ctx->rank, window);
    if (client_adds) {
        zero(model);
    }
    for (uint64_t i = 0; i < mine; i++) {
        REQUIRE_OK(gsync_begin(model->reducer, i + 1 == WINDOW ? GSYNC_SYNC : GSYNC_ACCUMULATE));
        if (weighs) {
            REQUIRE_OK(gsync_set_weight(model->reducer, (double)(i + 1)));
        }
        backward(model, window * WINDOW + i, client_adds);
        REQUIRE_OK(gsync_finish(model->reducer, info));
    }
    if (mine < WINDOW) {
        REQUIRE_OK(gsync_finish_empty(model->reducer, info));
    }
}

static void check_window(const ranks_model *model, uint64_t window, double divisor) {
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        for (size_t i = 0; i < counts[tensor]; i++) {
            double sum = 0;
            for (int rank = 0; rank < model->ctx->world; rank++) {
                sum += sum_of(rank, tensor, i, window);
            }
            const float expected = divisor == 0 ? 0.0f : (float)(sum / divisor);
            REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[tensor].grad, GSYNC_FLOAT32, i), (double)expected));
        }
    }
}

/* What the window's sum is divided by, from the header's words. */
static double divisor_of(const ranks_context *ctx, const gsync_options *options, uint64_t window) {
    double participants = 0;
    double batches = 0;
    double longest = 0;
    double weights = 0;
    for (int rank = 0; rank < ctx->world; rank++) {
        const double mine = (double)batches_in(rank, window);
        participants += mine > 0;
        batches += mine;
        longest = mine > longest ? mine : longest;
        weights += mine * (mine + 1) / 2;
    }
    if (options->op == GSYNC_WEIGHTED_MEAN) {
        return weights;
    }
    if (options->divisor == GSYNC_DIVIDE_BY_PARTICIPANTS) {
        return options->averages_window ? batches : participants;
    }
    return ctx->world * (options->averages_window && longest > 0 ? longest : 1.0);
}

static void check_windows(ranks_context *ctx, const gsync_options *options) {
    const bool client_adds = options->accumulation == GSYNC_CLIENT_ACCUMULATES;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, options));
    for (uint64_t window = 0; window < WINDOWS && !ranks_has_failed(ctx); window++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        run_window(model, window, client_adds, options->op == GSYNC_WEIGHTED_MEAN, &info);
        CHECK_EQ(info.micro_batches, batches_in(ctx->rank, window));
        check_window(model, window, divisor_of(ctx, options, window));
    }
    gsync_reducer_destroy(&model->reducer);
}

static void check_both_accumulations(ranks_context *ctx, gsync_options options) {
    for (int accumulation = GSYNC_CLIENT_ACCUMULATES; accumulation <= GSYNC_CLIENT_OVERWRITES; accumulation++) {
        options.accumulation = (gsync_accumulation)accumulation;
        check_windows(ctx, &options);
    }
}

static void GS_57_a_window_that_ends_early_counts_as_far_as_it_came(ranks_context *ctx) {
    for (int divisor = GSYNC_DIVIDE_BY_WORLD; divisor <= GSYNC_DIVIDE_BY_PARTICIPANTS; divisor++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.divisor = (gsync_divisor)divisor;
        check_both_accumulations(ctx, options);
    }
}

static void GS_57_averages_divide_by_the_micro_batches_there_were(ranks_context *ctx) {
    for (int divisor = GSYNC_DIVIDE_BY_WORLD; divisor <= GSYNC_DIVIDE_BY_PARTICIPANTS; divisor++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.divisor = (gsync_divisor)divisor;
        options.averages_window = 1;
        check_both_accumulations(ctx, options);
    }
}

static void GS_57_weights_of_a_window_that_ends_early_count(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    check_both_accumulations(ctx, options);
}

/* Without finish_empty a shorter window is a trainer's mistake, and still found. */
static void GS_57_windows_of_unequal_length_are_a_mismatch(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    if (ctx->rank == 0) {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
    }
    CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "micro-batches");
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

RANKS_MAIN(RANKS_TEST(GS_57_a_window_that_ends_early_counts_as_far_as_it_came),
           RANKS_TEST(GS_57_averages_divide_by_the_micro_batches_there_were),
           RANKS_TEST(GS_57_weights_of_a_window_that_ends_early_count),
           RANKS_TEST_WITH(GS_57_windows_of_unequal_length_are_a_mismatch, .world_min = 2))
