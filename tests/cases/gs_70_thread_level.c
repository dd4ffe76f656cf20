/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=mpi timeout=60 */

/*
 * GS-70: the trainer has initialised MPI, at a lower thread level than a helper thread needs. This program calls plain
 * MPI_Init; the other levels are what mpi_level_shim.h makes MPI say. ranks_per_host = 1, so that messages are really
 * used: on one host the library moves data through shared memory alone.
 */

#include "ranks.h"

#include "mpi_level_shim.h"

#include <gradsync/gradsync_mpi.h>
#include <stdlib.h>
#include <string.h>

static const size_t counts[] = {40, 3, 700};
#define TENSORS 3

static void finalize_at_exit(void) {
    PMPI_Finalize();
}

/* Once per process, as a trainer does. */
static void initialise_mpi(void) {
    int is_initialised = 0;
    PMPI_Initialized(&is_initialised);
    if (!is_initialised) {
        MPI_Init(NULL, NULL);
        atexit(finalize_at_exit);
    }
}

typedef struct log_book {
    int warnings;
    char last_warning[512];
} log_book;

static void write_down(void *user, gsync_log_level level, const char *message) {
    log_book *book = user;
    if (level == GSYNC_LOG_WARN) {
        book->warnings++;
        const size_t length = strnlen(message, sizeof(book->last_warning) - 1);
        memcpy(book->last_warning, message, length);
        book->last_warning[length] = '\0';
    }
}

static gsync_comm_options options_of(ranks_context *ctx, gsync_progress progress, uint32_t ranks_per_host,
                                     log_book *book) {
    gsync_comm_options options = ctx->comm_options;
    options.progress = progress;
    options.ranks_per_host = ranks_per_host;
    options.log = write_down;
    options.log_user = book;
    return options;
}

/* Steps with several buckets and a pause for a helper, if there were one, to move them in. */
static void train(ranks_context *ctx, gsync_comm *comm) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 64;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, &options));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 1; step <= 5; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        for (size_t i = TENSORS; i-- > 0;) {
            CHECK_OK(ranks_model_ready(model, i));
        }
        REQUIRE(ranks_meet(ctx)); /* all have marked everything: a helper could go on */
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
    float one = 1.0f;
    CHECK_OK(gsync_allreduce(comm, &one, 1, GSYNC_FLOAT32, GSYNC_SUM));
    CHECK_REAL((double)one, ctx->world);
    gsync_reducer_destroy(&model->reducer);
}

/* AUTO under a level: whether it warned, what it says of itself, and who called MPI. */
static void check_auto(ranks_context *ctx, int level, uint32_t ranks_per_host, bool expects_helper) {
    log_book book = {0, ""};
    gsync_comm *comm = NULL;
    const gsync_comm_options options = options_of(ctx, GSYNC_PROGRESS_AUTO, ranks_per_host, &book);
    initialise_mpi();
    shim_start(level);
    REQUIRE_OK(gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, &options));
    CHECK_EQ(book.warnings, expects_helper ? 0 : 1);
    if (!expects_helper) {
        CHECK_CONTAINS(book.last_warning, level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE");
        CHECK_CONTAINS(book.last_warning, "no helper thread");
    }
    CHECK_CONTAINS(gsync_comm_describe(comm), expects_helper ? "a helper thread" : "the caller's thread");
    train(ctx, comm);
    CHECK_EQ(atomic_load(&shim.strays), 0);
    CHECK_EQ(atomic_load(&shim.calls) > 0, ranks_per_host != 0);
    gsync_comm_destroy(&comm);
    CHECK_EQ(atomic_load(&shim.strays), 0);
}

/* First, while no test has told the shim to lie. */
static void GS_70_plain_init_is_served_by_the_callers_thread(ranks_context *ctx) {
    int level = -1;
    initialise_mpi();
    PMPI_Query_thread(&level);
    if (level != MPI_THREAD_SINGLE) {
        SKIP("this MPI's MPI_Init gives more than MPI_THREAD_SINGLE");
    }
    check_auto(ctx, -1, 1, false);
}

static void GS_70_single_downgrades_to_the_callers_thread_with_a_warning(ranks_context *ctx) {
    check_auto(ctx, MPI_THREAD_SINGLE, 1, false);
    check_auto(ctx, MPI_THREAD_SINGLE, 0, false);
}

