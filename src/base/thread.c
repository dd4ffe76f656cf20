/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

static sigset_t signals_to_block(void) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked;
    sigset_t callers;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        sigdelset(&blocked, own[i]);
    }
    if (pthread_sigmask(SIG_BLOCK, NULL, &callers) == 0 && sigismember(&callers, SIGPROF) == 0) {
        sigdelset(&blocked, SIGPROF);
    }
    return blocked;
}

/* A thread inherits its mask, so no signal can come in between. */
int gs_thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    const sigset_t blocked = signals_to_block();
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
