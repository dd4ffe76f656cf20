/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_PEER_H
#define PERF_PEER_H

/*
 * Other all-reduces, measured in turn with the library's. They work in place, and sum.
 *
 * Each rank opens a peer once, starts it for each row, sums as often as it likes, stops it, and closes it in the end.
 * All these are collective. Texts that are returned say what went wrong, and NULL that nothing did.
 */

#include "perf_memory.h"
#include "perf_row.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct perf_peer_ranks {
    gsync_comm *comm; /* to find each other with; nothing of it runs while a peer sums */
    int rank;
    int world;
    bool is_one_host;
    perf_memory *memory;
    const struct perf_options *options;
} perf_peer_ranks;

typedef struct perf_peer {
    const char *name;
    bool takes_threads; /* else the ranks have to be processes */
    bool brings_memory; /* else it works on private memory */
    bool needs_barrier; /* sum does not wait for the other ranks, whose part of the result may still be missing */
    const char *(*open)(const perf_peer_ranks *ranks, void **state);
    void (*close)(void *state);
    /* One line, valid until close. */
    const char *(*describe)(const void *state);
    bool (*takes)(const void *state, gsync_dtype dtype, size_t count);
    /* *buffer: private memory for count elements, or NULL where the peer brings its own and sets it. May be NULL. */
    const char *(*start)(void *state, gsync_dtype dtype, size_t count, void **buffer);
    const char *(*sum)(void *state, gsync_dtype dtype, size_t count, void *buffer);
    void (*stop)(void *state); /* may be NULL; also after a start that failed */
} perf_peer;

typedef struct perf_peers {
    const perf_peer *peer[PERF_PEERS_MAX];
    int count;
} perf_peers;

/* names: of peers or of groups of them, with commas between; NULL: none. False: this program has no such peers, or they
 * are too many, or one comes twice. */
bool perf_peers_find(const char *names, perf_peers *peers);

/*
 * Before the first of them is opened. Peers allocate scratch memory in each call; from 32 MiB on glibc takes it from
 * the kernel every time and gives it back, and its page faults would cost more than the reduction. Tells it not to.
 */
void perf_peers_tune_malloc(void);

/* On the host in all builds; with MPI; and with gloo. */
extern const perf_peer perf_peer_limit;
extern const perf_peer perf_peer_mpi;
extern const perf_peer perf_peer_gloo_ring;
extern const perf_peer perf_peer_gloo_ring_chunked;
extern const perf_peer perf_peer_gloo_halving_doubling;
extern const perf_peer perf_peer_gloo_bcube;

/* On GPUs. */
extern const perf_peer perf_peer_nccl;

#ifdef __cplusplus
}
#endif

#endif
