/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=2,3 transports=threads,mpi links=internal timeout=120 */

/*
 * Narrow wires give the bits of a serial model of them, on every rank and in every step, whatever buckets, the order
 * of marks, layouts and windows are.
 */

#include "base/wire_format.h"
#include "device/device_host.h"
#include "wire_trainer.h"

#include <stdio.h>

/* More and fewer elements than a block, than ranks, and than the library rounds at once. */
static const size_t counts[] = {3, 1, 256, 0, 300, 257, 1300, 64};
enum { COUNTS = sizeof counts / sizeof *counts, STEPS = 3 };

static const gsync_wire wires[] = {GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8,
                                   GSYNC_WIRE_TOPK};
enum { WIRES = sizeof wires / sizeof *wires };

/* The random numbers are the library's; that they are good ones is tested with the codec. */
static uint64_t key_of(uint64_t seed, uint64_t step, int rank, uint32_t gradient) {
    const uint64_t words[] = {seed, step, (uint64_t)rank, gradient};
    return gs_host_hash(words, sizeof words, 0);
}

static uint32_t random_of(uint64_t key, uint64_t number) {
    return gs_random_bits(gs_random_stream_of(key, (uint32_t)(number >> 32)), (uint32_t)number) >> 8;
}

static wire_choice choice_of(gsync_wire wire, bool has_feedback) {
    wire_choice choice = {wire, GSYNC_WIRE_OPTIONS_INIT};
    choice.options.elements_min = 1;
    choice.options.feedback = has_feedback ? GSYNC_FEEDBACK_ON : GSYNC_FEEDBACK_OFF;
    return choice;
}

/* A try with one setting: some steps of the trainer. */
typedef struct setting {
    gsync_comm *comm; /* NULL: the test's own */
    int ranks_per_host;
    gsync_options options;
    bits_place place;
    const wire_choice *choices;
    size_t choice_count;
} setting;

static void take_steps(wire_trainer *trainer, const setting *how, const char *what, int step_count) {
    char text[160];
    ranks_random random = ranks_random_from(trainer->ctx->seed, 77 + (uint64_t)trainer->ctx->rank);
    snprintf(text, sizeof text, "%s: wire %d feedback %d cap %zu place %d hosts of %d", what, (int)how->choices[0].wire,
             (int)how->choices[0].options.feedback, how->options.bucket_bytes_max, (int)how->place,
             how->ranks_per_host);
    trainer->model->setting = text;
    gsync_comm *comm = how->comm != NULL ? how->comm : trainer->ctx->comm;
    REQUIRE_OK(wire_trainer_open(trainer, comm, how->ranks_per_host, &how->options, how->place, how->choices,
                                 how->choice_count));
    trainer->reference->key = key_of;
    trainer->reference->random = random_of;
    for (int step = 0; step < step_count && !ranks_has_failed(trainer->ctx); step++) {
        REQUIRE_OK(wire_trainer_step(trainer, &random));
    }
    wire_trainer_close(trainer);
    trainer->model->setting = "";
}

/* Every wire without and with feedback, and each in another layout and with other buckets. */
static void try_wires(ranks_context *ctx, gsync_comm *comm, int ranks_per_host, gsync_dtype dtype,
                      gsync_options options, void (*adapt)(wire_trainer *trainer)) {
    static const size_t caps[] = {1, 4096, SIZE_MAX, 16384};
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, dtype);
    if (adapt != NULL) {
        adapt(trainer);
    }
    for (size_t i = 0; i < 2 * (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i / 2], i % 2 == 1);
        setting how = {comm, ranks_per_host, options, (bits_place)((i * 5 + dtype) % (BITS_MIXED + 1)), &choice, 1};
        how.options.bucket_bytes_max = caps[i % 4];
        how.options.strategy = (gsync_strategy)(i % 3);
        take_steps(trainer, &how, "every wire", STEPS);
    }
}

static void every_wire_has_the_bits_of_the_model(ranks_context *ctx) {
    try_wires(ctx, NULL, 0, GSYNC_FLOAT32, (gsync_options)GSYNC_OPTIONS_INIT, NULL);
}

static void sixteen_bit_gradients_have_too(ranks_context *ctx) {
    try_wires(ctx, NULL, 0, GSYNC_FLOAT16, (gsync_options)GSYNC_OPTIONS_INIT, NULL);
    try_wires(ctx, NULL, 0, GSYNC_BFLOAT16, (gsync_options)GSYNC_OPTIONS_INIT, NULL);
}

static void layouts_and_buckets_do_not_matter(ranks_context *ctx) {
    static const size_t caps[] = {1, 5000, SIZE_MAX};
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, GSYNC_FLOAT32);
    for (size_t i = 0; i < (size_t)WIRES * 6 && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i / 6], i / 6 == 2);
        setting how = {NULL, 0, GSYNC_OPTIONS_INIT, (bits_place)(i % 6), &choice, 1};
        how.options.bucket_bytes_max = caps[i % 3];
        take_steps(trainer, &how, "layouts", STEPS);
    }
}

