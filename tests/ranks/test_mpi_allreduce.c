/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=mpi timeout=60 */

/*
 * With two ranks there is only one order of adding, so a float32 mean is, bit for bit, what MPI_Allreduce(MPI_SUM) and
 * a division by 2 give: for every strategy, cap and ready order, also for values that sums are bad at.
 */

#include "serial_oracle.h"

#include <gradsync/gradsync_mpi.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS = 9 };
static const size_t counts[TENSORS] = {1009, 1, 7, 2050, 3, 64, 0, 5000, 2};
#define TOTAL 8136 /* of counts */

typedef struct fixture {
    ranks_context *ctx;
    ranks_model *model;
    float *input;    /* of all tensors, one behind the other */
    float *expected; /* likewise */
} fixture;

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One value per kind of trouble; the kind depends on the element only, so that both ranks bring it at once. */
static float adversarial(ranks_random *both, ranks_random *own, int rank) {
    const uint32_t random = (uint32_t)ranks_random_next(own);
    const uint32_t shared = (uint32_t)ranks_random_next(both);
    switch (ranks_random_below(both, 12)) {
    case 0: /* subnormals, whose mean is one too */
        return from_bits(random & 0x807fffffu);
    case 1: /* sums overflow, or cancel */
        return from_bits((random & 0x80ffffffu) | 0x7e800000u);
    case 2: /* exact cancellation */
        return from_bits((shared & 0x3fffffffu) | (rank == 0 ? 0u : 0x80000000u));
    case 3: /* all but a few bits cancel */
        return from_bits((((shared & 0x3fffffffu) ^ (random & 7u))) | (rank == 0 ? 0u : 0x80000000u));
    case 4: /* zeros of both signs */
        return from_bits(random & 0x80000000u);
    case 5: /* -0 everywhere */
        return -0.0f;
    case 6: /* infinities, of equal or of opposite sign */
        return from_bits(0x7f800000u | (random & 0x80000000u));
    case 7: /* infinity on one rank */
        return (int)(shared & 1u) == rank ? INFINITY : from_bits(random & 0xbfffffffu);
    case 8: /* NaN on one rank */
        return (int)(shared & 1u) == rank ? NAN : from_bits(random & 0xbfffffffu);
    case 9: /* far apart: the smaller one is a rounding error */
        return from_bits((random & 0x807fffffu) | (rank == 0 ? 0x40000000u : 0x34000000u + (shared & 0x800000u)));
    case 10: /* ties */
        return rank == 0 ? from_bits((shared & 0x007fffffu) | 0x4b800000u) : 1.0f;
    default:
        return from_bits((random & 0x80ffffffu) | 0x3f000000u);
    }
}

static void make_values(fixture *self, uint64_t round) {
    const ranks_context *ctx = self->ctx;
    ranks_random both = ranks_random_from(ctx->seed, round);
    ranks_random own = ranks_random_from(ctx->seed + 1 + (uint64_t)ctx->rank, round);
    for (size_t i = 0; i < TOTAL; i++) {
        self->input[i] = adversarial(&both, &own, ctx->rank);
    }
    CHECK_EQ(MPI_Allreduce(self->input, self->expected, TOTAL, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), MPI_SUCCESS);
    for (size_t i = 0; i < TOTAL; i++) {
        self->expected[i] /= 2.0f;
    }
}

static void load(const fixture *self) {
    size_t at = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        if (counts[i] != 0) {
            memcpy(self->model->tensors[i].grad, self->input + at, counts[i] * sizeof(float));
        }
        at += counts[i];
    }
}

static void check(const fixture *self) {
    size_t at = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        const ranks_tensor *tensor = &self->model->tensors[i];
        CHECK_BITS(GSYNC_FLOAT32, tensor->grad, self->expected + at, tensor->count, tensor->name);
        at += tensor->count;
    }
}

static void take_steps(ranks_context *ctx, gsync_comm *comm, const gsync_options *options) {
    fixture self = {.ctx = ctx,
                    .model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32),
                    .input = ranks_memory(ctx, TOTAL * sizeof(float)),
                    .expected = ranks_memory(ctx, TOTAL * sizeof(float))};
    ranks_random random = ranks_random_from(ctx->seed, 900 + (uint64_t)ctx->rank);
    REQUIRE_OK(ranks_model_register(self.model, comm, options));
    REQUIRE_OK(gsync_reducer_commit(self.model->reducer));
    for (uint64_t step = 0; step < 4; step++) {
        size_t order[TENSORS];
        ranks_shuffle(&random, order, TENSORS);
        make_values(&self, step);
        load(&self);
        REQUIRE_OK(ranks_model_step(self.model, order, NULL));
        check(&self);
        REQUIRE(!ranks_has_failed(ctx));
    }
}

