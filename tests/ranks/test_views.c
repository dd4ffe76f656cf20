/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,4 transports=threads,mpi timeout=60 */

/* Gradients that live in the library: their addresses stay, and so does what is in them. */

#include "ranks.h"

#include <stdio.h>
#include <string.h>

enum { TENSORS = 7 };
static const size_t counts[TENSORS] = {64, 3, 1009, 0, 1, 500, 64};

static ranks_model *open_views(ranks_context *ctx, const gsync_options *options, gsync_dtype dtype) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, dtype);
    for (size_t i = 0; i < TENSORS; i++) {
        model->tensors[i].grad = NULL;
    }
    if (CHECK_OK(ranks_model_open(model, options))) {
        for (size_t i = 0; i < TENSORS; i++) {
            model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
            CHECK(counts[i] == 0 || model->tensors[i].grad != NULL);
        }
    }
    return model;
}

static gsync_options small_buckets(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 1024;
    return options;
}

static void views_are_zero_at_first_aligned_and_apart(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t d = 0; d < 4; d++) {
        const gsync_options options = small_buckets();
        ranks_model *model = open_views(ctx, &options, dtypes[d]);
        REQUIRE(!ranks_has_failed(ctx));
        const size_t size = gsync_dtype_size(dtypes[d]);
        for (size_t t = 0; t < TENSORS; t++) {
            CHECK_EQ((uintptr_t)model->tensors[t].grad % size, 0);
            for (size_t i = 0; i < counts[t]; i++) {
                REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[t].grad, dtypes[d], i), 0));
                ranks_store(model->tensors[t].grad, dtypes[d], i, (double)(t + 1));
            }
        }
        for (size_t t = 0; t < TENSORS; t++) { /* none was overwritten by another */
            for (size_t i = 0; i < counts[t]; i++) {
                REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[t].grad, dtypes[d], i), (double)(t + 1)));
            }
        }
    }
}

/* Or its mark, which has no effect, would be taken for another gradient's. */
static void a_view_without_elements_has_an_address_of_its_own(ranks_context *ctx) {
    const size_t sizes[] = {0, 5, 0, 0, 16, 0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    ranks_model *model = ranks_model_new(ctx, sizes, 6, GSYNC_FLOAT32);
    for (size_t t = 0; t < 6; t++) {
        model->tensors[t].grad = NULL;
    }
    REQUIRE_OK(ranks_model_open(model, &options));
    for (size_t t = 0; t < 6; t++) {
        model->tensors[t].grad = gsync_reducer_grad(model->reducer, model->tensors[t].name);
        for (size_t other = 0; other < t; other++) {
            CHECK(model->tensors[t].grad != model->tensors[other].grad);
        }
    }
    for (uint64_t step = 0; step < 2; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        for (size_t t = 0; t < 6; t++) {
            if (sizes[t] == 0) {
                CHECK_OK(ranks_model_ready(model, t));
                CHECK_OK(ranks_model_ready(model, t));
            }
        }
        CHECK_OK(ranks_model_ready(model, 1));
        CHECK_OK(ranks_model_ready(model, 4));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
}

static void addresses_stay_while_the_launch_order_changes(ranks_context *ctx) {
    const gsync_options options = small_buckets();
    ranks_model *model = open_views(ctx, &options, GSYNC_FLOAT32);
    REQUIRE(!ranks_has_failed(ctx));
    const uint64_t planned = gsync_plan_digest(model->reducer);
    const long bucket_of_first = gsync_bucket_of(model->reducer, "p0");
    CHECK_SAME_ON_ALL(ctx, planned);
    for (uint64_t step = 0; step < 4; step++) {
        const size_t forward[TENSORS] = {0, 1, 2, 3, 4, 5, 6};
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, forward, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        for (size_t i = 0; i < TENSORS; i++) {
            CHECK(gsync_reducer_grad(model->reducer, model->tensors[i].name) == model->tensors[i].grad);
        }
        CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
    }
    /* The first gradient was ready first on rank 0, so its bucket, planned last, now goes first. */
    CHECK(gsync_plan_digest(model->reducer) != planned);
    CHECK(bucket_of_first > 0);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p0"), 0);
}

/* Where results are held back, or the library accumulates, views lie beside the buckets. */
static void try_options(ranks_context *ctx, gsync_options options) {
    options.bucket_bytes_max = 1024;
    ranks_model *model = open_views(ctx, &options, GSYNC_FLOAT16);
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK(gsync_reducer_grad(model->reducer, "p2") == model->tensors[2].grad);
    }
}

static void views_work_with_every_option_that_moves_them_out_of_the_buckets(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_writes = 1;
    try_options(ctx, options);
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_options(ctx, options);
    options.checks_writes = 0;
    try_options(ctx, options);
    options.finds_unused = 1;
    try_options(ctx, options);
    options.accumulation = GSYNC_CLIENT_ACCUMULATES;
    try_options(ctx, options);
}

/* backward adds into the views over the micro-batches, as it would into its own buffers */
static void a_window_accumulates_in_the_views(ranks_context *ctx) {
    ranks_model *model = open_views(ctx, NULL, GSYNC_FLOAT32);
    REQUIRE(!ranks_has_failed(ctx));
    for (int batch = 0; batch < 3; batch++) {
        REQUIRE_OK(gsync_begin(model->reducer, batch == 2 ? GSYNC_SYNC : GSYNC_ACCUMULATE));
        for (size_t i = 0; i < 64; i++) {
            const double before = ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, i);
            ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, i, before + (ctx->rank + 1) * (double)(i + 1));
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
    }
    for (size_t i = 0; i < 64; i++) {
        REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, i),
                                3 * (ctx->world + 1) / 2.0 * (double)(i + 1)));
    }
}

