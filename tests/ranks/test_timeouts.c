/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * A rank that does not come: the others get an error within the timeout that says who is missing and for which
 * gradients, and the late one gets an error too. The only tests whose subject is time, hence clocks.
 */

#include "ranks.h"

#include <stdio.h>

enum { TIMEOUT_MS = 900, LATE_S = 9 };

static ranks_model *open_model(ranks_context *ctx) {
    const size_t counts[] = {10, 20};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_SINGLE;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static bool is_last(const ranks_context *ctx) {
    return ctx->rank == ctx->world - 1;
}

/* Fails, and within a time that is the timeout's and not the harness's. */
#define CHECK_FAILS_IN_TIME(call, status)                                                                              \
    do {                                                                                                               \
        const double start = ranks_seconds();                                                                          \
        CHECK_STATUS(call, status);                                                                                    \
        CHECK(ranks_seconds() - start < LATE_S);                                                                       \
    } while (0)

/* One of the ranks that wait is the first to give up; those who see that first are told so. */
static bool is_of_waiting_rank(const ranks_context *ctx, gsync_status status) {
    /* To the others, one that has waited for its GPU in vain is lost. */
    return status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_ABORTED ||
           (ctx->is_on_device && status == GSYNC_ERR_PEER_LOST);
}

static void check_waiting_rank(const ranks_context *ctx, gsync_status status, double seconds) {
    CHECK(is_of_waiting_rank(ctx, status));
    CHECK(seconds < LATE_S);
}

static void a_rank_that_does_not_finish_is_named_with_the_gradients_that_wait_for_it(ranks_context *ctx) {
    ranks_model *model = open_model(ctx);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 0);
    if (!is_last(ctx)) {
        char missing[32];
        const double start = ranks_seconds();
        const gsync_status status = ranks_model_step(model, NULL, NULL);
        check_waiting_rank(ctx, status, ranks_seconds() - start);
        CHECK(ranks_seconds() - start >= 0.9 * TIMEOUT_MS / 1000.0 || status != GSYNC_ERR_TIMEOUT);
        snprintf(missing, sizeof missing, "rank %d %s", ctx->world - 1,
                 ctx->is_on_device ? "has not begun" : "did not arrive");
        if (ranks_know_who_is_late(ctx)) {
            CHECK_CONTAINS(gsync_last_error(), missing);
            CHECK_CONTAINS(gsync_last_error(), "step 1");
            CHECK_CONTAINS(gsync_last_error(), "'p0' to 'p1'");
        }
        CHECK_MODEL_OWN(model, RANKS_INTEGERS, 0);
    }
    /* The late one comes when the others have given up. */
    REQUIRE(ranks_meet(ctx));
    if (is_last(ctx)) {
        gsync_status status = GSYNC_OK;
        const double start = ranks_seconds();
        status = ranks_model_step(model, NULL, NULL);
        check_waiting_rank(ctx, status, ranks_seconds() - start);
        CHECK_CONTAINS(gsync_last_error(), "rank");
        CHECK_MODEL_OWN(model, RANKS_INTEGERS, 0);
    }
    /* Nobody can go on with this reducer. */
    CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
}

static void another_reducer_of_the_communicator_works_after_one_timed_out(ranks_context *ctx) {
    ranks_model *model = open_model(ctx);
    ranks_model *healthy = open_model(ctx);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 0);
    if (!is_last(ctx)) {
        CHECK(ranks_model_step(model, NULL, NULL) != GSYNC_OK);
    }
    REQUIRE(ranks_meet(ctx));
    ranks_model_fill(healthy, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(healthy, NULL, NULL));
    CHECK_MODEL_MEAN(healthy, RANKS_INTEGERS, 1);
    gsync_reducer_destroy(&model->reducer);
    /* And so does one made anew. */
    ranks_model *again = open_model(ctx);
    ranks_model_fill(again, RANKS_INTEGERS, 2);
    REQUIRE_OK(ranks_model_step(again, NULL, NULL));
    CHECK_MODEL_MEAN(again, RANKS_INTEGERS, 2);
}

