/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * One inf or NaN in one gradient of one rank: every rank finds it, and knows whose it was. What the step would have
 * changed from step to step is as it was: the next ones have the bits that they would have had without it.
 */

#include "wire_trainer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const size_t counts[] = {300, 1, 0, 1100, 257};
enum { COUNTS = sizeof counts / sizeof *counts };

static const gsync_wire wires[] = {GSYNC_WIRE_NATIVE, GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16,
                                   GSYNC_WIRE_INT8,   GSYNC_WIRE_FLOAT8,  GSYNC_WIRE_TOPK};
enum { WIRES = sizeof wires / sizeof *wires };

/* Where a step is spoilt. */
typedef struct spot {
    size_t gradient;
    size_t element;
} spot;
static const spot spots[] = {{3, 1099}, {0, 0}, {1, 0}, {4, 256}, {3, 700}, {0, 299}, {3, 0}};
enum { SPOTS = sizeof spots / sizeof *spots };

static const float poisons[] = {INFINITY, NAN, -INFINITY};

static wire_choice choice_of(gsync_wire wire, bool has_feedback) {
    wire_choice choice = {wire, GSYNC_WIRE_OPTIONS_INIT};
    choice.options.elements_min = 1;
    choice.options.feedback = has_feedback && wire != GSYNC_WIRE_NATIVE ? GSYNC_FEEDBACK_ON : GSYNC_FEEDBACK_OFF;
    return choice;
}

static void check_found(const wire_trainer *trainer) {
    const gsync_step_info *info = &trainer->info;
    CHECK_EQ(info->found_inf, 1);
    CHECK_EQ(info->found_inf_rank, trainer->poisoned_rank);
    REQUIRE(info->found_inf_gradient != NULL);
    CHECK(strcmp(info->found_inf_gradient, trainer->model->tensors[trainer->poisoned_gradient].name) == 0);
    CHECK_SAME_ON_ALL(trainer->ctx, info->found_inf_rank);
}

/* Every other step is spoilt, also the first, which is native where a wire needs to know magnitudes. */
static void spoil_steps(wire_trainer *trainer, size_t salt) {
    ranks_random random = ranks_random_from(trainer->ctx->seed, salt);
    for (size_t step = 0; step < 6 && !ranks_has_failed(trainer->ctx); step++) {
        const spot at = spots[(step + salt) % SPOTS];
        const bool is_spoilt = step % 2 == salt % 2;
        trainer->poisoned_rank = is_spoilt ? (int)((step / 2 + salt) % (size_t)trainer->ctx->world) : -1;
        trainer->poisoned_gradient = at.gradient;
        trainer->poisoned_element = at.element;
        trainer->poison = poisons[(step / 2 + salt) % 3];
        REQUIRE_OK(wire_trainer_step(trainer, &random));
        if (is_spoilt) {
            check_found(trainer);
        } else {
            CHECK_EQ(trainer->info.found_inf, 0);
            CHECK_EQ(trainer->info.found_inf_rank, -1);
            CHECK(trainer->info.found_inf_gradient == NULL);
        }
    }
}

static void try_wires(ranks_context *ctx, gsync_comm *comm, int ranks_per_host, gsync_dtype dtype,
                      gsync_options options) {
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, dtype);
    trainer->micro_batches = options.accumulation == GSYNC_CLIENT_OVERWRITES ? 2 : 1;
    trainer->marks_all = options.finds_unused != 0;
    options.checks_finite = 1;
    for (size_t i = 0; i < 2 * (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i / 2], i % 2 == 1);
        char text[80];
        snprintf(text, sizeof text, "wire %d feedback %zu dtype %d", (int)choice.wire, i % 2, (int)dtype);
        trainer->model->setting = text;
        options.bucket_bytes_max = i % 3 == 0 ? 4096 : 0;
        REQUIRE_OK(wire_trainer_open(trainer, comm, ranks_per_host, &options, (bits_place)(i % 6), &choice, 1));
        spoil_steps(trainer, i);
        wire_trainer_close(trainer);
    }
}

