/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 links=internal timeout=120
   gsync-test: wrap=pthread_create,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */

/*
 * Every allocation of a collective call is once made to fail on one rank: all ranks get GSYNC_ERR_MEMORY long before
 * any deadline, nothing is lost, and the call can be repeated. Ranks that are threads share one count, so there chance
 * decides whose allocation it is.
 */

#include "alloc_fault.h"
#include "ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

enum { TRIES_MAX = 10000 };

/* ---- a thread that cannot be started ---- */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

static atomic_int refuses_threads;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    return atomic_exchange(&refuses_threads, 0) ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

/* ---- the nth allocation of a call ---- */

/* Of this rank, or of all ranks where these are threads. */
static bool counts_here(const ranks_context *ctx) {
    return ctx->rank == (ctx->transport == RANKS_THREADS ? 0 : ctx->world - 1);
}

typedef gsync_status (*collective_call)(ranks_context *ctx, void *argument);

static gsync_status commit(ranks_context *ctx, void *argument) {
    (void)ctx;
    return gsync_reducer_commit(((ranks_model *)argument)->reducer);
}

/* All ranks learn whether the call made so many allocations that one failed. */
static bool try_nth(ranks_context *ctx, size_t nth, collective_call call, void *argument) {
    unsigned char mine;
    unsigned char all[RANKS_WORLD_MAX];
    const long before = alloc_fault_live();
    if (counts_here(ctx)) {
        alloc_fault_fail_nth(nth);
    }
    bool goes_on = ranks_meet(ctx);
    const gsync_status status = call(ctx, argument);
    goes_on = ranks_meet(ctx) && goes_on;
    mine = counts_here(ctx) && alloc_fault_count() >= nth;
    if (counts_here(ctx)) {
        alloc_fault_fail_nth(0);
    }
    goes_on = ranks_exchange(ctx, &mine, 1, all) && goes_on;
    bool has_failed = false;
    for (int rank = 0; rank < ctx->world; rank++) {
        has_failed = has_failed || all[rank] != 0;
    }
    CHECK_STATUS(status, has_failed ? GSYNC_ERR_MEMORY : GSYNC_OK);
    /* A commit keeps what it has for the next try; nothing else does. */
    if (has_failed && call != commit && (counts_here(ctx) || ctx->transport == RANKS_MPI)) {
        CHECK_EQ(alloc_fault_live(), before);
    }
    return has_failed && goes_on;
}

static void try_every(ranks_context *ctx, collective_call call, void *argument) {
    size_t nth = 1;
    REQUIRE(ranks_meet(ctx)); /* what the others still allocate for the test must not fail */
    while (nth < TRIES_MAX && !ranks_has_failed(ctx) && try_nth(ctx, nth, call, argument)) {
        nth++;
    }
    CHECK(nth > 1);
}

/* ---- the calls ---- */

static void a_commit(ranks_context *ctx) {
    const size_t counts[] = {100, 7, 2000};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    REQUIRE_OK(ranks_model_register(model, NULL, &options));
    try_every(ctx, commit, model);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void a_commit_that_cannot_start_its_thread(ranks_context *ctx) {
    const size_t counts[] = {100, 7, 2000};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    if (counts_here(ctx)) {
        atomic_store(&refuses_threads, 1);
    }
    REQUIRE(ranks_meet(ctx));
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MEMORY);
    CHECK_CONTAINS(gsync_last_error(), "helper thread");
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

/* Rank 0 leaves the others alone in the new communicator. */
static gsync_status split(ranks_context *ctx, void *argument) {
    return gsync_comm_split(ctx->comm, ctx->rank == 0 ? -1 : 0, 0, argument);
}

static void a_split(ranks_context *ctx) {
    gsync_comm *part = NULL;
    try_every(ctx, split, &part);
    REQUIRE_EQ(part != NULL, ctx->rank != 0);
    if (part != NULL) {
        CHECK_OK(gsync_barrier(part));
    }
    gsync_comm_destroy(&part);
    CHECK_OK(gsync_barrier(ctx->comm));
}

static gsync_status create(ranks_context *ctx, void *argument) {
    return gsync_comm_create(argument, &ctx->comm_options);
}

static void a_communicator_of_processes(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    try_every(ctx, create, &comm);
    CHECK_OK(gsync_barrier(comm));
    gsync_comm_destroy(&comm);
}

RANKS_MAIN(RANKS_TEST(a_commit),
           RANKS_TEST_WITH(a_commit_that_cannot_start_its_thread, .progress = GSYNC_PROGRESS_HELPER),
           RANKS_TEST(a_split), RANKS_TEST_WITH(a_communicator_of_processes, .needs_mpi = true))
