/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_PROGRAM_H
#define PERF_PROGRAM_H

/* allreduce_perf is two programs, one for gradients on the host and one for gradients on GPUs: what they differ in. */

#include "perf_peer.h"

#include <stdint.h>

typedef struct perf_known_peer {
    const char *group; /* of which each peer is one, and which may be named in place of all of them */
    const perf_peer *peer;
} perf_known_peer;

typedef struct perf_program {
    const char *name;
    const char *help;
    bool is_on_gpu;
    const perf_known_peer *peers;
    size_t peer_count;
    const char *peers_wanted;    /* what is said when others are named */
    const char *terms;           /* about the ways; lines of the table's head */
    const char *const *settings; /* starts of names in the environment that count here too; ends with NULL */
    int64_t head_start_ns;       /* longer than it takes until all ranks have agreed on a moment */
} perf_program;

/* This one. */
extern const perf_program perf_program_own;

#endif
