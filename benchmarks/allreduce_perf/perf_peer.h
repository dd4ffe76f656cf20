/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_PEER_H
#define PERF_PEER_H

/* Another all-reduce that is measured in turn with the library's. It works in place on private memory, and sums. */

#include <gradsync/gradsync.h>
#include <stdbool.h>

typedef struct perf_peer {
    const char *name;
    /* Before the ranks' communicator is made: settings that a careful user of the peer would have made. */
    void (*prepare)(void);
    /* After it. NULL, or why the peer cannot run. Collective. */
    const char *(*open)(void);
    void (*close)(void);
    /* One line, valid until close. */
    const char *(*describe)(void);
    bool (*takes)(gsync_dtype dtype, size_t count);
    /* NULL, or what went wrong. Collective. */
    const char *(*sum)(void *buffer, size_t count, gsync_dtype dtype);
} perf_peer;

/* NULL: there is none of that name in this build. */
const perf_peer *perf_peer_find(const char *name);

/* In builds with MPI. */
extern const perf_peer perf_peer_mpi;

#endif
