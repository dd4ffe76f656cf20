/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,3 transports=threads,mpi timeout=60 */

/* What gsync_step_info tells, member by member, and the plan that bucket calls show. */

#include "ranks.h"

#include <stddef.h>
#include <string.h>

enum { TENSORS = 5 };
static const size_t counts[TENSORS] = {100, 7, 0, 300, 50};
#define BYTES ((uint64_t)(100 + 7 + 300 + 50) * sizeof(float))

static ranks_model *open_with(ranks_context *ctx, gsync_options options) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static gsync_options small_buckets(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.order = GSYNC_ORDER_REGISTERED;
    options.bucket_bytes_max = 450;
    return options;
}

static gsync_step_info step(ranks_model *model, uint64_t round) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model_fill(model, RANKS_INTEGERS, round);
    CHECK_OK(ranks_model_step(model, NULL, &info));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
    return info;
}

static void a_plain_step_fills_every_member(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, small_buckets());
    REQUIRE(!ranks_has_failed(ctx));
    /* In reverse: [50 + ...] 300 does not fit; 300 alone is larger than 450 bytes; then 7 + 100 = 428 bytes. */
    CHECK_EQ(gsync_bucket_count(model->reducer), 3);
    for (uint64_t n = 1; n <= 3; n++) {
        const double before = ranks_seconds();
        const gsync_step_info info = step(model, n);
        const double seconds = ranks_seconds() - before;
        CHECK_EQ(info.step, n);
        CHECK_EQ(info.micro_batches, 1);
        CHECK_EQ(info.participants, ctx->world);
        CHECK_REAL(info.divisor, ctx->world);
        CHECK_EQ(info.bucket_count, 3);
        CHECK_EQ(info.buckets_launched, 3);
        CHECK_EQ(info.buckets_reduced, 3);
        CHECK_EQ(info.has_torn_bucket, 0);
        CHECK_EQ(info.bytes_reduced, BYTES);
        CHECK_EQ(info.gradients_unused, 0);
        CHECK((double)info.exposed_ns * 1e-9 <= seconds);
        CHECK(info.exposed_ns > 0);
    }
}

static void a_sum_has_the_divisor_1(ranks_context *ctx) {
    gsync_options options = small_buckets();
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    options.op = GSYNC_SUM;
    ranks_model *model = open_with(ctx, options);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK_MODEL(model, RANKS_INTEGERS, 1, 1.0);
    CHECK_REAL(info.divisor, 1);
}

static void an_accumulating_micro_batch_moves_nothing(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, small_buckets());
    REQUIRE(!ranks_has_failed(ctx));
    (void)step(model, 1);
    for (uint32_t batch = 1; batch <= 3; batch++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(model, RANKS_INTEGERS, 2);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_MODEL_OWN(model, RANKS_INTEGERS, 2);
        CHECK_EQ(info.step, 1);
        CHECK_EQ(info.micro_batches, batch);
        CHECK_EQ(info.buckets_launched, 0);
        CHECK_EQ(info.bytes_reduced, 0);
        CHECK_EQ(info.bytes_copied, 0);
    }
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK_EQ(info.step, 2);
    CHECK_EQ(info.micro_batches, 4);
}

static void participants_are_those_who_contributed(ranks_context *ctx) {
    gsync_options options = small_buckets();
    options.divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
    ranks_model *model = open_with(ctx, options);
    REQUIRE(!ranks_has_failed(ctx));
    for (int absent = 0; absent < ctx->world; absent++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        const ranks_source source = {RANKS_INTEGERS, 9, 3, ((1u << ctx->world) - 1) & ~(1u << absent)};
        ranks_model_fill(model, RANKS_INTEGERS, 9);
        REQUIRE_OK(ctx->rank == absent ? gsync_finish_empty(model->reducer, &info)
                                       : ranks_model_step(model, NULL, &info));
        CHECK_EQ(info.participants, ctx->world - 1);
        CHECK_EQ(info.micro_batches, ctx->rank == absent ? 0 : 1);
        if (ctx->world > 1) {
            CHECK_REAL(info.divisor, ctx->world - 1);
            CHECK_REDUCED(ctx, model->tensors[3].grad, 300, GSYNC_FLOAT32, source, ctx->world - 1);
        }
    }
}

