/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_peer.h"
#include "perf_program.h"

#include <string.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

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
    for (size_t i = 0; i < perf_program_own.peer_count; i++) {
        const perf_known_peer *known = &perf_program_own.peers[i];
        if (!is_word(known->group, word, length) && !is_word(known->peer->name, word, length)) {
            continue;
        }
        if (peers->count == PERF_PEERS_MAX || has(peers, known->peer)) {
            return false;
        }
        peers->peer[peers->count++] = known->peer;
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
