/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: finish=host worlds=1,2,3 */

/*
 * GS-23 to GS-27: windows of several micro-batches.
 *
 * GS-29, the loss scale inside a window, is not here: this interface has no loss scaler yet.
 */

#include "ranks.h"

#define TENSORS 2
static const size_t counts[TENSORS] = {4, 7};

static gsync_options window_options(gsync_accumulation accumulation, int averages_window) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = accumulation;
    options.averages_window = averages_window;
    return options;
}

static ranks_model *open_model(ranks_context *ctx, const gsync_options *options) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, options));
    return model;
}

/* What backward does: adds this round's values into the buffers, or overwrites them. */
static void backward(ranks_model *model, uint64_t round, bool overwrites) {
    for (size_t i = 0; i < TENSORS; i++) {
        float *grad = model->tensors[i].grad;
        for (size_t j = 0; j < counts[i]; j++) {
            const ranks_source source = {.round = round, .tensor = i};
            const float value = (float)ranks_value(model->ctx, source, model->ctx->rank, j);
            grad[j] = overwrites ? value : grad[j] + value;
        }
    }
}

static gsync_status micro_batch(ranks_model *model, gsync_phase phase, uint64_t round, bool overwrites,
                                gsync_step_info *info) {
    CHECK_OK(gsync_begin(model->reducer, phase));
    backward(model, round, overwrites);
    for (size_t i = TENSORS; i-- > 0;) {
        CHECK_OK(ranks_model_ready(model, i));
    }
    return gsync_finish(model->reducer, info);
}

/* A window of length micro-batches, rounds first .. first + length - 1. The trainer zeroes nothing but its buffers. */
static gsync_status window(ranks_model *model, const gsync_options *options, uint64_t first, uint64_t length,
                           gsync_step_info *info) {
    for (uint64_t i = 0; i < length; i++) {
        const bool overwrites = options->accumulation == GSYNC_CLIENT_OVERWRITES || i == 0;
        const gsync_phase phase = i + 1 == length ? GSYNC_SYNC : GSYNC_ACCUMULATE;
        const gsync_status status = micro_batch(model, phase, first + i, overwrites, info);
        if (status != GSYNC_OK || phase == GSYNC_SYNC) {
            return status;
        }
        CHECK_EQ(gsync_is_synced(model->reducer), 0);
    }
    return GSYNC_OK;
}

static void check_window(const ranks_model *model, uint64_t first, uint64_t length, double divisor) {
    for (size_t i = 0; i < TENSORS; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            double sum = 0;
            for (uint64_t round = first; round < first + length; round++) {
                sum += ranks_sum(model->ctx, GSYNC_FLOAT32, (ranks_source){.round = round, .tensor = i}, j);
            }
            CHECK_REAL(ranks_load(model->tensors[i].grad, GSYNC_FLOAT32, j),
                       ranks_rounded(GSYNC_FLOAT32, sum / divisor));
        }
    }
}

/* ---- GS-23 ------------------------------------------------------------------------------------------------------ */

/* The report's gradients: rank 0 has 1 then 3, rank 1 has 3 then 4. Element j carries them (j + 1)-fold. */
static void add_reported(const ranks_model *model, int micro, bool overwrites) {
    static const double values[2][2] = {{1, 3}, {3, 4}};
    for (size_t i = 0; i < TENSORS; i++) {
        float *grad = model->tensors[i].grad;
        for (size_t j = 0; j < counts[i]; j++) {
            const float value = (float)(values[model->ctx->rank][micro] * (double)(j + 1));
            grad[j] = overwrites ? value : grad[j] + value;
        }
    }
}

static void run_reported(ranks_model *model, gsync_phase first, gsync_phase second) {
    const gsync_phase phases[2] = {first, second};
    for (int micro = 0; micro < 2; micro++) {
        CHECK_OK(gsync_begin(model->reducer, phases[micro]));
        CHECK_EQ(gsync_is_synced(model->reducer), 0);
        add_reported(model, micro, micro == 0);
        CHECK_OK(gsync_finish(model->reducer, NULL));
    }
}

