/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads */

/* A weight that is used several times, and so marked several times. */

#include "ranks.h"

#include <pthread.h>

enum { COUNT = 4000, USERS = 3, STEPS = 300 };

typedef struct weight_user {
    ranks_context *ctx;
    gsync_reducer *reducer;
    pthread_mutex_t *lock;
    float *grad;
} weight_user;

/* The threads take turns at the gradient; their marks may meet. */
static void *use_weight(void *argument) {
    const weight_user *user = argument;
    ranks_adopt(user->ctx);
    pthread_mutex_lock(user->lock);
    for (int i = 0; i < COUNT; i++) {
        user->grad[i] += 1.0f;
    }
    pthread_mutex_unlock(user->lock);
    CHECK_OK(gsync_ready(user->reducer, user->grad));
    return NULL;
}

static void run_users(weight_user *user) {
    pthread_t threads[USERS];
    for (int i = 0; i < USERS; i++) {
        REQUIRE_EQ(pthread_create(&threads[i], NULL, use_weight, user), 0);
    }
    for (int i = 0; i < USERS; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void a_shared_weight_may_be_marked_by_several_threads(ranks_context *ctx) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.checks_writes = 1;
    weight_user user = {.ctx = ctx, .lock = &lock, .grad = ranks_memory(ctx, COUNT * sizeof(float))};
    REQUIRE_OK(gsync_reducer_create(&user.reducer, ctx->comm, &options));
    CHECK_OK(gsync_reducer_add(user.reducer, "shared", user.grad, COUNT, GSYNC_FLOAT32));
    CHECK_OK(gsync_reducer_set_uses(user.reducer, "shared", USERS));
    CHECK_OK(gsync_reducer_commit(user.reducer));
    for (int step = 0; step < STEPS && !ranks_has_failed(ctx); step++) {
        for (int i = 0; i < COUNT; i++) {
            user.grad[i] = 0.0f;
        }
        CHECK_OK(gsync_begin(user.reducer, GSYNC_SYNC));
        run_users(&user);
        CHECK_OK(gsync_finish(user.reducer, NULL));
        CHECK_REAL(user.grad[COUNT - 1], USERS);
    }
    gsync_reducer_destroy(&user.reducer);
}

/* The first of two marks is a mark: the micro-batch has begun, and is not empty. */
static void one_of_two_marks_counts_as_a_mark(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    float *grad = ranks_memory(ctx, sizeof *grad);
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, &options));
    CHECK_OK(gsync_reducer_add(reducer, "shared", grad, 1, GSYNC_FLOAT32));
    CHECK_OK(gsync_reducer_set_uses(reducer, "shared", 2));
    CHECK_OK(gsync_reducer_commit(reducer));
    *grad = 6.0f;
    CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
    CHECK_OK(gsync_set_weight(reducer, 2.0));
    CHECK_OK(gsync_ready(reducer, grad));
    CHECK_STATUS(gsync_set_weight(reducer, 100.0), GSYNC_ERR_STATE);
    CHECK_STATUS(gsync_finish_empty(reducer, NULL), GSYNC_ERR_STATE);
    CHECK_OK(gsync_ready(reducer, grad));
    CHECK_OK(gsync_finish(reducer, NULL));
    CHECK_REAL(*grad, 3.0);
    gsync_reducer_destroy(&reducer);
}

RANKS_MAIN(RANKS_TEST(a_shared_weight_may_be_marked_by_several_threads), RANKS_TEST(one_of_two_marks_counts_as_a_mark))
