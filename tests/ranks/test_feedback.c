/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * Error feedback: what a step did not send is owed, and comes with a later one. Nothing of it is lost, whatever happens
 * between steps, and it does not grow.
 */

#include "sanitized.h"
#include "wire_trainer.h"

#include <math.h>
#include <string.h>

static const gsync_wire wires[] = {GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8,
                                   GSYNC_WIRE_TOPK};
enum { WIRES = sizeof wires / sizeof *wires };

static wire_choice choice_of(gsync_wire wire, gsync_feedback feedback) {
    wire_choice choice = {wire, GSYNC_WIRE_OPTIONS_INIT};
    choice.options.elements_min = 1;
    choice.options.feedback = feedback;
    return choice;
}

/* A model of ranks_model's, all of which travels so. */
static ranks_model *open_model(ranks_context *ctx, gsync_comm *comm, const size_t *counts, size_t count,
                               wire_choice choice, gsync_options options) {
    ranks_model *model = ranks_model_new(ctx, counts, count, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, comm, &options));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, choice.wire, &choice.options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    return model;
}

/* ---- Nothing is lost ----------------------------------------------------------------------------------------------
 */

/* The others have zeros: what arrives is what rank 1 sent. */
static void what_top_k_sends_and_owes_is_what_it_had_bit_for_bit(ranks_context *ctx) {
    const size_t count = 500;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_SUM;
    ranks_model *model = open_model(ctx, NULL, &count, 1, choice_of(GSYNC_WIRE_TOPK, GSYNC_FEEDBACK_AUTO), options);
    float *grad = model->tensors[0].grad;
    float *had = ranks_memory(ctx, count * sizeof *had);
    memset(had, 0, count * sizeof *had);
    for (uint64_t step = 0; step < 60 && !ranks_has_failed(ctx); step++) {
        size_t sent = 0;
        wire_values(WIRE_GAUSSIAN, oracle_key(ctx, step, 0), 1, grad, count);
        for (size_t k = 0; k < count; k++) {
            had[k] += grad[k];
            grad[k] = ctx->rank == 1 ? grad[k] : 0.0f;
        }
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        for (size_t k = 0; k < count; k++) {
            sent += grad[k] != 0.0f;
            CHECK(grad[k] == 0.0f || grad[k] == had[k]);
            had[k] = grad[k] != 0.0f ? 0.0f : had[k];
        }
        CHECK_EQ(sent, 50);
    }
}

typedef struct sums {
    double *wanted; /* of all ranks' gradients so far */
    double *got;    /* of the results, times the divisor */
} sums;

static void add_step(const wire_trainer *trainer, sums *all) {
    const bits_tensor *tensor = &trainer->model->tensors[0];
    const int world = trainer->ctx->world;
    for (size_t k = 0; k < tensor->count; k++) {
        all->got[k] += (double)((const float *)tensor->grad)[k] * world;
        for (int rank = 0; rank < world; rank++) {
            all->wanted[k] += (double)trainer->inputs[rank][k];
        }
    }
}

/* The largest difference between what was wanted and what arrived or is owed. */
static double gap_of(const wire_trainer *trainer, const sums *all, bool counts_owed) {
    const wire_gradient *gradient = &trainer->reference->gradients[0];
    double gap = 0;
    for (size_t k = 0; k < gradient->count; k++) {
        double owed = 0;
        for (int rank = 0; rank < trainer->ctx->world && counts_owed; rank++) {
            owed += (double)gradient->owed[rank][k];
        }
        owed += counts_owed ? (double)gradient->owed_of_result[k] * trainer->ctx->world : 0;
        gap = fmax(gap, fabs(all->wanted[k] - all->got[k] - owed));
    }
    return gap;
}

static double norm_of(const float *x, size_t count) {
    double square = 0;
    for (size_t k = 0; k < count; k++) {
        square += (double)x[k] * (double)x[k];
    }
    return sqrt(square);
}