static void a_second_finish_gives_the_same_again(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, small_buckets());
    gsync_step_info again = GSYNC_STEP_INFO_INIT;
    REQUIRE(!ranks_has_failed(ctx));
    const gsync_step_info first = step(model, 1);
    REQUIRE_OK(gsync_finish(model->reducer, &again));
    CHECK(memcmp(&first, &again, sizeof first) == 0);
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
}

static void an_older_callers_shorter_struct_is_filled_as_far_as_it_goes(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, small_buckets());
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    REQUIRE(!ranks_has_failed(ctx));
    info.struct_size = offsetof(gsync_step_info, bucket_count);
    info.bucket_count = 77;
    info.exposed_ns = 78;
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, &info));
    CHECK_EQ(info.step, 1);
    CHECK_REAL(info.divisor, ctx->world);
    CHECK_EQ(info.bucket_count, 77);
    CHECK_EQ(info.exposed_ns, 78);
    CHECK_EQ(info.struct_size, offsetof(gsync_step_info, bucket_count));
}

static void an_info_without_its_initializer_is_refused_and_the_step_goes_on(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, small_buckets());
    gsync_step_info info;
    REQUIRE(!ranks_has_failed(ctx));
    memset(&info, 0, sizeof info);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_STATUS(gsync_finish(model->reducer, &info), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "gsync_step_info");
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

/* ---- The plan
 * -------------------------------------------------------------------------------------------------------- */

static void buckets_account_for_every_gradient_once(ranks_context *ctx) {
    ranks_model *model = open_with(ctx, small_buckets());
    REQUIRE(!ranks_has_failed(ctx));
    size_t gradients = 0;
    uint64_t bytes = 0;
    for (size_t b = 0; b < gsync_bucket_count(model->reducer); b++) {
        gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
        REQUIRE_OK(gsync_bucket_get(model->reducer, b, &info));
        CHECK_EQ(info.dtype, GSYNC_FLOAT32);
        gradients += info.gradient_count;
        bytes += info.bytes;
    }
    CHECK_EQ(gradients, 4);
    CHECK_EQ(bytes, BYTES);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p4"), 0);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p3"), 1);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p2"), -1); /* has no elements */
    CHECK_EQ(gsync_bucket_of(model->reducer, "p1"), 2);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p0"), 2);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p5"), -1);
    gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
    CHECK_STATUS(gsync_bucket_get(model->reducer, 3, &info), GSYNC_ERR_ARGUMENT);
    CHECK(gsync_plan_digest(model->reducer) != 0);
    CHECK_SAME_ON_ALL(ctx, gsync_plan_digest(model->reducer));
}

static void there_is_no_plan_before_commit(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    CHECK_EQ(gsync_bucket_count(model->reducer), 0);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p0"), -1);
    CHECK(gsync_plan_digest(model->reducer) == 0);
    gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
    CHECK_STATUS(gsync_bucket_get(model->reducer, 0, &info), GSYNC_ERR_ARGUMENT);
}

RANKS_MAIN(RANKS_TEST(a_plain_step_fills_every_member), RANKS_TEST(a_sum_has_the_divisor_1),
           RANKS_TEST(an_accumulating_micro_batch_moves_nothing), RANKS_TEST(participants_are_those_who_contributed),
           RANKS_TEST(a_second_finish_gives_the_same_again),
           RANKS_TEST(an_older_callers_shorter_struct_is_filled_as_far_as_it_goes),
           RANKS_TEST(an_info_without_its_initializer_is_refused_and_the_step_goes_on),
           RANKS_TEST(buckets_account_for_every_gradient_once), RANKS_TEST(there_is_no_plan_before_commit))
