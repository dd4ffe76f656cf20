/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3,4 transports=mpi timeout=60 */

/*
 * Several hosts, emulated: the sum is made in rank order inside each host, then over hosts in their order, and all
 * ranks get the same bits of it for every bucket cap, ready order and progress mode.
 */

#include "bits_model.h"

#include <stdio.h>

enum { TENSORS = 11 };
static const size_t counts[TENSORS] = {0, 1, 2, 3, 7, 1009, 64, 1025, 0, 4099, 130};
static const size_t caps[] = {1, 4096, (size_t)1 << 20, SIZE_MAX};

static gsync_comm *comm_of_hosts(ranks_context *ctx, uint32_t ranks_per_host) {
    gsync_comm_options options = ctx->comm_options;
    gsync_comm *comm = NULL;
    options.ranks_per_host = ranks_per_host;
    CHECK_OK(gsync_comm_create(&comm, &options));
    return comm;
}

static void take_steps(bits_model *model, gsync_comm *comm, size_t cap, bits_place place) {
    char text[80];
    gsync_options options = GSYNC_OPTIONS_INIT;
    ranks_random random = ranks_random_from(model->ctx->seed, cap * 16 + (uint64_t)model->ctx->rank);
    options.bucket_bytes_max = cap;
    snprintf(text, sizeof text, "cap %zu place %d", cap, (int)place);
    model->setting = text;
    REQUIRE_OK(bits_model_open(model, comm, &options, place));
    for (int step = 0; step < 3; step++) {
        REQUIRE_OK(bits_model_step(model, step % BITS_ROUNDS, &random, NULL));
        REQUIRE(!ranks_has_failed(model->ctx));
    }
    bits_model_close(model);
}

static void try_hosts(ranks_context *ctx, uint32_t ranks_per_host, gsync_dtype dtype, const size_t *sizes,
                      size_t size_count) {
    static const bits_place places[] = {BITS_SHIFTED, BITS_OWNED, BITS_FLAT, BITS_MIXED};
    gsync_comm *comm = comm_of_hosts(ctx, ranks_per_host);
    bits_shape shapes[TENSORS];
    for (size_t i = 0; i < size_count; i++) {
        shapes[i] = (bits_shape){sizes[i], dtype};
    }
    const oracle_terms terms = {.world = ctx->world, .ranks_per_host = (int)ranks_per_host, .divisor = ctx->world};
    bits_model *model = bits_model_new(ctx, shapes, size_count, &terms);
    CHECK_EQ(gsync_local_rank(comm), ctx->rank % (int)ranks_per_host);
    for (size_t c = 0; c < 4 && !ranks_has_failed(ctx); c++) {
        take_steps(model, comm, caps[c], places[c]);
    }
    bits_model_close(model);
    gsync_comm_destroy(&comm);
}

static void try_all_dtypes(ranks_context *ctx, uint32_t ranks_per_host) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t d = 0; d < 4 && !ranks_has_failed(ctx); d++) {
        try_hosts(ctx, ranks_per_host, dtypes[d], counts, TENSORS);
    }
}

static void one_rank_on_each_host_sums_over_hosts_in_rank_order(ranks_context *ctx) {
    try_all_dtypes(ctx, 1);
}

static void two_ranks_on_each_host_sum_inside_hosts_first(ranks_context *ctx) {
    try_all_dtypes(ctx, 2);
}

static void large_gradients_between_hosts_have_the_same_bits(ranks_context *ctx) {
    const size_t large[] = {3, ((size_t)1 << 20) + 1, 1009};
    try_hosts(ctx, 1, GSYNC_FLOAT32, large, 3);
    try_hosts(ctx, 2, GSYNC_BFLOAT16, large, 3);
}

/* One rank after the other has no data: with one rank to a host, a host has none; and zeros are divided away. */
static void hosts_without_data_add_nothing(ranks_context *ctx) {
    for (uint32_t per_host = 1; per_host <= 2; per_host++) {
        gsync_comm *comm = comm_of_hosts(ctx, per_host);
        for (int absent = 0; absent < ctx->world && !ranks_has_failed(ctx); absent++) {
            const bits_shape shapes[] = {{1009, GSYNC_FLOAT32}, {77, GSYNC_BFLOAT16}};
            const uint32_t members = ((1u << ctx->world) - 1) & ~(1u << absent);
            const oracle_terms terms = {
                .world = ctx->world, .ranks_per_host = (int)per_host, .divisor = ctx->world - 1, .members = members};
            gsync_options options = GSYNC_OPTIONS_INIT;
            bits_model *model = bits_model_new(ctx, shapes, 2, &terms);
            options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
            model->setting = "one rank absent";
            REQUIRE_OK(bits_model_open(model, comm, &options, BITS_SHIFTED));
            for (int round = 0; round < BITS_ROUNDS; round++) {
                bits_model_load(model, round);
                if (ctx->rank == absent) {
                    REQUIRE_OK(gsync_finish_empty(model->reducer, NULL));
                } else {
                    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
                    REQUIRE_OK(gsync_finish(model->reducer, NULL));
                }
                bits_model_check(model, round);
            }
            bits_model_close(model);
        }
        gsync_comm_destroy(&comm);
    }
}

/* Proves that the tests above can tell the orders apart. */
static void two_hosts_of_two_ranks_give_other_bits_than_one_host_of_four(ranks_context *ctx) {
    enum { COUNT = 1009 };
    float *flat = ranks_memory(ctx, COUNT * sizeof(float));
    float *by_hosts = ranks_memory(ctx, COUNT * sizeof(float));
    oracle_terms terms = {.dtype = GSYNC_FLOAT32, .world = ctx->world, .divisor = ctx->world};
    terms.key = oracle_key(ctx, 0, 5);
    oracle_reduce(&terms, flat, COUNT);
    terms.ranks_per_host = 2;
    oracle_reduce(&terms, by_hosts, COUNT);
    CHECK(oracle_first_difference(GSYNC_FLOAT32, flat, by_hosts, COUNT) < COUNT);
}

#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .needs_mpi = true, .progress = GSYNC_PROGRESS_HELPER),                                      \
        RANKS_TEST_WITH(claim, .needs_mpi = true, .progress = GSYNC_PROGRESS_CALLER)

RANKS_MAIN(BOTH(one_rank_on_each_host_sums_over_hosts_in_rank_order),
           BOTH(two_ranks_on_each_host_sum_inside_hosts_first),
           RANKS_TEST_WITH(hosts_without_data_add_nothing, .needs_mpi = true),
           RANKS_TEST_WITH(large_gradients_between_hosts_have_the_same_bits, .needs_mpi = true),
           RANKS_TEST_WITH(two_hosts_of_two_ranks_give_other_bits_than_one_host_of_four, .world_min = 4))
