/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: finish=host worlds=1,2,4 transports=threads,mpi timeout=60 */

/*
 * Accumulation windows: several micro-batches, one reduction. What the window holds is checked against a serial sum in
 * float32, micro-batch by micro-batch, then rank by rank.
 */

#include "serial_oracle.h"

#include <string.h>

enum { COUNT = 257, TENSORS = 3, WINDOW_MAX = 5 };

/* The value that micro-batch `batch` of window `window` gives on a rank: whole numbers, so sums are exact. */
static double part(const ranks_context *ctx, int rank, int window, int batch, size_t tensor, size_t element) {
    const ranks_source source = {RANKS_INTEGERS, (uint64_t)(window * 16 + batch), tensor, 0};
    return ranks_value(ctx, source, rank, element);
}

static void bring(const ranks_model *model, int window, int batch, bool adds) {
    for (size_t t = 0; t < model->tensor_count; t++) {
        const ranks_tensor *tensor = &model->tensors[t];
        for (size_t i = 0; i < tensor->count; i++) {
            const double before = adds ? ranks_load(tensor->grad, tensor->dtype, i) : 0.0;
            ranks_store(tensor->grad, tensor->dtype, i,
                        before + part(model->ctx, model->ctx->rank, window, batch, t, i));
        }
    }
}

static void zero(const ranks_model *model) {
    for (size_t t = 0; t < model->tensor_count; t++) {
        memset(model->tensors[t].grad, 0, model->tensors[t].count * gsync_dtype_size(model->tensors[t].dtype));
    }
}

/* lengths[rank]: micro-batches that the rank brought. */
static void check_window(const ranks_model *model, int window, const int *lengths, double divisor) {
    for (size_t t = 0; t < model->tensor_count; t++) {
        const ranks_tensor *tensor = &model->tensors[t];
        for (size_t i = 0; i < tensor->count; i++) {
            double sum = 0;
            for (int rank = 0; rank < model->ctx->world; rank++) {
                for (int batch = 0; batch < lengths[rank]; batch++) {
                    sum += part(model->ctx, rank, window, batch, t, i);
                }
            }
            /* Sums of whole numbers are exact in float32 too, so one rounding is left. */
            const double expected = ranks_rounded(tensor->dtype, sum / divisor);
            REQUIRE_THAT(CHECK_REAL(ranks_load(tensor->grad, tensor->dtype, i), expected));
        }
    }
}

static ranks_model *open_model(ranks_context *ctx, gsync_dtype dtype, const gsync_options *options) {
    const size_t counts[TENSORS] = {COUNT, 1, 64};
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, dtype);
    CHECK_OK(ranks_model_open(model, options));
    return model;
}

/* One micro-batch from begin to finish. */
static gsync_status take_micro_batch(ranks_model *model, gsync_phase phase, int window, int batch, bool adds,
                                     gsync_step_info *info) {
    gsync_status first = gsync_begin(model->reducer, phase);
    bring(model, window, batch, adds);
    for (size_t t = model->tensor_count; t-- > 0 && first == GSYNC_OK;) {
        first = ranks_model_ready(model, t);
    }
    const gsync_status finish = gsync_finish(model->reducer, info);
    return first != GSYNC_OK ? first : finish;
}

static void take_window(ranks_model *model, int window, int length, bool adds, gsync_step_info *info) {
    if (adds) {
        zero(model);
    }
    for (int batch = 0; batch < length; batch++) {
        const gsync_phase phase = batch == length - 1 ? GSYNC_SYNC : GSYNC_ACCUMULATE;
        REQUIRE_OK(take_micro_batch(model, phase, window, batch, adds, info));
        CHECK_EQ(gsync_is_synced(model->reducer), phase == GSYNC_SYNC);
    }
}

static void all_lengths(const ranks_context *ctx, int length, int *lengths) {
    for (int rank = 0; rank < ctx->world; rank++) {
        lengths[rank] = length;
    }
}

/* ---- Windows of equal length --------------------------------------------------------------------------------------
 */

static void try_windows(ranks_context *ctx, gsync_accumulation accumulation, bool averages) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64};
    for (size_t d = 0; d < 2; d++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.accumulation = accumulation;
        options.averages_window = averages;
        ranks_model *model = open_model(ctx, dtypes[d], &options);
        REQUIRE(!ranks_has_failed(ctx));
        for (int length = 1; length <= WINDOW_MAX; length++) {
            int lengths[RANKS_WORLD_MAX];
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            const double divisor = ctx->world * (averages ? length : 1.0);
            all_lengths(ctx, length, lengths);
            take_window(model, length, length, accumulation == GSYNC_CLIENT_ACCUMULATES, &info);
            REQUIRE(!ranks_has_failed(ctx));
            check_window(model, length, lengths, divisor);
            CHECK_REAL(info.divisor, divisor);
            CHECK_EQ(info.micro_batches, length);
            CHECK_EQ(info.step, length);
        }
    }
}

