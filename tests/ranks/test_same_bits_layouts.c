/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=2,3,4 transports=threads,mpi timeout=60 */

/*
 * The same bits wherever the gradients are: apart, in one flat buffer (which threads reduce in place), in rows with
 * gaps, in the library's own buckets (where nothing is copied), and all of that mixed.
 */

#include "bits_model.h"

#include <stdio.h>

enum { TENSORS = 12 };
static const size_t counts[TENSORS] = {34, 0, 1, 2, 3, 7, 1009, 1020, 0, 2048, 51, 5003};
static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
static const size_t caps[] = {1, 4096, 8192, (size_t)1 << 20, (size_t)25 << 20, SIZE_MAX};
#define CAPS (sizeof caps / sizeof caps[0])

static bits_model *model_of(ranks_context *ctx, gsync_dtype dtype) {
    bits_shape shapes[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        shapes[i] = (bits_shape){counts[i], dtype};
    }
    const oracle_terms terms = {.world = ctx->world, .divisor = ctx->world};
    return bits_model_new(ctx, shapes, TENSORS, &terms);
}

/* What each step must have copied. */
typedef uint64_t (*copied_function)(const bits_model *model);

static uint64_t nothing(const bits_model *model) {
    (void)model;
    return 0;
}

/* At least: of each element, on all ranks but the one that adds it up, which may find it where it is. */
static uint64_t in_and_out(const bits_model *model) {
    return 2 * model->bytes * (uint64_t)(model->ctx->world - 1);
}

static uint64_t only_between_processes(const bits_model *model) {
    return model->ctx->transport == RANKS_MPI ? in_and_out(model) : 0;
}

static uint64_t most(const bits_model *model, uint64_t least) {
    return least == 0 ? 0 : least + 2 * model->bytes;
}

static void take_steps(bits_model *model, const gsync_options *options, bits_place place, copied_function copied) {
    ranks_random random =
        ranks_random_from(model->ctx->seed, options->bucket_bytes_max * 16 + (uint64_t)model->ctx->rank);
    char text[80];
    snprintf(text, sizeof text, "strategy %d order %d cap %zu", (int)options->strategy, (int)options->order,
             options->bucket_bytes_max);
    model->setting = text;
    REQUIRE_OK(bits_model_open(model, model->ctx->comm, options, place));
    for (int step = 0; step < 3; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        REQUIRE_OK(bits_model_step(model, step % BITS_ROUNDS, &random, &info));
        CHECK_EQ(info.bytes_reduced, model->bytes);
        if (copied != NULL && !model->ctx->is_on_device) { /* there sums in rank order are made elsewhere */
            int64_t sum = (int64_t)info.bytes_copied;
            CHECK_OK(gsync_allreduce(model->ctx->comm, &sum, 1, GSYNC_INT64, GSYNC_SUM));
            CHECK((uint64_t)sum >= copied(model) && (uint64_t)sum <= most(model, copied(model)));
        }
        REQUIRE(!ranks_has_failed(model->ctx));
    }
    bits_model_close(model);
}

static void try_place(ranks_context *ctx, bits_place place, gsync_order order, copied_function copied) {
    for (size_t d = 0; d < 4; d++) {
        bits_model *model = model_of(ctx, dtypes[d]);
        for (size_t c = 0; c < CAPS && !ranks_has_failed(ctx); c++) {
            gsync_options options = GSYNC_OPTIONS_INIT;
            options.strategy = (gsync_strategy)(c % 3);
            options.order = order;
            options.bucket_bytes_max = caps[c];
            take_steps(model, &options, place, copied);
        }
    }
}

static void gradients_apart_are_copied_in_and_out_once(ranks_context *ctx) {
    try_place(ctx, BITS_SHIFTED, GSYNC_ORDER_AGREED, ctx->transport == RANKS_MPI ? in_and_out : NULL);
}

static void a_flat_buffer_is_reduced_in_place_by_threads(ranks_context *ctx) {
    try_place(ctx, BITS_FLAT, GSYNC_ORDER_REGISTERED, only_between_processes);
}

static void a_flat_buffer_gives_the_same_bits_when_buckets_follow_the_observed_order(ranks_context *ctx) {
    try_place(ctx, BITS_FLAT, GSYNC_ORDER_AGREED, NULL);
}

static void rows_with_gaps_give_the_same_bits_and_keep_what_is_between_them(ranks_context *ctx) {
    try_place(ctx, BITS_PITCHED, GSYNC_ORDER_AGREED, NULL);
}

