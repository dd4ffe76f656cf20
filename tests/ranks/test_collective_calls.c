/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3,4 transports=threads,mpi timeout=60 */

/* gsync_allreduce, _broadcast, _all_done, _check_replicas and _split: every dtype, op, root and size of piece. */

#include "serial_oracle.h"

#include <stdio.h>
#include <string.h>

/* Around the size of the pieces in which large buffers travel, and elements that no rank's share divides evenly. */
static const size_t sizes[] = {0, 1, 2, 3, 7, 1009, 32767, 32768, 32769, 100003};
#define SIZES (sizeof sizes / sizeof sizes[0])
#define LARGEST 100003

static const gsync_dtype floats[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

static void allreduce_of_floats_has_the_bits_of_a_sum_in_rank_order(ranks_context *ctx) {
    void *buffer = ranks_memory(ctx, LARGEST * sizeof(double));
    void *expected = ranks_memory(ctx, LARGEST * sizeof(double));
    for (size_t i = 0; i < 4 * SIZES && !ranks_has_failed(ctx); i++) {
        for (int is_mean = 0; is_mean < 2; is_mean++) {
            const size_t count = sizes[i / 4];
            const oracle_terms terms = {.dtype = floats[i % 4],
                                        .world = ctx->world,
                                        .divisor = is_mean ? ctx->world : 1.0,
                                        .key = oracle_key(ctx, i, 0)};
            oracle_fill(&terms, ctx->rank, buffer, count);
            oracle_reduce(&terms, expected, count);
            CHECK_OK(gsync_allreduce(ctx->comm, buffer, count, terms.dtype, is_mean ? GSYNC_MEAN : GSYNC_SUM));
            CHECK_BITS(terms.dtype, buffer, expected, count, is_mean ? "mean" : "sum");
        }
    }
}

static int64_t integer_of(int rank, size_t element) {
    return (int64_t)((element * 37 + (size_t)rank * 1001) % 2000) - 1000;
}

static int64_t combine(gsync_op op, int64_t a, int64_t b) {
    switch (op) {
    case GSYNC_MIN:
        return b < a ? b : a;
    case GSYNC_MAX:
        return b > a ? b : a;
    default:
        return a + b;
    }
}

static void allreduce_knows_sum_min_and_max_of_every_number(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_BFLOAT16, GSYNC_INT32, GSYNC_INT64};
    static const gsync_op ops[] = {GSYNC_SUM, GSYNC_MIN, GSYNC_MAX};
    enum { COUNT = 40001 };
    unsigned char *buffer = ranks_memory(ctx, COUNT * 8);
    for (size_t i = 0; i < 15 && !ranks_has_failed(ctx); i++) {
        const gsync_dtype dtype = dtypes[i / 3];
        const int64_t divisor = dtype == GSYNC_BFLOAT16 ? 20 : 1; /* small enough to be exact */
        for (size_t e = 0; e < COUNT; e++) {
            ranks_store(buffer, dtype, e, (double)(integer_of(ctx->rank, e) / divisor));
        }
        CHECK_OK(gsync_allreduce(ctx->comm, buffer, COUNT, dtype, ops[i % 3]));
        for (size_t e = 0; e < COUNT; e++) {
            int64_t expected = integer_of(0, e) / divisor;
            for (int rank = 1; rank < ctx->world; rank++) {
                expected = combine(ops[i % 3], expected, integer_of(rank, e) / divisor);
            }
            REQUIRE_THAT(CHECK_REAL(ranks_load(buffer, dtype, e), (double)expected));
        }
    }
}

static void allreduce_of_64_bit_integers_keeps_every_bit(ranks_context *ctx) {
    int64_t values[3] = {INT64_C(1) << 53, INT64_MAX - RANKS_WORLD_MAX, INT64_MIN};
    values[0] += ctx->rank; /* beyond what float64 holds */
    values[1] += ctx->rank;
    values[2] += ctx->rank;
    int64_t sum = values[0];
    CHECK_OK(gsync_allreduce(ctx->comm, &sum, 1, GSYNC_INT64, GSYNC_SUM));
    CHECK_EQ(sum, ctx->world * (INT64_C(1) << 53) + ctx->world * (ctx->world - 1) / 2);
    CHECK_OK(gsync_allreduce(ctx->comm, values, 3, GSYNC_INT64, GSYNC_MAX));
    CHECK_EQ(values[1], INT64_MAX - RANKS_WORLD_MAX + ctx->world - 1);
    CHECK_EQ(values[2], INT64_MIN + ctx->world - 1);
}

