/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi */
#include "ranks.h"

#include <string.h>

/* Which gradients travel how, and who is told when that cannot be. */

enum { TENSORS = 3 };
static const size_t counts[TENSORS] = {40000, 5000, 500};

static ranks_model *registered(ranks_context *ctx, const gsync_options *options) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, NULL, options));
    return model;
}

static gsync_wire wire_of(const ranks_model *model, size_t tensor) {
    gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
    const long bucket = gsync_bucket_of(model->reducer, model->tensors[tensor].name);
    CHECK_OK(gsync_bucket_get(model->reducer, (size_t)bucket, &info));
    return info.wire;
}

/* Among ranks of one nothing travels. */
static gsync_wire if_it_travels(const ranks_context *ctx, gsync_wire wire) {
    return ctx->world > 1 ? wire : GSYNC_WIRE_NATIVE;
}

static void later_patterns_win(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.wire = GSYNC_WIRE_BFLOAT16;
    ranks_model *model = registered(ctx, &options);
    CHECK_OK(gsync_reducer_set_wire(model->reducer, "p[01]", GSYNC_WIRE_INT8, NULL));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, "p1", GSYNC_WIRE_FLOAT8, NULL));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(wire_of(model, 0), if_it_travels(ctx, GSYNC_WIRE_INT8));
    CHECK_EQ(wire_of(model, 1), if_it_travels(ctx, GSYNC_WIRE_FLOAT8));
    CHECK_EQ(wire_of(model, 2), GSYNC_WIRE_NATIVE); /* too short for the reducer's own */
}

static void short_gradients_stay_native_unless_told(ranks_context *ctx) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    ranks_model *model = registered(ctx, NULL);
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_TOPK, NULL));
    options.elements_min = 1;
    CHECK_OK(gsync_reducer_set_wire(model->reducer, "p2", GSYNC_WIRE_INT8, &options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(wire_of(model, 0), if_it_travels(ctx, GSYNC_WIRE_TOPK));
    CHECK_EQ(wire_of(model, 1), GSYNC_WIRE_NATIVE); /* below TOPK's 16384 */
    CHECK_EQ(wire_of(model, 2), if_it_travels(ctx, GSYNC_WIRE_INT8));
}

static void a_gradient_of_the_wires_own_type_travels_as_it_is(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_BFLOAT16);
    CHECK_OK(ranks_model_register(model, NULL, NULL));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_BFLOAT16, NULL));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(wire_of(model, 0), GSYNC_WIRE_NATIVE);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void refuse_options(ranks_model *model, gsync_wire wire, const gsync_wire_options *options, const char *part) {
    CHECK_STATUS(gsync_reducer_set_wire(model->reducer, NULL, wire, options), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), part);
}

static void nonsense_is_refused_by_name(ranks_context *ctx) {
    const gsync_wire_options plain = GSYNC_WIRE_OPTIONS_INIT;
    ranks_model *model = registered(ctx, NULL);
    gsync_wire_options options = plain;
    refuse_options(model, (gsync_wire)6, NULL, "6");
    refuse_options(model, (gsync_wire)-1, NULL, "-1");
    options.density = 0.5;
    refuse_options(model, GSYNC_WIRE_INT8, &options, "density");
    options.density = 1.5;
    refuse_options(model, GSYNC_WIRE_TOPK, &options, "density");
    options.density = -0.1;
    refuse_options(model, GSYNC_WIRE_TOPK, &options, "density");
    options = plain;
    options.is_stochastic = 1;
    refuse_options(model, GSYNC_WIRE_FLOAT8, &options, "is_stochastic");
    options = plain;
    options.feedback = (gsync_feedback)3;
    refuse_options(model, GSYNC_WIRE_INT8, &options, "feedback");
    options.feedback = GSYNC_FEEDBACK_ON;
    refuse_options(model, GSYNC_WIRE_NATIVE, &options, "native");
    options = plain;
    options.struct_size = 0;
    refuse_options(model, GSYNC_WIRE_INT8, &options, "struct_size");
    CHECK_STATUS(gsync_reducer_set_wire(model->reducer, "q*", GSYNC_WIRE_INT8, NULL), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_CONTAINS(gsync_last_error(), "q*");
    CHECK_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(wire_of(model, 0), GSYNC_WIRE_NATIVE);
    CHECK_STATUS(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_INT8, NULL), GSYNC_ERR_STATE);
}

