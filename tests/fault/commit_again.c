/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 memory=yes */

/* Commits that the ranks refuse: nothing was changed, so the cause can be removed and the call repeated. */

#include "ranks.h"

#include <stdio.h>

enum { ADDED_FIRST = 3, ADDED_LATER = 60, COUNT = 17 };

static gsync_status add_range(gsync_reducer *reducer, float *grads, int first, int count) {
    for (int i = first; i < first + count; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        const gsync_status status = gsync_reducer_add(reducer, name, grads + (size_t)i * COUNT, COUNT, GSYNC_FLOAT32);
        if (status != GSYNC_OK) {
            return status;
        }
    }
    return GSYNC_OK;
}

static void check_step(ranks_context *ctx, gsync_reducer *reducer, float *grads, int tensors) {
    for (int i = 0; i < tensors * COUNT; i++) {
        grads[i] = (float)(ctx->rank + i);
    }
    REQUIRE_OK(gsync_begin(reducer, GSYNC_SYNC));
    for (int i = tensors; i-- > 0;) {
        REQUIRE_OK(gsync_ready(reducer, grads + (size_t)i * COUNT));
    }
    REQUIRE_OK(gsync_finish(reducer, NULL));
    for (int i = 0; i < tensors * COUNT; i++) {
        CHECK_REAL(grads[i], (float)i + (float)(ctx->world - 1) / 2.0f);
    }
}

/* One rank forgot most of its gradients; it adds them and all ranks commit again. */
static void gradients_can_be_added_after_a_mismatch(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    float *grads = ranks_memory(ctx, (ADDED_FIRST + ADDED_LATER) * COUNT * sizeof *grads);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(add_range(reducer, grads, 0, ADDED_FIRST));
    if (ctx->rank != 0) {
        CHECK_OK(add_range(reducer, grads, ADDED_FIRST, ADDED_LATER));
    }
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_ERR_MISMATCH);
    if (ctx->rank == 0) {
        CHECK_OK(add_range(reducer, grads, ADDED_FIRST, ADDED_LATER));
    }
    CHECK_OK(gsync_reducer_commit(reducer));
    check_step(ctx, reducer, grads, ADDED_FIRST + ADDED_LATER);
    check_step(ctx, reducer, grads, ADDED_FIRST + ADDED_LATER);
    gsync_reducer_destroy(&reducer);
}

RANKS_MAIN(RANKS_TEST(gradients_can_be_added_after_a_mismatch))
