/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_RANK_H
#define PERF_RANK_H

/* One rank: a thread or a process. What its calls share. */

#include "perf_options.h"
#include "perf_peer.h"
#include "perf_report.h"

#include <stdint.h>

typedef struct perf_rank {
    const perf_options *options;
    gsync_comm *comm; /* the rank's own */
    int rank;
    int world;
    perf_memory *memory; /* the gradients' */
    bool shares_clock;   /* all ranks are on one host */
    const perf_peers *peers;
    void *peer_states[PERF_PEERS_MAX]; /* of those that are open */
    perf_report *report;               /* of rank 0; NULL on the others */
} perf_rank;

/* Ends the other ranks' waits too. False, for the caller to return. */
bool perf_rank_fail(const perf_rank *self, const char *what, const char *why);

/* Whether the call succeeded; fails the rank if not. */
bool perf_rank_check(const perf_rank *self, const char *what, gsync_status status);

/* The same for what a peer's calls return, and those of perf_memory.h. */
bool perf_rank_check_peer(const perf_rank *self, const perf_peer *peer, const char *problem);
bool perf_rank_check_memory(const perf_rank *self, const char *problem);

/* Collective. Finds out rank, world and shares_clock from comm. */
bool perf_rank_init(perf_rank *self);

/* Collective. Returns when all ranks have called it; on one host they return at the same time. *start_ns: that moment,
 * the same on all ranks of a host, also for one that had to wait for a processor and returns later. */
bool perf_rank_line_up(const perf_rank *self, int64_t *start_ns);

/* On a clock that nobody sets, common to the processes of a host. */
int64_t perf_clock_ns(void);

#endif
