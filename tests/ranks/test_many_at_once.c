/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=2,3 transports=threads,mpi timeout=60 */

/* No global state: two reducers, two communicators and several threads of one process work side by side. */

#include "ranks.h"

#include <pthread.h>

enum { TENSORS = 6, STEPS = 40, MARKERS = 3 };
static const size_t counts[TENSORS] = {40, 1, 333, 7, 0, 64};

/* One model that one thread of a rank trains. */
typedef struct trainee {
    ranks_context *ctx;
    gsync_comm *comm;
    ranks_model *model;
    uint64_t stream; /* tells the models' values apart */
    pthread_t thread;
} trainee;

static gsync_options small_buckets(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 200;
    return options;
}

static bool open_trainee(trainee *self, ranks_context *ctx, gsync_comm *comm, uint64_t stream) {
    const gsync_options options = small_buckets();
    *self = (trainee){.ctx = ctx, .comm = comm, .stream = stream};
    self->model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    return CHECK_OK(ranks_model_register(self->model, comm, &options)) &&
           CHECK_OK(gsync_reducer_commit(self->model->reducer));
}

static void *train(void *argument) {
    trainee *self = argument;
    ranks_random random = ranks_random_from(self->ctx->seed, self->stream + (uint64_t)self->ctx->rank);
    ranks_adopt(self->ctx);
    for (uint64_t step = 0; step < STEPS && !ranks_has_failed(self->ctx); step++) {
        size_t order[TENSORS];
        ranks_shuffle(&random, order, TENSORS);
        ranks_model_fill(self->model, RANKS_INTEGERS, self->stream + step);
        CHECK_OK(ranks_model_step(self->model, order, NULL));
        CHECK_MODEL_MEAN(self->model, RANKS_INTEGERS, self->stream + step);
    }
    if (ranks_has_failed(self->ctx)) {
        gsync_comm_abort(self->comm, "a thread of this test has failed");
    }
    return NULL;
}

static void train_at_once(trainee *trainees, size_t n) {
    for (size_t i = 0; i < n; i++) {
        REQUIRE_EQ(pthread_create(&trainees[i].thread, NULL, train, &trainees[i]), 0);
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(trainees[i].thread, NULL);
    }
}

static void two_threads_train_over_two_communicators_at_once(ranks_context *ctx) {
    gsync_comm *second = NULL;
    trainee trainees[2];
    REQUIRE_OK(gsync_comm_split(ctx->comm, 0, ctx->rank, &second));
    if (open_trainee(&trainees[0], ctx, ctx->comm, 1000) && open_trainee(&trainees[1], ctx, second, 2000)) {
        train_at_once(trainees, 2);
    }
    REQUIRE(ranks_meet(ctx));
    gsync_comm_destroy(&second);
}

static void three_threads_train_over_one_communicator_at_once(ranks_context *ctx) {
    trainee trainees[3];
    for (uint64_t i = 0; i < 3; i++) {
        REQUIRE(open_trainee(&trainees[i], ctx, ctx->comm, 3000 + 1000 * i));
    }
    train_at_once(trainees, 3);
}

/* ---- The communicator's own calls beside a reducer's steps --------------------------------------------------------
 */

static void *average_metrics(void *argument) {
    trainee *self = argument;
    ranks_adopt(self->ctx);
    for (int i = 0; i < STEPS && !ranks_has_failed(self->ctx); i++) {
        double metric = self->ctx->rank + i;
        int64_t token = self->ctx->rank == 1 ? 1000 + i : -1;
        CHECK_OK(gsync_allreduce(self->comm, &metric, 1, GSYNC_FLOAT64, GSYNC_SUM));
        CHECK_REAL(metric, self->ctx->world * i + self->ctx->world * (self->ctx->world - 1) / 2.0);
        CHECK_OK(gsync_broadcast(self->comm, &token, 1, GSYNC_INT64, 1));
        CHECK_EQ(token, 1000 + i);
    }
    return NULL;
}

static void a_thread_averages_metrics_while_another_trains(ranks_context *ctx) {
    trainee trainer;
    trainee watcher = {.ctx = ctx, .comm = ctx->comm};
    REQUIRE(open_trainee(&trainer, ctx, ctx->comm, 9000));
    REQUIRE_EQ(pthread_create(&watcher.thread, NULL, average_metrics, &watcher), 0);
    train(&trainer);
    pthread_join(watcher.thread, NULL);
}

/* ---- Marks from several threads ------------------------------------------------------------------------------------
 */

typedef struct marker {
    trainee *of;
    size_t first; /* marks first, first + MARKERS, ... */
    pthread_t thread;
} marker;

