/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,4 memory=yes */

/* A rank that leaves in the middle of a step: the others learn at once that it left, whoever notices first. */

#include "ranks.h"

#include <pthread.h>

static const size_t counts[] = {1000, 300, 2000, 50};
enum { TENSORS = 4, ROUNDS = 25 };

static gsync_options small_buckets(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 1024;
    return options;
}

/* How many gradients the rank that leaves has marked decides where the others find out. */
static void leave_after(ranks_context *ctx, size_t marks) {
    const gsync_options options = small_buckets();
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    if (ctx->rank == 0) {
        for (size_t i = 0; i < marks; i++) {
            CHECK_OK(ranks_model_ready(model, TENSORS - 1 - i));
        }
        gsync_reducer_destroy(&model->reducer);
        for (size_t i = 0; i < TENSORS; i++) {
            ranks_memory_free(ctx, model->tensors[i].grad);
        }
        return;
    }
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_PEER_LOST);
    CHECK_CONTAINS(gsync_last_error(), "rank 0 has destroyed its side");
    gsync_reducer_destroy(&model->reducer);
}

static void a_rank_that_destroys_its_reducer_is_lost_to_all(ranks_context *ctx) {
    for (int round = 0; round < ROUNDS && !ranks_has_failed(ctx); round++) {
        leave_after(ctx, (size_t)round % TENSORS);
    }
    CHECK_OK(gsync_barrier(ctx->comm));
}

static void a_rank_that_destroys_its_communicator_is_lost_to_all(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    if (ctx->rank == 0) {
        gsync_comm_destroy(&ctx->comm);
        CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_STATE);
        gsync_reducer_destroy(&model->reducer);
        return;
    }
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_PEER_LOST);
    CHECK_STATUS(gsync_barrier(ctx->comm), GSYNC_ERR_PEER_LOST);
}

enum { REDUCERS = 8 };

static void *destroy_reducers(void *argument) {
    gsync_reducer **reducers = argument;
    for (int i = 0; i < REDUCERS; i++) {
        gsync_reducer_destroy(&reducers[i]);
    }
    return NULL;
}

/* In any order, so also at the same time. */
static void reducers_and_their_communicator_may_go_together(ranks_context *ctx) {
    for (int round = 0; round < ROUNDS && !ranks_has_failed(ctx); round++) {
        gsync_comm *comm = NULL;
        gsync_reducer *reducers[REDUCERS] = {NULL};
        float grads[REDUCERS];
        pthread_t thread;
        REQUIRE_OK(gsync_comm_split(ctx->comm, 0, 0, &comm));
        for (int i = 0; i < REDUCERS; i++) {
            REQUIRE_OK(gsync_reducer_create(&reducers[i], comm, NULL));
            REQUIRE_OK(gsync_reducer_add(reducers[i], "p", &grads[i], 1, GSYNC_FLOAT32));
            REQUIRE_OK(gsync_reducer_commit(reducers[i]));
        }
        REQUIRE_EQ(pthread_create(&thread, NULL, destroy_reducers, reducers), 0);
        gsync_comm_destroy(&comm);
        pthread_join(thread, NULL);
    }
}

RANKS_MAIN(RANKS_TEST(reducers_and_their_communicator_may_go_together),
           RANKS_TEST(a_rank_that_destroys_its_reducer_is_lost_to_all),
           RANKS_TEST(a_rank_that_destroys_its_communicator_is_lost_to_all))