static void GS_70_funneled_between_hosts_downgrades_too(ranks_context *ctx) {
    check_auto(ctx, MPI_THREAD_FUNNELED, 1, false);
}

/* On one host the helper makes no MPI call, so that FUNNELED is enough for it. */
static void GS_70_funneled_on_one_host_keeps_a_helper_that_calls_no_mpi(ranks_context *ctx) {
    check_auto(ctx, MPI_THREAD_FUNNELED, 0, true);
}

static void check_helper_refused(ranks_context *ctx, int level, uint32_t ranks_per_host) {
    log_book book = {0, ""};
    gsync_comm *comm = NULL;
    const gsync_comm_options options = options_of(ctx, GSYNC_PROGRESS_HELPER, ranks_per_host, &book);
    initialise_mpi();
    shim_start(level);
    CHECK_STATUS(gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, &options), GSYNC_ERR_ARGUMENT);
    CHECK(comm == NULL);
    CHECK_CONTAINS(gsync_last_error(), "gsync_comm_options.progress");
    CHECK_CONTAINS(gsync_last_error(), level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE");
    CHECK_EQ(atomic_load(&shim.strays), 0);
    gsync_comm_destroy(&comm);
}

static void GS_70_a_helper_is_refused_where_the_level_forbids_it(ranks_context *ctx) {
    check_helper_refused(ctx, MPI_THREAD_SINGLE, 0);
    check_helper_refused(ctx, MPI_THREAD_SINGLE, 1);
    check_helper_refused(ctx, MPI_THREAD_FUNNELED, 1);
}

/* The caller's thread was asked for: that is no downgrade, and nothing to warn of. */
static void GS_70_progress_by_the_caller_as_asked_for_warns_of_nothing(ranks_context *ctx) {
    log_book book = {0, ""};
    gsync_comm *comm = NULL;
    const gsync_comm_options options = options_of(ctx, GSYNC_PROGRESS_CALLER, 1, &book);
    initialise_mpi();
    shim_start(MPI_THREAD_SINGLE);
    REQUIRE_OK(gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, &options));
    train(ctx, comm);
    CHECK_EQ(book.warnings, 0);
    CHECK_EQ(atomic_load(&shim.strays), 0);
    gsync_comm_destroy(&comm);
}

static void *mark_all(void *argument) {
    ranks_model *model = argument;
    ranks_adopt(model->ctx);
    for (size_t i = TENSORS; i-- > 0;) {
        CHECK_OK(ranks_model_ready(model, i));
    }
    return NULL;
}

/* FUNNELED means that the trainer has threads. gsync_ready may come from any of them, MPI calls from the main one. */
static void GS_70_marks_of_other_threads_make_no_mpi_call_under_funneled(ranks_context *ctx) {
    log_book book = {0, ""};
    gsync_comm *comm = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    const gsync_comm_options comm_options = options_of(ctx, GSYNC_PROGRESS_AUTO, 1, &book);
    options.bucket_bytes_max = 64;
    initialise_mpi();
    shim_start(MPI_THREAD_FUNNELED);
    REQUIRE_OK(gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, &comm_options));
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, &options));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 1; step <= 5; step++) {
        pthread_t thread;
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        REQUIRE(pthread_create(&thread, NULL, mark_all, model) == 0);
        pthread_join(thread, NULL);
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
    }
    CHECK_EQ(atomic_load(&shim.strays), 0);
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

#define GS_70_TEST(function) RANKS_TEST_WITH(function, .needs_mpi = true, .needs_no_comm = true)

RANKS_MAIN(GS_70_TEST(GS_70_plain_init_is_served_by_the_callers_thread),
           GS_70_TEST(GS_70_single_downgrades_to_the_callers_thread_with_a_warning),
           GS_70_TEST(GS_70_funneled_between_hosts_downgrades_too),
           GS_70_TEST(GS_70_funneled_on_one_host_keeps_a_helper_that_calls_no_mpi),
           GS_70_TEST(GS_70_a_helper_is_refused_where_the_level_forbids_it),
           GS_70_TEST(GS_70_progress_by_the_caller_as_asked_for_warns_of_nothing),
           GS_70_TEST(GS_70_marks_of_other_threads_make_no_mpi_call_under_funneled))