static void random_rounding_is_as_random_everywhere(ranks_context *ctx) {
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, GSYNC_FLOAT32);
    for (size_t i = 0; i < 6 && !ranks_has_failed(ctx); i++) {
        wire_choice choice = choice_of(GSYNC_WIRE_INT8, i % 2 == 1);
        choice.options.is_stochastic = 1;
        choice.options.seed = i * UINT64_C(0x123456789abcdef);
        setting how = {NULL, 0, GSYNC_OPTIONS_INIT, (bits_place)i, &choice, 1};
        how.options.bucket_bytes_max = i % 2 == 0 ? 5000 : SIZE_MAX;
        take_steps(trainer, &how, "stochastic", STEPS);
    }
}

static void adapt_to_windows(wire_trainer *trainer) {
    trainer->micro_batches = 3;
}

static void windows_that_the_library_adds_up_are_rounded_once(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_wires(ctx, NULL, 0, GSYNC_FLOAT32, options, adapt_to_windows);
    try_wires(ctx, NULL, 0, GSYNC_BFLOAT16, options, adapt_to_windows);
}

static void adapt_to_weights(wire_trainer *trainer) {
    trainer->weighs = true;
}

static void sums_and_weighted_means_are_rounded_like_means(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_SUM;
    try_wires(ctx, NULL, 0, GSYNC_FLOAT32, options, NULL);
    options.op = GSYNC_WEIGHTED_MEAN;
    try_wires(ctx, NULL, 0, GSYNC_FLOAT32, options, adapt_to_weights);
}

static void adapt_to_marks(wire_trainer *trainer) {
    trainer->marks_all = true;
}

static void results_that_are_held_back_have_the_same_bits(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    try_wires(ctx, NULL, 0, GSYNC_FLOAT32, options, adapt_to_marks);
    options.finds_unused = 0;
    options.checks_writes = 1;
    try_wires(ctx, NULL, 0, GSYNC_FLOAT16, options, NULL);
}

/* What is asked for besides changes nothing: other code adds up then. */
static void looking_for_infinities_changes_no_bits(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_finite = 1;
    options.computes_norm = 1;
    try_wires(ctx, NULL, 0, GSYNC_FLOAT32, options, NULL);
}

static void extreme_values(ranks_context *ctx, wire_values_kind kind, double magnitude) {
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, GSYNC_FLOAT32);
    trainer->kind = kind;
    for (size_t i = 0; i < COUNTS; i++) {
        trainer->magnitudes[i] = magnitude;
    }
    for (size_t i = 0; i < 2 * (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i / 2], i % 2 == 1);
        const setting how = {NULL, 0, GSYNC_OPTIONS_INIT, BITS_APART, &choice, 1};
        take_steps(trainer, &how, "extremes", STEPS);
    }
}

static void the_smallest_and_the_largest_numbers_have_the_bits_of_the_model(ranks_context *ctx) {
    extreme_values(ctx, WIRE_ZERO, 1.0);
    extreme_values(ctx, WIRE_DENORMAL, 1.0);
    extreme_values(ctx, WIRE_DENORMAL, 0x1p-11);
    extreme_values(ctx, WIRE_DENORMAL, 0x1p32);
    extreme_values(ctx, WIRE_HUGE, 0x1p14);
    extreme_values(ctx, WIRE_HEAVY_TAILED, 1.0);
}

/* One reducer, a wire for each gradient: magnitudes of one must not choose the scale of another. */
static void gradients_on_many_wires_do_not_meet(ranks_context *ctx) {
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, GSYNC_FLOAT32);
    const wire_choice choices[] = {choice_of(GSYNC_WIRE_FLOAT16, true), choice_of(GSYNC_WIRE_BFLOAT16, false),
                                   choice_of(GSYNC_WIRE_INT8, true),    choice_of(GSYNC_WIRE_NATIVE, false),
                                   choice_of(GSYNC_WIRE_TOPK, true),    choice_of(GSYNC_WIRE_FLOAT16, false),
                                   choice_of(GSYNC_WIRE_FLOAT8, false)};
    for (size_t i = 0; i < COUNTS; i++) {
        trainer->magnitudes[i] = choices[i % 7].wire == GSYNC_WIRE_FLOAT16 ? 0x1p-30 : 0x1p50;
    }
    for (size_t i = 0; i < 6 && !ranks_has_failed(ctx); i++) {
        const setting how = {NULL, 0, GSYNC_OPTIONS_INIT, (bits_place)i, choices, sizeof choices / sizeof *choices};
        take_steps(trainer, &how, "many wires", STEPS);
    }
}

