/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bell.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#if defined(__linux__)
static void sleep_on(gs_bell *bell, uint32_t seen, uint64_t limit_ns) {
    const struct timespec limit = {(time_t)(limit_ns / 1000000000u), (long)(limit_ns % 1000000000u)};
    /* Not FUTEX_PRIVATE: the word may be shared by processes. Every return is a reason to look again. */
    (void)syscall(SYS_futex, (void *)&bell->count, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static void wake_all(gs_bell *bell) {
    (void)syscall(SYS_futex, (void *)&bell->count, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}
#else
static void sleep_on(gs_bell *bell, uint32_t seen, uint64_t limit_ns) {
    const uint64_t nap = limit_ns < 50000u ? limit_ns : 50000u;
    const struct timespec limit = {0, (long)nap};
    (void)bell, (void)seen;
    nanosleep(&limit, NULL);
}

static void wake_all(gs_bell *bell) {
    (void)bell;
}
#endif

void gs_bell_ring(gs_bell *bell) {
    if (atomic_load(&bell->sleepers) != 0) {
        atomic_fetch_add(&bell->count, 1);
        wake_all(bell);
    }
}

static bool look_again(gs_look_function look, void *argument, const gs_patience *patience) {
    const uint64_t end = gs_clock_ns() + patience->look_ns;
    do {
        if (look(argument)) {
            return true;
        }
        pause_core();
    } while (gs_clock_ns() < end);
    for (int i = 0; i < patience->yields; i++) {
        sched_yield();
        if (look(argument)) {
            return true;
        }
    }
    return false;
}

bool gs_bell_wait(gs_bell *bell, gs_look_function look, void *argument, const gs_patience *patience) {
    if (look_again(look, argument, patience)) {
        return true;
    }
    atomic_fetch_add(&bell->sleepers, 1);
    const uint32_t seen = atomic_load(&bell->count);
    const bool has_found = look(argument);
    if (!has_found) {
        sleep_on(bell, seen, patience->sleep_ns);
    }
    atomic_fetch_sub(&bell->sleepers, 1);
    return has_found;
}
