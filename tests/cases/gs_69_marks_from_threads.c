/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads,mpi timeout=60 */

/*
 * GS-69: eight threads per rank write gradients and mark them. Run it under ThreadSanitizer too (cmake --workflow
 * --preset tsan), where it takes fewer steps.
 */

#include "ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { WORKERS = 8, GRADIENTS = 256, COUNT_MAX = 40, RACED = 32 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { STEPS = 60, STEPS_ON_DEVICE = 10 };
#else
enum { STEPS = 500, STEPS_ON_DEVICE = 20 };
#endif

typedef struct crew {
    ranks_model *model;
    pthread_barrier_t start;
    pthread_barrier_t end;
    uint64_t step; /* 0: go home */
    size_t order[GRADIENTS];
    bool marks_twice; /* worker 0 marks its first gradient again */
    bool races;       /* workers 1 and 2 both mark the first RACED gradients, which the main thread has written */
    _Atomic size_t arrivals; /* of the two racers, at their gradients */
    _Atomic int successes;
    _Atomic int refusals;
    _Atomic int others;
} crew;

typedef struct worker {
    pthread_t thread;
    crew *crew;
    size_t number;
} worker;

static void note(crew *self, gsync_status status) {
    atomic_fetch_add(status == GSYNC_OK                  ? &self->successes
                     : status == GSYNC_ERR_ALREADY_READY ? &self->refusals
                                                         : &self->others,
                     1);
}

static void fill_one(const crew *self, size_t tensor) {
    const ranks_tensor *at = &self->model->tensors[tensor];
    const ranks_source source = {.kind = RANKS_INTEGERS, .round = self->step, .tensor = tensor};
    ranks_fill(self->model->ctx, at->grad, at->count, at->dtype, source);
}

/* Both racers go through the same gradients, and wait for each other at each: who comes first is open. */
static void race(crew *self) {
    for (size_t i = 0; i < RACED; i++) {
        atomic_fetch_add(&self->arrivals, 1);
        while (atomic_load(&self->arrivals) < 2 * (i + 1)) {
            sched_yield();
        }
        note(self, ranks_model_ready(self->model, self->order[i]));
    }
}

static void mark_share(crew *self, size_t number) {
    if (self->races && (number == 1 || number == 2)) {
        race(self);
    }
    const size_t first = self->races ? RACED : 0;
    for (size_t i = first + number; i < GRADIENTS; i += WORKERS) {
        fill_one(self, self->order[i]);
        note(self, ranks_model_ready(self->model, self->order[i]));
        if (i == 0 && self->marks_twice) {
            note(self, ranks_model_ready(self->model, self->order[i]));
        }
    }
}

static void *work(void *argument) {
    worker *self = argument;
    for (;;) {
        pthread_barrier_wait(&self->crew->start);
        if (self->crew->step == 0) {
            return NULL;
        }
        mark_share(self->crew, self->number);
        pthread_barrier_wait(&self->crew->end);
    }
}

static void check_step(crew *self, uint64_t step, int duplicates) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    CHECK_OK(gsync_begin(self->model->reducer, GSYNC_SYNC));
    self->step = step;
    atomic_store(&self->arrivals, 0);
    for (size_t i = 0; i < RACED && self->races; i++) {
        fill_one(self, self->order[i]);
    }
    pthread_barrier_wait(&self->start);
    pthread_barrier_wait(&self->end);
    CHECK_OK(gsync_finish(self->model->reducer, &info));
    CHECK_EQ(atomic_exchange(&self->successes, 0), GRADIENTS);
    CHECK_EQ(atomic_exchange(&self->refusals, 0), duplicates);
    CHECK_EQ(atomic_exchange(&self->others, 0), 0);
    CHECK_EQ(info.buckets_launched, info.bucket_count);
    CHECK_MODEL_MEAN(self->model, RANKS_INTEGERS, step);
}

/* Two steps in ten have marks too many: one from the thread that made the good one, or many from another. */
static void run_steps(crew *self) {
    ranks_context *ctx = self->model->ctx;
    ranks_random random = ranks_random_from(ctx->seed, (uint64_t)ctx->rank);
    const uint64_t steps = ctx->is_on_device ? STEPS_ON_DEVICE : STEPS; /* a simulated one takes long */
    for (uint64_t step = 1; step <= steps && !ranks_has_failed(ctx); step++) {
        ranks_shuffle(&random, self->order, GRADIENTS);
        self->marks_twice = step % 10 == 3;
        self->races = step % 10 == 7;
        check_step(self, step, self->marks_twice ? 1 : (self->races ? RACED : 0));
    }
}

static ranks_model *many_gradients(ranks_context *ctx) {
    size_t counts[GRADIENTS];
    ranks_random random = ranks_random_from(ctx->seed, 99); /* the same on all ranks */
    for (size_t i = 0; i < GRADIENTS; i++) {
        counts[i] = 1 + ranks_random_below(&random, COUNT_MAX);
    }
    return ranks_model_new(ctx, counts, GRADIENTS, GSYNC_FLOAT32);
}

static void run_crew(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 512; /* some fifty buckets */
    options.is_strict = 1;          /* a mark that got lost is an error */
    crew self = {.model = many_gradients(ctx)};
    worker workers[WORKERS];
    REQUIRE_OK(ranks_model_open(self.model, &options));
    pthread_barrier_init(&self.start, NULL, WORKERS + 1);
    pthread_barrier_init(&self.end, NULL, WORKERS + 1);
    for (size_t i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.crew = &self, .number = i};
        REQUIRE(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    run_steps(&self);
    self.step = 0;
    pthread_barrier_wait(&self.start);
    for (size_t i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    pthread_barrier_destroy(&self.start);
    pthread_barrier_destroy(&self.end);
}

static void GS_69_eight_threads_mark_in_random_order(ranks_context *ctx) {
    run_crew(ctx);
}

/* Without a helper the marking threads themselves move the buckets. */
static void GS_69_eight_threads_mark_and_move_the_buckets(ranks_context *ctx) {
    run_crew(ctx);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_69_eight_threads_mark_in_random_order, .progress = GSYNC_PROGRESS_HELPER),
           RANKS_TEST_WITH(GS_69_eight_threads_mark_and_move_the_buckets, .progress = GSYNC_PROGRESS_CALLER))
