/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,4 transports=threads,mpi memory=yes */

/* gsync_comm_abort: from then on the communicator can only be destroyed. */

#include "ranks.h"

#include <pthread.h>

static const size_t counts[] = {1000, 300, 2000, 50};
enum { TENSORS = 4, ROUNDS = 30 };

/* No call goes through any more, not even one that all ranks make at the same time. */
static void every_later_call_is_refused(ranks_context *ctx) {
    float value = 1.0f;
    int all = 0;
    gsync_reducer *late = NULL;
    gsync_comm *part = NULL;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    gsync_comm_abort(ctx->comm, "enough");
    REQUIRE(ranks_meet(ctx));
    CHECK_STATUS(gsync_barrier(ctx->comm), GSYNC_ERR_ABORTED);
    CHECK_STATUS(gsync_broadcast(ctx->comm, &value, 1, GSYNC_FLOAT32, 0), GSYNC_ERR_ABORTED);
    CHECK_STATUS(gsync_allreduce(ctx->comm, &value, 1, GSYNC_FLOAT32, GSYNC_SUM), GSYNC_ERR_ABORTED);
    CHECK_STATUS(gsync_all_done(ctx->comm, 1, &all), GSYNC_ERR_ABORTED);
    CHECK_STATUS(gsync_comm_split(ctx->comm, 0, 0, &part), GSYNC_ERR_ABORTED);
    CHECK_OK(gsync_reducer_create(&late, ctx->comm, NULL));
    CHECK_STATUS(gsync_reducer_commit(late), GSYNC_ERR_ABORTED);
    gsync_reducer_destroy(&late);
    CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_ABORTED);
    CHECK_CONTAINS(gsync_last_error(), "enough");
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
    CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
}

static void *abort_comm(void *comm) {
    gsync_comm_abort(comm, "from outside");
    return NULL;
}

/* A failed step says which gradients hold results; all others are as they were. */
static void check_what_is_left(const ranks_model *model, uint64_t round, const gsync_step_info *info, bool may_tear) {
    const ranks_context *ctx = model->ctx;
    CHECK(!info->has_torn_bucket || (ctx->world > 1 && may_tear));
    for (size_t i = 0; i < model->tensor_count; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        const size_t bucket = (size_t)gsync_bucket_of(model->reducer, tensor->name);
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = round, .tensor = i};
        if (bucket < info->buckets_reduced) {
            CHECK_REDUCED(ctx, tensor->grad, tensor->count, tensor->dtype, source, (double)ctx->world);
        } else if (bucket > info->buckets_reduced || !info->has_torn_bucket) {
            CHECK_OWN(ctx, tensor->grad, tensor->count, tensor->dtype, source);
        }
    }
}

static gsync_status step_until_aborted(ranks_model *model, bool may_tear) {
    gsync_status status = GSYNC_OK;
    for (uint64_t round = 0; status == GSYNC_OK; round++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(model, RANKS_INTEGERS, round);
        status = ranks_model_step(model, NULL, &info);
        if (status == GSYNC_OK) {
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
        } else {
            check_what_is_left(model, round, &info, may_tear);
        }
    }
    return status;
}

/* Another thread aborts while all ranks are in the middle of steps: each ends with a result or with the abort. */
static void abort_somewhere(ranks_context *ctx, const gsync_options *options) {
    gsync_comm *comm = NULL;
    pthread_t thread;
    REQUIRE_OK(gsync_comm_split(ctx->comm, 0, 0, &comm));
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, options));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    if (ctx->rank == ctx->world - 1) {
        REQUIRE_EQ(pthread_create(&thread, NULL, abort_comm, comm), 0);
    }
    CHECK_EQ(step_until_aborted(model, options->checks_writes == 0), GSYNC_ERR_ABORTED);
    CHECK_CONTAINS(gsync_last_error(), "from outside");
    if (ctx->rank == ctx->world - 1) {
        pthread_join(thread, NULL);
    }
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

static void abort_many_times(ranks_context *ctx, const gsync_options *options) {
    for (int round = 0; round < ROUNDS && !ranks_has_failed(ctx); round++) {
        abort_somewhere(ctx, options);
    }
}

/* One gradient in each bucket: where ranks are threads, these are reduced in place. */
static void a_bucket_torn_by_an_abort_is_told(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 64;
    abort_many_times(ctx, &options);
}

/* All gradients in one: it goes through the ring, and each rank's share straight to where it belongs. */
static void a_packed_bucket_torn_by_an_abort_is_told(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = SIZE_MAX;
    abort_many_times(ctx, &options);
}

static void an_abort_tears_nothing_that_is_held_back(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = SIZE_MAX;
    options.checks_writes = 1;
    abort_many_times(ctx, &options);
}

RANKS_MAIN(RANKS_TEST(every_later_call_is_refused), RANKS_TEST(a_bucket_torn_by_an_abort_is_told),
           RANKS_TEST(a_packed_bucket_torn_by_an_abort_is_told), RANKS_TEST(an_abort_tears_nothing_that_is_held_back))