static void take_steps_without_one(wire_trainer *trainer, const setting *how) {
    ranks_random random = ranks_random_from(trainer->ctx->seed, 78 + (uint64_t)trainer->ctx->rank);
    trainer->model->setting = "absent";
    REQUIRE_OK(wire_trainer_open(trainer, how->comm != NULL ? how->comm : trainer->ctx->comm, how->ranks_per_host,
                                 &how->options, how->place, how->choices, 1));
    for (int step = 0; step < 2 * trainer->ctx->world + 2 && !ranks_has_failed(trainer->ctx); step++) {
        trainer->absent = step / 2 - 1;
        REQUIRE_OK(wire_trainer_step(trainer, &random));
    }
    trainer->absent = -1;
    wire_trainer_close(trainer);
}

/* One rank after the other has no data for two steps: it owes on what it owed, and the others count alone. */
static void try_absence(ranks_context *ctx, gsync_comm *comm, int ranks_per_host) {
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, GSYNC_FLOAT32);
    trainer->weighs = true;
    for (size_t i = 0; i < 2 * (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i / 2], i % 2 == 1);
        setting how = {comm, ranks_per_host, GSYNC_OPTIONS_INIT, (bits_place)(i % 6), &choice, 1};
        how.options.op = GSYNC_WEIGHTED_MEAN;
        take_steps_without_one(trainer, &how);
    }
}

static void ranks_without_data_neither_send_nor_forget_what_they_owe(ranks_context *ctx) {
    try_absence(ctx, NULL, 0);
}

/* Of many pieces, between hosts too; the gradient in the middle shares one with its neighbours. */
static void try_large(ranks_context *ctx, gsync_comm *comm, int ranks_per_host) {
    static const size_t large[] = {20001, 3, 12000 + 300};
    wire_trainer *trainer = wire_trainer_new(ctx, large, 3, GSYNC_FLOAT32);
    for (size_t i = 0; i < (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i], i % 2 == 0);
        setting how = {comm, ranks_per_host, GSYNC_OPTIONS_INIT, i % 2 == 0 ? BITS_PITCHED : BITS_OWNED, &choice, 1};
        how.options.strategy = GSYNC_STRATEGY_SINGLE;
        take_steps(trainer, &how, "large", 2);
    }
}

static void large_gradients_have_the_bits_of_the_model(ranks_context *ctx) {
    try_large(ctx, NULL, 0);
}

static void try_hosts(ranks_context *ctx, uint32_t per_host) {
    gsync_comm_options comm_options = ctx->comm_options;
    gsync_comm *comm = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    const int hosts_of = (int)per_host;
    comm_options.ranks_per_host = per_host;
    REQUIRE_OK(gsync_comm_create(&comm, &comm_options));
    try_wires(ctx, comm, hosts_of, GSYNC_FLOAT32, options, NULL);
    try_absence(ctx, comm, hosts_of);
    try_large(ctx, comm, hosts_of);
    options.checks_finite = 1;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_wires(ctx, comm, hosts_of, GSYNC_BFLOAT16, options, adapt_to_windows);
    options.accumulation = GSYNC_CLIENT_ACCUMULATES;
    options.finds_unused = 1;
    try_wires(ctx, comm, hosts_of, GSYNC_FLOAT16, options, adapt_to_marks);
    gsync_comm_destroy(&comm);
}

static void between_hosts_of_one_rank_each_contribution_is_rounded(ranks_context *ctx) {
    try_hosts(ctx, 1);
}

static void between_hosts_of_two_ranks_their_sum_is_rounded(ranks_context *ctx) {
    try_hosts(ctx, 2);
}

#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_HELPER), RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_CALLER)

RANKS_MAIN(BOTH(every_wire_has_the_bits_of_the_model), RANKS_TEST(sixteen_bit_gradients_have_too),
           RANKS_TEST(layouts_and_buckets_do_not_matter), RANKS_TEST(random_rounding_is_as_random_everywhere),
           RANKS_TEST(windows_that_the_library_adds_up_are_rounded_once),
           RANKS_TEST(sums_and_weighted_means_are_rounded_like_means),
           RANKS_TEST(results_that_are_held_back_have_the_same_bits),
           RANKS_TEST(looking_for_infinities_changes_no_bits),
           RANKS_TEST(the_smallest_and_the_largest_numbers_have_the_bits_of_the_model),
           RANKS_TEST(gradients_on_many_wires_do_not_meet),
           RANKS_TEST_WITH(ranks_without_data_neither_send_nor_forget_what_they_owe, .world_min = 2),
           RANKS_TEST(large_gradients_have_the_bits_of_the_model),
           RANKS_TEST_WITH(between_hosts_of_one_rank_each_contribution_is_rounded, .needs_mpi = true),
           RANKS_TEST_WITH(between_hosts_of_two_ranks_their_sum_is_rounded, .needs_mpi = true, .world_min = 3))
