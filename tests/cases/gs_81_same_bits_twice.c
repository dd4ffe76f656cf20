/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=4 transports=threads,mpi timeout=60 */

/*
 * GS-81: a training of 50 steps, twice, with other delays and another ready order on every rank each time. Every step
 * must give the same bits in both runs and on all ranks. The delays are the subject: they change who arrives last.
 */

#include "own_comm.h"

#include <time.h>

enum { STEPS = 50, TENSORS = 6, DELAY_US_MAX = 2000 };

static const size_t counts[TENSORS] = {1, 257, 1000, 31, 4096, 7};

static void delay_at_random(ranks_random *random) {
    const struct timespec pause = {0, (long)ranks_random_below(random, DELAY_US_MAX) * 1000};
    nanosleep(&pause, NULL);
}

/* Any hash of the bits will do; 64-bit FNV-1a. */
static uint64_t hash_of(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

typedef struct training {
    ranks_model *model;
    float *weights[TENSORS];
    ranks_random delays; /* other ones in every run */
} training;

static training training_new(ranks_context *ctx, gsync_comm *comm, const gsync_options *options, uint64_t run) {
    training self = {.model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32)};
    self.delays = ranks_random_from(ctx->seed + run, (uint64_t)ctx->rank);
    if (CHECK_OK(ranks_model_register(self.model, comm, options))) {
        CHECK_OK(gsync_reducer_commit(self.model->reducer));
    }
    for (size_t i = 0; i < TENSORS; i++) {
        self.weights[i] = ranks_memory(ctx, counts[i] * sizeof(float));
        for (size_t k = 0; k < counts[i]; k++) {
            self.weights[i][k] = 0.5f;
        }
    }
    return self;
}

/* The gradient depends on the weights, so that a wrong bit in one step spreads to all later ones. */
static void backward(training *self, size_t tensor, uint64_t step) {
    ranks_context *ctx = self->model->ctx;
    const ranks_source source = {.kind = RANKS_FLOATS, .round = step, .tensor = tensor};
    float *grad = self->model->tensors[tensor].grad;
    for (size_t k = 0; k < counts[tensor]; k++) {
        grad[k] = (float)ranks_value(ctx, source, ctx->rank, k) * (1.0f + self->weights[tensor][k]);
    }
}

static uint64_t run_step(training *self, uint64_t step) {
    size_t order[TENSORS];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    ranks_shuffle(&self->delays, order, TENSORS);
    CHECK_OK(gsync_begin(self->model->reducer, GSYNC_SYNC));
    for (size_t i = 0; i < TENSORS; i++) {
        backward(self, order[i], step);
        CHECK_OK(ranks_model_ready(self->model, order[i]));
        if (ranks_random_below(&self->delays, 3) == 0) {
            delay_at_random(&self->delays);
        }
    }
    CHECK_OK(gsync_finish(self->model->reducer, NULL));
    for (size_t i = 0; i < TENSORS; i++) {
        const float *grad = self->model->tensors[i].grad;
        for (size_t k = 0; k < counts[i]; k++) {
            self->weights[i][k] -= 0.001f * grad[k];
        }
        hash = hash_of(hash, grad, counts[i] * sizeof(float));
        hash = hash_of(hash, self->weights[i], counts[i] * sizeof(float));
    }
    return hash;
}

static void check_two_runs(ranks_context *ctx, gsync_comm *comm, const gsync_options *options) {
    uint64_t hashes[STEPS + 1] = {0};
    for (uint64_t run = 1; run <= 2; run++) {
        training self = training_new(ctx, comm, options, run);
        for (uint64_t step = 1; step <= STEPS && !ranks_has_failed(ctx); step++) {
            const uint64_t hash = run_step(&self, step);
            REQUIRE_THAT(CHECK_SAME_ON_ALL(ctx, hash));
            CHECK(hash != hashes[step - 1]); /* the training does move */
            if (run == 2) {
                CHECK(hash == hashes[step]);
            }
            hashes[step] = hash;
        }
        gsync_reducer_destroy(&self.model->reducer);
    }
}

static gsync_options several_buckets(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 4096;
    options.bucket_bytes_first_max = 1024;
    return options;
}

static void GS_81_fifty_steps_twice_give_the_same_bits(ranks_context *ctx) {
    const gsync_options options = several_buckets();
    check_two_runs(ctx, NULL, &options);
}

/* The caller's thread moves the buckets: who does the work depends on the delays even more. */
static void GS_81_the_same_bits_twice_without_a_helper(ranks_context *ctx) {
    const gsync_options options = several_buckets();
    check_two_runs(ctx, NULL, &options);
}

static void GS_81_the_same_bits_twice_between_hosts(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options comm_options = ctx->comm_options;
    const gsync_options options = several_buckets();
    comm_options.ranks_per_host = 2;
    REQUIRE_OK(own_comm_create(ctx, &comm_options, &comm));
    check_two_runs(ctx, comm, &options);
    gsync_comm_destroy(&comm);
}

RANKS_MAIN(RANKS_TEST(GS_81_fifty_steps_twice_give_the_same_bits),
           RANKS_TEST_WITH(GS_81_the_same_bits_twice_without_a_helper, .progress = GSYNC_PROGRESS_CALLER),
           RANKS_TEST_WITH(GS_81_the_same_bits_twice_between_hosts, .needs_mpi = true, .needs_no_comm = true))
