/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: finish=host worlds=1,2,3 transports=threads,mpi */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

/* Training that goes on from a saved state gives the bits of training that never stopped. */

enum { TENSORS = 4, STEPS_BEFORE = 4, STEPS_AFTER = 3 };
static const size_t counts[TENSORS] = {2000, 70, 5000, 1300};

static ranks_model *open_model(ranks_context *ctx, gsync_wire wire) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    gsync_options reducer = GSYNC_OPTIONS_INIT;
    options.elements_min = 100;
    options.feedback = GSYNC_FEEDBACK_ON;
    reducer.bucket_bytes_max = 16384;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, NULL, &reducer));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, "p*", wire, &options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    return model;
}

static void run_in_order(ranks_model *model, uint64_t first, int steps, const size_t *order) {
    for (int i = 0; i < steps; i++) {
        ranks_model_fill(model, RANKS_FLOATS, first + (uint64_t)i);
        CHECK_OK(ranks_model_step(model, order, NULL));
    }
}

/* Ready in an order that the plan takes over, so that the state has to bring it back. */
static void run(ranks_model *model, uint64_t first, int steps) {
    static const size_t order[TENSORS] = {1, 3, 0, 2};
    run_in_order(model, first, steps, order);
}

static void check_equal(const ranks_model *a, const ranks_model *b) {
    for (size_t i = 0; i < TENSORS; i++) {
        CHECK(memcmp(a->tensors[i].grad, b->tensors[i].grad, counts[i] * sizeof(float)) == 0);
    }
}

static void goes_on_from_a_saved_state(ranks_context *ctx) {
    static const gsync_wire wires[] = {GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8,
                                       GSYNC_WIRE_TOPK};
    for (size_t w = 0; w < sizeof wires / sizeof *wires && !ranks_has_failed(ctx); w++) {
        ranks_model *whole = open_model(ctx, wires[w]);
        run(whole, 0, STEPS_BEFORE);
        const size_t bytes = gsync_state_size(whole->reducer);
        REQUIRE(bytes > 0);
        void *state = ranks_memory(ctx, bytes);
        REQUIRE_OK(gsync_state_save(whole->reducer, state, bytes));
        ranks_model *resumed = open_model(ctx, wires[w]);
        REQUIRE_OK(gsync_state_load(resumed->reducer, state, bytes));
        CHECK_EQ(gsync_plan_digest(resumed->reducer), gsync_plan_digest(whole->reducer));
        run(whole, 100, STEPS_AFTER);
        run(resumed, 100, STEPS_AFTER);
        check_equal(whole, resumed);
        gsync_reducer_destroy(&whole->reducer);
        gsync_reducer_destroy(&resumed->reducer);
    }
}

static void commit_and_go_on(ranks_model *model) {
    CHECK_OK(gsync_reducer_set_trainable(model->reducer, model->tensors[1].name, 0));
    CHECK_OK(gsync_reducer_set_trainable(model->reducer, model->tensors[1].name, 1));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    run(model, 200, STEPS_AFTER);
}

/* What was owed under another plan is forgotten, also where the loaded one has it added up by other ranks. */
static void takes_the_place_of_another_state(ranks_context *ctx) {
    static const size_t other_order[TENSORS] = {0, 2, 1, 3};
    ranks_model *whole = open_model(ctx, GSYNC_WIRE_INT8);
    ranks_model *used = open_model(ctx, GSYNC_WIRE_INT8);
    run(whole, 0, STEPS_BEFORE);
    run_in_order(used, 50, STEPS_BEFORE, other_order);
    const size_t bytes = gsync_state_size(whole->reducer);
    void *state = ranks_memory(ctx, bytes);
    REQUIRE_OK(gsync_state_save(whole->reducer, state, bytes));
    REQUIRE_OK(gsync_state_load(used->reducer, state, bytes));
    run(whole, 100, STEPS_AFTER);
    run(used, 100, STEPS_AFTER);
    check_equal(whole, used);
    commit_and_go_on(whole);
    commit_and_go_on(used);
    check_equal(whole, used);
}

/* The test above would notice: without the state the bits are others. */
static void would_go_on_differently_without_it(ranks_context *ctx) {
    ranks_model *whole = open_model(ctx, GSYNC_WIRE_INT8);
    ranks_model *fresh = open_model(ctx, GSYNC_WIRE_INT8);
    run(whole, 0, STEPS_BEFORE);
    run(whole, 100, STEPS_AFTER);
    run(fresh, 100, STEPS_AFTER);
    CHECK(memcmp(whole->tensors[2].grad, fresh->tensors[2].grad, counts[2] * sizeof(float)) != 0);
}

