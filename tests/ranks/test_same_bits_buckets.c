/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=2,3,4 transports=threads,mpi timeout=90 */

/*
 * The same bits, those of a serial sum in rank order, for every way of cutting gradients into buckets, every ready
 * order, with a helper thread and without. As the bits are those of the serial oracle, transports agree too.
 */

#include "bits_model.h"

#include <stdio.h>

#define KIB ((size_t)1024)
#define MIB (KIB * 1024)
#if defined(__SANITIZE_THREAD__)
#define LARGE (64 * KIB + 1) /* ThreadSanitizer looks for races, for which this is large enough, and is slow */
#else
#define LARGE (MIB + 1) /* elements: 2^20 + 1 */
#endif

typedef struct setting {
    gsync_strategy strategy;
    size_t bytes_max;
} setting;

static const setting settings[] = {
    {GSYNC_STRATEGY_DDP, 1},          {GSYNC_STRATEGY_DDP, 4 * KIB},    {GSYNC_STRATEGY_DDP, MIB},
    {GSYNC_STRATEGY_DDP, 25 * MIB},   {GSYNC_STRATEGY_DDP, SIZE_MAX},   {GSYNC_STRATEGY_FIXED, 1},
    {GSYNC_STRATEGY_FIXED, 4 * KIB},  {GSYNC_STRATEGY_FIXED, MIB},      {GSYNC_STRATEGY_FIXED, 25 * MIB},
    {GSYNC_STRATEGY_FIXED, SIZE_MAX}, {GSYNC_STRATEGY_SINGLE, SIZE_MAX}};
#define SETTINGS (sizeof settings / sizeof settings[0])

static gsync_options options_of(const setting *chosen) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = chosen->strategy;
    options.bucket_bytes_max = chosen->bytes_max;
    return options;
}

/* Three steps: planned in reverse registration, replanned in the order that rank 0 saw, and once more. */
static void take_steps(bits_model *model, const setting *chosen, bits_place place, uint64_t stream) {
    char text[80];
    const gsync_options options = options_of(chosen);
    ranks_random random = ranks_random_from(model->ctx->seed, stream * 64 + (uint64_t)model->ctx->rank);
    snprintf(text, sizeof text, "strategy %d cap %zu place %d", (int)chosen->strategy, chosen->bytes_max, (int)place);
    model->setting = text;
    REQUIRE_OK(bits_model_open(model, model->ctx->comm, &options, place));
    for (int step = 0; step < 3; step++) {
        REQUIRE_OK(bits_model_step(model, step % BITS_ROUNDS, &random, NULL));
        REQUIRE(!ranks_has_failed(model->ctx));
    }
    bits_model_close(model);
}

static void try_all_caps_and_strategies(ranks_context *ctx, gsync_dtype dtype) {
    static const size_t counts[] = {0, 1, 2, 3, 7, 1009, 64, 1024, 1025, 60, 0, 5005};
    enum { TENSORS = sizeof counts / sizeof counts[0] };
    bits_shape shapes[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        shapes[i] = (bits_shape){counts[i], dtype};
    }
    const oracle_terms terms = {.world = ctx->world, .divisor = ctx->world};
    bits_model *model = bits_model_new(ctx, shapes, TENSORS, &terms);
    for (size_t s = 0; s < SETTINGS && !ranks_has_failed(ctx); s++) {
        take_steps(model, &settings[s], s % 2 == 0 ? BITS_APART : BITS_SHIFTED, s);
    }
}

static void try_large_gradients_with_all_caps(ranks_context *ctx, gsync_dtype dtype) {
    const bits_shape shapes[] = {{3, dtype}, {LARGE, dtype}, {1009, dtype}, {1, dtype}};
    const oracle_terms terms = {.world = ctx->world, .divisor = ctx->world};
    bits_model *model = bits_model_new(ctx, shapes, 4, &terms);
    for (size_t s = 0; s < SETTINGS && !ranks_has_failed(ctx); s += 2) {
        take_steps(model, &settings[s], s % 4 == 0 ? BITS_SHIFTED : BITS_APART, 100 + s);
    }
}

/* dtypes that share a bucket's neighbourhood but never a bucket */
static void the_same_bits_for_all_dtypes_in_one_model(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT16, GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_BFLOAT16};
    enum { TENSORS = 24 };
    bits_shape shapes[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        shapes[i] = (bits_shape){1 + i * i * 5, dtypes[(i * 7 + i / 5) % 4]};
    }
    const oracle_terms terms = {.world = ctx->world, .divisor = ctx->world};
    bits_model *model = bits_model_new(ctx, shapes, TENSORS, &terms);
    for (size_t s = 0; s < SETTINGS && !ranks_has_failed(ctx); s++) {
        take_steps(model, &settings[s], s % 2 == 0 ? BITS_SHIFTED : BITS_MIXED, 200 + s);
    }
}

#define FOR_DTYPE(name, dtype)                                                                                         \
    static void name##_has_the_same_bits_for_every_cap_and_strategy(ranks_context *ctx) {                              \
        try_all_caps_and_strategies(ctx, dtype);                                                                       \
    }                                                                                                                  \
    static void large_##name##_has_the_same_bits_for_every_cap(ranks_context *ctx) {                                   \
        try_large_gradients_with_all_caps(ctx, dtype);                                                                 \
    }

FOR_DTYPE(float32, GSYNC_FLOAT32)
FOR_DTYPE(float64, GSYNC_FLOAT64)
FOR_DTYPE(float16, GSYNC_FLOAT16)
FOR_DTYPE(bfloat16, GSYNC_BFLOAT16)

#define BOTH(claim, function)                                                                                          \
    {.name = claim "_with_a_helper_thread", .body = (function), .progress = GSYNC_PROGRESS_HELPER}, {                  \
        .name = claim "_on_the_callers_thread", .body = (function), .progress = GSYNC_PROGRESS_CALLER                  \
    }
#define ALL_OF(name)                                                                                                   \
    BOTH(#name "_has_the_same_bits_for_every_cap_and_strategy", name##_has_the_same_bits_for_every_cap_and_strategy),  \
        BOTH("large_" #name "_has_the_same_bits_for_every_cap", large_##name##_has_the_same_bits_for_every_cap)

RANKS_MAIN(ALL_OF(float32), ALL_OF(float64), ALL_OF(float16), ALL_OF(bfloat16),
           BOTH("the_same_bits_for_all_dtypes_in_one_model", the_same_bits_for_all_dtypes_in_one_model))