static void what_allreduce_cannot_do_is_refused_and_nothing_is_touched(ranks_context *ctx) {
    int32_t integer = 7;
    float number = 7;
    CHECK_STATUS(gsync_allreduce(ctx->comm, &integer, 1, GSYNC_INT32, GSYNC_MEAN), GSYNC_ERR_UNSUPPORTED);
    CHECK_STATUS(gsync_allreduce(ctx->comm, &number, 1, GSYNC_FLOAT32, GSYNC_WEIGHTED_MEAN), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_allreduce(ctx->comm, &number, 1, (gsync_dtype)99, GSYNC_SUM), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_allreduce(ctx->comm, NULL, 1, GSYNC_FLOAT32, GSYNC_SUM), GSYNC_ERR_ARGUMENT);
    CHECK_OK(gsync_allreduce(ctx->comm, NULL, 0, GSYNC_FLOAT32, GSYNC_SUM));
    CHECK(integer == 7 && number == 7);
}

static void broadcast_brings_every_roots_bytes_to_all(ranks_context *ctx) {
    unsigned char *buffer = ranks_memory(ctx, 700001);
    static const size_t bytes[] = {0, 1, 3, 256, 4096, 262143, 262144, 262145, 700001};
    for (int root = 0; root < ctx->world; root++) {
        for (size_t b = 0; b < sizeof bytes / sizeof bytes[0]; b++) {
            for (size_t i = 0; i < bytes[b]; i++) {
                buffer[i] = (unsigned char)(i * 7 + i / 251 + (size_t)ctx->rank * 13 + b);
            }
            REQUIRE_OK(gsync_broadcast(ctx->comm, buffer, bytes[b], GSYNC_UINT8, root));
            size_t wrong = 0;
            for (size_t i = 0; i < bytes[b]; i++) {
                wrong += buffer[i] != (unsigned char)(i * 7 + i / 251 + (size_t)root * 13 + b);
            }
            CHECK_EQ(wrong, 0);
        }
    }
    CHECK_STATUS(gsync_broadcast(ctx->comm, buffer, 1, GSYNC_UINT8, ctx->world), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_broadcast(ctx->comm, buffer, 1, GSYNC_UINT8, -1), GSYNC_ERR_ARGUMENT);
}

static void all_done_is_true_only_when_all_are(ranks_context *ctx) {
    for (int done = 0; done <= ctx->world; done++) {
        int all = -1;
        CHECK_OK(gsync_all_done(ctx->comm, ctx->rank < done ? 5 : 0, &all));
        CHECK_EQ(all, done == ctx->world);
    }
    CHECK_STATUS(gsync_all_done(ctx->comm, 1, NULL), GSYNC_ERR_ARGUMENT);
}

static void check_replicas_names_the_first_buffer_and_rank_that_differ(ranks_context *ctx) {
    enum { BUFFERS = 1500, BYTES = 40 }; /* more than travel in one message */
    unsigned char *memory = ranks_memory(ctx, (size_t)BUFFERS * BYTES);
    const void *bufs[BUFFERS];
    size_t bytes[BUFFERS];
    memset(memory, 3, (size_t)BUFFERS * BYTES);
    for (size_t i = 0; i < BUFFERS; i++) {
        bufs[i] = memory + i * BYTES;
        bytes[i] = i % 2 == 0 ? BYTES : BYTES - 3;
    }
    CHECK_OK(gsync_check_replicas(ctx->comm, NULL, bufs, bytes, BUFFERS));
    CHECK_OK(gsync_check_replicas(ctx->comm, NULL, NULL, NULL, 0));
    if (ctx->world > 1) {
        char where[32];
        if (ctx->rank == ctx->world - 1) {
            memory[1301 * BYTES + BYTES - 4] ^= 1; /* the last byte that counts */
            memory[1303 * BYTES] ^= 1;
        }
        memory[1300 * BYTES + BYTES * 2 - 1] = (unsigned char)ctx->rank; /* behind what counts of buffer 1301 */
        CHECK_STATUS(gsync_check_replicas(ctx->comm, NULL, bufs, bytes, BUFFERS), GSYNC_ERR_MISMATCH);
        CHECK_CONTAINS(gsync_last_error(), "buffer 1301");
        snprintf(where, sizeof where, "rank %d", ctx->world - 1);
        CHECK_CONTAINS(gsync_last_error(), where);
    }
    CHECK_OK(gsync_barrier(ctx->comm));
}