static void a_failed_step_tells_how_far_it_came(ranks_context *ctx) {
    const size_t counts[] = {8, 8, 8};
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    options.bucket_bytes_max = 1;
    options.order = GSYNC_ORDER_REGISTERED;
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 3);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 2)); /* the first bucket */
    if (is_last(ctx)) {
        REQUIRE(ranks_meet(ctx)); /* the others have given up */
        CHECK(gsync_finish(model->reducer, &info) != GSYNC_OK);
    } else {
        const gsync_status status = gsync_finish(model->reducer, &info);
        CHECK(is_of_waiting_rank(ctx, status));
        CHECK_EQ(info.bucket_count, 3);
        CHECK_EQ(info.buckets_launched, 3);
        /* With a helper everywhere the bucket that all marked was reduced; nothing was torn. */
        CHECK_EQ(info.buckets_reduced, 1);
        CHECK_EQ(info.has_torn_bucket, 0);
        const ranks_source reduced = {RANKS_INTEGERS, 3, 2, 0};
        CHECK_REDUCED(ctx, model->tensors[2].grad, 8, GSYNC_FLOAT32, reduced, ctx->world);
        for (size_t t = 0; t < 2; t++) {
            const ranks_source own = {RANKS_INTEGERS, 3, t, 0};
            CHECK_OWN(ctx, model->tensors[t].grad, 8, GSYNC_FLOAT32, own);
        }
        REQUIRE(ranks_meet(ctx));
    }
}

static void a_rank_that_does_not_call_the_barrier_is_named(ranks_context *ctx) {
    if (!is_last(ctx)) {
        char missing[32];
        const double start = ranks_seconds();
        check_waiting_rank(ctx, gsync_barrier(ctx->comm), ranks_seconds() - start);
        snprintf(missing, sizeof missing, "rank %d", ctx->world - 1);
        CHECK_CONTAINS(gsync_last_error(), missing);
        CHECK_CONTAINS(gsync_last_error(), "barrier");
    }
    REQUIRE(ranks_meet(ctx));
}

static void a_rank_that_does_not_commit_is_named(ranks_context *ctx) {
    const size_t count = 5;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    if (!is_last(ctx)) {
        char missing[32];
        const double start = ranks_seconds();
        check_waiting_rank(ctx, gsync_reducer_commit(model->reducer), ranks_seconds() - start);
        snprintf(missing, sizeof missing, "rank %d", ctx->world - 1);
        CHECK_CONTAINS(gsync_last_error(), missing);
        CHECK_CONTAINS(gsync_last_error(), "commit");
    }
    REQUIRE(ranks_meet(ctx));
    if (is_last(ctx)) {
        CHECK_FAILS_IN_TIME(gsync_reducer_commit(model->reducer), GSYNC_ERR_ABORTED);
    }
}

/* Slow is not dead: half the timeout, several times in a row, is not too late. */
static void a_rank_that_is_slow_but_in_time_is_waited_for(ranks_context *ctx) {
    ranks_model *model = open_model(ctx);
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        const double until = ranks_seconds() + (is_last(ctx) ? 0.3 * TIMEOUT_MS / 1000.0 : 0.0);
        while (ranks_seconds() < until) {
            /* busy, as backward would be */
        }
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

#define TIMED(claim) RANKS_TEST_WITH(claim, .timeout_ms = TIMEOUT_MS)

RANKS_MAIN(TIMED(a_rank_that_does_not_finish_is_named_with_the_gradients_that_wait_for_it),
           TIMED(another_reducer_of_the_communicator_works_after_one_timed_out),
           RANKS_TEST_WITH(a_failed_step_tells_how_far_it_came, .timeout_ms = 1500, .progress = GSYNC_PROGRESS_HELPER),
           TIMED(a_rank_that_does_not_call_the_barrier_is_named), TIMED(a_rank_that_does_not_commit_is_named),
           RANKS_TEST_WITH(a_rank_that_is_slow_but_in_time_is_waited_for, .timeout_ms = 3000))
