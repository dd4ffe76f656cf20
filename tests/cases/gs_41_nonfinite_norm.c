/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/*
 * GS-41: clipping by a norm that is inf or NaN makes all gradients 0 or NaN. Here the norm is computed in float64, and
 * where it still is not finite the call says so and leaves the gradients alone. Also what clipping reads and writes,
 * and what it leaves out.
 */

#include "ranks.h"

#include <math.h>
#include <string.h>

static ranks_model *open_model(ranks_context *ctx, const size_t *counts, size_t n, gsync_dtype dtype,
                               gsync_options options) {
    ranks_model *model = ranks_model_new(ctx, counts, n, dtype);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static void store_all(const ranks_tensor *tensor, double value) {
    for (size_t i = 0; i < tensor->count; i++) {
        ranks_store(tensor->grad, tensor->dtype, i, value);
    }
}

static void check_all(const ranks_tensor *tensor, double expected, double tolerance) {
    for (size_t i = 0; i < tensor->count; i++) {
        REQUIRE_THAT(CHECK_NEAR(ranks_load(tensor->grad, tensor->dtype, i), expected, tolerance));
    }
}

static gsync_options options_with_norm(int computes_norm) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.computes_norm = computes_norm;
    return options;
}

/* 100 times the value, so that the norm is 10 times it. */
static void clip_hundred(ranks_context *ctx, gsync_dtype dtype, double value, int computes_norm) {
    const size_t counts[] = {100};
    double norm = 0;
    ranks_model *model = open_model(ctx, counts, 1, dtype, options_with_norm(computes_norm));
    REQUIRE(!ranks_has_failed(ctx));
    store_all(&model->tensors[0], value);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1.0, &norm));
    CHECK_NEAR(norm, 10 * value, 1e-6 * 10 * value);
    check_all(&model->tensors[0], 0.1, 0.1 * 1e-6);
    /* Below max_norm nothing happens. */
    store_all(&model->tensors[0], value);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 11 * value, &norm));
    check_all(&model->tensors[0], ranks_rounded(dtype, value), 0);
    gsync_reducer_destroy(&model->reducer);
}

static void GS_41_the_norm_of_huge_gradients_is_finite_and_clips_them(ranks_context *ctx) {
    for (int computes_norm = 0; computes_norm < 2; computes_norm++) {
        clip_hundred(ctx, GSYNC_FLOAT32, 1.0, computes_norm);
        clip_hundred(ctx, GSYNC_FLOAT32, 1e20, computes_norm);
        clip_hundred(ctx, GSYNC_FLOAT32, 5e37, computes_norm);
        clip_hundred(ctx, GSYNC_FLOAT64, 1e200, computes_norm); /* its square is beyond float64 */
        clip_hundred(ctx, GSYNC_FLOAT64, 1e307, computes_norm);
    }
}

static void a_norm_whose_squares_vanish_in_float64_is_right(ranks_context *ctx) {
    const size_t counts[] = {100};
    double norm = 0;
    ranks_model *model = open_model(ctx, counts, 1, GSYNC_FLOAT64, options_with_norm(0));
    REQUIRE(!ranks_has_failed(ctx));
    store_all(&model->tensors[0], 1e-200);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1e-200, &norm));
    CHECK_NEAR(norm, 1e-199, 1e-212);
    check_all(&model->tensors[0], 1e-201, 1e-214);
}

/* The quotient of both is far below what float64 holds with all its bits. */
static void a_norm_far_beyond_max_norm_loses_no_bits(ranks_context *ctx) {
    const size_t counts[] = {4};
    ranks_model *model = open_model(ctx, counts, 1, GSYNC_FLOAT64, options_with_norm(0));
    REQUIRE(!ranks_has_failed(ctx));
    store_all(&model->tensors[0], 3e300);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1e-20, NULL));
    check_all(&model->tensors[0], 5e-21, 5e-33);
}

static void meet_one_bad_value(ranks_context *ctx, gsync_dtype dtype, double bad, int computes_norm) {
    const size_t counts[] = {3, 1030};
    const int culprit = ctx->world - 1;
    ranks_model *model = open_model(ctx, counts, 2, dtype, options_with_norm(computes_norm));
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    if (ctx->rank == culprit) {
        ranks_store(model->tensors[1].grad, dtype, 1027, bad);
    }
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    unsigned char before[1030 * 8];
    const size_t bytes = 1030 * gsync_dtype_size(dtype);
    double norm = 0;
    memcpy(before, model->tensors[1].grad, bytes);
    CHECK_STATUS(gsync_clip_grad_norm(model->reducer, 1.0, &norm), GSYNC_ERR_NONFINITE);
    CHECK(isnan(bad) ? isnan(norm) : isinf(norm));
    CHECK(memcmp(before, model->tensors[1].grad, bytes) == 0);
    const ranks_source first = {.kind = RANKS_INTEGERS, .round = 1};
    CHECK_REDUCED(ctx, model->tensors[0].grad, 3, dtype, first, ctx->world);
    /* The next step is as good as any. */
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1e9, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);
    gsync_reducer_destroy(&model->reducer);
}