static void take_200_steps(ranks_context *ctx, gsync_wire wire, gsync_feedback feedback) {
    enum { COUNT = 300, STEPS = SANITIZED ? 50 : 200 };
    const size_t count = COUNT;
    const wire_choice choice = choice_of(wire, feedback);
    const gsync_options options = GSYNC_OPTIONS_INIT;
    ranks_random random = ranks_random_from(ctx->seed, 3);
    wire_trainer *trainer = wire_trainer_new(ctx, &count, 1, GSYNC_FLOAT32);
    sums all = {ranks_memory(ctx, COUNT * sizeof(double)), ranks_memory(ctx, COUNT * sizeof(double))};
    double largest = 0;
    memset(all.wanted, 0, COUNT * sizeof(double));
    memset(all.got, 0, COUNT * sizeof(double));
    trainer->kind = WIRE_GAUSSIAN;
    REQUIRE_OK(wire_trainer_open(trainer, ctx->comm, 0, &options, BITS_APART, &choice, 1));
    for (int step = 0; step < STEPS && !ranks_has_failed(ctx); step++) {
        REQUIRE_OK(wire_trainer_step(trainer, &random));
        add_step(trainer, &all);
        for (int rank = 0; rank < ctx->world && wire == GSYNC_WIRE_TOPK && feedback == GSYNC_FEEDBACK_ON; rank++) {
            const double delta = 0.1;
            largest = fmax(largest, norm_of(trainer->inputs[rank], COUNT));
            CHECK(norm_of(trainer->reference->gradients[0].owed[rank], COUNT) <= 2 * sqrt(1 - delta) / delta * largest);
        }
    }
    /* 4: a gaussian's largest; what is owed by top-k grows up to ten times that. */
    const double most = wire == GSYNC_WIRE_TOPK ? 60 : 6;
    const double bound = STEPS * 0x1p-24 * most * 2 * (ctx->world + 1);
    const bool has_feedback = feedback == GSYNC_FEEDBACK_ON;
    CHECK((gap_of(trainer, &all, has_feedback) <= bound) == has_feedback);
    wire_trainer_close(trainer);
}

static void everything_arrives_or_is_owed_after_200_steps(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES; i++) {
        take_200_steps(ctx, wires[i], GSYNC_FEEDBACK_ON);
    }
}

/* The control: without feedback the same check fails. */
static void without_feedback_it_does_not(ranks_context *ctx) {
    for (size_t i = 1; i < (size_t)WIRES; i++) {
        take_200_steps(ctx, wires[i], GSYNC_FEEDBACK_OFF);
    }
}

/* ---- Steps that do not count, and scales that move ------------------------------------------------------------------
 */

static void follow_a_scaler(ranks_context *ctx, gsync_feedback feedback) {
    static const size_t counts[] = {700, 3, 260};
    for (size_t i = 0; i < (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i], feedback);
        const gsync_options options = GSYNC_OPTIONS_INIT;
        ranks_random random = ranks_random_from(ctx->seed, 4);
        gsync_scaler_options scaler_options = GSYNC_SCALER_OPTIONS_INIT;
        gsync_scaler *scaler = NULL;
        scaler_options.scale = 1024;
        scaler_options.growth_interval = 2;
        REQUIRE_OK(gsync_scaler_create(&scaler, &scaler_options));
        wire_trainer *trainer = wire_trainer_new(ctx, counts, 3, GSYNC_FLOAT32);
        REQUIRE_OK(wire_trainer_open(trainer, ctx->comm, 0, &options, BITS_APART, &choice, 1));
        REQUIRE_OK(gsync_reducer_set_scaler(trainer->model->reducer, scaler));
        for (int step = 0; step < 12 && !ranks_has_failed(ctx); step++) {
            trainer->loss_scale = gsync_scaler_scale(scaler);
            trainer->poisoned_rank = step == 5 || step == 6 ? ctx->world - 1 : -1;
            trainer->poisoned_element = 699;
            trainer->poison = INFINITY;
            CHECK_OK(wire_trainer_step(trainer, &random));
            CHECK_OK(gsync_scaler_update(scaler));
        }
        CHECK_REAL(gsync_scaler_scale(scaler), 4096); /* 4 times for 5 clean steps, halved twice, 4 times for 5 more */
        wire_trainer_close(trainer);
        gsync_scaler_destroy(&scaler);
    }
}

static void what_is_owed_is_in_units_without_the_loss_scale(ranks_context *ctx) {
    follow_a_scaler(ctx, GSYNC_FEEDBACK_ON);
}

/* Where rounding in sums is all there is to do, results have a scale of their own. */
static void results_are_rounded_in_units_without_the_loss_scale(ranks_context *ctx) {
    follow_a_scaler(ctx, GSYNC_FEEDBACK_OFF);
}

