/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/* Behaviours 34 to 38 of DistributedDataParallel: no_sync, which is GSYNC_ACCUMULATE here. README.md lists them all. */

#include "small_net.h"

enum { BATCH = 4 };

typedef struct pupil {
    ranks_context *ctx;
    ranks_model *model;
    float *grads[NET_TENSORS];
    float *local[NET_TENSORS]; /* what this rank alone would have */
    float *whole[NET_TENSORS]; /* what one process with all data would have */
    net mine;
} pupil;

static bool open_pupil(pupil *self, ranks_context *ctx, bool is_owned) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 32;
    *self = (pupil){.ctx = ctx};
    self->model = ranks_model_new(ctx, net_counts, NET_TENSORS, GSYNC_FLOAT32);
    for (size_t t = 0; t < NET_TENSORS && is_owned; t++) {
        self->model->tensors[t].grad = NULL;
    }
    if (!CHECK_OK(ranks_model_open(self->model, &options))) {
        return false;
    }
    net_grads_of(self->model, self->grads);
    net_grads_new(ctx, self->local);
    net_grads_new(ctx, self->whole);
    net_zero(self->grads);
    net_init(&self->mine, ctx->seed);
    return true;
}

static double largest_difference(float *const a[NET_TENSORS], float *const b[NET_TENSORS]) {
    double largest = 0;
    for (size_t t = 0; t < NET_TENSORS; t++) {
        for (size_t i = 0; i < net_counts[t]; i++) {
            largest = fmax(largest, fabs((double)a[t][i] - (double)b[t][i]));
        }
    }
    return largest;
}

/* Backward on this rank's part of a batch, and on the whole of it for comparison; marks are given in both phases. */
static void pass(pupil *self, gsync_phase phase, size_t iteration, bool marks) {
    const ranks_context *ctx = self->ctx;
    const size_t first = iteration * BATCH * (size_t)ctx->world;
    const size_t mine = first + BATCH * (size_t)ctx->rank;
    REQUIRE_OK(gsync_begin(self->model->reducer, phase));
    net_backward(&self->mine, self->grads, ctx->seed, mine, BATCH, 1.0 / BATCH);
    net_backward(&self->mine, self->local, ctx->seed, mine, BATCH, 1.0 / BATCH);
    net_backward(&self->mine, self->whole, ctx->seed, first, BATCH * (size_t)ctx->world, 1.0 / (BATCH * ctx->world));
    for (size_t t = NET_TENSORS; t-- > 0 && marks;) {
        REQUIRE_OK(ranks_model_ready(self->model, t));
    }
    REQUIRE_OK(gsync_finish(self->model->reducer, NULL));
}

/* Even iterations accumulate, odd ones synchronise what both brought. */
static void alternate(ranks_context *ctx, bool is_owned, bool marks) {
    pupil self;
    REQUIRE(open_pupil(&self, ctx, is_owned));
    for (size_t iteration = 0; iteration < 6; iteration++) {
        const bool is_even = iteration % 2 == 0;
        if (is_even) {
            net_zero(self.grads);
            net_zero(self.local);
            net_zero(self.whole);
        }
        pass(&self, is_even ? GSYNC_ACCUMULATE : GSYNC_SYNC, iteration, marks);
        REQUIRE(!ranks_has_failed(ctx));
        if (is_even) {
            CHECK_REAL(largest_difference(self.grads, self.local), 0);
            CHECK(ctx->world == 1 || largest_difference(self.grads, self.whole) > 1e-3);
        } else {
            CHECK(largest_difference(self.grads, self.whole) < 1e-5);
            CHECK(ctx->world == 1 || largest_difference(self.grads, self.local) > 1e-3);
            net_descend(&self.mine, self.grads, 0.1f);
            REQUIRE(net_is_replicated(ctx, &self.mine));
        }
    }
}

static void accumulate_gradients_no_sync_is_local_on_even_and_single_process_on_odd(ranks_context *ctx) {
    alternate(ctx, false, true);
}

static void accumulate_gradients_no_sync_without_marks_is_the_same(ranks_context *ctx) {
    alternate(ctx, false, false);
}

static void accumulate_gradients_no_sync_grad_is_view(ranks_context *ctx) {
    alternate(ctx, true, true);
}

