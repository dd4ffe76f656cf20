/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/* is_strict, finds_unused and checks_writes: every rank gets the same answer, and the next step works. */

#include "ranks.h"

#include <stdio.h>
#include <string.h>

enum { TENSORS = 6 };
static const size_t counts[TENSORS] = {9, 1, 64, 300, 0, 33};

static ranks_model *open_with(ranks_context *ctx, gsync_options options, size_t cap) {
    options.bucket_bytes_max = cap;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static bool is_last(const ranks_context *ctx) {
    return ctx->rank == ctx->world - 1;
}

/* Marks all but the gradients whose bits are set in `left_out`. */
static void begin_and_mark(ranks_model *model, uint64_t round, unsigned left_out) {
    ranks_model_fill(model, RANKS_INTEGERS, round);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (size_t i = TENSORS; i-- > 0;) {
        if ((left_out >> i & 1u) == 0) {
            REQUIRE_OK(ranks_model_ready(model, i));
        }
    }
}

static void take_good_step(ranks_model *model, uint64_t round) {
    begin_and_mark(model, round, 0);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
}

static const size_t caps[] = {1, 300, SIZE_MAX};

/* ---- is_strict
 * ------------------------------------------------------------------------------------------------------- */

static void try_forgotten(ranks_context *ctx, size_t cap) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    ranks_model *model = open_with(ctx, options, cap);
    REQUIRE(!ranks_has_failed(ctx));
    take_good_step(model, 1);
    /* The last rank forgets p0 and p3; gradients without elements need no mark. */
    begin_and_mark(model, 2, is_last(ctx) ? 1u << 0 | 1u << 3 | 1u << 4 : 1u << 4);
    REQUIRE_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
    char who[32];
    snprintf(who, sizeof who, "rank %d", ctx->world - 1);
    CHECK_CONTAINS(gsync_last_error(), who);
    CHECK(strstr(gsync_last_error(), "'p0'") != NULL || strstr(gsync_last_error(), "'p3'") != NULL);
    CHECK(strstr(gsync_last_error(), "'p1'") == NULL && strstr(gsync_last_error(), "'p2'") == NULL &&
          strstr(gsync_last_error(), "'p5'") == NULL);
    if (is_last(ctx)) {
        CHECK_CONTAINS(gsync_last_error(), "'p0', 'p3'");
    }
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    take_good_step(model, 3);
}

static void strict_refuses_what_one_rank_forgot_on_all_ranks_by_name(ranks_context *ctx) {
    for (size_t c = 0; c < 3 && !ranks_has_failed(ctx); c++) {
        try_forgotten(ctx, caps[c]);
    }
}

static void without_strict_what_was_forgotten_is_reduced_at_the_end(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, (gsync_options)GSYNC_OPTIONS_INIT, 300);
    REQUIRE(!ranks_has_failed(ctx));
    begin_and_mark(model, 1, is_last(ctx) ? 1u << 0 | 1u << 3 : 0);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    begin_and_mark(model, 2, ~0u);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);
}

static void an_empty_finish_is_no_forgetting(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    ranks_model *model = open_with(ctx, options, 300);
    REQUIRE(!ranks_has_failed(ctx));
    const ranks_source source = {RANKS_INTEGERS, 1, 3, (1u << (ctx->world - 1)) - 1};
    if (is_last(ctx)) {
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        REQUIRE_OK(gsync_finish_empty(model->reducer, NULL));
    } else {
        begin_and_mark(model, 1, 0);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
    }
    if (ctx->world > 1) {
        CHECK_REDUCED(ctx, model->tensors[3].grad, counts[3], GSYNC_FLOAT32, source, ctx->world);
    }
}

/* ---- finds_unused
 * ---------------------------------------------------------------------------------------------------- */

/* Round by round other gradients are unused: on all ranks, on this rank, nowhere. */
static void check_unused(ranks_model *model, uint64_t round, size_t tensor, uint32_t users) {
    const ranks_context *ctx = model->ctx;
    const ranks_tensor *at = &model->tensors[tensor];
    const ranks_source own = {RANKS_INTEGERS, round, tensor, 0};
    const ranks_source used = {RANKS_INTEGERS, round, tensor, users};
    if (users == 0) {
        CHECK_OWN(ctx, at->grad, at->count, GSYNC_FLOAT32, own);
    } else {
        CHECK_REDUCED(ctx, at->grad, at->count, GSYNC_FLOAT32, used, ctx->world);
    }
    CHECK_EQ(gsync_is_used(model->reducer, at->name), users != 0);
}

static void try_unused(ranks_context *ctx, gsync_accumulation accumulation, size_t cap) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    options.accumulation = accumulation;
    ranks_model *model = open_with(ctx, options, cap);
    REQUIRE(!ranks_has_failed(ctx));
    const uint32_t everybody = (1u << ctx->world) - 1;
    for (uint64_t round = 1; round <= 4; round++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        /* p0: nobody; p1: only the last rank; p2: all but rank 0; the others: everybody */
        const unsigned left_out = 1u << 0 | (is_last(ctx) ? 0u : 1u << 1) | (ctx->rank == 0 ? 1u << 2 : 0u);
        begin_and_mark(model, round, left_out);
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        check_unused(model, round, 0, 0);
        check_unused(model, round, 1, 1u << (ctx->world - 1));
        check_unused(model, round, 2, everybody & ~1u);
        check_unused(model, round, 3, everybody);
        check_unused(model, round, 5, everybody);
        CHECK_EQ(info.gradients_unused, ctx->world == 1 ? 2 : 1);
        REQUIRE(!ranks_has_failed(ctx));
        take_good_step(model, round + 100);
    }
    CHECK_EQ(gsync_is_used(model->reducer, "nobody"), -1);
}

