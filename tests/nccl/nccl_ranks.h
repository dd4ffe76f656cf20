/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_RANKS_H
#define NCCL_RANKS_H

/* Ranks that are threads, each with a simulated GPU and an ncclComm_t of the trainer's, and a communicator of ours. */

#include "base/clock.h"
#include "rank_threads.h"
#include "simcuda.h"

#include <gradsync/gradsync_cuda.h>
#include <string.h>

/* A rank that finds out by its deadline has this much more time. */
enum { GRACE_MS = 2000 };

typedef struct nccl_rank {
    int rank;
    int ranks;
    ncclComm_t trainers;
    gsync_comm *comm;
} nccl_rank;

typedef void nccl_rank_function(nccl_rank *self);

typedef struct nccl_run {
    ncclUniqueId id;
    const gsync_comm_options *options;
    nccl_rank_function *function;
} nccl_run;

#define CHECK_STATUS(call, expected)                                                                                   \
    do {                                                                                                               \
        const gsync_status check_status_got = (call);                                                                  \
        if (check_status_got != (expected)) {                                                                          \
            fprintf(stderr, "%s:%d: %s is %s, not %s: %s\n", __FILE__, __LINE__, #call,                                \
                    gsync_status_name(check_status_got), gsync_status_name(expected), gsync_last_error());             \
            atomic_fetch_add(&rank_failures, 1);                                                                       \
        }                                                                                                              \
    } while (0)

/* One of two statuses: which, depends on who finds out first. */
#define CHECK_EITHER(call, one, other)                                                                                 \
    do {                                                                                                               \
        const gsync_status check_status_got = (call);                                                                  \
        if (check_status_got != (one) && check_status_got != (other)) {                                                \
            fprintf(stderr, "%s:%d: %s is %s: %s\n", __FILE__, __LINE__, #call, gsync_status_name(check_status_got),   \
                    gsync_last_error());                                                                               \
            atomic_fetch_add(&rank_failures, 1);                                                                       \
        }                                                                                                              \
    } while (0)

#define CHECK_SAYS(part) CHECK(strstr(gsync_last_error(), (part)) != NULL)

static inline void nccl_rank_main(int rank, int ranks, void *context) {
    const nccl_run *run = context;
    nccl_rank self = {.rank = rank, .ranks = ranks};
    OK(ncclCommInitRank(&self.trainers, ranks, run->id, rank));
    CHECK_STATUS(gsync_comm_from_nccl(&self.comm, self.trainers, run->options), GSYNC_OK);
    if (self.comm != NULL) {
        run->function(&self);
    }
    gsync_comm_destroy(&self.comm);
    OK(ncclCommDestroy(self.trainers));
}

/* Each calls the function with a communicator from its ncclComm_t. */
static inline void run_nccl_ranks(int ranks, const gsync_comm_options *options, nccl_rank_function *function) {
    nccl_run run = {.options = options, .function = function};
    assert_int_equal(ncclGetUniqueId(&run.id), ncclSuccess);
    run_rank_threads(ranks, nccl_rank_main, &run);
}

/* Each calls the function with an ncclComm_t only. */
static inline void nccl_bare_main(int rank, int ranks, void *context) {
    const nccl_run *run = context;
    nccl_rank self = {.rank = rank, .ranks = ranks};
    OK(ncclCommInitRank(&self.trainers, ranks, run->id, rank));
    run->function(&self);
    OK(ncclCommAbort(self.trainers));
}

static inline void run_bare_ranks(int ranks, nccl_rank_function *function) {
    nccl_run run = {.function = function};
    assert_int_equal(ncclGetUniqueId(&run.id), ncclSuccess);
    run_rank_threads(ranks, nccl_bare_main, &run);
}

/* What ends in the background is given the time that it is promised to need. */
static inline void expect_nothing_left(void) {
    const uint64_t limit = gs_clock_ns() + (uint64_t)10 * GRACE_MS * 1000000u;
    while ((simcuda_objects() != 0 || simcuda_allocations() != 0) && gs_clock_ns() < limit) {
        simcuda_wait_idle();
        sched_yield();
    }
    assert_int_equal(simcuda_objects(), 0);
    assert_int_equal(simcuda_allocations(), 0);
}

/* No race, no touch of the wrong memory, no use of the default stream. */
static inline void expect_sound(void) {
    simcuda_report report;
    const size_t count = simcuda_reports(&report, 1);
    if (count != 0) {
        fprintf(stderr, "%s\n", report.text);
    }
    assert_int_equal(count, 0);
    assert_int_equal(simcuda_default_stream_uses(), 0);
}

#endif
