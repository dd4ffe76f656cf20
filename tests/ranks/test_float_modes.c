/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/*
 * Trainers built with -Ofast flush subnormals to zero; others have floating-point traps on, to find their own NaN. The
 * library adds as IEEE says in both, on whatever thread it does so, and leaves the thread's settings as they were.
 */

#include "bits_model.h"
#include "float_setting.h"

#include <float.h>
#include <math.h>

static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* ---- Flushing -------------------------------------------------------------------------------------------------------
 */

/* Only some ranks flush, and they start to only after the helper threads were started. */
static void take_flushing_steps(bits_model *model, const gsync_options *options) {
    ranks_random random = ranks_random_from(model->ctx->seed, 50 + (uint64_t)model->ctx->rank);
    const bool flushes = model->ctx->rank != 1;
    model->setting = "flushing";
    REQUIRE_OK(bits_model_open(model, model->ctx->comm, options, BITS_SHIFTED));
    for (int step = 0; step < 4; step++) {
        bits_model_load(model, step % BITS_ROUNDS);
        flush_subnormals(flushes);
        gsync_status status = gsync_begin(model->reducer, GSYNC_SYNC);
        status = status != GSYNC_OK ? status : bits_model_mark(model, &random);
        const gsync_status finish = gsync_finish(model->reducer, NULL);
        const bool still_flushes = does_flush();
        flush_subnormals(false);
        REQUIRE_OK(status);
        REQUIRE_OK(finish);
        CHECK_EQ(still_flushes, flushes);
        bits_model_check(model, step % BITS_ROUNDS);
        REQUIRE(!ranks_has_failed(model->ctx));
    }
    bits_model_close(model);
}

static void ranks_that_flush_subnormals_get_the_bits_of_those_that_do_not(ranks_context *ctx) {
    if (!HAS_FLUSHING) {
        SKIP("how to flush subnormals here is not known");
    }
    for (size_t i = 0; i < 8 && !ranks_has_failed(ctx); i++) {
        const bits_shape shapes[] = {{3000, dtypes[i % 4]}, {7, dtypes[i % 4]}, {1009, dtypes[i % 4]}};
        const oracle_terms terms = {.world = ctx->world, .divisor = ctx->world};
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.bucket_bytes_max = 4096;
        options.accumulation = (gsync_accumulation)(i / 4);
        take_flushing_steps(bits_model_new(ctx, shapes, 3, &terms), &options);
    }
}

static void allreduce_gives_the_same_bits_to_ranks_that_flush_subnormals(ranks_context *ctx) {
    enum { COUNT = 5000 };
    if (!HAS_FLUSHING) {
        SKIP("how to flush subnormals here is not known");
    }
    void *buffer = ranks_memory(ctx, COUNT * sizeof(double));
    void *expected = ranks_memory(ctx, COUNT * sizeof(double));
    for (size_t d = 0; d < 4; d++) {
        const oracle_terms terms = {
            .dtype = dtypes[d], .world = ctx->world, .divisor = ctx->world, .key = oracle_key(ctx, 3, d)};
        oracle_fill(&terms, ctx->rank, buffer, COUNT);
        oracle_reduce(&terms, expected, COUNT);
        flush_subnormals(ctx->rank != 1);
        const gsync_status status = gsync_allreduce(ctx->comm, buffer, COUNT, dtypes[d], GSYNC_MEAN);
        flush_subnormals(false);
        REQUIRE_OK(status);
        CHECK_BITS(dtypes[d], buffer, expected, COUNT, "mean");
    }
}

/* ---- Traps ----------------------------------------------------------------------------------------------------------
 */

/* Element 0: infinity minus infinity; 1: NaN on rank 0; 2: a sum that overflows; 3: a signalling NaN; the rest: 1. */
static void fill_with_trouble(const ranks_context *ctx, void *buffer, gsync_dtype dtype, size_t count) {
    const double largest = dtype == GSYNC_FLOAT64 ? DBL_MAX : (dtype == GSYNC_FLOAT16 ? 65504.0 : 0x1.fep127);
    const size_t size = gsync_dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        ranks_store(buffer, dtype, i, 1.0);
    }
    ranks_store(buffer, dtype, 0, ctx->rank % 2 == 0 ? HUGE_VAL : -HUGE_VAL);
    ranks_store(buffer, dtype, 1, ctx->rank == 0 ? (double)NAN : 1.0);
    ranks_store(buffer, dtype, 2, largest);
    ranks_store(buffer, dtype, 3, HUGE_VAL);
    ((unsigned char *)buffer)[3 * size] |= 1; /* infinity and the lowest bit of the fraction */
}

static void check_trouble(const ranks_context *ctx, const void *buffer, gsync_dtype dtype, size_t count) {
    const double first = ranks_load(buffer, dtype, 0);
    CHECK(ctx->world > 1 ? isnan(first) : isinf(first));
    CHECK(isnan(ranks_load(buffer, dtype, 1)));
    CHECK(isnan(ranks_load(buffer, dtype, 3)));
    CHECK_REAL(ranks_load(buffer, dtype, 4), 1.0);
    CHECK_REAL(ranks_load(buffer, dtype, count - 1), 1.0);
}

/* One step with traps on from begin to finish. */
static gsync_status take_trapping_step(ranks_model *model, bool is_weighted) {
    set_traps(true);
    const int before = traps_now();
    gsync_status status = gsync_begin(model->reducer, GSYNC_SYNC);
    if (status == GSYNC_OK && is_weighted) {
        status = gsync_set_weight(model->reducer, 0.1);
    }
    if (status == GSYNC_OK) {
        status = ranks_model_ready(model, 0);
    }
    const gsync_status finish = gsync_finish(model->reducer, NULL);
    const int after = traps_now();
    set_traps(false);
    CHECK_EQ(after, before);
    return status != GSYNC_OK ? status : finish;
}

