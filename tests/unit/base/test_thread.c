/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static pthread_t handled_by;
static volatile sig_atomic_t handled;

static void note(int signal) {
    handled = signal;
    handled_by = pthread_self();
}

/* Until the test is through with it. */
typedef struct visitor {
    pthread_t thread;
    sigset_t blocked;
    int raises; /* 0: nothing */
    int inbox[2];
} visitor;

static void *visit(void *argument) {
    visitor *at = argument;
    char byte;
    pthread_sigmask(SIG_BLOCK, NULL, &at->blocked);
    if (at->raises != 0) {
        raise(at->raises);
    }
    while (read(at->inbox[0], &byte, 1) < 0) {
    }
    return NULL;
}

static void open_visitor(visitor *at) {
    handled = 0;
    assert_int_equal(pipe(at->inbox), 0);
    assert_int_equal(gs_thread_start(&at->thread, visit, at), 0);
}

static void close_visitor(const visitor *at) {
    assert_int_equal(write(at->inbox[1], "", 1), 1);
    assert_int_equal(pthread_join(at->thread, NULL), 0);
    close(at->inbox[0]);
    close(at->inbox[1]);
}

static void block_here(int signal, bool is_blocked) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    assert_int_equal(pthread_sigmask(is_blocked ? SIG_BLOCK : SIG_UNBLOCK, &one, NULL), 0);
}

static void handle(int signal) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    sigemptyset(&action.sa_mask);
    assert_int_equal(sigaction(signal, &action, NULL), 0);
}

static void a_signal_for_the_process_waits_for_a_thread_of_the_trainers(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1, SIGUSR2, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        visitor of_ours = {.raises = 0};
        sigset_t pending;
        handle(signals[i]);
        open_visitor(&of_ours);
        block_here(signals[i], true);
        assert_int_equal(kill(getpid(), signals[i]), 0);
        sigpending(&pending);
        assert_int_equal(sigismember(&pending, signals[i]), 1); /* nobody has taken it */
        block_here(signals[i], false);
        close_visitor(&of_ours);
        assert_int_equal(handled, signals[i]);
        assert_true(pthread_equal(handled_by, pthread_self()));
    }
}

/* Blocked, it would end the process without a word of the trainer's crash handler. */
static void what_a_thread_brings_upon_itself_reaches_the_handler_there(void **state) {
    (void)state;
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        visitor of_ours = {.raises = signals[i]};
        handle(signals[i]);
        open_visitor(&of_ours);
        close_visitor(&of_ours);
        assert_int_equal(handled, signals[i]);
        assert_true(pthread_equal(handled_by, of_ours.thread));
    }
}

static void a_profiler_sees_the_thread_if_it_sees_the_caller(void **state) {
    (void)state;
    for (int is_blocked = 0; is_blocked < 2; is_blocked++) {
        visitor of_ours = {.raises = 0};
        block_here(SIGPROF, is_blocked != 0);
        open_visitor(&of_ours);
        close_visitor(&of_ours);
        assert_int_equal(sigismember(&of_ours.blocked, SIGPROF), is_blocked);
    }
    block_here(SIGPROF, false);
}

static void the_callers_mask_is_as_before(void **state) {
    (void)state;
    visitor of_ours = {.raises = 0};
    sigset_t after;
    block_here(SIGUSR2, true);
    open_visitor(&of_ours);
    close_visitor(&of_ours);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGUSR2), 1);
    assert_int_equal(sigismember(&after, SIGUSR1), 0);
    assert_int_equal(sigismember(&after, SIGSEGV), 0);
    block_here(SIGUSR2, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_for_the_process_waits_for_a_thread_of_the_trainers),
        cmocka_unit_test(what_a_thread_brings_upon_itself_reaches_the_handler_there),
        cmocka_unit_test(a_profiler_sees_the_thread_if_it_sees_the_caller),
        cmocka_unit_test(the_callers_mask_is_as_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