static void GS_23_synchronising_the_last_micro_batch_gives_every_rank_the_windows_mean(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, NULL);
    run_reported(model, GSYNC_ACCUMULATE, GSYNC_SYNC);
    CHECK_EQ(gsync_is_synced(model->reducer), 1);
    for (size_t i = 0; i < TENSORS; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            CHECK_REAL(ranks_load(model->tensors[i].grad, GSYNC_FLOAT32, j), 5.5 * (double)(j + 1));
        }
    }
}

static void GS_23_synchronising_the_first_instead_leaves_the_gradients_not_synced(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, NULL);
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    run_reported(model, GSYNC_SYNC, GSYNC_ACCUMULATE);
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    /* 2 is the mean of the first micro-batch; what the second added is each rank's own. */
    CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, 0), ctx->rank == 0 ? 5.0 : 6.0);
}

/* ---- GS-24 ------------------------------------------------------------------------------------------------------ */

static void run_epoch_of_ten(ranks_context *ctx, gsync_accumulation accumulation, int averages_window) {
    const uint64_t lengths[] = {4, 4, 2};
    const gsync_options options = window_options(accumulation, averages_window);
    ranks_model *model = open_model(ctx, &options);
    uint64_t first = 0;
    for (size_t i = 0; i < 3; i++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        const double divisor = ctx->world * (averages_window ? (double)lengths[i] : 1.0);
        REQUIRE_OK(window(model, &options, first, lengths[i], &info));
        CHECK_EQ(info.micro_batches, lengths[i]);
        CHECK_EQ(info.step, i + 1);
        CHECK_REAL(info.divisor, divisor);
        check_window(model, first, lengths[i], divisor);
        first += lengths[i];
    }
    gsync_reducer_destroy(&model->reducer);
}

static void GS_24_a_shorter_last_window_is_averaged_over_what_it_had(ranks_context *ctx) {
    run_epoch_of_ten(ctx, GSYNC_CLIENT_OVERWRITES, 1);
    run_epoch_of_ten(ctx, GSYNC_CLIENT_ACCUMULATES, 1);
}

static void GS_24_without_averaging_every_window_is_a_sum_over_its_micro_batches(ranks_context *ctx) {
    run_epoch_of_ten(ctx, GSYNC_CLIENT_OVERWRITES, 0);
    run_epoch_of_ten(ctx, GSYNC_CLIENT_ACCUMULATES, 0);
}

static void GS_24_micro_batches_of_ones_average_to_one_in_every_window(ranks_context *ctx) {
    const int lengths[] = {4, 4, 2};
    const gsync_options options = window_options(GSYNC_CLIENT_OVERWRITES, 1);
    ranks_model *model = open_model(ctx, &options);
    for (size_t i = 0; i < 3; i++) {
        for (int micro = 0; micro < lengths[i]; micro++) {
            REQUIRE_OK(gsync_begin(model->reducer, micro + 1 == lengths[i] ? GSYNC_SYNC : GSYNC_ACCUMULATE));
            ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, 1.0);
            REQUIRE_OK(gsync_finish(model->reducer, NULL));
        }
        CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, 0), 1.0);
    }
}

/* ---- GS-25 ------------------------------------------------------------------------------------------------------ */

