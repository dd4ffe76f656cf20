/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_rank.h"
#include "perf_program.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

/* The last of it without giving the processor away, so that all are there on time. */
static const int64_t SPIN_NS = 2000;

bool perf_rank_fail(const perf_rank *self, const char *what, const char *why) {
    fprintf(stderr, "%s: rank %d: %s: %s\n", perf_program_own.name, self->rank, what, why);
    gsync_comm_abort(self->comm, what);
    return false;
}

bool perf_rank_check(const perf_rank *self, const char *what, gsync_status status) {
    return status == GSYNC_OK || perf_rank_fail(self, what, gsync_last_error());
}

bool perf_rank_check_peer(const perf_rank *self, const perf_peer *peer, const char *problem) {
    return problem == NULL || perf_rank_fail(self, peer->name, problem);
}

bool perf_rank_check_memory(const perf_rank *self, const char *problem) {
    return problem == NULL || perf_rank_fail(self, "the gradients' memory", problem);
}

bool perf_rank_init(perf_rank *self) {
    self->rank = gsync_rank(self->comm);
    self->world = gsync_world_size(self->comm);
    int64_t local_max = gsync_local_rank(self->comm);
    if (!perf_rank_check(self, "counting the hosts",
                         gsync_allreduce(self->comm, &local_max, 1, GSYNC_INT64, GSYNC_MAX))) {
        return false;
    }
    self->shares_clock = local_max + 1 == self->world;
    return true;
}

int64_t perf_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/*
 * Ranks leave a barrier one after another, and those that slept in it some 50 us later than those that did not. Timed
 * from there, a call of 1 us would show the barrier. So they agree on a moment that is still to come.
 */
bool perf_rank_line_up(const perf_rank *self, int64_t *start_ns) {
    const int64_t head_start_ns = perf_program_own.head_start_ns;
    int64_t start = perf_clock_ns() + head_start_ns;
    if (!perf_rank_check(self, "lining up", gsync_allreduce(self->comm, &start, 1, GSYNC_INT64, GSYNC_MAX))) {
        return false;
    }
    *start_ns = perf_clock_ns();
    if (!self->shares_clock || self->world == 1) {
        return true;
    }
    /* No rank can have asked for a moment further away than this: or the clocks are not common after all. */
    if (start - *start_ns > head_start_ns) {
        return true;
    }
    *start_ns = start;
    while (perf_clock_ns() < start - SPIN_NS) {
        sched_yield();
    }
    while (perf_clock_ns() < start) {
    }
    return true;
}