static void micro_batches_that_the_trainer_adds_up_are_summed(ranks_context *ctx) {
    try_windows(ctx, GSYNC_CLIENT_ACCUMULATES, false);
}

static void micro_batches_that_the_library_adds_up_are_summed(ranks_context *ctx) {
    try_windows(ctx, GSYNC_CLIENT_OVERWRITES, false);
}

static void averages_window_divides_by_the_micro_batches_that_the_window_had(ranks_context *ctx) {
    try_windows(ctx, GSYNC_CLIENT_ACCUMULATES, true);
    try_windows(ctx, GSYNC_CLIENT_OVERWRITES, true);
}

static void ranks_that_close_windows_of_different_length_all_learn_of_it(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, GSYNC_FLOAT32, NULL);
    REQUIRE(!ranks_has_failed(ctx));
    const int length = ctx->rank == 0 ? 3 : 2;
    zero(model);
    for (int batch = 0; batch < length - 1; batch++) {
        REQUIRE_OK(take_micro_batch(model, GSYNC_ACCUMULATE, 1, batch, true, NULL));
    }
    REQUIRE_STATUS(take_micro_batch(model, GSYNC_SYNC, 1, length - 1, true, NULL), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "rank 1 closed a window of 2 micro-batches");
    CHECK_CONTAINS(gsync_last_error(), "rank 0 closed one of 3");
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    /* Nothing was changed, and the next window works. */
    int lengths[RANKS_WORLD_MAX];
    all_lengths(ctx, 2, lengths);
    take_window(model, 2, 2, true, NULL);
    check_window(model, 2, lengths, ctx->world);
}

/* ---- Ranks that run out of data in the middle of a window ----------------------------------------------------------
 */

/* The last rank has `short_length` micro-batches and then nothing more. */
static void try_short_rank(ranks_context *ctx, const gsync_options *options, int short_length, double divisor,
                           int participants) {
    ranks_model *model = open_model(ctx, GSYNC_FLOAT32, options);
    const bool adds = options->accumulation == GSYNC_CLIENT_ACCUMULATES;
    const bool is_short = ctx->rank == ctx->world - 1;
    int lengths[RANKS_WORLD_MAX];
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE(!ranks_has_failed(ctx));
    all_lengths(ctx, 3, lengths);
    lengths[ctx->world - 1] = short_length;
    if (!is_short) {
        take_window(model, 1, 3, adds, &info);
    } else {
        zero(model);
        for (int batch = 0; batch < short_length; batch++) {
            REQUIRE_OK(take_micro_batch(model, GSYNC_ACCUMULATE, 1, batch, adds, NULL));
        }
        REQUIRE_OK(gsync_finish_empty(model->reducer, &info));
    }
    REQUIRE(!ranks_has_failed(ctx));
    check_window(model, 1, lengths, divisor);
    CHECK_REAL(info.divisor, divisor);
    CHECK_EQ(info.participants, participants);
    CHECK_EQ(info.micro_batches, is_short ? short_length : 3);
    CHECK_EQ(gsync_is_synced(model->reducer), 1);
    /* And all is as before in the next window. */
    all_lengths(ctx, 2, lengths);
    take_window(model, 2, 2, adds, NULL);
    check_window(model, 2, lengths, ctx->world * (options->averages_window ? 2.0 : 1.0));
}

static void finish_empty_closes_the_window_with_what_it_holds(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    try_short_rank(ctx, &options, 2, ctx->world, ctx->world);
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_short_rank(ctx, &options, 2, ctx->world, ctx->world);
    options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    try_short_rank(ctx, &options, 1, ctx->world, ctx->world);
}

static void finish_empty_without_a_micro_batch_contributes_nothing(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    try_short_rank(ctx, &options, 0, ctx->world, ctx->world - 1);
    options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    try_short_rank(ctx, &options, 0, ctx->world - 1, ctx->world - 1);
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_short_rank(ctx, &options, 0, ctx->world - 1, ctx->world - 1);
}

/* The mean of all micro-batches that there were, however they are spread over the ranks. */
static void participants_and_averages_window_divide_by_all_micro_batches_of_all_ranks(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    options.averages_window = 1;
    try_short_rank(ctx, &options, 1, 3.0 * (ctx->world - 1) + 1, ctx->world);
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_short_rank(ctx, &options, 2, 3.0 * (ctx->world - 1) + 2, ctx->world);
}