/* Windows of 4, epochs of 6: two micro-batches are left over, and gsync_finish_empty closes their window. */
static void run_flushed_epoch(ranks_model *model, const gsync_options *options, uint64_t first) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE_OK(window(model, options, first, 4, &info));
    CHECK_EQ(info.micro_batches, 4);
    check_window(model, first, 4, model->ctx->world * 4.0);
    const bool overwrites = options->accumulation == GSYNC_CLIENT_OVERWRITES;
    REQUIRE_OK(micro_batch(model, GSYNC_ACCUMULATE, first + 4, true, NULL));
    REQUIRE_OK(micro_batch(model, GSYNC_ACCUMULATE, first + 5, overwrites, NULL));
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    REQUIRE_OK(gsync_finish_empty(model->reducer, &info));
    CHECK_EQ(gsync_is_synced(model->reducer), 1);
    CHECK_EQ(info.micro_batches, 2);
    check_window(model, first + 4, 2, model->ctx->world * 2.0);
}

static void GS_25_a_flush_closes_the_window_and_the_next_epoch_starts_at_zero(ranks_context *ctx) {
    const gsync_accumulation modes[] = {GSYNC_CLIENT_ACCUMULATES, GSYNC_CLIENT_OVERWRITES};
    for (size_t i = 0; i < 2; i++) {
        const gsync_options options = window_options(modes[i], 1);
        ranks_model *model = open_model(ctx, &options);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            run_flushed_epoch(model, &options, 6 * epoch);
        }
        gsync_reducer_destroy(&model->reducer);
    }
}

/*
 * A flush by gsync_finish_empty says that the rank has no more data, and its window may be shorter: see GS-57. A rank
 * that closes its window with a synchronised micro-batch while the others go on accumulating is wrong.
 */
static void GS_25_closing_the_window_early_on_one_rank_only_is_a_mismatch_on_all(ranks_context *ctx) {
    const int odd = ctx->world - 1;
    const gsync_options options = window_options(GSYNC_CLIENT_ACCUMULATES, 1);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = open_model(ctx, &options);
    CHECK_STATUS(window(model, &options, 0, ctx->rank == odd ? 2 : 4, &info), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "2 micro-batches");
    CHECK_CONTAINS(gsync_last_error(), "4");
    CHECK_EQ(info.buckets_reduced, ctx->is_on_device ? info.bucket_count : 0); /* there it is noticed afterwards */
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    REQUIRE_OK(window(model, &options, 10, 4, &info));
    CHECK_EQ(info.micro_batches, 4);
    check_window(model, 10, 4, ctx->world * 4.0);
}

/* ---- GS-26 ------------------------------------------------------------------------------------------------------ */

/* Tries to begin the other phase after begin, after the first mark, and after the last; the first phase stands. */
static gsync_status toggle_during(ranks_model *model, gsync_phase phase, gsync_step_info *info) {
    const gsync_phase other = phase == GSYNC_SYNC ? GSYNC_ACCUMULATE : GSYNC_SYNC;
    CHECK_OK(gsync_begin(model->reducer, phase));
    CHECK_STATUS(gsync_begin(model->reducer, other), GSYNC_ERR_STATE);
    for (size_t i = TENSORS; i-- > 0;) {
        CHECK_OK(ranks_model_ready(model, i));
        CHECK_STATUS(gsync_begin(model->reducer, other), GSYNC_ERR_STATE);
    }
    return gsync_finish(model->reducer, info);
}

static void GS_26_a_toggle_inside_a_step_is_refused_and_the_sampled_phase_stands(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, NULL);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(toggle_during(model, GSYNC_ACCUMULATE, &info));
    CHECK_EQ(info.buckets_launched, 0);
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);

    REQUIRE_OK(toggle_during(model, GSYNC_SYNC, &info));
    CHECK_EQ(info.buckets_launched, 1);
    CHECK_EQ(info.micro_batches, 2); /* the refused begins count for nothing */
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void GS_26_a_phase_that_is_none_is_refused(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, NULL);
    CHECK_STATUS(gsync_begin(model->reducer, (gsync_phase)2), GSYNC_ERR_ARGUMENT);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void GS_26_phases_that_differ_between_ranks_are_a_mismatch_on_all(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, NULL);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    if (ctx->rank == 0) {
        CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_MISMATCH);
    } else {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_MISMATCH);
    }
    CHECK_CONTAINS(gsync_last_error(), "micro-batches");
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
}