static void try_strategy(ranks_context *ctx, gsync_strategy strategy) {
    static const size_t caps[] = {1, 4096, (size_t)1 << 20, (size_t)25 << 20, SIZE_MAX};
    for (size_t c = 0; c < 5 && !ranks_has_failed(ctx); c++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.strategy = strategy;
        options.bucket_bytes_max = caps[c];
        take_steps(ctx, ctx->comm, &options);
    }
}

static void strategy_ddp_gives_the_bits_of_MPI_Allreduce_and_a_division(ranks_context *ctx) {
    try_strategy(ctx, GSYNC_STRATEGY_DDP);
}

static void strategy_fixed_gives_the_bits_of_MPI_Allreduce_and_a_division(ranks_context *ctx) {
    try_strategy(ctx, GSYNC_STRATEGY_FIXED);
}

static void strategy_single_gives_the_bits_of_MPI_Allreduce_and_a_division(ranks_context *ctx) {
    try_strategy(ctx, GSYNC_STRATEGY_SINGLE);
}

static void two_hosts_give_the_bits_of_MPI_Allreduce_and_a_division(ranks_context *ctx) {
    gsync_comm_options comm_options = ctx->comm_options;
    gsync_comm *comm = NULL;
    comm_options.ranks_per_host = 1;
    REQUIRE_OK(gsync_comm_create(&comm, &comm_options));
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 4096;
    take_steps(ctx, comm, &options);
    gsync_comm_destroy(&comm);
}

static void a_communicator_of_the_trainers_own_gives_the_bits_of_MPI_Allreduce_and_a_division(ranks_context *ctx) {
    MPI_Comm mine;
    gsync_comm *comm = NULL;
    REQUIRE_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &mine), MPI_SUCCESS);
    REQUIRE_OK(gsync_comm_from_mpi(&comm, mine, &ctx->comm_options));
    MPI_Comm_free(&mine); /* the library has its own */
    take_steps(ctx, comm, NULL);
    gsync_comm_destroy(&comm);
}

/* Proves that the values are what they should be: every kind of trouble is in the sums. */
static void the_sums_hold_every_kind_of_number(ranks_context *ctx) {
    fixture self = {.ctx = ctx,
                    .input = ranks_memory(ctx, TOTAL * sizeof(float)),
                    .expected = ranks_memory(ctx, TOTAL * sizeof(float))};
    size_t seen[FP_NAN + FP_INFINITE + FP_ZERO + FP_SUBNORMAL + FP_NORMAL + 1] = {0};
    size_t negative_zeros = 0;
    make_values(&self, 0);
    for (size_t i = 0; i < TOTAL; i++) {
        seen[fpclassify(self.expected[i])]++;
        negative_zeros += self.expected[i] == 0 && signbit(self.expected[i]);
    }
    CHECK(seen[FP_NAN] > 100 && seen[FP_INFINITE] > 100 && seen[FP_ZERO] > 100 && seen[FP_SUBNORMAL] > 100 &&
          seen[FP_NORMAL] > 100 && negative_zeros > 100);
}

#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .needs_mpi = true, .progress = GSYNC_PROGRESS_HELPER),                                      \
        RANKS_TEST_WITH(claim, .needs_mpi = true, .progress = GSYNC_PROGRESS_CALLER)

RANKS_MAIN(BOTH(strategy_ddp_gives_the_bits_of_MPI_Allreduce_and_a_division),
           BOTH(strategy_fixed_gives_the_bits_of_MPI_Allreduce_and_a_division),
           BOTH(strategy_single_gives_the_bits_of_MPI_Allreduce_and_a_division),
           BOTH(two_hosts_give_the_bits_of_MPI_Allreduce_and_a_division),
           BOTH(a_communicator_of_the_trainers_own_gives_the_bits_of_MPI_Allreduce_and_a_division),
           RANKS_TEST_WITH(the_sums_hold_every_kind_of_number, .needs_mpi = true))