static void refuses_what_is_no_state_of_this_reducer(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, GSYNC_WIRE_INT8);
    ranks_model *other = open_model(ctx, GSYNC_WIRE_TOPK);
    const size_t bytes = gsync_state_size(model->reducer);
    const size_t others = gsync_state_size(other->reducer);
    unsigned char *state = ranks_memory(ctx, bytes);
    unsigned char *wrong = ranks_memory(ctx, others);
    run(model, 0, 2);
    CHECK_STATUS(gsync_state_save(model->reducer, state, bytes - 1), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_state_save(model->reducer, NULL, bytes), GSYNC_ERR_ARGUMENT);
    REQUIRE_OK(gsync_state_save(model->reducer, state, bytes));
    REQUIRE_OK(gsync_state_save(other->reducer, wrong, others));
    CHECK_STATUS(gsync_state_load(model->reducer, wrong, others), GSYNC_ERR_MISMATCH);
    CHECK_STATUS(gsync_state_load(model->reducer, state, bytes - 1), GSYNC_ERR_MISMATCH);
    CHECK_STATUS(gsync_state_load(model->reducer, state, 7), GSYNC_ERR_ARGUMENT);
    CHECK_STATUS(gsync_state_load(model->reducer, NULL, bytes), GSYNC_ERR_ARGUMENT);
    state[0] ^= 1u;
    CHECK_STATUS(gsync_state_load(model->reducer, state, bytes), GSYNC_ERR_MISMATCH);
    state[0] ^= 1u;
    CHECK_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    CHECK_STATUS(gsync_state_load(model->reducer, state, bytes), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_state_save(model->reducer, state, bytes), GSYNC_ERR_STATE);
    CHECK_OK(gsync_finish(model->reducer, NULL));
    CHECK_STATUS(gsync_state_load(model->reducer, state, bytes), GSYNC_ERR_STATE); /* the window is open */
    CHECK_EQ(gsync_state_size(NULL), 0);
}

/* Nothing was changed by a load that was refused: also not by a damaged order. */
static void is_as_it_was_after_a_refused_load(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, GSYNC_WIRE_INT8);
    ranks_model *twin = open_model(ctx, GSYNC_WIRE_INT8);
    const size_t bytes = gsync_state_size(model->reducer);
    unsigned char *state = ranks_memory(ctx, bytes);
    run(model, 0, 3);
    run(twin, 0, 3);
    REQUIRE_OK(gsync_state_save(model->reducer, state, bytes));
    run(model, 50, 1);
    run(twin, 50, 1);
    size_t residuals = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        residuals += ctx->world > 1 && counts[i] >= 100 ? 2 * counts[i] * sizeof(float) : 0;
    }
    const uint32_t twice[2] = {0, 0};
    memcpy(state + bytes - residuals - TENSORS * sizeof(uint32_t), twice, sizeof twice);
    CHECK_STATUS(gsync_state_load(model->reducer, state, bytes), GSYNC_ERR_MISMATCH);
    run(model, 100, 2);
    run(twin, 100, 2);
    check_equal(model, twin);
}

/* Who owes what depends on where ranks are. */
static void refuses_a_state_of_other_hosts(ranks_context *ctx) {
    gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
    gsync_comm_options apart = ctx->comm_options;
    gsync_comm *comm = NULL;
    gsync_reducer *other = NULL;
    apart.ranks_per_host = 1;
    ranks_model *model = open_model(ctx, GSYNC_WIRE_INT8);
    const size_t bytes = gsync_state_size(model->reducer);
    void *state = ranks_memory(ctx, bytes);
    REQUIRE_OK(gsync_state_save(model->reducer, state, bytes));
    gsync_reducer_destroy(&model->reducer);
    REQUIRE_OK(gsync_comm_create(&comm, &apart));
    gsync_options options = GSYNC_OPTIONS_INIT;
    wire.elements_min = 100;
    wire.feedback = GSYNC_FEEDBACK_ON;
    options.bucket_bytes_max = 16384;
    CHECK_OK(gsync_reducer_create(&other, comm, &options));
    for (size_t i = 0; i < TENSORS; i++) {
        CHECK_OK(gsync_reducer_add(other, model->tensors[i].name, model->tensors[i].grad, counts[i], GSYNC_FLOAT32));
    }
    CHECK_OK(gsync_reducer_set_wire(other, NULL, GSYNC_WIRE_INT8, &wire));
    CHECK_OK(gsync_reducer_commit(other));
    CHECK_STATUS(gsync_state_load(other, state, bytes), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "hosts");
    gsync_reducer_destroy(&other);
    gsync_comm_destroy(&comm);
}

/* A step that is done over after a load was not clipped yet. */
static void clips_a_step_that_is_done_over(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    double norm = 0;
    options.computes_norm = 1;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    const size_t bytes = gsync_state_size(model->reducer);
    void *state = ranks_memory(ctx, bytes);
    run(model, 0, 1);
    REQUIRE_OK(gsync_state_save(model->reducer, state, bytes));
    for (int time = 0; time < 2; time++) {
        run(model, 1, 1);
        CHECK_OK(gsync_clip_grad_norm(model->reducer, 1e-3, &norm));
        CHECK(norm > 1e-2);
        REQUIRE_OK(gsync_state_load(model->reducer, state, bytes));
        CHECK_STATUS(gsync_clip_grad_norm(model->reducer, 1.0, NULL), GSYNC_ERR_STATE);
    }
}

RANKS_MAIN(RANKS_TEST(goes_on_from_a_saved_state), RANKS_TEST(takes_the_place_of_another_state),
           RANKS_TEST_WITH(refuses_a_state_of_other_hosts, .world_min = 2, .needs_mpi = true),
           RANKS_TEST(clips_a_step_that_is_done_over),
           RANKS_TEST_WITH(would_go_on_differently_without_it, .world_min = 2),
           RANKS_TEST_WITH(refuses_what_is_no_state_of_this_reducer, .world_min = 2),
           RANKS_TEST(is_as_it_was_after_a_refused_load))