/* The last rank forgets a gradient; the step before and the steps after are as the model has them without it. */
static void a_refused_step_owes_nothing(ranks_context *ctx) {
    static const size_t counts[] = {700, 3, 260};
    for (size_t i = 0; i < (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const wire_choice choice = choice_of(wires[i], GSYNC_FEEDBACK_ON);
        gsync_options options = GSYNC_OPTIONS_INIT;
        ranks_random random = ranks_random_from(ctx->seed, 5);
        wire_trainer *trainer = wire_trainer_new(ctx, counts, 3, GSYNC_FLOAT32);
        trainer->marks_all = true;
        options.is_strict = 1;
        options.bucket_bytes_max = 1;
        REQUIRE_OK(wire_trainer_open(trainer, ctx->comm, 0, &options, BITS_SHIFTED, &choice, 1));
        for (int step = 0; step < 6 && !ranks_has_failed(ctx); step++) {
            REQUIRE_OK(wire_trainer_step(trainer, &random));
            bits_model_load(trainer->model, step % 2);
            REQUIRE_OK(gsync_begin(trainer->model->reducer, GSYNC_SYNC));
            for (size_t t = ctx->rank == ctx->world - 1 ? 1 : 0; t < 3; t++) {
                REQUIRE_OK(gsync_ready(trainer->model->reducer, trainer->model->tensors[t].grad));
            }
            REQUIRE_STATUS(gsync_finish(trainer->model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
        }
        wire_trainer_close(trainer);
    }
}

/* A result that is not delivered was not sent. */
static void a_gradient_that_no_rank_used_owes_on_what_it_owed(ranks_context *ctx) {
    const size_t count = 2;
    wire_choice choice = choice_of(GSYNC_WIRE_TOPK, GSYNC_FEEDBACK_ON);
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    choice.options.density = 0.5;
    ranks_model *model = open_model(ctx, NULL, &count, 1, choice, options);
    float *grad = model->tensors[0].grad;
    grad[0] = 4;
    grad[1] = 1;
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_REAL(grad[0], 4);
    CHECK_REAL(grad[1], 0);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_REAL(grad[0], 4);
    grad[0] = grad[1] = 0;
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_REAL(grad[0], 0);
    CHECK_REAL(grad[1], 1);
}

/* ---- Another plan -------------------------------------------------------------------------------------------------
 */

enum { TENSORS = 3 };
static const size_t plan_counts[TENSORS] = {700, 900, 1300};

/* What arrived of each element, and what should have. */
typedef struct ledger {
    double *got[TENSORS];
    double *wanted[TENSORS];
    uint64_t round;
} ledger;

static ledger ledger_new(ranks_context *ctx) {
    ledger made = {.round = 0};
    for (size_t t = 0; t < TENSORS; t++) {
        made.got[t] = ranks_memory(ctx, plan_counts[t] * sizeof(double));
        made.wanted[t] = ranks_memory(ctx, plan_counts[t] * sizeof(double));
        memset(made.got[t], 0, plan_counts[t] * sizeof(double));
        memset(made.wanted[t], 0, plan_counts[t] * sizeof(double));
    }
    return made;
}

static void take_noted_steps(ranks_model *model, ledger *book, int steps, bool has_values, size_t first) {
    const ranks_context *ctx = model->ctx;
    for (int step = 0; step < steps && !ranks_has_failed(ctx); step++) {
        book->round++;
        ranks_model_fill(model, RANKS_FLOATS, book->round);
        for (size_t t = 0; t < TENSORS && !has_values; t++) {
            memset(model->tensors[t].grad, 0, plan_counts[t] * sizeof(float));
        }
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        for (size_t t = first; t < TENSORS; t++) {
            REQUIRE_OK(ranks_model_ready(model, t));
        }
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        for (size_t t = first; t < TENSORS; t++) {
            const ranks_source source = {.kind = RANKS_FLOATS, .round = book->round, .tensor = t};
            for (size_t k = 0; k < plan_counts[t]; k++) {
                book->got[t][k] += (double)((const float *)model->tensors[t].grad)[k] * ctx->world;
                book->wanted[t][k] += has_values ? ranks_sum(ctx, GSYNC_FLOAT32, source, k) : 0;
            }
        }
    }
}

static void check_ledger(ranks_context *ctx, const ledger *book) {
    for (size_t t = 0; t < TENSORS; t++) {
        double most = 0;
        double gap = 0;
        for (size_t k = 0; k < plan_counts[t]; k++) {
            most = fmax(most, fabs(book->wanted[t][k]));
            gap = fmax(gap, fabs(book->wanted[t][k] - book->got[t][k]));
        }
        if (!(gap <= most * 0x1p-18)) {
            ranks_fail(__FILE__, __LINE__, "gradient %zu: %g of %g is missing", t, gap, most);
        }
    }
    (void)ctx;
}

static void forget_one(ranks_model *model) {
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (size_t t = model->ctx->rank == 0 ? 1 : 0; t < TENSORS; t++) {
        REQUIRE_OK(ranks_model_ready(model, t));
    }
    REQUIRE_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
}

/* Other ranks own other elements afterwards. In the end there are zeros for so long that all that is owed arrives. */
static void freeze_and_unfreeze(ranks_context *ctx, gsync_comm *comm, size_t cap, gsync_wire wire, bool fails_before) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    options.bucket_bytes_max = cap;
    ranks_model *model = open_model(ctx, comm, plan_counts, TENSORS, choice_of(wire, GSYNC_FEEDBACK_ON), options);
    ledger book = ledger_new(ctx);
    take_noted_steps(model, &book, 5, true, 0);
    if (fails_before) {
        forget_one(model);
    }
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p0", 0));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    take_noted_steps(model, &book, 5, true, 1);
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p0", 1));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    take_noted_steps(model, &book, 5, true, 0);
    take_noted_steps(model, &book, 40, false, 0);
    check_ledger(ctx, &book);
    gsync_reducer_destroy(&model->reducer);
}

static void freezing_and_unfreezing_loses_nothing(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        freeze_and_unfreeze(ctx, NULL, 4096, wires[i], false);
    }
}

static void another_plan_after_a_refused_step_loses_nothing(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        freeze_and_unfreeze(ctx, NULL, 4096, wires[i], true);
    }
}

