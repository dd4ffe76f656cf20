/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * GS-54: buffers that are aligned to one element and no more. Run it under AddressSanitizer and
 * UndefinedBehaviorSanitizer too (cmake --workflow --preset asan). The row also asks for GPUs, which this library does
 * not have yet.
 */

#include "ranks.h"

#include <string.h>

static const gsync_dtype gradient_dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
#define GRADIENT_DTYPES (sizeof(gradient_dtypes) / sizeof(gradient_dtypes[0]))

/* The element before and the element behind, which belong to nobody. */
#define FENCE 0x5a

/* Room for count elements that start one element into an aligned block. */
static void *odd_place(ranks_context *ctx, size_t count, gsync_dtype dtype) {
    const size_t size = gsync_dtype_size(dtype);
    unsigned char *block = ranks_memory(ctx, (count + 2) * size);
    memset(block, FENCE, (count + 2) * size);
    return block + size;
}

static void check_fences(const ranks_tensor *tensor) {
    const size_t size = gsync_dtype_size(tensor->dtype);
    const unsigned char *first = tensor->grad;
    for (size_t i = 0; i < size; i++) {
        CHECK_EQ(first[i - size], FENCE);
        CHECK_EQ(first[tensor->count * size + i], FENCE);
    }
}

static void check_odd_places(ranks_context *ctx, gsync_dtype dtype, const gsync_options *options) {
    static const size_t counts[] = {1, 5, 17, 333};
    ranks_model *model = ranks_model_new(ctx, counts, 4, dtype);
    for (size_t i = 0; i < 4; i++) {
        model->tensors[i].grad = odd_place(ctx, counts[i], dtype);
    }
    REQUIRE_OK(ranks_model_open(model, options));
    for (uint64_t step = 1; step <= 2; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        for (size_t i = 0; i < 4; i++) {
            check_fences(&model->tensors[i]);
        }
    }
}

static void GS_54_one_element_behind_an_aligned_address(ranks_context *ctx) {
    for (size_t i = 0; i < GRADIENT_DTYPES; i++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        check_odd_places(ctx, gradient_dtypes[i], &options);
        options.strategy = GSYNC_STRATEGY_FIXED;
        options.bucket_bytes_max = 1; /* alone in its bucket, a gradient may be reduced where it lies */
        check_odd_places(ctx, gradient_dtypes[i], &options);
        options.accumulation = GSYNC_CLIENT_OVERWRITES;
        check_odd_places(ctx, gradient_dtypes[i], &options);
    }
}

/* Slices of one flat buffer, at every offset from a vector's boundary. */
static void GS_54_slices_of_a_flat_buffer_at_every_offset(ranks_context *ctx) {
    static const size_t counts[] = {7, 3, 129, 1, 64, 5};
    for (size_t shift = 0; shift < 17; shift++) {
        ranks_model *model = ranks_model_new(ctx, counts, 6, GSYNC_BFLOAT16);
        uint16_t *at = (uint16_t *)ranks_memory(ctx, (209 + shift) * sizeof(uint16_t)) + shift;
        for (size_t i = 0; i < 6; i++) {
            model->tensors[i].grad = at;
            at += counts[i];
        }
        REQUIRE_OK(ranks_model_open(model, NULL));
        ranks_model_fill(model, RANKS_INTEGERS, shift);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, shift);
    }
}

/* Small types with odd counts before large ones. */
static ranks_model *mixed_model(ranks_context *ctx) {
    static const size_t counts[] = {3, 5, 7, 1, 9, 11, 2, 13};
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT16,  GSYNC_FLOAT64, GSYNC_BFLOAT16, GSYNC_FLOAT32,
                                         GSYNC_BFLOAT16, GSYNC_FLOAT64, GSYNC_FLOAT16,  GSYNC_FLOAT32};
    ranks_model *model = ranks_model_new(ctx, counts, 8, GSYNC_FLOAT64);
    for (size_t i = 0; i < 8; i++) {
        model->tensors[i].dtype = dtypes[i];
        model->tensors[i].grad = odd_place(ctx, counts[i], dtypes[i]);
    }
    return model;
}

static void GS_54_odd_halves_before_doubles_in_one_reducer(ranks_context *ctx) {
    for (int strategy = GSYNC_STRATEGY_DDP; strategy <= GSYNC_STRATEGY_SINGLE; strategy++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.strategy = (gsync_strategy)strategy;
        ranks_model *model = mixed_model(ctx);
        REQUIRE_OK(ranks_model_open(model, &options));
        for (uint64_t step = 1; step <= 2; step++) {
            ranks_model_fill(model, RANKS_INTEGERS, step);
            REQUIRE_OK(ranks_model_step(model, NULL, NULL));
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        }
        for (size_t i = 0; i < model->tensor_count; i++) {
            check_fences(&model->tensors[i]);
        }
    }
}

static void GS_54_places_in_the_librarys_memory_are_aligned(ranks_context *ctx) {
    for (int overwrites = 0; overwrites <= 1; overwrites++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.accumulation = overwrites ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
        ranks_model *model = mixed_model(ctx);
        for (size_t i = 0; i < model->tensor_count; i++) {
            model->tensors[i].grad = NULL;
        }
        REQUIRE_OK(ranks_model_open(model, &options));
        for (size_t i = 0; i < model->tensor_count; i++) {
            ranks_tensor *tensor = &model->tensors[i];
            tensor->grad = gsync_reducer_grad(model->reducer, tensor->name);
            REQUIRE(tensor->grad != NULL);
            CHECK_EQ((uintptr_t)tensor->grad % gsync_dtype_size(tensor->dtype), 0);
        }
        ranks_model_fill(model, RANKS_INTEGERS, 4);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 4);
    }
}

/* Half an element off is a mistake in the trainer, and is said so at once instead of at a later fault. */
static void GS_54_half_an_element_off_is_refused_by_name(ranks_context *ctx) {
    for (size_t i = 0; i < GRADIENT_DTYPES; i++) {
        const gsync_dtype dtype = gradient_dtypes[i];
        unsigned char *block = ranks_memory(ctx, 4 * gsync_dtype_size(dtype));
        gsync_reducer *reducer = NULL;
        REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
        CHECK_STATUS(gsync_reducer_add(reducer, "crooked", block + gsync_dtype_size(dtype) / 2, 3, dtype),
                     GSYNC_ERR_ARGUMENT);
        CHECK_CONTAINS(gsync_last_error(), "'crooked'");
        CHECK_OK(gsync_reducer_add(reducer, "crooked", block, 3, dtype));
        CHECK_STATUS(gsync_reducer_rebind(reducer, "crooked", block + 1), GSYNC_ERR_ARGUMENT);
        CHECK_CONTAINS(gsync_last_error(), "'crooked'");
        gsync_reducer_destroy(&reducer);
    }
}

RANKS_MAIN(RANKS_TEST(GS_54_one_element_behind_an_aligned_address),
           RANKS_TEST(GS_54_slices_of_a_flat_buffer_at_every_offset),
           RANKS_TEST(GS_54_odd_halves_before_doubles_in_one_reducer),
           RANKS_TEST(GS_54_places_in_the_librarys_memory_are_aligned),
           RANKS_TEST(GS_54_half_an_element_off_is_refused_by_name))