static void unused_gradients_count_as_zeros_and_stay_untouched_where_nobody_used_them(ranks_context *ctx) {
    for (size_t c = 0; c < 3 && !ranks_has_failed(ctx); c++) {
        try_unused(ctx, GSYNC_CLIENT_ACCUMULATES, caps[c]);
        try_unused(ctx, GSYNC_CLIENT_OVERWRITES, caps[c]);
    }
}

static void what_no_rank_used_in_its_whole_window_is_unused_and_no_other(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    ranks_model *model = open_with(ctx, options, 300);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    REQUIRE_OK(ranks_model_ready(model, 3));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 0));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    check_unused(model, 1, 0, (1u << ctx->world) - 1);
    check_unused(model, 1, 3, (1u << ctx->world) - 1);
    check_unused(model, 1, 2, 0);
    check_unused(model, 1, 5, 0);
}

static void strict_and_finds_unused_exclude_each_other(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    options.finds_unused = 1;
    CHECK_STATUS(gsync_reducer_create(&reducer, ctx->comm, &options), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "finds_unused");
}

/* ---- checks_writes
 * --------------------------------------------------------------------------------------------------- */

static void try_late_write(ranks_context *ctx, size_t tensor, size_t element, gsync_phase phase, size_t cap) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_writes = 1;
    ranks_model *model = open_with(ctx, options, cap);
    REQUIRE(!ranks_has_failed(ctx));
    take_good_step(model, 1);
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    REQUIRE_OK(gsync_begin(model->reducer, phase));
    for (size_t i = 0; i < TENSORS; i++) {
        REQUIRE_OK(ranks_model_ready(model, i));
    }
    if (is_last(ctx)) {
        ranks_store(model->tensors[tensor].grad, GSYNC_FLOAT32, element, 0.25);
    }
    const gsync_status status = gsync_finish(model->reducer, NULL);
    if (phase == GSYNC_SYNC || is_last(ctx)) {
        char name[32];
        CHECK_STATUS(status, GSYNC_ERR_CHANGED);
        snprintf(name, sizeof name, "'p%zu'", tensor);
        CHECK_CONTAINS(gsync_last_error(), name);
        /* Nothing was written: what differs from what was brought is the late write alone. */
        for (size_t i = 0; i < TENSORS; i++) {
            const ranks_source own = {RANKS_INTEGERS, 2, i, 0};
            if (!is_last(ctx) || i != tensor) {
                CHECK_OWN(ctx, model->tensors[i].grad, counts[i], GSYNC_FLOAT32, own);
            }
        }
    } else {
        CHECK_STATUS(status, GSYNC_OK);
    }
    if (phase == GSYNC_SYNC) {
        take_good_step(model, 3);
    }
}

/* With a helper the late write is a data race with the helper's reading: that is the mistake which this option finds.
 */
static bool would_be_a_race(const ranks_context *ctx) {
#if defined(__SANITIZE_THREAD__)
    return ctx->comm_options.progress != GSYNC_PROGRESS_CALLER;
#else
    (void)ctx;
    return false;
#endif
}

static void a_late_write_is_found_on_all_ranks_by_name(ranks_context *ctx) {
    if (would_be_a_race(ctx)) {
        SKIP("ThreadSanitizer finds the late write too");
    }
    for (size_t c = 0; c < 3 && !ranks_has_failed(ctx); c++) {
        try_late_write(ctx, 3, 299, GSYNC_SYNC, caps[c]);
        try_late_write(ctx, 1, 0, GSYNC_SYNC, caps[c]);
    }
}

static void a_late_write_in_an_accumulating_micro_batch_is_found_by_the_rank_that_did_it(ranks_context *ctx) {
    try_late_write(ctx, 0, 8, GSYNC_ACCUMULATE, 300);
}

static void writing_before_the_mark_and_after_finish_is_no_late_write(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_writes = 1;
    ranks_model *model = open_with(ctx, options, 300);
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t round = 0; round < 3; round++) {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        ranks_model_fill(model, RANKS_INTEGERS, round);
        for (size_t i = 0; i < TENSORS; i++) {
            REQUIRE_OK(ranks_model_ready(model, i));
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
        ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, 77);
    }
}

RANKS_MAIN(RANKS_TEST(strict_refuses_what_one_rank_forgot_on_all_ranks_by_name),
           RANKS_TEST(without_strict_what_was_forgotten_is_reduced_at_the_end),
           RANKS_TEST(an_empty_finish_is_no_forgetting),
           RANKS_TEST(unused_gradients_count_as_zeros_and_stay_untouched_where_nobody_used_them),
           RANKS_TEST(what_no_rank_used_in_its_whole_window_is_unused_and_no_other),
           RANKS_TEST(strict_and_finds_unused_exclude_each_other),
           RANKS_TEST_WITH(a_late_write_is_found_on_all_ranks_by_name, .progress = GSYNC_PROGRESS_HELPER),
           RANKS_TEST_WITH(a_late_write_is_found_on_all_ranks_by_name, .progress = GSYNC_PROGRESS_CALLER),
           RANKS_TEST(a_late_write_in_an_accumulating_micro_batch_is_found_by_the_rank_that_did_it),
           RANKS_TEST(writing_before_the_mark_and_after_finish_is_no_late_write))