/* Of a short bucket every host owes the same, and one of them has to pay; of a longer one each its part. */
static void freezing_between_hosts_loses_nothing(ranks_context *ctx) {
    for (uint32_t per_host = 1; per_host <= 2 && (int)per_host < ctx->world; per_host++) {
        gsync_comm_options comm_options = ctx->comm_options;
        gsync_comm *comm = NULL;
        comm_options.ranks_per_host = per_host;
        REQUIRE_OK(gsync_comm_create(&comm, &comm_options));
        for (size_t i = 0; i < 2 * (size_t)WIRES && !ranks_has_failed(ctx); i++) {
            freeze_and_unfreeze(ctx, comm, i % 2 == 0 ? 4096 : SIZE_MAX, wires[i / 2], false);
        }
        gsync_comm_destroy(&comm);
    }
}

/* ---- Where there is none ------------------------------------------------------------------------------------------
 */

static gsync_status commit_with_momentum(ranks_context *ctx, gsync_wire wire, gsync_feedback feedback, size_t count) {
    const wire_choice choice = choice_of(wire, feedback);
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, NULL, NULL));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, choice.wire, &choice.options));
    CHECK_OK(gsync_reducer_set_carries_momentum(model->reducer, "p*"));
    const gsync_status status = gsync_reducer_commit(model->reducer);
    gsync_reducer_destroy(&model->reducer);
    return status;
}

static void it_is_refused_for_gradients_that_carry_momentum(ranks_context *ctx) {
    for (size_t i = 0; i < (size_t)WIRES; i++) {
        CHECK_STATUS(commit_with_momentum(ctx, wires[i], GSYNC_FEEDBACK_ON, 10), GSYNC_ERR_ARGUMENT);
        CHECK_CONTAINS(gsync_last_error(), "'p0' carries momentum");
        CHECK_STATUS(commit_with_momentum(ctx, wires[i], GSYNC_FEEDBACK_OFF, 10), GSYNC_OK);
    }
    CHECK_STATUS(commit_with_momentum(ctx, GSYNC_WIRE_TOPK, GSYNC_FEEDBACK_AUTO, 10), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(commit_with_momentum(ctx, GSYNC_WIRE_INT8, GSYNC_FEEDBACK_AUTO, 10), GSYNC_OK);
}

RANKS_MAIN(RANKS_TEST(what_top_k_sends_and_owes_is_what_it_had_bit_for_bit),
           RANKS_TEST(everything_arrives_or_is_owed_after_200_steps), RANKS_TEST(without_feedback_it_does_not),
           RANKS_TEST(what_is_owed_is_in_units_without_the_loss_scale),
           RANKS_TEST(results_are_rounded_in_units_without_the_loss_scale), RANKS_TEST(a_refused_step_owes_nothing),
           RANKS_TEST(a_gradient_that_no_rank_used_owes_on_what_it_owed),
           RANKS_TEST(freezing_and_unfreezing_loses_nothing),
           RANKS_TEST(another_plan_after_a_refused_step_loses_nothing),
           RANKS_TEST_WITH(freezing_between_hosts_loses_nothing, .needs_mpi = true),
           RANKS_TEST(it_is_refused_for_gradients_that_carry_momentum))