static void every_rank_finds_it_and_nothing_else_changes(ranks_context *ctx) {
    try_wires(ctx, ctx->comm, 0, GSYNC_FLOAT32, (gsync_options)GSYNC_OPTIONS_INIT);
    try_wires(ctx, ctx->comm, 0, GSYNC_FLOAT16, (gsync_options)GSYNC_OPTIONS_INIT);
    try_wires(ctx, ctx->comm, 0, GSYNC_BFLOAT16, (gsync_options)GSYNC_OPTIONS_INIT);
}

static void in_windows_and_in_results_that_are_held_back_too(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    try_wires(ctx, ctx->comm, 0, GSYNC_BFLOAT16, options);
    options = (gsync_options)GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    try_wires(ctx, ctx->comm, 0, GSYNC_FLOAT32, options);
}

static void on_several_hosts_too(ranks_context *ctx) {
    for (uint32_t per_host = 1; per_host <= 2 && (int)per_host < ctx->world; per_host++) {
        gsync_comm_options comm_options = ctx->comm_options;
        gsync_comm *comm = NULL;
        gsync_options options = GSYNC_OPTIONS_INIT;
        comm_options.ranks_per_host = per_host;
        REQUIRE_OK(gsync_comm_create(&comm, &comm_options));
        try_wires(ctx, comm, (int)per_host, GSYNC_FLOAT32, options);
        try_wires(ctx, comm, (int)per_host, GSYNC_FLOAT16, options);
        options.finds_unused = 1;
        try_wires(ctx, comm, (int)per_host, GSYNC_BFLOAT16, options);
        gsync_comm_destroy(&comm);
    }
}

/* Finite on every rank: nobody is to blame. */
static void a_sum_that_overflows_is_nobodys(ranks_context *ctx) {
    const size_t count = 600;
    for (size_t i = 0; i < (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i], false);
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.checks_finite = 1;
        ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_register(model, NULL, &options));
        REQUIRE_OK(gsync_reducer_set_wire(model->reducer, NULL, choice.wire, &choice.options));
        REQUIRE_OK(gsync_reducer_commit(model->reducer));
        for (int step = 0; step < 2; step++) {
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            for (size_t k = 0; k < count; k++) {
                ((float *)model->tensors[0].grad)[k] = k == 555 ? FLT_MAX * 0.9f : 1.0f;
            }
            REQUIRE_OK(ranks_model_step(model, NULL, &info));
            CHECK_EQ(info.found_inf, 1);
            CHECK_EQ(info.found_inf_rank, -1);
            CHECK(info.found_inf_gradient != NULL && strcmp(info.found_inf_gradient, "p0") == 0);
        }
        gsync_reducer_destroy(&model->reducer);
    }
}

/* The norm says so too. */
static void the_norm_of_a_spoilt_step_is_not_finite(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i], true);
        gsync_options options = GSYNC_OPTIONS_INIT;
        wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, GSYNC_FLOAT32);
        ranks_random random = ranks_random_from(ctx->seed, i);
        options.computes_norm = 1;
        REQUIRE_OK(wire_trainer_open(trainer, ctx->comm, 0, &options, BITS_APART, &choice, 1));
        for (int step = 0; step < 4; step++) {
            trainer->poisoned_rank = step % 2 == 1 ? ctx->world - 1 : -1;
            trainer->poisoned_gradient = 3;
            trainer->poison = NAN;
            REQUIRE_OK(wire_trainer_step(trainer, &random));
            CHECK_EQ(isfinite(trainer->info.grad_norm) != 0, step % 2 == 0);
        }
        wire_trainer_close(trainer);
    }
}

#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_HELPER), RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_CALLER)

RANKS_MAIN(BOTH(every_rank_finds_it_and_nothing_else_changes),
           RANKS_TEST(in_windows_and_in_results_that_are_held_back_too),
           RANKS_TEST_WITH(on_several_hosts_too, .needs_mpi = true), RANKS_TEST(a_sum_that_overflows_is_nobodys),
           RANKS_TEST(the_norm_of_a_spoilt_step_is_not_finite))
