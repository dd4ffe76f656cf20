/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=mpi timeout=60 */

/*
 * GS-70: the library itself initialises MPI, asks for MPI_THREAD_MULTIPLE and is offered less (mpi_level_shim.h). What
 * MPI offers is found out once per process, and later communicators are asked under other levels.
 */

#include "ranks.h"

#include "mpi_level_shim.h"

#include <mpi.h>

static const size_t counts[] = {40, 3, 700};
#define TENSORS 3

static void count_warnings(void *user, gsync_log_level level, const char *message) {
    (void)message;
    *(int *)user += level == GSYNC_LOG_WARN;
}

static void check_level(ranks_context *ctx, int level, bool expects_helper) {
    int warnings = 0;
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.ranks_per_host = 1;
    options.log = count_warnings;
    options.log_user = &warnings;
    shim_start(level);
    REQUIRE_OK(gsync_comm_create(&comm, &options));
    CHECK_EQ(warnings, !expects_helper);
    CHECK_CONTAINS(gsync_comm_describe(comm), expects_helper ? "a helper thread" : "the caller's thread");
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, NULL));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 1; step <= 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
    CHECK(atomic_load(&shim.calls) > 0);
    if (!expects_helper) {
        CHECK_EQ(atomic_load(&shim.strays), 0);
    }
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

static void GS_70_the_library_asks_for_multiple_and_gets_single(ranks_context *ctx) {
    check_level(ctx, MPI_THREAD_SINGLE, false);
}

static void GS_70_the_library_asks_for_multiple_and_gets_funneled(ranks_context *ctx) {
    check_level(ctx, MPI_THREAD_FUNNELED, false);
}

static void GS_70_a_helper_asked_for_is_refused_after_init_too(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.progress = GSYNC_PROGRESS_HELPER;
    shim_start(MPI_THREAD_SINGLE);
    CHECK_STATUS(gsync_comm_create(&comm, &options), GSYNC_ERR_ARGUMENT);
    CHECK(comm == NULL);
}

/* Whether the shim may let helpers call MPI at all. */
static bool mpi_allows_threads(void) {
    int level = MPI_THREAD_SINGLE;
    PMPI_Query_thread(&level);
    return level >= MPI_THREAD_SERIALIZED;
}

/* The other side of it: where MPI allows threads there is a helper, and this program would see its calls. */
static void GS_70_the_helper_is_used_where_mpi_allows_it(ranks_context *ctx) {
    if (!mpi_allows_threads()) {
        SKIP("this MPI offers no threads");
    }
    check_level(ctx, -1, true);
}

/* Two communicators whose helpers have work at the same time, and under SERIALIZED still one MPI call at a time. */
static void GS_70_serialized_calls_of_two_communicators_never_overlap(ranks_context *ctx) {
    gsync_comm *comms[2] = {NULL, NULL};
    ranks_model *models[2];
    gsync_comm_options options = ctx->comm_options;
    options.ranks_per_host = 1;
    if (!mpi_allows_threads()) {
        SKIP("this MPI offers no threads");
    }
    shim_start(MPI_THREAD_SERIALIZED);
    for (int i = 0; i < 2; i++) {
        models[i] = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
        REQUIRE_OK(gsync_comm_create(&comms[i], &options));
        REQUIRE_OK(ranks_model_register(models[i], comms[i], NULL));
        REQUIRE_OK(gsync_reducer_commit(models[i]->reducer));
    }
    for (uint64_t step = 1; step <= 50 && !ranks_has_failed(ctx); step++) {
        for (int i = 0; i < 2; i++) {
            ranks_model_fill(models[i], RANKS_INTEGERS, step + (uint64_t)i);
            CHECK_OK(gsync_begin(models[i]->reducer, GSYNC_SYNC));
        }
        for (size_t tensor = TENSORS; tensor-- > 0;) {
            CHECK_OK(ranks_model_ready(models[0], tensor));
            CHECK_OK(ranks_model_ready(models[1], tensor));
        }
        for (int i = 0; i < 2; i++) {
            CHECK_OK(gsync_finish(models[i]->reducer, NULL));
            CHECK_MODEL_MEAN(models[i], RANKS_INTEGERS, step + (uint64_t)i);
        }
    }
    CHECK(atomic_load(&shim.calls) > 0);
    CHECK_EQ(atomic_load(&shim.overlaps), 0);
    for (int i = 0; i < 2; i++) {
        gsync_reducer_destroy(&models[i]->reducer);
        gsync_comm_destroy(&comms[i]);
    }
}

#define GS_70_TEST(function) RANKS_TEST_WITH(function, .needs_mpi = true, .needs_no_comm = true)

RANKS_MAIN(GS_70_TEST(GS_70_the_library_asks_for_multiple_and_gets_single),
           GS_70_TEST(GS_70_the_library_asks_for_multiple_and_gets_funneled),
           GS_70_TEST(GS_70_a_helper_asked_for_is_refused_after_init_too),
           GS_70_TEST(GS_70_the_helper_is_used_where_mpi_allows_it),
           GS_70_TEST(GS_70_serialized_calls_of_two_communicators_never_overlap))