static void GS_41_a_norm_that_is_not_finite_leaves_every_bit_on_every_rank(ranks_context *ctx) {
    const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t d = 0; d < 4; d++) {
        for (int computes_norm = 0; computes_norm < 2; computes_norm++) {
            meet_one_bad_value(ctx, dtypes[d], (double)INFINITY, computes_norm);
            meet_one_bad_value(ctx, dtypes[d], -(double)INFINITY, computes_norm);
            meet_one_bad_value(ctx, dtypes[d], (double)NAN, computes_norm);
        }
    }
}

/* ---- What is asked for at the wrong moment ----------------------------------------------------------------------- */

static void clipping_needs_a_result_and_a_sensible_limit(ranks_context *ctx) {
    const size_t counts[] = {100};
    double norm = 77;
    gsync_reducer *reducer = NULL;
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    CHECK_STATUS(gsync_clip_grad_norm(NULL, 1.0, &norm), GSYNC_ERR_ARGUMENT);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    reducer = model->reducer;
    CHECK_STATUS(gsync_clip_grad_norm(reducer, 1.0, &norm), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_reducer_commit(reducer));
    CHECK_STATUS(gsync_clip_grad_norm(reducer, 1.0, &norm), GSYNC_ERR_STATE);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    const double limits[] = {0.0, -1.0, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        CHECK_STATUS(gsync_clip_grad_norm(reducer, limits[i], &norm), GSYNC_ERR_ARGUMENT);
        CHECK_CONTAINS(gsync_last_error(), "max_norm");
    }
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(reducer, GSYNC_ACCUMULATE));
    CHECK_STATUS(gsync_clip_grad_norm(reducer, 1.0, &norm), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_finish(reducer, NULL));
    CHECK_STATUS(gsync_clip_grad_norm(reducer, 1.0, &norm), GSYNC_ERR_STATE);
    CHECK_REAL(norm, 77);
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void clipping_again_goes_on_from_the_clipped_gradients(ranks_context *ctx) {
    const size_t counts[] = {100};
    for (int computes_norm = 0; computes_norm < 2; computes_norm++) {
        double norm = 0;
        ranks_model *model = open_model(ctx, counts, 1, GSYNC_FLOAT32, options_with_norm(computes_norm));
        REQUIRE(!ranks_has_failed(ctx));
        for (int step = 0; step < 2; step++) {
            store_all(&model->tensors[0], 1.0);
            REQUIRE_OK(ranks_model_step(model, NULL, NULL));
            REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 5.0, &norm));
            CHECK_NEAR(norm, 10.0, 1e-9);
            check_all(&model->tensors[0], 0.5, 0);
            REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 20.0, &norm));
            CHECK_NEAR(norm, 5.0, 1e-9);
            check_all(&model->tensors[0], 0.5, 0);
            REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1.0, &norm));
            CHECK_NEAR(norm, 5.0, 1e-9);
            check_all(&model->tensors[0], 0.1, 1e-8);
        }
        gsync_reducer_destroy(&model->reducer);
    }
}

/* ---- What counts ------------------------------------------------------------------------------------------------- */

/* p0 is frozen and p2 is used by nobody; both hold what would dwarf the rest. p3 has no elements. */
static void what_the_step_did_not_write_is_neither_counted_nor_scaled(ranks_context *ctx) {
    const size_t counts[] = {10, 100, 10, 0};
    for (int trial = 0; trial < 4; trial++) {
        double norm = 0;
        gsync_options options = options_with_norm(trial % 2);
        options.finds_unused = trial / 2;
        ranks_model *model = ranks_model_new(ctx, counts, 4, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_register(model, NULL, &options));
        REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p0", 0));
        REQUIRE_OK(gsync_reducer_commit(model->reducer));
        store_all(&model->tensors[0], 1e30);
        store_all(&model->tensors[1], 1.0);
        store_all(&model->tensors[2], options.finds_unused ? (double)NAN : 0.0);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(ranks_model_ready(model, 1));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 1.0, &norm));
        CHECK_NEAR(norm, 10.0, 1e-9);
        check_all(&model->tensors[1], 0.1, 1e-8);
        check_all(&model->tensors[0], ranks_rounded(GSYNC_FLOAT32, 1e30), 0);
        CHECK(!options.finds_unused || isnan(ranks_load(model->tensors[2].grad, GSYNC_FLOAT32, 9)));
        gsync_reducer_destroy(&model->reducer);
    }
}

