/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,4 transports=threads,mpi memory=yes */

/* gsync_comm_abort: from then on the communicator can only be destroyed. */

#include "ranks.h"

#include <pthread.h>

static const size_t counts[] = {1000, 300, 2000, 50};
enum { TENSORS = 4, ROUNDS = 20 };

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

/* Another thread aborts while all ranks are in the middle of steps: each ends with a result or with the abort. */
static void another_thread_may_abort_at_any_moment(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    pthread_t thread;
    REQUIRE_OK(gsync_comm_split(ctx->comm, 0, 0, &comm));
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, NULL));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    if (ctx->rank == ctx->world - 1) {
        REQUIRE_EQ(pthread_create(&thread, NULL, abort_comm, comm), 0);
    }
    gsync_status status = GSYNC_OK;
    for (uint64_t round = 0; status == GSYNC_OK; round++) {
        ranks_model_fill(model, RANKS_INTEGERS, round);
        status = ranks_model_step(model, NULL, NULL);
        if (status == GSYNC_OK) {
            CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
        }
    }
    CHECK_EQ(status, GSYNC_ERR_ABORTED);
    CHECK_CONTAINS(gsync_last_error(), "from outside");
    if (ctx->rank == ctx->world - 1) {
        pthread_join(thread, NULL);
    }
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

static void aborts_again_and_again(ranks_context *ctx) {
    for (int round = 0; round < ROUNDS && !ranks_has_failed(ctx); round++) {
        another_thread_may_abort_at_any_moment(ctx);
    }
}

RANKS_MAIN(RANKS_TEST(every_later_call_is_refused), RANKS_TEST(aborts_again_and_again))
