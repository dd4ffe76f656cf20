/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 starts=ofast */

/*
 * Narrow wires in trainers whose floating-point is not as usual. This program is linked with -Ofast:
 * subnormals are flushed from before main on, and the library's threads inherit it. Some ranks have it
 * otherwise. And trainers may have traps on.
 */

#include "wire_trainer.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

#if defined(__SSE2__) && defined(__GLIBC__) && defined(__x86_64__)
#include <immintrin.h>
#define HAS_MODES 1
#else
#define HAS_MODES 0
#endif

static const size_t counts[] = {300, 1, 1100, 64};
enum { COUNTS = sizeof counts / sizeof *counts };

static const gsync_wire wires[] = {GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8,
                                   GSYNC_WIRE_TOPK};
enum { WIRES = sizeof wires / sizeof *wires };

static void flush_subnormals(bool is_on) {
#if HAS_MODES
    const unsigned both = 0x8040u; /* FTZ and DAZ */
    _mm_setcsr(is_on ? _mm_getcsr() | both : _mm_getcsr() & ~both);
#else
    (void)is_on;
#endif
}

static bool does_flush(void) {
#if HAS_MODES
    return (_mm_getcsr() & 0x8040u) == 0x8040u;
#else
    return false;
#endif
}

/* Traps of all kinds but for results that are inexact, which nearly all are. */
static void set_traps(bool is_on) {
#if HAS_MODES
    const int traps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW;
    feclearexcept(FE_ALL_EXCEPT);
    if (is_on) {
        feenableexcept(traps);
    } else {
        fedisableexcept(traps);
    }
#else
    (void)is_on;
#endif
}

static void flush_on_most_ranks(const wire_trainer *trainer, bool is_on) {
    flush_subnormals(is_on && trainer->ctx->rank != 1);
}

static void trap_on_most_ranks(const wire_trainer *trainer, bool is_on) {
    set_traps(is_on && trainer->ctx->rank != 1);
}

/* What is owed, which is subnormal too, moves to another plan. */
static void plan_anew(wire_trainer *trainer) {
    gsync_reducer *reducer = trainer->model->reducer;
    CHECK_OK(gsync_reducer_set_trainable(reducer, trainer->model->tensors[1].name, 0));
    trainer->set_mode(trainer, true);
    const gsync_status status = gsync_reducer_commit(reducer);
    trainer->set_mode(trainer, false);
    CHECK_OK(status);
}

static void take_steps(wire_trainer *trainer, const gsync_options *options, const wire_choice *choice) {
    ranks_random random = ranks_random_from(trainer->ctx->seed, 9);
    REQUIRE_OK(wire_trainer_open(trainer, trainer->ctx->comm, 0, options, BITS_SHIFTED, choice, 1));
    for (int step = 0; step < 5 && !ranks_has_failed(trainer->ctx); step++) {
        trainer->poisoned_rank = step == 3 ? 0 : -1;
        trainer->poisoned_gradient = 2;
        trainer->poisoned_element = 700;
        trainer->poison = trainer->round % 2 == 0 ? INFINITY : NAN;
        REQUIRE_OK(wire_trainer_step(trainer, &random));
    }
    plan_anew(trainer);
    wire_trainer_close(trainer);
}

static void try_modes(ranks_context *ctx, void (*set_mode)(const wire_trainer *trainer, bool is_on)) {
    static const wire_values_kind kinds[] = {WIRE_DENORMAL, WIRE_MIXED, WIRE_HUGE, WIRE_DENORMAL};
    static const double magnitudes[] = {1.0, 1.0, 0x1p14, 0x1p24};
    wire_trainer *trainer = wire_trainer_new(ctx, counts, COUNTS, GSYNC_FLOAT32);
    trainer->set_mode = set_mode;
    for (size_t i = 0; i < (size_t)WIRES * 8 && !ranks_has_failed(ctx); i++) {
        wire_choice choice = {wires[i / 8], GSYNC_WIRE_OPTIONS_INIT};
        gsync_options options = GSYNC_OPTIONS_INIT;
        trainer->kind = kinds[i % 4];
        for (size_t g = 0; g < COUNTS; g++) {
            trainer->magnitudes[g] = magnitudes[i % 4];
        }
        trainer->micro_batches = i % 8 == 5 ? 2 : 1;
        options.accumulation = i % 8 == 5 ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
        options.checks_finite = 1;
        options.computes_norm = i % 2 == 1;
        options.bucket_bytes_max = 4096;
        choice.options.elements_min = 1;
        choice.options.feedback = i % 8 >= 4 ? GSYNC_FEEDBACK_ON : GSYNC_FEEDBACK_OFF;
        take_steps(trainer, &options, &choice);
    }
}

static void ranks_that_flush_subnormals_get_the_bits_of_those_that_do_not(ranks_context *ctx) {
    if (!HAS_MODES) {
        SKIP("how to flush subnormals here is not known");
    }
    CHECK(does_flush());
    flush_subnormals(false);
    try_modes(ctx, flush_on_most_ranks);
    flush_subnormals(true);
}

static void trainers_may_have_traps_on(ranks_context *ctx) {
    if (!HAS_MODES) {
        SKIP("how to set traps here is not known");
    }
    flush_subnormals(false);
    try_modes(ctx, trap_on_most_ranks);
    flush_subnormals(true);
}

#define HOST_ONLY "a GPU has no such modes, and simulated kernels run on threads that have them"
#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_HELPER, .host_only = HOST_ONLY),                                 \
        RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_CALLER, .host_only = HOST_ONLY)

RANKS_MAIN(BOTH(ranks_that_flush_subnormals_get_the_bits_of_those_that_do_not), BOTH(trainers_may_have_traps_on))
