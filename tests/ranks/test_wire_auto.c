/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi links=internal wrap=gs_choice_note */
#include "ranks.h"
#include "sync/pipeline.h"

#include <stdio.h>

/* is_auto: which buckets keep their narrow wire. How long a bucket seems to have taken is what the test says. */

enum { TENSORS = 4, WARMUP = 1, TRIALS = 6 };
static const size_t counts[TENSORS] = {4096, 8192, 2048, 1024};

/* By bucket size, since buckets may be planned anew: what each way takes on the rank that comes last. */
typedef struct timing {
    size_t elements;
    uint64_t native_ns;
    uint64_t narrow_ns;
    gsync_wire wanted;
} timing;
static const timing timings[TENSORS] = {
    {4096, 10000000, 5000000, GSYNC_WIRE_INT8},    /* clearly faster */
    {8192, 10000000, 30000000, GSYNC_WIRE_NATIVE}, /* slower */
    {2048, 10000000, 9800000, GSYNC_WIRE_NATIVE},  /* 2 % are not worth it */
    {1024, 10000000, 9600000, GSYNC_WIRE_INT8},    /* 4 % are */
};

void __real_gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns);
void __wrap_gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns);

static uint64_t took(const gs_pipeline *pipeline, size_t bucket) {
    uint64_t ns = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        if (timings[i].elements == pipeline->plan->buckets[bucket].element_count) {
            ns = gs_narrow_is_on(pipeline, bucket) ? timings[i].narrow_ns : timings[i].native_ns;
        }
    }
    /* In every trial another rank comes last, and the others wait for it, the longer the earlier they are. */
    const uint64_t last = pipeline->step.step % (uint64_t)pipeline->group->world_size;
    const bool is_last = last == (uint64_t)pipeline->group->rank;
    return is_last ? ns : ns + 100000000 * (uint64_t)(1 + pipeline->group->rank);
}

void __wrap_gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns) {
    (void)took_ns; /* of this machine, whatever it is */
    __real_gs_choice_note(pipeline, bucket, took(pipeline, bucket));
}

static ranks_model *open_model(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = 1024; /* each gradient alone */
    wire.is_auto = 1;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, NULL, &options));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, GSYNC_WIRE_INT8, &wire));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    return model;
}

static gsync_bucket_info info_of(const ranks_model *model, size_t tensor) {
    gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
    const long bucket = gsync_bucket_of(model->reducer, model->tensors[tensor].name);
    CHECK_OK(gsync_bucket_get(model->reducer, (size_t)bucket, &info));
    return info;
}

static bool is_exact_mean(const ranks_model *model, size_t tensor, uint64_t round) {
    const ranks_source source = {.kind = RANKS_INTEGERS, .round = round, .tensor = tensor};
    for (size_t k = 0; k < counts[tensor]; k++) {
        const double sum = ranks_sum(model->ctx, GSYNC_FLOAT32, source, k);
        if ((float)sum / (float)model->ctx->world != ((const float *)model->tensors[tensor].grad)[k]) {
            return false;
        }
    }
    return true;
}

static void step(ranks_model *model, uint64_t round) {
    ranks_model_fill(model, RANKS_INTEGERS, round);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
}

static void keeps_the_narrow_wire_only_where_it_pays(ranks_context *ctx) {
    ranks_model *model = open_model(ctx);
    uint64_t round = 1;
    for (; round <= WARMUP + TRIALS && !ranks_has_failed(ctx); round++) {
        step(model, round);
        CHECK(is_exact_mean(model, 0, round) == (round <= WARMUP || (round - WARMUP) % 2 == 1)); /* in turn */
        CHECK_EQ(info_of(model, 0).native_ns != 0, round == WARMUP + TRIALS);
    }
    step(model, round);
    for (size_t i = 0; i < TENSORS; i++) {
        const gsync_bucket_info info = info_of(model, i);
        CHECK_EQ(info.wire, timings[i].wanted);
        CHECK(is_exact_mean(model, i, round) == (timings[i].wanted == GSYNC_WIRE_NATIVE));
        CHECK_EQ(info.native_ns, timings[i].native_ns);
        CHECK_EQ(info.narrow_ns, timings[i].narrow_ns);
        CHECK_SAME_ON_ALL(ctx, info.narrow_ns);
    }
}

static void tries_again_after_another_commit(ranks_context *ctx) {
    ranks_model *model = open_model(ctx);
    uint64_t round = 1;
    for (; round <= WARMUP + TRIALS; round++) {
        step(model, round);
    }
    CHECK_EQ(info_of(model, 1).wire, GSYNC_WIRE_NATIVE);
    CHECK_OK(gsync_reducer_set_trainable(model->reducer, "p3", 0));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    CHECK_EQ(info_of(model, 1).native_ns, 0);
    for (int i = 0; i < TRIALS; i++, round++) {
        ranks_model_fill(model, RANKS_INTEGERS, round);
        CHECK_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        CHECK_OK(gsync_finish(model->reducer, NULL));
    }
    CHECK_EQ(info_of(model, 0).wire, GSYNC_WIRE_INT8);
    CHECK_EQ(info_of(model, 1).wire, GSYNC_WIRE_NATIVE);
    CHECK(info_of(model, 1).native_ns != 0);
}

RANKS_MAIN(RANKS_TEST(keeps_the_narrow_wire_only_where_it_pays), RANKS_TEST(tries_again_after_another_commit))
