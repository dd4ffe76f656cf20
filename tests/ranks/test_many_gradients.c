/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=1,2,3 transports=threads,mpi timeout=60 */

/* More gradients than what the ranks tell each other about them fits into one message. */

#include "ranks.h"

#include <stdio.h>

enum { ORDERED = 2500, USED = 33000 };

typedef struct crowd {
    ranks_context *ctx;
    gsync_comm *comm;
    gsync_reducer *reducer;
    float *grads; /* one element each, one behind the other */
    size_t count;
} crowd;

/* On hosts of one rank each, where processes allow it, or on the world as it is. */
static gsync_comm *comm_of(ranks_context *ctx, bool is_spread) {
    gsync_comm *comm = ctx->comm;
    if (is_spread && ctx->transport == RANKS_MPI) {
        gsync_comm_options options = ctx->comm_options;
        options.ranks_per_host = 1;
        CHECK_OK(gsync_comm_create(&comm, &options));
    }
    return comm;
}

static bool open_crowd(crowd *self, ranks_context *ctx, bool is_spread, size_t count, const gsync_options *options) {
    *self = (crowd){.ctx = ctx, .count = count, .grads = ranks_memory(ctx, count * sizeof(float))};
    self->comm = comm_of(ctx, is_spread);
    bool is_open = CHECK_OK(gsync_reducer_create(&self->reducer, self->comm, options));
    for (size_t i = 0; i < count && is_open; i++) {
        char name[24];
        snprintf(name, sizeof name, "p%zu", i);
        is_open = CHECK_OK(gsync_reducer_add(self->reducer, name, &self->grads[i], 1, GSYNC_FLOAT32));
    }
    return is_open && CHECK_OK(gsync_reducer_commit(self->reducer));
}

static void close_crowd(crowd *self) {
    (void)ranks_meet(self->ctx);
    gsync_reducer_destroy(&self->reducer);
    if (self->comm != self->ctx->comm) {
        gsync_comm_destroy(&self->comm);
    }
}

static void fill(const crowd *self, uint64_t round) {
    const ranks_source source = {RANKS_INTEGERS, round, 0, 0};
    ranks_fill(self->ctx, self->grads, self->count, GSYNC_FLOAT32, source);
}

static void check_mean(const crowd *self, uint64_t round) {
    const ranks_source source = {RANKS_INTEGERS, round, 0, 0};
    CHECK_REDUCED(self->ctx, self->grads, self->count, GSYNC_FLOAT32, source, self->ctx->world);
}

/* Every gradient is a bucket, so that the order can be read off. Rank 0 marks only some of them. */
static void try_order(ranks_context *ctx, bool is_spread, size_t marked) {
    crowd self;
    size_t orders[2][ORDERED];
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 1;
    REQUIRE(open_crowd(&self, ctx, is_spread, ORDERED, &options));
    for (size_t i = 0; i < 2; i++) {
        ranks_random random = ranks_random_from(ctx->seed, i == 0 ? 0 : 1 + (uint64_t)ctx->rank);
        ranks_shuffle(&random, orders[i], ORDERED);
    }
    const size_t *mine = orders[ctx->rank == 0 ? 0 : 1];
    for (uint64_t step = 0; step < 2 && !ranks_has_failed(ctx); step++) {
        fill(&self, step);
        CHECK_OK(gsync_begin(self.reducer, GSYNC_SYNC));
        for (size_t i = 0; i < (ctx->rank == 0 ? marked : ORDERED); i++) {
            CHECK_OK(gsync_ready(self.reducer, &self.grads[mine[i]]));
        }
        CHECK_OK(gsync_finish(self.reducer, NULL));
        check_mean(&self, step);
    }
    for (size_t i = 0; i < marked; i++) {
        char name[24];
        snprintf(name, sizeof name, "p%zu", orders[0][i]);
        CHECK_EQ(gsync_bucket_of(self.reducer, name), (long)i);
    }
    close_crowd(&self);
}

static void an_order_of_thousands_is_taken_over_whole(ranks_context *ctx) {
    try_order(ctx, false, ORDERED);
}

static void an_order_that_rank_0_saw_a_part_of_is_completed(ranks_context *ctx) {
    try_order(ctx, false, 1001);
}

static void an_order_of_thousands_is_taken_over_between_hosts(ranks_context *ctx) {
    try_order(ctx, true, 2000);
}

/* Gradient i is used by rank r if bit r of a number that only i decides is set; by nobody now and then. */
static uint32_t users_of(const ranks_context *ctx, size_t gradient) {
    ranks_random random = ranks_random_from(ctx->seed, 777 + gradient);
    return (uint32_t)ranks_random_next(&random) & ((1u << ctx->world) - 1);
}

static void try_unused(ranks_context *ctx, bool is_spread) {
    crowd self;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    gsync_options options = GSYNC_OPTIONS_INIT;
    size_t unused = 0;
    options.finds_unused = 1;
    options.strategy = GSYNC_STRATEGY_SINGLE;
    REQUIRE(open_crowd(&self, ctx, is_spread, USED, &options));
    fill(&self, 3);
    CHECK_OK(gsync_begin(self.reducer, GSYNC_SYNC));
    for (size_t i = 0; i < USED; i++) {
        unused += users_of(ctx, i) == 0;
        if ((users_of(ctx, i) >> ctx->rank & 1u) != 0) {
            CHECK_OK(gsync_ready(self.reducer, &self.grads[i]));
        }
    }
    CHECK_OK(gsync_finish(self.reducer, &info));
    CHECK_EQ(info.gradients_unused, unused);
    for (size_t i = 0; i < USED && !ranks_has_failed(ctx); i++) {
        const uint32_t users = users_of(ctx, i);
        double sum = 0;
        for (int rank = 0; rank < ctx->world; rank++) {
            const double value = ranks_value(ctx, (ranks_source){RANKS_INTEGERS, 3, 0, 0}, rank, i);
            sum += (users >> rank & 1u) != 0 ? value : 0;
            if (users == 0 && rank == ctx->rank) {
                sum = value * ctx->world; /* untouched */
                break;
            }
        }
        CHECK_REAL(self.grads[i], (double)(float)(sum / ctx->world));
    }
    close_crowd(&self);
}

static void tens_of_thousands_of_gradients_are_used_or_not_each_on_its_own(ranks_context *ctx) {
    try_unused(ctx, false);
}

static void tens_of_thousands_of_gradients_are_used_or_not_between_hosts(ranks_context *ctx) {
    try_unused(ctx, true);
}

#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_HELPER), RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_CALLER)

RANKS_MAIN(BOTH(an_order_of_thousands_is_taken_over_whole), BOTH(an_order_that_rank_0_saw_a_part_of_is_completed),
           RANKS_TEST(an_order_of_thousands_is_taken_over_between_hosts),
           BOTH(tens_of_thousands_of_gradients_are_used_or_not_each_on_its_own),
           RANKS_TEST(tens_of_thousands_of_gradients_are_used_or_not_between_hosts))