static void *mark_some(void *argument) {
    marker *self = argument;
    ranks_adopt(self->of->ctx);
    for (size_t i = self->first; i < TENSORS; i += MARKERS) {
        CHECK_OK(ranks_model_ready(self->of->model, i));
    }
    return NULL;
}

static void mark_from_threads(trainee *of) {
    marker markers[MARKERS];
    for (size_t i = 0; i < MARKERS; i++) {
        markers[i] = (marker){.of = of, .first = i};
        REQUIRE_EQ(pthread_create(&markers[i].thread, NULL, mark_some, &markers[i]), 0);
    }
    for (size_t i = 0; i < MARKERS; i++) {
        pthread_join(markers[i].thread, NULL);
    }
}

static void gradients_may_be_marked_by_several_threads_at_once(ranks_context *ctx) {
    trainee self;
    REQUIRE(open_trainee(&self, ctx, ctx->comm, 12000));
    for (uint64_t step = 0; step < STEPS && !ranks_has_failed(ctx); step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_model_fill(self.model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(self.model->reducer, GSYNC_SYNC));
        mark_from_threads(&self);
        REQUIRE_OK(gsync_finish(self.model->reducer, &info));
        CHECK_MODEL_MEAN(self.model, RANKS_INTEGERS, step);
        CHECK_EQ(info.buckets_launched, info.bucket_count);
    }
}

/* ---- One thread, two reducers, another order on every rank ----------------------------------------------------------
 */

static void begin_and_mark(trainee *self, uint64_t step) {
    ranks_model_fill(self->model, RANKS_INTEGERS, self->stream + step);
    REQUIRE_OK(gsync_begin(self->model->reducer, GSYNC_SYNC));
    for (size_t i = 0; i < TENSORS; i++) {
        REQUIRE_OK(ranks_model_ready(self->model, i));
    }
}

static void steps_of_two_reducers_may_be_finished_in_another_order_on_every_rank(ranks_context *ctx) {
    trainee pair[2];
    REQUIRE(open_trainee(&pair[0], ctx, ctx->comm, 20000) && open_trainee(&pair[1], ctx, ctx->comm, 30000));
    for (uint64_t step = 0; step < STEPS; step++) {
        const size_t first = (step + (uint64_t)ctx->rank) % 2;
        begin_and_mark(&pair[first], step);
        begin_and_mark(&pair[1 - first], step);
        REQUIRE(!ranks_has_failed(ctx));
        REQUIRE_OK(gsync_finish(pair[first].model->reducer, NULL));
        REQUIRE_OK(gsync_finish(pair[1 - first].model->reducer, NULL));
        for (size_t i = 0; i < 2; i++) {
            CHECK_MODEL_MEAN(pair[i].model, RANKS_INTEGERS, pair[i].stream + step);
        }
    }
}

/* Groups inside the world: even and odd ranks train models of their own, and all of them train a common one. */
static void a_split_communicator_reduces_over_its_own_ranks_only(ranks_context *ctx) {
    const size_t count = 33;
    gsync_comm *half = NULL;
    const int color = ctx->rank % 2;
    REQUIRE_OK(gsync_comm_split(ctx->comm, color, ctx->rank, &half));
    ranks_model *common = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    ranks_model *own = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(common, NULL));
    REQUIRE_OK(ranks_model_register(own, half, NULL));
    REQUIRE_OK(gsync_reducer_commit(own->reducer));
    ranks_source source = {RANKS_INTEGERS, 5, 0, color == 0 ? 0x55555555u : 0xaaaaaaaau};
    for (int step = 0; step < 3; step++) {
        ranks_model_fill(common, RANKS_INTEGERS, 4);
        ranks_fill(ctx, own->tensors[0].grad, count, GSYNC_FLOAT32, source);
        REQUIRE_OK(ranks_model_step(common, NULL, NULL));
        REQUIRE_OK(ranks_model_step(own, NULL, NULL));
        CHECK_MODEL_MEAN(common, RANKS_INTEGERS, 4);
        CHECK_REDUCED(ctx, own->tensors[0].grad, count, GSYNC_FLOAT32, source, gsync_world_size(half));
    }
    gsync_reducer_destroy(&own->reducer);
    gsync_comm_destroy(&half);
}

#define BOTH(claim)                                                                                                    \
    RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_HELPER), RANKS_TEST_WITH(claim, .progress = GSYNC_PROGRESS_CALLER)

RANKS_MAIN(BOTH(two_threads_train_over_two_communicators_at_once),
           BOTH(three_threads_train_over_one_communicator_at_once),
           BOTH(a_thread_averages_metrics_while_another_trains),
           BOTH(gradients_may_be_marked_by_several_threads_at_once),
           BOTH(steps_of_two_reducers_may_be_finished_in_another_order_on_every_rank),
           BOTH(a_split_communicator_reduces_over_its_own_ranks_only))
