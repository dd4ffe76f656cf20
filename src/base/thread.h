/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_THREAD_H
#define GS_BASE_THREAD_H

/*
 * The library's own threads. Signals are the trainer's: a handler of its own must not run on one of ours, and a signal
 * that it takes with sigwait elsewhere would end the process if it could reach a thread that does not block it.
 */

#include <pthread.h>

/* As pthread_create without attributes; 0, or what errno would be. The thread blocks all signals but those that it can
 * bring upon itself, or a crash would pass by the trainer's handler. SIGPROF is blocked only where the caller blocks
 * it, or a profiler would not see the thread. */
int gs_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);

#endif
