/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=3 transports=threads,mpi timeout=60 */

/*
 * GS-39: a rank meets an invalid batch and quietly goes on to the next. Windows and step counts must not drift apart,
 * and nobody may hang. A trainer has two good ways, and the bad one is found out.
 */

#include "ranks.h"

enum { WINDOW = 3, WINDOWS = 2, COUNT = 40, CULPRIT = 1 };

/* Rank r's gradient of micro-batch m: tells both apart. */
static double value_of(int rank, int batch, size_t element) {
    return (double)(rank * 100 + batch * 10) + (double)element;
}

static void backward(ranks_model *model, int batch, bool adds) {
    float *grad = model->tensors[0].grad;
    for (size_t i = 0; i < COUNT; i++) {
        grad[i] = (adds ? grad[i] : 0.0f) + (float)value_of(model->ctx->rank, batch, i);
    }
}

static void zero(ranks_model *model) {
    float *grad = model->tensors[0].grad;
    for (size_t i = 0; i < COUNT; i++) {
        grad[i] = 0.0f;
    }
}

static ranks_model *open_model(ranks_context *ctx, gsync_options options) {
    static const size_t counts[] = {COUNT};
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static gsync_options with_accumulation(int accumulation) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = (gsync_accumulation)accumulation;
    return options;
}

/* ---- All skip what one cannot use -------------------------------------------------------------------------------- */

/* The vote: one small message per micro-batch. */
static bool does_anybody_skip(ranks_context *ctx, bool i_skip) {
    int32_t skips = i_skip;
    CHECK_OK(gsync_allreduce(ctx->comm, &skips, 1, GSYNC_INT32, GSYNC_MAX));
    return skips != 0;
}

/* Micro-batches that were voted out are as if they had never been; where it is the last, finish_empty closes the
 * window with the others. */
static void run_voted_window(ranks_model *model, int skipped, bool adds, gsync_step_info *info) {
    zero(model);
    for (int batch = 0; batch < WINDOW; batch++) {
        const bool is_last = batch == WINDOW - 1;
        const bool i_skip = model->ctx->rank == CULPRIT && batch == skipped;
        if (!does_anybody_skip(model->ctx, i_skip)) {
            REQUIRE_OK(gsync_begin(model->reducer, is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE));
            backward(model, batch, adds);
            REQUIRE_OK(gsync_finish(model->reducer, info));
        } else if (is_last) {
            REQUIRE_OK(gsync_finish_empty(model->reducer, info));
        }
    }
}

static void check_voted_window(const ranks_model *model, int skipped, const gsync_step_info *info) {
    CHECK_EQ(info->micro_batches, WINDOW - 1);
    CHECK_EQ(info->participants, model->ctx->world);
    for (size_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int rank = 0; rank < model->ctx->world; rank++) {
            for (int batch = 0; batch < WINDOW; batch++) {
                sum += batch == skipped ? 0.0 : value_of(rank, batch, i);
            }
        }
        const float expected = (float)(sum / (model->ctx->world * (WINDOW - 1.0)));
        REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, i), (double)expected));
    }
}

static void GS_39_a_vote_makes_all_ranks_skip_the_micro_batch(ranks_context *ctx) {
    for (int accumulation = GSYNC_CLIENT_ACCUMULATES; accumulation <= GSYNC_CLIENT_OVERWRITES; accumulation++) {
        gsync_options options = with_accumulation(accumulation);
        options.averages_window = 1;
        ranks_model *model = open_model(ctx, options);
        REQUIRE(!ranks_has_failed(ctx));
        for (int skipped = 0; skipped < WINDOW; skipped++) {
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            run_voted_window(model, skipped, accumulation == GSYNC_CLIENT_ACCUMULATES, &info);
            check_voted_window(model, skipped, &info);
            CHECK_EQ(info.step, skipped + 1);
            CHECK_SAME_ON_ALL(ctx, info.step);
        }
        gsync_reducer_destroy(&model->reducer);
    }
}