/* Three rows of 1500, as far apart as each rank likes. What lies between them is not even looked at. */
static void matrices_count_by_their_elements_whatever_their_pitch(ranks_context *ctx) {
    enum { ROWS = 3, COLUMNS = 1500 };
    const size_t pitch = COLUMNS + 3 * (size_t)ctx->rank;
    float *grad = ranks_memory(ctx, ROWS * pitch * sizeof *grad);
    gsync_reducer *reducer = NULL;
    double norm = 0;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    REQUIRE_OK(gsync_reducer_add_matrix(reducer, "matrix", grad, ROWS, COLUMNS, pitch, GSYNC_FLOAT32));
    REQUIRE_OK(gsync_reducer_commit(reducer));
    for (size_t i = 0; i < ROWS * pitch; i++) {
        grad[i] = i % pitch < COLUMNS ? (float)(i / pitch * COLUMNS + i % pitch) * 0.37f : NAN;
    }
    REQUIRE_OK(gsync_begin(reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_finish(reducer, NULL));
    const float before = grad[2 * pitch + 5];
    REQUIRE_OK(gsync_clip_grad_norm(reducer, 10.0, &norm));
    uint64_t bits;
    memcpy(&bits, &norm, sizeof bits);
    CHECK_SAME_ON_ALL(ctx, bits);
    CHECK_NEAR(grad[2 * pitch + 5], (double)before * 10.0 / norm, 1e-7);
    CHECK(pitch == COLUMNS || isnan(grad[pitch - 1]));
    gsync_reducer_destroy(&reducer);
}

/* Gradients in the library's memory, and those that it adds up itself over a window of two. */
static void clips_gradients_wherever_they_live(ranks_context *ctx) {
    const size_t counts[] = {40, 60};
    for (int trial = 0; trial < 4; trial++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        const bool has_views = trial % 2 != 0;
        double norm = 0;
        options.accumulation = trial < 2 ? GSYNC_CLIENT_ACCUMULATES : GSYNC_CLIENT_OVERWRITES;
        ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_BFLOAT16);
        for (size_t i = 0; has_views && i < 2; i++) {
            model->tensors[i].grad = NULL;
        }
        REQUIRE_OK(ranks_model_open(model, &options));
        for (size_t i = 0; i < 2; i++) {
            model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
        }
        for (int batch = 0; batch < 2; batch++) {
            store_all(&model->tensors[0], 1.0);
            store_all(&model->tensors[1], 1.0);
            REQUIRE_OK(gsync_begin(model->reducer, batch == 0 ? GSYNC_ACCUMULATE : GSYNC_SYNC));
            REQUIRE_OK(gsync_finish(model->reducer, NULL));
        }
        const double each = trial < 2 ? 1.0 : 2.0; /* backward here never adds */
        REQUIRE_OK(gsync_clip_grad_norm(model->reducer, 5.0, &norm));
        CHECK_NEAR(norm, 10.0 * each, 1e-9);
        check_all(&model->tensors[0], 0.5, 0);
        check_all(&model->tensors[1], 0.5, 0);
        gsync_reducer_destroy(&model->reducer);
    }
}

RANKS_MAIN(RANKS_TEST(GS_41_the_norm_of_huge_gradients_is_finite_and_clips_them),
           RANKS_TEST(GS_41_a_norm_that_is_not_finite_leaves_every_bit_on_every_rank),
           RANKS_TEST(a_norm_whose_squares_vanish_in_float64_is_right),
           RANKS_TEST(a_norm_far_beyond_max_norm_loses_no_bits),
           RANKS_TEST(clipping_needs_a_result_and_a_sensible_limit),
           RANKS_TEST(clipping_again_goes_on_from_the_clipped_gradients),
           RANKS_TEST(what_the_step_did_not_write_is_neither_counted_nor_scaled),
           RANKS_TEST(matrices_count_by_their_elements_whatever_their_pitch),
           RANKS_TEST(clips_gradients_wherever_they_live))