static void gradients_in_the_library_are_never_copied(ranks_context *ctx) {
    try_place(ctx, BITS_OWNED, GSYNC_ORDER_REGISTERED, nothing);
}

static void gradients_in_the_library_are_never_copied_when_the_launch_order_changes(ranks_context *ctx) {
    try_place(ctx, BITS_OWNED, GSYNC_ORDER_AGREED, nothing);
}

static void all_places_at_once_give_the_same_bits(ranks_context *ctx) {
    try_place(ctx, BITS_MIXED, GSYNC_ORDER_AGREED, NULL);
}

/* ---- Results that are held back until the ranks have agreed ----------------------------------------------------- */

static void try_deferred(ranks_context *ctx, gsync_accumulation accumulation) {
    static const bits_place places[] = {BITS_SHIFTED, BITS_FLAT, BITS_OWNED, BITS_MIXED};
    bits_model *model = model_of(ctx, GSYNC_FLOAT32);
    for (size_t p = 0; p < 4 && !ranks_has_failed(ctx); p++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.bucket_bytes_max = caps[p];
        options.accumulation = accumulation;
        options.checks_writes = accumulation == GSYNC_CLIENT_ACCUMULATES || p % 2 == 0;
        take_steps(model, &options, places[p], NULL);
    }
}

static void checking_writes_does_not_change_a_bit(ranks_context *ctx) {
    try_deferred(ctx, GSYNC_CLIENT_ACCUMULATES);
}

static void accumulating_in_the_library_does_not_change_a_bit_of_a_single_micro_batch(ranks_context *ctx) {
    try_deferred(ctx, GSYNC_CLIENT_OVERWRITES);
}

/* ---- Other divisions --------------------------------------------------------------------------------------------- */

static void try_op(ranks_context *ctx, gsync_op op, double divisor) {
    for (size_t d = 0; d < 4; d++) {
        bits_shape shapes[] = {{1009, dtypes[d]}, {3, dtypes[d]}, {2050, dtypes[d]}};
        const oracle_terms terms = {.world = ctx->world, .divisor = divisor};
        bits_model *model = bits_model_new(ctx, shapes, 3, &terms);
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.op = op;
        options.bucket_bytes_max = 4096;
        take_steps(model, &options, BITS_SHIFTED, NULL);
    }
}

static void a_sum_is_divided_by_nothing(ranks_context *ctx) {
    try_op(ctx, GSYNC_SUM, 1.0);
}

/* The same reducer, the ranks' gradients moved to other places between steps. */
static void gradients_that_move_give_the_same_bits(ranks_context *ctx) {
    bits_model *model = model_of(ctx, GSYNC_FLOAT32);
    ranks_random random = ranks_random_from(ctx->seed, 7000 + (uint64_t)ctx->rank);
    model->setting = "moving";
    REQUIRE_OK(bits_model_open(model, ctx->comm, NULL, BITS_APART));
    for (int step = 0; step < 3; step++) {
        void *places[TENSORS];
        for (size_t i = 0; i < TENSORS; i++) {
            bits_tensor *tensor = &model->tensors[i];
            places[i] = ranks_memory(ctx, tensor->count * sizeof(float));
            tensor->grad = places[i];
            tensor->block = NULL;
        }
        REQUIRE_OK(gsync_reducer_rebind_list(model->reducer, places, TENSORS));
        REQUIRE_OK(bits_model_step(model, step % BITS_ROUNDS, &random, NULL));
    }
}

RANKS_MAIN(RANKS_TEST(gradients_apart_are_copied_in_and_out_once),
           RANKS_TEST(a_flat_buffer_is_reduced_in_place_by_threads),
           RANKS_TEST(a_flat_buffer_gives_the_same_bits_when_buckets_follow_the_observed_order),
           RANKS_TEST(rows_with_gaps_give_the_same_bits_and_keep_what_is_between_them),
           RANKS_TEST(gradients_in_the_library_are_never_copied),
           RANKS_TEST(gradients_in_the_library_are_never_copied_when_the_launch_order_changes),
           RANKS_TEST(all_places_at_once_give_the_same_bits), RANKS_TEST(checking_writes_does_not_change_a_bit),
           RANKS_TEST(accumulating_in_the_library_does_not_change_a_bit_of_a_single_micro_batch),
           RANKS_TEST(a_sum_is_divided_by_nothing), RANKS_TEST(gradients_that_move_give_the_same_bits))