static void only_some_ranks_may_keep_their_gradients_in_the_library(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    const gsync_options options = small_buckets();
    for (size_t i = 0; i < TENSORS; i++) {
        model->tensors[i].grad = (i + (size_t)ctx->rank) % 2 == 0 ? NULL : model->tensors[i].grad;
    }
    REQUIRE_OK(ranks_model_open(model, &options));
    for (size_t i = 0; i < TENSORS; i++) {
        model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
    }
    for (uint64_t step = 0; step < 3; step++) {
        const size_t forward[TENSORS] = {0, 1, 2, 3, 4, 5, 6};
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, forward, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
    }
}

static void a_view_may_move_out_and_back(ranks_context *ctx) {
    ranks_model *model = open_views(ctx, NULL, GSYNC_FLOAT32);
    REQUIRE(!ranks_has_failed(ctx));
    void *view = model->tensors[0].grad;
    void *own = ranks_memory(ctx, 64 * sizeof(float));
    for (uint64_t step = 0; step < 4; step++) {
        const bool is_out = step % 2 == 1;
        model->tensors[0].grad = is_out ? own : view;
        REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p0", is_out ? own : NULL));
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
    CHECK(gsync_reducer_grad(model->reducer, "p0") == view);
}

static void a_view_has_no_address_before_commit_and_none_by_a_wrong_name(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_OK(gsync_reducer_add(reducer, "w", NULL, 5, GSYNC_FLOAT32));
    CHECK(gsync_reducer_grad(reducer, "w") == NULL);
    CHECK_OK(gsync_reducer_commit(reducer));
    CHECK(gsync_reducer_grad(reducer, "w") != NULL);
    CHECK(gsync_reducer_grad(reducer, "v") == NULL);
    CHECK(gsync_reducer_grad(reducer, NULL) == NULL);
    CHECK(gsync_reducer_grad(NULL, "w") == NULL);
    CHECK_STATUS(gsync_ready(reducer, NULL), GSYNC_ERR_STATE);
    REQUIRE(ranks_meet(ctx));
    gsync_reducer_destroy(&reducer);
}

/* A clear that frees and forgets must not leave the library with the old contents. */
static void zeroing_views_between_steps_is_seen(ranks_context *ctx) {
    ranks_model *model = open_views(ctx, NULL, GSYNC_FLOAT32);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    for (size_t t = 0; t < TENSORS; t++) {
        if (counts[t] != 0) {
            memset(model->tensors[t].grad, 0, counts[t] * sizeof(float));
        }
    }
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    for (size_t i = 0; i < counts[2]; i++) {
        REQUIRE_THAT(CHECK_REAL(ranks_load(model->tensors[2].grad, GSYNC_FLOAT32, i), 0));
    }
}

RANKS_MAIN(RANKS_TEST(views_are_zero_at_first_aligned_and_apart),
           RANKS_TEST(a_view_without_elements_has_an_address_of_its_own),
           RANKS_TEST(addresses_stay_while_the_launch_order_changes),
           RANKS_TEST(views_work_with_every_option_that_moves_them_out_of_the_buckets),
           RANKS_TEST(a_window_accumulates_in_the_views),
           RANKS_TEST(only_some_ranks_may_keep_their_gradients_in_the_library),
           RANKS_TEST(a_view_may_move_out_and_back),
           RANKS_TEST(a_view_has_no_address_before_commit_and_none_by_a_wrong_name),
           RANKS_TEST(zeroing_views_between_steps_is_seen))