/* Ranks that accumulate do not communicate, so only the deadline can tell. */
static void GS_26_a_rank_that_alone_synchronises_gets_a_timeout(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, NULL);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    if (ctx->rank == 0) {
        CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_TIMEOUT);
        CHECK_CONTAINS(gsync_last_error(), ranks_know_who_is_late(ctx) ? "rank 1" : "step 1");
    } else {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
    }
    ranks_meet(ctx);
}

/* ---- GS-27 ------------------------------------------------------------------------------------------------------ */

static void finish_twice(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 1; /* a bucket per gradient */
    ranks_model *model = open_model(ctx, &options);
    for (uint64_t step = 1; step <= 3; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, &info));
        CHECK_EQ(info.buckets_launched, TENSORS);
        for (int again = 0; again < 2; again++) {
            REQUIRE_OK(gsync_finish(model->reducer, &info));
            CHECK_EQ(info.step, step);
            CHECK_EQ(info.buckets_launched, TENSORS);
            CHECK_EQ(info.bucket_count, TENSORS);
            CHECK_EQ(gsync_is_synced(model->reducer), 1);
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        }
    }
}

static void GS_27_a_second_finish_does_nothing_while_a_helper_makes_progress(ranks_context *ctx) {
    finish_twice(ctx);
}

static void GS_27_a_second_finish_does_nothing_while_the_caller_makes_progress(ranks_context *ctx) {
    finish_twice(ctx);
}

static void GS_27_a_second_finish_of_an_accumulating_micro_batch_adds_nothing(ranks_context *ctx) {
    const gsync_options options = window_options(GSYNC_CLIENT_OVERWRITES, 0);
    ranks_model *model = open_model(ctx, &options);
    REQUIRE_OK(micro_batch(model, GSYNC_ACCUMULATE, 1, true, NULL));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    REQUIRE_OK(micro_batch(model, GSYNC_SYNC, 2, true, NULL));
    check_window(model, 1, 2, ctx->world);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_23_synchronising_the_last_micro_batch_gives_every_rank_the_windows_mean, .world_min = 2,
                           .world_max = 2),
           RANKS_TEST_WITH(GS_23_synchronising_the_first_instead_leaves_the_gradients_not_synced, .world_min = 2,
                           .world_max = 2),
           RANKS_TEST(GS_24_a_shorter_last_window_is_averaged_over_what_it_had),
           RANKS_TEST(GS_24_without_averaging_every_window_is_a_sum_over_its_micro_batches),
           RANKS_TEST(GS_24_micro_batches_of_ones_average_to_one_in_every_window),
           RANKS_TEST(GS_25_a_flush_closes_the_window_and_the_next_epoch_starts_at_zero),
           RANKS_TEST_WITH(GS_25_closing_the_window_early_on_one_rank_only_is_a_mismatch_on_all, .world_min = 2),
           RANKS_TEST(GS_26_a_toggle_inside_a_step_is_refused_and_the_sampled_phase_stands),
           RANKS_TEST(GS_26_a_phase_that_is_none_is_refused),
           RANKS_TEST_WITH(GS_26_phases_that_differ_between_ranks_are_a_mismatch_on_all, .world_min = 2),
           RANKS_TEST_WITH(GS_26_a_rank_that_alone_synchronises_gets_a_timeout, .world_min = 2, .timeout_ms = 500),
           RANKS_TEST_WITH(GS_27_a_second_finish_does_nothing_while_a_helper_makes_progress,
                           .progress = GSYNC_PROGRESS_HELPER),
           RANKS_TEST_WITH(GS_27_a_second_finish_does_nothing_while_the_caller_makes_progress,
                           .progress = GSYNC_PROGRESS_CALLER),
           RANKS_TEST(GS_27_a_second_finish_of_an_accumulating_micro_batch_adds_nothing))