static void a_window_that_is_empty_everywhere_gives_zeros(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    ranks_model *model = open_model(ctx, GSYNC_FLOAT32, &options);
    int lengths[RANKS_WORLD_MAX];
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE(!ranks_has_failed(ctx));
    bring(model, 1, 0, false);
    REQUIRE_OK(gsync_finish_empty(model->reducer, &info));
    all_lengths(ctx, 0, lengths);
    check_window(model, 1, lengths, 1.0);
    CHECK_EQ(info.participants, 0);
}

/* ---- Precision ----------------------------------------------------------------------------------------------------
 */

/* A first micro-batch of 1024, then 40 of 0.25: halves around 1024 are 1 apart (bfloat16: 8), so adding in halves
 * loses every one of the small ones. */
enum { SMALL_PARTS = 40 };
static const double large_part = 1024.0;
static const double small_part = 0.25;

static double sum_in_dtype(gsync_dtype dtype) {
    double sum = ranks_rounded(dtype, large_part);
    for (int i = 0; i < SMALL_PARTS; i++) {
        sum = ranks_rounded(dtype, sum + small_part);
    }
    return sum;
}

static void accumulate_small_parts(ranks_context *ctx, gsync_dtype dtype) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    ranks_model *model = open_model(ctx, dtype, &options);
    REQUIRE(!ranks_has_failed(ctx));
    for (int batch = 0; batch <= SMALL_PARTS; batch++) {
        REQUIRE_OK(gsync_begin(model->reducer, batch == SMALL_PARTS ? GSYNC_SYNC : GSYNC_ACCUMULATE));
        for (size_t i = 0; i < COUNT; i++) {
            ranks_store(model->tensors[0].grad, dtype, i, batch == 0 ? large_part : small_part);
        }
        memset(model->tensors[1].grad, 0, gsync_dtype_size(dtype));
        memset(model->tensors[2].grad, 0, 64 * gsync_dtype_size(dtype));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
    }
    const double exact = large_part + SMALL_PARTS * small_part;
    for (size_t i = 0; i < COUNT; i++) {
        REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[0].grad, dtype, i), ranks_rounded(dtype, exact)));
    }
    /* The negative control: an accumulator of the gradients' own type would have given something else. */
    CHECK_REAL(sum_in_dtype(dtype), large_part);
    CHECK(ranks_rounded(dtype, exact) != sum_in_dtype(dtype));
}

static void a_window_of_float16_does_not_lose_what_a_float16_sum_would(ranks_context *ctx) {
    accumulate_small_parts(ctx, GSYNC_FLOAT16);
}

static void a_window_of_bfloat16_does_not_lose_what_a_bfloat16_sum_would(ranks_context *ctx) {
    accumulate_small_parts(ctx, GSYNC_BFLOAT16);
}

static void a_window_whose_sum_is_beyond_float16_has_a_finite_mean(ranks_context *ctx) {
    enum { K = 4 };
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    options.averages_window = 1;
    ranks_model *model = open_model(ctx, GSYNC_FLOAT16, &options);
    REQUIRE(!ranks_has_failed(ctx));
    for (int batch = 0; batch < K; batch++) {
        REQUIRE_OK(gsync_begin(model->reducer, batch == K - 1 ? GSYNC_SYNC : GSYNC_ACCUMULATE));
        for (size_t i = 0; i < COUNT; i++) {
            ranks_store(model->tensors[0].grad, GSYNC_FLOAT16, i, 50000.0 + 32.0 * batch);
        }
        memset(model->tensors[1].grad, 0, 2);
        memset(model->tensors[2].grad, 0, 128);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
    }
    CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT16, COUNT - 1),
               ranks_rounded(GSYNC_FLOAT16, 50000.0 + 32.0 * 1.5));
}

RANKS_MAIN(RANKS_TEST(micro_batches_that_the_trainer_adds_up_are_summed),
           RANKS_TEST(micro_batches_that_the_library_adds_up_are_summed),
           RANKS_TEST(averages_window_divides_by_the_micro_batches_that_the_window_had),
           RANKS_TEST_WITH(ranks_that_close_windows_of_different_length_all_learn_of_it, .world_min = 2),
           RANKS_TEST_WITH(finish_empty_closes_the_window_with_what_it_holds, .world_min = 2),
           RANKS_TEST_WITH(finish_empty_without_a_micro_batch_contributes_nothing, .world_min = 2),
           RANKS_TEST_WITH(participants_and_averages_window_divide_by_all_micro_batches_of_all_ranks, .world_min = 2),
           RANKS_TEST(a_window_that_is_empty_everywhere_gives_zeros),
           RANKS_TEST(a_window_of_float16_does_not_lose_what_a_float16_sum_would),
           RANKS_TEST(a_window_of_bfloat16_does_not_lose_what_a_bfloat16_sum_would),
           RANKS_TEST(a_window_whose_sum_is_beyond_float16_has_a_finite_mean))
