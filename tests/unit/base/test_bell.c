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

static const gs_patience patient = {.look_ns = 2000, .yields = 5, .sleep_ns = LONG_NS};
static const gs_patience impatient = {.sleep_ns = 1000000};

static bool find_nothing(void *argument) {
    int *looks = argument;
    (*looks)++;
    return false;
}

static bool find_something(void *argument) {
    int *looks = argument;
    (*looks)++;
    return true;
}

static void a_ring_that_nobody_waits_for_writes_nothing(void **state) {
    (void)state;
    gs_bell bell = {0};
    const gs_bell before = bell;
    gs_bell_ring(&bell);
    assert_memory_equal(&bell, &before, sizeof bell);
}

static void who_finds_something_does_not_wait(void **state) {
    (void)state;
    gs_bell bell = {0};
    int looks = 0;
    const uint64_t before = gs_clock_ns();
    assert_true(gs_bell_wait(&bell, find_something, &looks, &patient));
    assert_true(gs_clock_ns() - before < LONG_NS / 4);
    assert_int_equal(looks, 1);
}

static void waiting_in_vain_ends_at_the_limit(void **state) {
    (void)state;
    gs_bell bell = {0};
    int looks = 0;
    const uint64_t before = gs_clock_ns();
    assert_false(gs_bell_wait(&bell, find_nothing, &looks, &impatient));
    assert_true(gs_clock_ns() - before < LONG_NS / 4);
    assert_true(looks > 1);
    assert_int_equal(atomic_load(&bell.sleepers), 0);
}

/* Between the last look and falling asleep. */
static bool ring_while_looking(void *argument) {
    gs_bell *bell = argument;
    if (atomic_load(&bell->sleepers) != 0) {
        gs_bell_ring(bell);
    }
    return false;
}

static void a_ring_just_before_falling_asleep_wakes(void **state) {
    (void)state;
    gs_bell bell = {0};
    const uint64_t before = gs_clock_ns();
    assert_false(gs_bell_wait(&bell, ring_while_looking, &bell, &patient));
    assert_true(gs_clock_ns() - before < LONG_NS / 4);
}

/* ---- Two that take turns: each waits for the other's ring, thousands of times
 * ---------------------------------------- */

enum { TURNS = 20000 };

typedef struct table {
    gs_bell bells[2];
    _Atomic uint32_t turn; /* how many turns were taken */
} table;

typedef struct player {
    table *at;
    uint32_t me;
} player;

static bool take_turn(void *argument) {
    const player *self = argument;
    const uint32_t turn = atomic_load(&self->at->turn);
    if (turn < TURNS && turn % 2 == self->me) {
        atomic_store(&self->at->turn, turn + 1);
        gs_bell_ring(&self->at->bells[1 - self->me]);
        return true;
    }
    return turn >= TURNS;
}

/* Returns whether all turns came. */
static bool play(table *at, uint32_t me) {
    player self = {at, me};
    const uint64_t deadline = gs_clock_ns() + LONG_NS;
    while (atomic_load(&at->turn) < TURNS && gs_clock_ns() < deadline) {
        (void)gs_bell_wait(&at->bells[me], take_turn, &self, &patient);
    }
    return atomic_load(&at->turn) >= TURNS;
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

static bool is_open(void *argument) {
    return atomic_load(&((crowd *)argument)->is_open) != 0;
}

static void *wait_for_opening(void *argument) {
    crowd *of = argument;
    while (!is_open(of)) {
        (void)gs_bell_wait(&of->bell, is_open, of, &patient);
    }
    atomic_fetch_add(&of->through, 1);
    return NULL;
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
        cmocka_unit_test(a_ring_that_nobody_waits_for_writes_nothing),
        cmocka_unit_test(who_finds_something_does_not_wait),
        cmocka_unit_test(waiting_in_vain_ends_at_the_limit),
        cmocka_unit_test(a_ring_just_before_falling_asleep_wakes),
        cmocka_unit_test(no_ring_between_threads_is_lost),
        cmocka_unit_test(no_ring_between_processes_is_lost),
        cmocka_unit_test(one_ring_wakes_all_who_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
