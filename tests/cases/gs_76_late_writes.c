/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * GS-76: a gradient that is still written after it was declared ready. With checks_writes every rank is told which and
 * on which rank; without it nothing looks, as gradsync.h and docs/guide.md say.
 */

#include "late_write.h"
#include "ranks.h"

#include <stdio.h>

static const size_t counts[] = {9, 70, 300};
#define TENSORS 3

static gsync_options checking_options(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_writes = 1;
    options.bucket_bytes_max = 64; /* a bucket each */
    return options;
}

/* What the late write changes: the last element, which a partial hash would miss. */
static void write_late(ranks_model *model, size_t tensor) {
    ranks_tensor *at = &model->tensors[tensor];
    ranks_store(at->grad, at->dtype, at->count - 1, 4096.0);
}

static void check_is_named(int rank, size_t tensor) {
    char text[48];
    snprintf(text, sizeof(text), "'p%zu'", tensor);
    CHECK_CONTAINS(gsync_last_error(), text);
    snprintf(text, sizeof(text), "rank %d", rank);
    CHECK_CONTAINS(gsync_last_error(), text);
}

/* Nothing was reduced: every gradient is this rank's own, but for the element that was written late. */
static void check_unchanged(const ranks_model *model, uint64_t round, int culprit, size_t written) {
    for (size_t i = 0; i < TENSORS; i++) {
        const ranks_tensor *at = &model->tensors[i];
        const size_t count = at->count - (i == written && model->ctx->rank == culprit);
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = round, .tensor = i};
        CHECK_OWN(model->ctx, at->grad, count, at->dtype, source);
    }
}

/* The culprit writes `written` after all marks, or directly after its own mark, when its bucket is just launched. */
static gsync_status step_with_late_write(ranks_model *model, int culprit, size_t written, bool at_once) {
    const bool is_culprit = model->ctx->rank == culprit;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    CHECK_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (size_t i = TENSORS; i-- > 0;) {
        CHECK_OK(ranks_model_ready(model, i));
        if (is_culprit && at_once && i == written) {
            write_late(model, written);
        }
    }
    if (is_culprit && !at_once) {
        write_late(model, written);
    }
    const gsync_status status = gsync_finish(model->reducer, &info);
    CHECK_EQ(info.buckets_reduced, status == GSYNC_OK ? TENSORS : 0);
    return status;
}

static void check_late_write(ranks_model *model, int culprit, size_t written, bool at_once, uint64_t *round) {
    ++*round;
    ranks_model_fill(model, RANKS_INTEGERS, *round);
    REQUIRE_STATUS(step_with_late_write(model, culprit, written, at_once), GSYNC_ERR_CHANGED);
    check_is_named(culprit, written);
    check_unchanged(model, *round, culprit, written);
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    /* A mistake of the trainer's: the next step works. */
    ++*round;
    ranks_model_fill(model, RANKS_INTEGERS, *round);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, *round);
}

static void GS_76_a_write_between_mark_and_finish_is_named_on_every_rank(ranks_context *ctx) {
    const gsync_options options = checking_options();
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    uint64_t round = 0;
    REQUIRE_OK(ranks_model_open(model, &options));
    for (int culprit = 0; culprit < ctx->world; culprit++) {
        for (size_t written = 0; written < TENSORS && !ranks_has_failed(ctx); written++) {
            check_late_write(model, culprit, written, true, &round);
            check_late_write(model, culprit, written, false, &round);
        }
    }
}

static void GS_76_also_for_gradients_in_the_librarys_memory(ranks_context *ctx) {
    const gsync_options options = checking_options();
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    uint64_t round = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        model->tensors[i].grad = NULL;
    }
    REQUIRE_OK(ranks_model_open(model, &options));
    for (size_t i = 0; i < TENSORS; i++) {
        model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
        REQUIRE(model->tensors[i].grad != NULL);
    }
    check_late_write(model, 0, 1, true, &round);
    check_late_write(model, ctx->world - 1, 1, false, &round);
}

/* The other ranks wait for the last rank's mark, so their first buckets are long under way when it writes. */
static void GS_76_a_write_while_the_bucket_waits_for_another_rank(ranks_context *ctx) {
    const gsync_options options = checking_options();
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    const bool is_last = ctx->rank == ctx->world - 1;
    for (size_t i = TENSORS; i-- > 0 && !is_last;) {
        CHECK_OK(ranks_model_ready(model, i));
    }
    if (ctx->rank == 0) {
        write_late(model, 2); /* of the first bucket */
    }
    REQUIRE(ranks_meet(ctx));
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_CHANGED);
    check_is_named(0, 2);
    check_unchanged(model, 1, 0, 2);
}