/* The phase belongs to begin: what backward does between begin and finish cannot change it. */
static void the_phase_is_the_one_that_begin_was_given(ranks_context *ctx) {
    const size_t count = 10;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    REQUIRE_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    CHECK_EQ(gsync_is_synced(model->reducer), 1);
}

/*
 * A gradient that backward touches only under no_sync: with finds_unused it belongs to the window and is synchronised
 * at its end; in the next window, where nobody touches it, it stays as it is.
 */
static void try_used_only_under_no_sync(ranks_context *ctx, gsync_accumulation accumulation, bool only_on_rank_0) {
    const size_t counts[] = {21, 5};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    options.accumulation = accumulation;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    const ranks_source first = {RANKS_INTEGERS, 1, 0, only_on_rank_0 ? 1u : 0u};
    const ranks_source second = {RANKS_INTEGERS, 1, 1, 0};
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    if (ctx->rank == 0 || !only_on_rank_0) {
        REQUIRE_OK(ranks_model_ready(model, 0));
    }
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 1));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_EQ(gsync_is_used(model->reducer, "p0"), 1);
    CHECK_REDUCED(ctx, model->tensors[0].grad, counts[0], GSYNC_FLOAT32, first, ctx->world);
    CHECK_REDUCED(ctx, model->tensors[1].grad, counts[1], GSYNC_FLOAT32, second, ctx->world);
    /* A window that does not use it */
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 1));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_EQ(gsync_is_used(model->reducer, "p0"), 0);
    CHECK_OWN(ctx, model->tensors[0].grad, counts[0], GSYNC_FLOAT32, ((ranks_source){RANKS_INTEGERS, 2, 0, 0}));
}

static void grads_same_across_ranks_with_no_sync_for_a_parameter_used_only_there(ranks_context *ctx) {
    try_used_only_under_no_sync(ctx, GSYNC_CLIENT_ACCUMULATES, false);
    try_used_only_under_no_sync(ctx, GSYNC_CLIENT_ACCUMULATES, true);
    try_used_only_under_no_sync(ctx, GSYNC_CLIENT_OVERWRITES, false);
    try_used_only_under_no_sync(ctx, GSYNC_CLIENT_OVERWRITES, true);
}

/*
 * Not in DDP, where their product breaks: several uses (a "static graph") x no_sync x views, over several windows.
 */
static void several_uses_no_sync_and_views_work_together(ranks_context *ctx) {
    enum { COUNT = 12 };
    const size_t counts[] = {COUNT, 3};
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    model->tensors[0].grad = NULL;
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p0", 3));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    float *grad = gsync_reducer_grad(model->reducer, "p0");
    for (int window = 1; window <= 4; window++) {
        memset(grad, 0, sizeof(float) * COUNT);
        memset(model->tensors[1].grad, 0, 3 * sizeof(float));
        for (int batch = 0; batch < window; batch++) {
            REQUIRE_OK(gsync_begin(model->reducer, batch == window - 1 ? GSYNC_SYNC : GSYNC_ACCUMULATE));
            for (int use = 0; use < 3; use++) {
                for (size_t i = 0; i < COUNT; i++) {
                    grad[i] += (float)((ctx->rank + 1) * (int)(i + 1));
                }
                REQUIRE_OK(gsync_ready(model->reducer, grad));
            }
            CHECK_STATUS(gsync_ready(model->reducer, grad), GSYNC_ERR_ALREADY_READY);
            REQUIRE_OK(ranks_model_ready(model, 1));
            REQUIRE_OK(gsync_finish(model->reducer, NULL));
        }
        for (size_t i = 0; i < COUNT; i++) {
            REQUIRE_THAT(CHECK_REAL(grad[i], 3 * window * (double)(i + 1) * (ctx->world + 1) / 2.0));
        }
    }
}

RANKS_MAIN(RANKS_TEST(accumulate_gradients_no_sync_is_local_on_even_and_single_process_on_odd),
           RANKS_TEST(accumulate_gradients_no_sync_without_marks_is_the_same),
           RANKS_TEST(accumulate_gradients_no_sync_grad_is_view), RANKS_TEST(the_phase_is_the_one_that_begin_was_given),
           RANKS_TEST(grads_same_across_ranks_with_no_sync_for_a_parameter_used_only_there),
           RANKS_TEST(several_uses_no_sync_and_views_work_together))