/* ---- The others go on -------------------------------------------------------------------------------------------- */

/* The rank without a batch takes part all the same, with zeros and, where weights count, with weight 0. */
static void run_weighed_window(ranks_model *model, int skipped, bool adds, gsync_step_info *info) {
    zero(model);
    for (int batch = 0; batch < WINDOW; batch++) {
        const bool i_skip = model->ctx->rank == CULPRIT && batch == skipped;
        REQUIRE_OK(gsync_begin(model->reducer, batch == WINDOW - 1 ? GSYNC_SYNC : GSYNC_ACCUMULATE));
        REQUIRE_OK(gsync_set_weight(model->reducer, i_skip ? 0.0 : 2.0));
        if (!i_skip) {
            backward(model, batch, adds);
        } else if (!adds) {
            zero(model); /* or the library adds up the micro-batch before once more */
        }
        REQUIRE_OK(gsync_finish(model->reducer, info));
    }
}

static void check_weighed_window(const ranks_model *model, int skipped, const gsync_step_info *info) {
    const double weights = 2.0 * (model->ctx->world * WINDOW - 1);
    CHECK_EQ(info->micro_batches, WINDOW);
    CHECK_REAL(info->weight_total, weights);
    for (size_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int rank = 0; rank < model->ctx->world; rank++) {
            for (int batch = 0; batch < WINDOW; batch++) {
                sum += rank == CULPRIT && batch == skipped ? 0.0 : value_of(rank, batch, i);
            }
        }
        REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, i), (double)(float)(sum / weights)));
    }
}

static void GS_39_a_rank_alone_can_leave_out_a_micro_batch_with_weight_0(ranks_context *ctx) {
    for (int accumulation = GSYNC_CLIENT_ACCUMULATES; accumulation <= GSYNC_CLIENT_OVERWRITES; accumulation++) {
        gsync_options options = with_accumulation(accumulation);
        options.op = GSYNC_WEIGHTED_MEAN;
        ranks_model *model = open_model(ctx, options);
        REQUIRE(!ranks_has_failed(ctx));
        for (int skipped = 0; skipped < WINDOW; skipped++) {
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            run_weighed_window(model, skipped, accumulation == GSYNC_CLIENT_ACCUMULATES, &info);
            check_weighed_window(model, skipped, &info);
            CHECK_EQ(info.step, skipped + 1);
        }
        gsync_reducer_destroy(&model->reducer);
    }
}

/* ---- A local `continue` ------------------------------------------------------------------------------------------ */

static void GS_39_a_rank_that_quietly_goes_on_is_found_out_and_the_next_window_works(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, with_accumulation(GSYNC_CLIENT_ACCUMULATES));
    REQUIRE(!ranks_has_failed(ctx));
    for (int window = 0; window < WINDOWS; window++) {
        const int batches = ctx->rank == CULPRIT && window == 0 ? WINDOW - 1 : WINDOW;
        const gsync_status expected = window == 0 ? GSYNC_ERR_MISMATCH : GSYNC_OK;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        zero(model);
        for (int batch = 0; batch < batches; batch++) {
            const bool is_last = batch == batches - 1;
            REQUIRE_OK(gsync_begin(model->reducer, is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE));
            backward(model, batch, true);
            REQUIRE_STATUS(gsync_finish(model->reducer, &info), is_last ? expected : GSYNC_OK);
        }
        CHECK_EQ(info.step, window);
        CHECK_EQ(gsync_is_synced(model->reducer), window == 1);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(GS_39_a_vote_makes_all_ranks_skip_the_micro_batch, .world_min = 3),
           RANKS_TEST_WITH(GS_39_a_rank_alone_can_leave_out_a_micro_batch_with_weight_0, .world_min = 3),
           RANKS_TEST_WITH(GS_39_a_rank_that_quietly_goes_on_is_found_out_and_the_next_window_works, .world_min = 3))
