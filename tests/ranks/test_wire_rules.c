/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi */
#include "ranks.h"

#include <math.h>
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

/* Each rank may name wires in an order of its own: what counts is how each gradient travels. */
static void the_order_of_calls_does_not_matter(ranks_context *ctx) {
    ranks_model *model = registered(ctx, NULL);
    const gsync_wire wires[2] = {GSYNC_WIRE_INT8, GSYNC_WIRE_BFLOAT16};
    const char *const names[2] = {"p0", "p1"};
    for (int i = 0; i < 2; i++) {
        const int which = (i + ctx->rank) % 2;
        CHECK_OK(gsync_reducer_set_wire(model->reducer, names[which], wires[which], NULL));
    }
    CHECK_OK(gsync_reducer_commit(model->reducer));
    CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
    ranks_model_fill(model, RANKS_FLOATS, 1);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
}

/* What a refused commit had prepared on one rank does not stay. */
static void a_refused_commit_leaves_nothing(ranks_context *ctx) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    gsync_options checked = GSYNC_OPTIONS_INIT;
    checked.replica_check_interval = 1;
    options.feedback = GSYNC_FEEDBACK_ON;
    ranks_model *model = registered(ctx, &checked);
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_INT8, ctx->rank == 0 ? &options : NULL));
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_INT8, NULL));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 1; step <= 4 && !ranks_has_failed(ctx); step++) {
        ranks_model_fill(model, RANKS_FLOATS, step);
        CHECK_OK(ranks_model_step(model, NULL, NULL));
    }
    ranks_model *native = registered(ctx, NULL);
    CHECK_OK(gsync_reducer_set_wire(native->reducer, NULL, ctx->rank == 0 ? GSYNC_WIRE_INT8 : GSYNC_WIRE_NATIVE, NULL));
    CHECK_STATUS(gsync_reducer_commit(native->reducer), GSYNC_ERR_MISMATCH);
    CHECK_OK(gsync_reducer_set_wire(native->reducer, NULL, GSYNC_WIRE_NATIVE, NULL));
    CHECK_OK(gsync_reducer_commit(native->reducer));
    ranks_model_fill(native, RANKS_INTEGERS, 1);
    CHECK_OK(ranks_model_step(native, NULL, NULL));
    CHECK_MODEL_MEAN(native, RANKS_INTEGERS, 1);
}

/* The scale of FLOAT16 follows a loss scale that comes, goes or jumps, and weights that make results small. */
static void float16_follows_scales_and_weights(ranks_context *ctx) {
    static const double scales[] = {0, 0, 65536, 65536, 0, 0x1p24, 1};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    options.wire = GSYNC_WIRE_FLOAT16;
    ranks_model *model = registered(ctx, &options);
    float *grad = model->tensors[0].grad;
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (size_t step = 0; step < sizeof scales / sizeof *scales && !ranks_has_failed(ctx); step++) {
        gsync_scaler_options of = GSYNC_SCALER_OPTIONS_INIT;
        gsync_scaler *scaler = NULL;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        of.scale = scales[step];
        if (scales[step] != 0) {
            REQUIRE_OK(gsync_scaler_create(&scaler, &of));
        }
        REQUIRE_OK(gsync_reducer_set_scaler(model->reducer, scaler));
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        for (size_t k = 0; k < counts[0]; k++) {
            grad[k] = ldexpf(1.0f, -(int)(k % 12)) * 1e6f * (scales[step] != 0 ? (float)scales[step] : 1.0f);
        }
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE_OK(gsync_set_weight(model->reducer, 1e6));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        for (size_t k = 0; k < counts[0] && !ranks_has_failed(ctx); k++) {
            const double wanted = ldexp(1.0, -(int)(k % 12));
            CHECK_NEAR((double)grad[k], wanted, wanted * 0x1p-10);
        }
        CHECK_EQ(info.values_saturated, 0);
        CHECK_OK(gsync_reducer_set_scaler(model->reducer, NULL));
        gsync_scaler_destroy(&scaler);
    }
}

/* A half that becomes infinite only where the result is written is found there. */
static void an_overflow_of_the_gradients_own_type_is_found(ranks_context *ctx) {
    for (int i = 0; i < 4 && !ranks_has_failed(ctx); i++) {
        static const gsync_wire wires[] = {GSYNC_WIRE_NATIVE, GSYNC_WIRE_INT8, GSYNC_WIRE_BFLOAT16, GSYNC_WIRE_TOPK};
        gsync_options options = GSYNC_OPTIONS_INIT;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        options.op = GSYNC_SUM;
        options.checks_finite = 1;
        options.accumulation = i == 0 ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT16);
        REQUIRE_OK(ranks_model_register(model, NULL, &options));
        REQUIRE_OK(gsync_reducer_set_wire(model->reducer, NULL, wires[i], NULL));
        REQUIRE_OK(gsync_reducer_commit(model->reducer));
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        ranks_store(model->tensors[0].grad, GSYNC_FLOAT16, 33333, 60000.0);
        CHECK_OK(ranks_model_step(model, NULL, &info));
        CHECK_EQ(info.found_inf, 1);
        CHECK_CONTAINS(info.found_inf_gradient, "p0");
    }
}

/* Between hosts every host rounds a short result; a rank that did not mark the gradient must do as the others do. */
static void hosts_agree_on_a_gradient_that_one_did_not_use(ranks_context *ctx) {
    gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_comm_options apart = ctx->comm_options;
    gsync_comm *comm = NULL;
    gsync_reducer *reducer = NULL;
    float *grad = ranks_memory(ctx, 1024 * sizeof *grad);
    apart.ranks_per_host = 1;
    wire.feedback = GSYNC_FEEDBACK_ON;
    options.finds_unused = 1;
    options.replica_check_interval = 1;
    REQUIRE_OK(gsync_comm_create(&comm, &apart));
    CHECK_OK(gsync_reducer_create(&reducer, comm, &options));
    CHECK_OK(gsync_reducer_add(reducer, "grad", grad, 1024, GSYNC_FLOAT32));
    CHECK_OK(gsync_reducer_set_wire(reducer, NULL, GSYNC_WIRE_INT8, &wire));
    CHECK_OK(gsync_reducer_commit(reducer));
    for (int step = 0; step < 12 && !ranks_has_failed(ctx); step++) {
        ranks_fill(ctx, grad, 1024, GSYNC_FLOAT32, (ranks_source){.kind = RANKS_FLOATS, .round = (uint64_t)step});
        CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
        if (step % 3 != ctx->rank % 3) {
            CHECK_OK(gsync_ready(reducer, grad));
        }
        CHECK_OK(gsync_finish(reducer, NULL));
    }
    gsync_reducer_destroy(&reducer);
    gsync_comm_destroy(&comm);
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
           RANKS_TEST_WITH(hosts_agree_on_a_gradient_that_one_did_not_use, .world_min = 2, .needs_mpi = true),
           RANKS_TEST_WITH(the_order_of_calls_does_not_matter, .world_min = 2),
           RANKS_TEST_WITH(a_refused_commit_leaves_nothing, .world_min = 2),
           RANKS_TEST(float16_follows_scales_and_weights),
           RANKS_TEST_WITH(an_overflow_of_the_gradients_own_type_is_found, .world_min = 2),
           RANKS_TEST_WITH(the_warm_up_is_native, .world_min = 2))