static void try_traps(ranks_context *ctx, gsync_dtype dtype, gsync_options options) {
    const size_t count = 1500;
    ranks_model *model = ranks_model_new(ctx, &count, 1, dtype);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (int step = 0; step < 2; step++) {
        fill_with_trouble(ctx, model->tensors[0].grad, dtype, count);
        REQUIRE_OK(take_trapping_step(model, options.op == GSYNC_WEIGHTED_MEAN));
        if (options.op == GSYNC_MEAN) {
            check_trouble(ctx, model->tensors[0].grad, dtype, count);
        }
    }
}

static void a_trainer_with_traps_on_may_have_infinities_and_NaN_in_its_gradients(ranks_context *ctx) {
    if (!HAS_TRAPS) {
        SKIP("how to set traps here is not known");
    }
    for (size_t d = 0; d < 4 && !ranks_has_failed(ctx); d++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        try_traps(ctx, dtypes[d], options);
        options.op = GSYNC_WEIGHTED_MEAN;
        try_traps(ctx, dtypes[d], options);
        options.op = GSYNC_MEAN;
        options.accumulation = GSYNC_CLIENT_OVERWRITES;
        try_traps(ctx, dtypes[d], options);
        options.op = GSYNC_WEIGHTED_MEAN;
        options.weighting = GSYNC_WEIGHT_OF_MEANS;
        try_traps(ctx, dtypes[d], options);
    }
}

static void metrics_with_infinities_and_NaN_do_not_trap_either(ranks_context *ctx) {
    static const gsync_op ops[] = {GSYNC_SUM, GSYNC_MEAN, GSYNC_MIN, GSYNC_MAX};
    if (!HAS_TRAPS) {
        SKIP("how to set traps here is not known");
    }
    double *values = ranks_memory(ctx, 10 * sizeof(double));
    for (size_t i = 0; i < 16; i++) {
        fill_with_trouble(ctx, values, dtypes[i % 4], 10);
        set_traps(true);
        const gsync_status status = gsync_allreduce(ctx->comm, values, 10, dtypes[i % 4], ops[i / 4]);
        set_traps(false);
        REQUIRE_OK(status);
        CHECK(isnan(ranks_load(values, dtypes[i % 4], 1)));
    }
}

static void windows_that_the_library_adds_up_do_not_trap(ranks_context *ctx) {
    const size_t count = 40;
    gsync_options options = GSYNC_OPTIONS_INIT;
    if (!HAS_TRAPS) {
        SKIP("how to set traps here is not known");
    }
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT16);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (int batch = 0; batch < 3; batch++) {
        fill_with_trouble(ctx, model->tensors[0].grad, GSYNC_FLOAT16, count);
        ranks_store(model->tensors[0].grad, GSYNC_FLOAT16, 0, batch % 2 == 0 ? HUGE_VAL : -HUGE_VAL);
        set_traps(true);
        gsync_status status = gsync_begin(model->reducer, batch == 2 ? GSYNC_SYNC : GSYNC_ACCUMULATE);
        const gsync_status finish = gsync_finish(model->reducer, NULL);
        set_traps(false);
        REQUIRE_OK(status);
        REQUIRE_OK(finish);
    }
    CHECK(isnan(ranks_load(model->tensors[0].grad, GSYNC_FLOAT16, 0)));
    CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT16, 4), 3.0);
}

/* Values that are asked about, not only those that are added. */
static void nonsense_arguments_are_refused_and_do_not_trap(ranks_context *ctx) {
    const size_t count = 4;
    const volatile double nan = (double)NAN;
    gsync_options options = GSYNC_OPTIONS_INIT;
    if (!HAS_TRAPS) {
        SKIP("how to set traps here is not known");
    }
    options.op = GSYNC_WEIGHTED_MEAN;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    set_traps(true);
    const gsync_status of_nan = gsync_set_weight(model->reducer, nan);
    const gsync_status of_infinity = gsync_set_weight(model->reducer, HUGE_VAL);
    const double scales[] = {gsync_lr_scale(GSYNC_LR_LINEAR, 0, 5), gsync_lr_scale(GSYNC_LR_SQRT, nan, 5),
                             gsync_lr_scale(GSYNC_LR_LINEAR, 5, nan), gsync_lr_scale(GSYNC_LR_SQRT, 4, -1),
                             gsync_lr_scale(GSYNC_LR_LINEAR, HUGE_VAL, HUGE_VAL)};
    set_traps(false);
    CHECK_STATUS(of_nan, GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(of_infinity, GSYNC_ERR_ARGUMENT);
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        CHECK_REAL(scales[i], 0);
    }
    REQUIRE_OK(gsync_set_weight(model->reducer, 1));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_HELPER), RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_CALLER)

RANKS_MAIN(BOTH(ranks_that_flush_subnormals_get_the_bits_of_those_that_do_not),
           RANKS_TEST(allreduce_gives_the_same_bits_to_ranks_that_flush_subnormals),
           BOTH(a_trainer_with_traps_on_may_have_infinities_and_NaN_in_its_gradients),
           RANKS_TEST(metrics_with_infinities_and_NaN_do_not_trap_either),
           BOTH(windows_that_the_library_adds_up_do_not_trap),
           RANKS_TEST(nonsense_arguments_are_refused_and_do_not_trap))