/*
 * An embedding that is also the output layer: its gradient is written at the start of backward and again at the end.
 * Marked after the first write it is a late write; marked after both, as declared, it is none.
 */
static void GS_76_a_tied_weight_marked_after_its_first_write(ranks_context *ctx) {
    const gsync_options options = checking_options();
    for (uint32_t uses = 1; uses <= 2; uses++) {
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_register(model, NULL, &options));
        REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p0", uses));
        REQUIRE_OK(gsync_reducer_commit(model->reducer));
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        CHECK_OK(ranks_model_ready(model, 0));
        CHECK_OK(ranks_model_ready(model, 2));
        CHECK_OK(ranks_model_ready(model, 1));
        const ranks_source second = {.kind = RANKS_INTEGERS, .round = 2};
        ranks_fill(ctx, model->tensors[0].grad, counts[0], GSYNC_FLOAT32, second);
        CHECK_STATUS(ranks_model_ready(model, 0), uses == 2 ? GSYNC_OK : GSYNC_ERR_ALREADY_READY);
        CHECK_STATUS(gsync_finish(model->reducer, NULL), uses == 2 ? GSYNC_OK : GSYNC_ERR_CHANGED);
        if (uses == 2) {
            CHECK_REDUCED(ctx, model->tensors[0].grad, counts[0], GSYNC_FLOAT32, second, ctx->world);
        } else {
            CHECK_CONTAINS(gsync_last_error(), "'p0'");
        }
    }
}

static void GS_76_a_late_write_in_an_accumulating_micro_batch(ranks_context *ctx) {
    const gsync_options options = checking_options();
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    CHECK_OK(ranks_model_ready(model, 1));
    write_late(model, 1);
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_CHANGED);
    check_is_named(ctx->rank, 1);
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);
}

/* Writing before the mark, and between steps, is what trainers do. */
static void GS_76_honest_writes_are_no_late_writes(ranks_context *ctx) {
    const gsync_options options = checking_options();
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    for (uint64_t round = 1; round <= 3; round++) {
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        ranks_model_fill(model, RANKS_INTEGERS, round);
        CHECK_OK(ranks_model_ready(model, 2));
        REQUIRE_OK(gsync_finish(model->reducer, NULL)); /* p0 and p1 are read here, unmarked */
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
    }
}

/* The documented normal mode: no check, no error, and no damage to other gradients. */
static void GS_76_without_the_check_a_late_write_goes_unnoticed(ranks_context *ctx) {
    if (LATE_WRITE_IS_A_RACE && ctx->transport == RANKS_THREADS) {
        SKIP("other ranks read this rank's memory while it writes");
    }
    gsync_options options = checking_options();
    options.checks_writes = 0;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE(ranks_meet(ctx));
    CHECK_OK(step_with_late_write(model, 0, 1, false));
    for (size_t i = 0; i < TENSORS; i += 2) {
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = 1, .tensor = i};
        CHECK_REDUCED(ctx, model->tensors[i].grad, counts[i], GSYNC_FLOAT32, source, ctx->world);
    }
    const ranks_source but_for_one = {.kind = RANKS_INTEGERS, .round = 1, .tensor = 1};
    CHECK_REDUCED(ctx, model->tensors[1].grad, counts[1] - 1, GSYNC_FLOAT32, but_for_one, ctx->world);
}

RANKS_MAIN(LATE_WRITE_TEST(GS_76_a_write_between_mark_and_finish_is_named_on_every_rank),
           LATE_WRITE_TEST(GS_76_also_for_gradients_in_the_librarys_memory),
           RANKS_TEST_WITH(GS_76_a_write_while_the_bucket_waits_for_another_rank, .world_min = 2,
                           .progress = LATE_WRITE_PROGRESS),
           LATE_WRITE_TEST(GS_76_a_tied_weight_marked_after_its_first_write),
           LATE_WRITE_TEST(GS_76_a_late_write_in_an_accumulating_micro_batch),
           LATE_WRITE_TEST(GS_76_honest_writes_are_no_late_writes),
           LATE_WRITE_TEST(GS_76_without_the_check_a_late_write_goes_unnoticed))
