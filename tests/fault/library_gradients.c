/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 memory=yes */

/* Gradients that live in the library's memory: each has a place of its own that is large enough. */

#include "ranks.h"

#include <string.h>

enum { FIRST = 5, SECOND = 700, THIRD = 3333 };

static const size_t counts[] = {FIRST, SECOND, THIRD};
static const char *const names[] = {"first", "second", "third"};

static gsync_reducer *open_reducer(ranks_context *ctx, gsync_dtype dtype, const gsync_options *options,
                                   const char *frozen) {
    gsync_reducer *reducer = NULL;
    CHECK_OK(gsync_reducer_create(&reducer, ctx->comm, options));
    for (size_t i = 0; i < 3; i++) {
        CHECK_OK(gsync_reducer_add(reducer, names[i], NULL, counts[i], dtype));
    }
    if (frozen != NULL) {
        CHECK_OK(gsync_reducer_set_trainable(reducer, frozen, 0));
    }
    CHECK_OK(gsync_reducer_commit(reducer));
    return reducer;
}

static void fill(ranks_context *ctx, gsync_reducer *reducer, gsync_dtype dtype) {
    for (size_t i = 0; i < 3; i++) {
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = 1, .tensor = i};
        ranks_fill(ctx, gsync_reducer_grad(reducer, names[i]), counts[i], dtype, source);
    }
}

static void check(ranks_context *ctx, gsync_reducer *reducer, gsync_dtype dtype, size_t tensor) {
    const ranks_source source = {.kind = RANKS_INTEGERS, .round = 1, .tensor = tensor};
    CHECK_REDUCED(ctx, gsync_reducer_grad(reducer, names[tensor]), counts[tensor], dtype, source, ctx->world);
}

static void halves_fit_although_the_library_adds_them_up_in_float32(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    gsync_reducer *reducer = open_reducer(ctx, GSYNC_FLOAT16, &options, NULL);
    fill(ctx, reducer, GSYNC_FLOAT16);
    CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
    CHECK_OK(gsync_finish(reducer, NULL));
    for (size_t i = 0; i < 3; i++) {
        check(ctx, reducer, GSYNC_FLOAT16, i);
    }
    gsync_reducer_destroy(&reducer);
}

/* Whoever writes the frozen one must not write the others, and its address must not hide theirs. */
static void a_frozen_gradient_has_a_place_of_its_own(ranks_context *ctx) {
    for (size_t frozen = 0; frozen < 3; frozen++) {
        gsync_reducer *reducer = open_reducer(ctx, GSYNC_FLOAT32, NULL, names[frozen]);
        fill(ctx, reducer, GSYNC_FLOAT32);
        memset(gsync_reducer_grad(reducer, names[frozen]), 0, counts[frozen] * sizeof(float));
        CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
        for (size_t i = 0; i < 3; i++) {
            CHECK_STATUS(gsync_ready(reducer, gsync_reducer_grad(reducer, names[i])),
                         i == frozen ? GSYNC_ERR_ARGUMENT : GSYNC_OK);
        }
        CHECK_OK(gsync_finish(reducer, NULL));
        for (size_t i = 0; i < 3; i++) {
            if (i != frozen) {
                check(ctx, reducer, GSYNC_FLOAT32, i);
            }
        }
        gsync_reducer_destroy(&reducer);
    }
}

RANKS_MAIN(RANKS_TEST(halves_fit_although_the_library_adds_them_up_in_float32),
           RANKS_TEST(a_frozen_gradient_has_a_place_of_its_own))
