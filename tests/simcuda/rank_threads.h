/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RANK_THREADS_H
#define RANK_THREADS_H

/* Ranks as threads or as processes, each on a device of its own. */

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#endif
#ifndef HAS_TSAN
#define HAS_TSAN 0
#endif

/* In tests that race on purpose: ThreadSanitizer would report that, and test_thread_sanitizer.c sees that it does. */
#define SKIP_UNDER_TSAN()                                                                                              \
    do {                                                                                                               \
        if (HAS_TSAN) {                                                                                                \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

#define RANKS_MAX 8

typedef void rank_function(int rank, int ranks, void *context);

static atomic_int rank_failures;

/* cmocka's own assertions are for the main thread. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                    \
            atomic_fetch_add(&rank_failures, 1);                                                                       \
        }                                                                                                              \
    } while (0)

/* For calls that return cudaSuccess or ncclSuccess. */
#define OK(call) CHECK((int)(call) == 0)

typedef struct rank_thread {
    int rank;
    int ranks;
    rank_function *function;
    void *context;
    pthread_t thread;
} rank_thread;

static inline void *rank_thread_main(void *argument) {
    const rank_thread *const self = argument;
    OK(cudaSetDevice(self->rank));
    self->function(self->rank, self->ranks, self->context);
    return NULL;
}

static inline void run_rank_threads(int ranks, rank_function *function, void *context) {
    rank_thread threads[RANKS_MAX];
    for (int rank = 0; rank < ranks; rank++) {
        threads[rank] = (rank_thread){.rank = rank, .ranks = ranks, .function = function, .context = context};
        assert_int_equal(pthread_create(&threads[rank].thread, NULL, rank_thread_main, &threads[rank]), 0);
    }
    for (int rank = 0; rank < ranks; rank++) {
        pthread_join(threads[rank].thread, NULL);
    }
    assert_int_equal(atomic_exchange(&rank_failures, 0), 0);
}

/* The processes begin as copies of this one, which must not have used the simulator yet but for ncclGetUniqueId. */
static inline void run_rank_processes(int ranks, rank_function *function, void *context) {
    pid_t processes[RANKS_MAX];
    for (int rank = 0; rank < ranks; rank++) {
        processes[rank] = fork();
        assert_true(processes[rank] >= 0);
        if (processes[rank] == 0) {
            OK(cudaSetDevice(rank));
            function(rank, ranks, context);
            exit(atomic_load(&rank_failures) == 0 ? 0 : 1);
        }
    }
    for (int rank = 0; rank < ranks; rank++) {
        int status = 0;
        assert_int_equal(waitpid(processes[rank], &status, 0), processes[rank]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

#endif
