/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bell.h"

#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Long enough that a lost ring shows: a program that needs one of these waits runs into its timeout. */
#define LONG_NS UINT64_C(20000000000)
#define SECOND_NS UINT64_C(1000000000)

static void a_ring_is_counted(void **state) {
    (void)state;
    gs_bell bell = {0};
    assert_int_equal(gs_bell_count(&bell), 0);
    gs_bell_ring(&bell);
    gs_bell_ring(&bell);
    assert_int_equal(gs_bell_count(&bell), 2);
}

static void waiting_for_a_ring_that_has_come_returns_at_once(void **state) {
    (void)state;
    gs_bell bell = {0};
    const uint32_t seen = gs_bell_count(&bell);
    gs_bell_ring(&bell);
    const uint64_t before = gs_clock_ns();
    gs_bell_wait(&bell, seen, LONG_NS);
    assert_true(gs_clock_ns() - before < LONG_NS / 4);
}

static void waiting_in_vain_ends_at_the_limit(void **state) {
    (void)state;
    gs_bell bell = {0};
    const uint64_t before = gs_clock_ns();
    gs_bell_wait(&bell, 0, 1000000);
    assert_true(gs_clock_ns() - before < LONG_NS / 4);
    assert_int_equal(atomic_load(&bell.sleepers), 0);
}

/* ---- Two that take turns: each waits for the other's ring, thousands of times
 * ---------------------------------------- */

enum { TURNS = 20000 };

typedef struct table {
    gs_bell bells[2];
    _Atomic uint32_t turn; /* how many turns were taken */
} table;

/* Returns whether all turns came. */
static bool play(table *at, uint32_t me) {
    const uint64_t deadline = gs_clock_ns() + LONG_NS;
    for (;;) {
        const uint32_t seen = gs_bell_count(&at->bells[me]);
        const uint32_t turn = atomic_load(&at->turn);
        if (turn >= TURNS) {
            return true;
        }
        if (turn % 2 == me) {
            atomic_store(&at->turn, turn + 1);
            gs_bell_ring(&at->bells[1 - me]);
        } else if (gs_clock_ns() > deadline) {
            return false;
        } else {
            gs_bell_wait(&at->bells[me], seen, LONG_NS);
        }
    }
}

static void *play_second(void *argument) {
    return play(argument, 1) ? argument : NULL;
}

static void no_ring_between_threads_is_lost(void **state) {
    (void)state;
    static table at;
    pthread_t second;
    assert_int_equal(pthread_create(&second, NULL, play_second, &at), 0);
    const bool first_played = play(&at, 0);
    void *second_played;
    pthread_join(second, &second_played);
    assert_true(first_played && second_played != NULL);
}

static void no_ring_between_processes_is_lost(void **state) {
    (void)state;
    table *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    const pid_t second = fork();
    if (second == 0) {
        _exit(play(at, 1) ? 0 : 1);
    }
    assert_true(second > 0);
    const bool first_played = play(at, 0);
    int status;
    assert_int_equal(waitpid(second, &status, 0), second);
    assert_true(first_played && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    munmap(at, sizeof *at);
}

/* ---- One ring for many
 * ----------------------------------------------------------------------------------------------- */

enum { WAITERS = 4 };

typedef struct crowd {
    gs_bell bell;
    _Atomic uint32_t is_open;
    _Atomic uint32_t through;
} crowd;

static void *wait_for_opening(void *argument) {
    crowd *of = argument;
    for (;;) {
        const uint32_t seen = gs_bell_count(&of->bell);
        if (atomic_load(&of->is_open) != 0) {
            atomic_fetch_add(&of->through, 1);
            return NULL;
        }
        gs_bell_wait(&of->bell, seen, LONG_NS);
    }
}

static void one_ring_wakes_all_who_sleep(void **state) {
    (void)state;
    static crowd of;
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for_opening, &of), 0);
    }
    const uint64_t limit = gs_clock_ns() + SECOND_NS;
    while (atomic_load(&of.bell.sleepers) < WAITERS && gs_clock_ns() < limit) {
        sched_yield();
    }
    const uint64_t before = gs_clock_ns();
    atomic_store(&of.is_open, 1);
    gs_bell_ring(&of.bell);
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(gs_clock_ns() - before < LONG_NS / 4);
    assert_int_equal(atomic_load(&of.through), WAITERS);
    assert_int_equal(atomic_load(&of.bell.sleepers), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_is_counted),
        cmocka_unit_test(waiting_for_a_ring_that_has_come_returns_at_once),
        cmocka_unit_test(waiting_in_vain_ends_at_the_limit),
        cmocka_unit_test(no_ring_between_threads_is_lost),
        cmocka_unit_test(no_ring_between_processes_is_lost),
        cmocka_unit_test(one_ring_wakes_all_who_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