static void there_are_seven_different_wires_at_most(ranks_context *ctx) {
    ranks_model *model = registered(ctx, NULL);
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    const char *const names[] = {"p0", "p1", "p2"};
    /* One that no gradient uses any more makes room. */
    for (size_t i = 0; i < 30; i++) {
        options.elements_min = 1000 + i;
        CHECK_OK(gsync_reducer_set_wire(model->reducer, names[i % TENSORS], GSYNC_WIRE_INT8, &options));
    }
    const size_t many_counts[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    ranks_model *many = ranks_model_new(ctx, many_counts, 9, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(many, NULL, NULL));
    for (size_t i = 0; i < 8; i++) {
        options.elements_min = 1 + i;
        CHECK_STATUS(gsync_reducer_set_wire(many->reducer, many->tensors[i].name, GSYNC_WIRE_INT8, &options),
                     i < 7 ? GSYNC_OK : GSYNC_ERR_ARGUMENT);
    }
    CHECK_CONTAINS(gsync_last_error(), "7 different wires");
}

static void ranks_compare_wires(ranks_context *ctx) {
    ranks_model *model = registered(ctx, NULL);
    CHECK_OK(gsync_reducer_set_wire(model->reducer, "p1", ctx->rank == 1 ? GSYNC_WIRE_INT8 : GSYNC_WIRE_FLOAT8, NULL));
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "p1");
    CHECK_CONTAINS(gsync_last_error(), "int8");
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.warmup_steps = ctx->rank == 1 ? 3 : 4;
    ranks_model *second = registered(ctx, NULL);
    CHECK_OK(gsync_reducer_set_wire(second->reducer, "p0", GSYNC_WIRE_INT8, &options));
    CHECK_STATUS(gsync_reducer_commit(second->reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "gsync_wire_options");
}

static void momentum_and_feedback_do_not_go_together(ranks_context *ctx) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.feedback = GSYNC_FEEDBACK_ON;
    ranks_model *model = registered(ctx, NULL);
    CHECK_OK(gsync_reducer_set_carries_momentum(model->reducer, "p1"));
    CHECK_STATUS(gsync_reducer_set_carries_momentum(model->reducer, "q"), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_INT8, &options));
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "p1");
    CHECK_OK(gsync_reducer_set_wire(model->reducer, "p1", GSYNC_WIRE_INT8, NULL)); /* without feedback */
    CHECK_OK(gsync_reducer_commit(model->reducer));
}

/* p0 travels narrow from its third step on, and only then its result is not the exact mean. */
static void the_warm_up_is_native(ranks_context *ctx) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.warmup_steps = 2;
    ranks_model *model = registered(ctx, NULL);
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_FLOAT8, &options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 1; step <= 3 && !ranks_has_failed(ctx); step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        CHECK_OK(ranks_model_step(model, NULL, NULL));
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = step, .tensor = 0};
        size_t exact = 0;
        for (size_t k = 0; k < counts[0]; k++) {
            const float mean = (float)(ranks_sum(ctx, GSYNC_FLOAT32, source, k) / ctx->world);
            exact += mean == ((const float *)model->tensors[0].grad)[k];
        }
        CHECK((exact == counts[0]) == (step <= 2));
    }
}

RANKS_MAIN(RANKS_TEST(later_patterns_win), RANKS_TEST(short_gradients_stay_native_unless_told),
           RANKS_TEST(a_gradient_of_the_wires_own_type_travels_as_it_is), RANKS_TEST(nonsense_is_refused_by_name),
           RANKS_TEST(there_are_seven_different_wires_at_most), RANKS_TEST_WITH(ranks_compare_wires, .world_min = 2),
           RANKS_TEST_WITH(momentum_and_feedback_do_not_go_together, .world_min = 2),
           RANKS_TEST_WITH(the_warm_up_is_native, .world_min = 2))
