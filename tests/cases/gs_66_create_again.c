/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=2,4 transports=threads,mpi timeout=60 */

/*
 * GS-66: communicators that come and go in one process, while slower ranks still tear the last one down. The random
 * pauses are the subject here: without them all ranks arrive together.
 */

#include "own_comm.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { CYCLES = 20, PAUSE_MS_MAX = 50 };

static const size_t counts[] = {3, 500, 17};
#define TENSORS 3

static void pause_at_random(ranks_random *random) {
    const struct timespec pause = {0, (long)ranks_random_below(random, PAUSE_MS_MAX + 1) * 1000000};
    nanosleep(&pause, NULL);
}

static ranks_random pauses_of(const ranks_context *ctx, uint64_t stream) {
    return ranks_random_from(ctx->seed, stream * RANKS_WORLD_MAX + (uint64_t)ctx->rank);
}

/* A model over a communicator of its own, made afresh. */
static ranks_model *open_afresh(ranks_context *ctx, const gsync_comm_options *comm_options, gsync_comm **comm) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 64; /* a bucket each */
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    if (CHECK_OK(own_comm_create(ctx, comm_options, comm)) && CHECK_OK(ranks_model_register(model, *comm, &options)) &&
        CHECK_OK(gsync_reducer_commit(model->reducer))) {
        return model;
    }
    gsync_comm_abort(*comm, "the test has failed");
    return NULL;
}

static void close_both(ranks_model *model, gsync_comm **comm, bool comm_first) {
    if (comm_first) {
        gsync_comm_destroy(comm);
    }
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(comm);
}

static void run_good_cycle(ranks_context *ctx, const gsync_comm_options *comm_options, uint64_t cycle,
                           ranks_random *random) {
    gsync_comm *comm = NULL;
    pause_at_random(random);
    ranks_model *model = open_afresh(ctx, comm_options, &comm);
    REQUIRE(model != NULL);
    CHECK_EQ(gsync_world_size(comm), ctx->world);
    CHECK_EQ(gsync_rank(comm), ctx->rank);
    ranks_model_fill(model, RANKS_INTEGERS, cycle);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, cycle);
    pause_at_random(random);
    close_both(model, &comm, ranks_random_below(random, 2) == 0);
}

static void GS_66_twenty_cycles_of_create_step_destroy(ranks_context *ctx) {
    ranks_random random = pauses_of(ctx, 1);
    for (uint64_t cycle = 1; cycle <= CYCLES && !ranks_has_failed(ctx); cycle++) {
        run_good_cycle(ctx, &ctx->comm_options, cycle, &random);
    }
}

typedef enum ending { BY_ABORT, BY_DESTROYING, ENDINGS } ending;

/* One rank gives up in the middle of a step; the others' step fails, and every object can be destroyed. */
static void run_broken_cycle(ranks_context *ctx, const gsync_comm_options *comm_options, uint64_t cycle, ending how,
                             ranks_random *random) {
    gsync_comm *comm = NULL;
    const int culprit = (int)(cycle % (uint64_t)ctx->world);
    ranks_model *model = open_afresh(ctx, comm_options, &comm);
    REQUIRE(model != NULL);
    pause_at_random(random);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, TENSORS - 1)); /* the first bucket is under way */
    if (ctx->rank != culprit) {
        const gsync_status status = gsync_finish(model->reducer, NULL);
        CHECK(status == GSYNC_ERR_ABORTED || status == GSYNC_ERR_PEER_LOST || status == GSYNC_ERR_TIMEOUT);
    } else if (how == BY_ABORT) {
        gsync_comm_abort(comm, "this cycle breaks");
        CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_ABORTED);
    }
    close_both(model, &comm, ranks_random_below(random, 2) == 0);
}

static void GS_66_a_broken_cycle_does_not_reach_into_the_next(ranks_context *ctx) {
    ranks_random random = pauses_of(ctx, 2);
    for (uint64_t cycle = 1; cycle <= CYCLES && !ranks_has_failed(ctx); cycle++) {
        if (cycle % 2 == 0) {
            run_broken_cycle(ctx, &ctx->comm_options, cycle, (ending)(cycle / 2 % ENDINGS), &random);
        } else {
            run_good_cycle(ctx, &ctx->comm_options, cycle, &random);
        }
    }
}

/* Messages of the broken cycle are still under way when the next one begins. */
static void GS_66_broken_cycles_between_hosts(ranks_context *ctx) {
    ranks_random random = pauses_of(ctx, 3);
    gsync_comm_options options = ctx->comm_options;
    options.ranks_per_host = 1;
    for (uint64_t cycle = 1; cycle <= 6 && !ranks_has_failed(ctx); cycle++) {
        if (cycle % 2 == 0) {
            options.timeout_ms = 500; /* on another host an abort is learnt at the deadline */
            run_broken_cycle(ctx, &options, cycle, (ending)(cycle / 2 % ENDINGS), &random);
            REQUIRE(ranks_meet(ctx)); /* deadlines passed: nobody is late for the next creation */
        } else {
            options.timeout_ms = ctx->comm_options.timeout_ms;
            run_good_cycle(ctx, &options, cycle, &random);
        }
    }
}

static int count_open_files(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (directory == NULL) {
        return -1;
    }
    while (readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

/* Memory that processes share; threads have none. */
static int count_shared_mappings(void) {
    int count = 0;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    if (file == NULL) {
        return -1;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        count += strstr(line, "gradsync-") != NULL || strstr(line, "memfd:gradsync") != NULL;
    }
    fclose(file);
    return count;
}

static void GS_66_no_file_and_no_shared_memory_stays_behind(ranks_context *ctx) {
    ranks_random random = pauses_of(ctx, 4);
    /* Counting opens a file itself, so that one thread of a process does it. */
    const bool does_count = ctx->transport != RANKS_THREADS || ctx->rank == 0;
    int before = 0;
    for (uint64_t cycle = 1; cycle <= 5; cycle++) {
        run_good_cycle(ctx, &ctx->comm_options, cycle, &random);
        run_broken_cycle(ctx, &ctx->comm_options, cycle, BY_ABORT, &random);
        REQUIRE(ranks_meet(ctx));
        const int now = does_count ? count_open_files() : 0;
        CHECK_EQ(does_count ? count_shared_mappings() : 0, 0);
        REQUIRE(ranks_meet(ctx));
        before = cycle == 1 ? now : before; /* what is opened once only is open by now */
        CHECK_EQ(now, before);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(GS_66_twenty_cycles_of_create_step_destroy, .needs_no_comm = true),
           RANKS_TEST_WITH(GS_66_a_broken_cycle_does_not_reach_into_the_next, .needs_no_comm = true),
           RANKS_TEST_WITH(GS_66_broken_cycles_between_hosts, .needs_no_comm = true, .needs_mpi = true),
           RANKS_TEST_WITH(GS_66_no_file_and_no_shared_memory_stays_behind, .needs_no_comm = true))
