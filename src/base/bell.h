/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_BELL_H
#define GS_BASE_BELL_H

/*
 * Where threads or processes wait for each other without spinning. A waiter looks at what it waits for, at first again
 * and again, and sleeps in the end; whoever changes something rings, which costs one load of a line that nobody writes
 * as long as nobody sleeps.
 *
 * No ring is lost: the waiter says that it sleeps and then looks once more; the other changes something and then looks
 * for sleepers. Both are sequentially consistent, so one of them sees the other. What is looked at must therefore be
 * read, and changed before ringing, with memory_order_seq_cst, or under a mutex.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct gs_bell {
    _Alignas(128) _Atomic uint32_t sleepers;
    _Atomic uint32_t count; /* of rings that found a sleeper */
} gs_bell;

/* Does what can be done. True: no need to wait, there was something. */
typedef bool (*gs_look_function)(void *argument);

/* Wakes every waiter; a system call only when somebody sleeps. */
void gs_bell_ring(gs_bell *bell);

/* What a waiter does before it sleeps, and how long it sleeps. */
typedef struct gs_patience {
    uint64_t look_ns; /* looks again and again for so long, */
    int yields;       /* then gives up the core so often: a peer may be waiting for this very core */
    uint64_t sleep_ns;
} gs_patience;

/* Returns when look returned true, and then true; or after a ring, after sleep_ns, or for no reason at all. */
bool gs_bell_wait(gs_bell *bell, gs_look_function look, void *argument, const gs_patience *patience);

#endif
