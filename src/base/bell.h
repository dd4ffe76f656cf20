/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_BELL_H
#define GS_BASE_BELL_H

/*
 * A word that others ring when something may have changed, in memory shared by threads or by processes. Waiters sleep
 * on it instead of spinning. The pattern, which loses no ring:
 *
 *     seen = gs_bell_count(bell);
 *     if (nothing to do) gs_bell_wait(bell, seen, limit_ns);
 */

#include <stdatomic.h>
#include <stdint.h>

typedef struct gs_bell {
    _Alignas(128) _Atomic uint32_t count;
    _Atomic uint32_t sleepers;
} gs_bell;

uint32_t gs_bell_count(gs_bell *bell);

/* Wakes every waiter; a system call only when somebody sleeps. */
void gs_bell_ring(gs_bell *bell);

/*
 * Returns when the bell was rung after `seen` was read, or limit_ns passed, or for no reason at all. Looks again for
 * about two microseconds, gives up the core a few times (a peer may be waiting for this very core), then sleeps.
 */
void gs_bell_wait(gs_bell *bell, uint32_t seen, uint64_t limit_ns);

#endif