/* Colours are given by rank % 2, keys turn the order around; rank 3, if there is one, stays out. */
static void split_groups_by_colour_and_orders_by_key(ranks_context *ctx) {
    gsync_comm *part = NULL;
    const int color = ctx->rank == 3 ? -1 : ctx->rank % 2;
    const int members = color == 1 ? 1 : (ctx->world > 2 ? 2 : 1);
    REQUIRE_OK(gsync_comm_split(ctx->comm, color, -ctx->rank, &part));
    if (color < 0) {
        CHECK(part == NULL);
    } else {
        int32_t sum = ctx->rank;
        CHECK_EQ(gsync_world_size(part), members);
        CHECK_EQ(gsync_rank(part), color == 0 && members == 2 ? 1 - ctx->rank / 2 : 0);
        CHECK_OK(gsync_allreduce(part, &sum, 1, GSYNC_INT32, GSYNC_SUM));
        CHECK_EQ(sum, color == 1 ? 1 : (members == 2 ? 2 : 0));
    }
    /* The parent stays usable. */
    int32_t all = 1;
    CHECK_OK(gsync_allreduce(ctx->comm, &all, 1, GSYNC_INT32, GSYNC_SUM));
    CHECK_EQ(all, ctx->world);
    gsync_comm_destroy(&part);
}

/* The first difference, on all ranks, and the communicator stays in step. */
static void ranks_that_disagree_about_a_call_all_get_a_mismatch(ranks_context *ctx) {
    const bool is_odd_one = ctx->rank == ctx->world - 1;
    double values[4] = {1, 2, 3, 4};
    CHECK_STATUS(gsync_allreduce(ctx->comm, values, is_odd_one ? 3 : 4, GSYNC_FLOAT64, GSYNC_SUM), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "elements");
    CHECK_STATUS(gsync_allreduce(ctx->comm, values, 1, is_odd_one ? GSYNC_INT64 : GSYNC_FLOAT64, GSYNC_SUM),
                 GSYNC_ERR_MISMATCH);
    CHECK_STATUS(gsync_allreduce(ctx->comm, values, 1, GSYNC_FLOAT64, is_odd_one ? GSYNC_MAX : GSYNC_SUM),
                 GSYNC_ERR_MISMATCH);
    CHECK_STATUS(gsync_broadcast(ctx->comm, values, 2, GSYNC_FLOAT64, is_odd_one ? 1 : 0), GSYNC_ERR_MISMATCH);
    CHECK_STATUS(is_odd_one ? gsync_barrier(ctx->comm)
                            : gsync_allreduce(ctx->comm, values, 1, GSYNC_FLOAT64, GSYNC_SUM),
                 GSYNC_ERR_MISMATCH);
    CHECK(values[0] == 1 && values[1] == 2 && values[2] == 3 && values[3] == 4);
    CHECK_OK(gsync_barrier(ctx->comm));
}

RANKS_MAIN(RANKS_TEST(allreduce_of_floats_has_the_bits_of_a_sum_in_rank_order),
           RANKS_TEST(allreduce_knows_sum_min_and_max_of_every_number),
           RANKS_TEST(allreduce_of_64_bit_integers_keeps_every_bit),
           RANKS_TEST(what_allreduce_cannot_do_is_refused_and_nothing_is_touched),
           RANKS_TEST(broadcast_brings_every_roots_bytes_to_all), RANKS_TEST(all_done_is_true_only_when_all_are),
           RANKS_TEST(check_replicas_names_the_first_buffer_and_rank_that_differ),
           RANKS_TEST_WITH(split_groups_by_colour_and_orders_by_key, .world_max = 4),
           RANKS_TEST_WITH(ranks_that_disagree_about_a_call_all_get_a_mismatch, .world_min = 2))
