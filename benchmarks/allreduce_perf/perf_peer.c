/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_peer.h"

#include <string.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

/* Some belong to a group, which may be named in place of each. */
static const struct known_peer {
    const char *group;
    const perf_peer *peer;
} KNOWN[] = {
    {"limit", &perf_peer_limit},
#if GS_HAVE_MPI
    {"mpi", &perf_peer_mpi},
#endif
#if GS_HAVE_GLOO
    {"gloo", &perf_peer_gloo_ring},  {"gloo", &perf_peer_gloo_ring_chunked}, {"gloo", &perf_peer_gloo_halving_doubling},
    {"gloo", &perf_peer_gloo_bcube},
#endif
};

static bool is_word(const char *word, const char *names, size_t length) {
    return strlen(word) == length && strncmp(word, names, length) == 0;
}

static bool has(const perf_peers *peers, const perf_peer *peer) {
    for (int i = 0; i < peers->count; i++) {
        if (peers->peer[i] == peer) {
            return true;
        }
    }
    return false;
}

/* The peers of one word. */
static bool add(const char *word, size_t length, perf_peers *peers) {
    bool is_known = false;
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (!is_word(KNOWN[i].group, word, length) && !is_word(KNOWN[i].peer->name, word, length)) {
            continue;
        }
        if (peers->count == PERF_PEERS_MAX || has(peers, KNOWN[i].peer)) {
            return false;
        }
        peers->peer[peers->count++] = KNOWN[i].peer;
        is_known = true;
    }
    return is_known;
}

bool perf_peers_find(const char *names, perf_peers *peers) {
    peers->count = 0;
    while (names != NULL) {
        const size_t length = strcspn(names, ",");
        if (!add(names, length, peers)) {
            return false;
        }
        names = names[length] == ',' ? names + length + 1 : NULL;
    }
    return true;
}

void perf_peers_tune_malloc(void) {
#if defined(__GLIBC__)
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
#endif
}
