/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.sh runs this under strace. Between two getppid calls, which nothing else makes, lie marks that complete no
 * bucket: once with nothing under way, once while a bucket is on its way to the other rank, which is not there yet.
 *
 *     marks          one rank, two with threads
 *     marks spoiled  with a system call among the marks, which has to be found
 */

#include <gradsync/gradsync.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GRADIENTS = 400, COUNT = 64, FIRST_BUCKET = 100 };

typedef struct rank_state {
    gsync_comm *comm;
    gsync_reducer *reducer;
    float grads[GRADIENTS][COUNT];
} rank_state;

static bool is_spoiled;

static void require(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "marks: %s: %s\n", gsync_status_name(status), gsync_last_error());
        exit(EXIT_FAILURE);
    }
}

/* Two buckets: the last 100 gradients, which backward reaches first, and the others. */
static void open_reducer(rank_state *rank) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.order = GSYNC_ORDER_REGISTERED;
    options.bucket_bytes_first_max = sizeof rank->grads[0] * FIRST_BUCKET;
    require(gsync_reducer_create(&rank->reducer, rank->comm, &options));
    for (int i = 0; i < GRADIENTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        require(gsync_reducer_add(rank->reducer, name, rank->grads[i], COUNT, GSYNC_FLOAT32));
    }
    require(gsync_reducer_commit(rank->reducer));
    if (gsync_bucket_count(rank->reducer) != 2 || gsync_bucket_of(rank->reducer, "p299") != 1) {
        fprintf(stderr, "marks: the plan is not the one that this test is about\n");
        exit(EXIT_FAILURE);
    }
}

static void mark(rank_state *rank, int first, int count) {
    for (int i = first + count; i-- > first;) {
        require(gsync_ready(rank->reducer, rank->grads[i]));
    }
}

static void mark_watched(rank_state *rank, int first, int count) {
    syscall(SYS_getppid);
    mark(rank, first, count);
    if (is_spoiled) {
        syscall(SYS_getpid);
    }
    syscall(SYS_getppid);
}

static void watched_step(rank_state *rank) {
    const int second = GRADIENTS - FIRST_BUCKET;
    require(gsync_begin(rank->reducer, GSYNC_SYNC));
    mark_watched(rank, second + 1, FIRST_BUCKET - 1);
    mark(rank, second, 1); /* the first bucket goes */
    mark_watched(rank, 1, second - 1);
    mark(rank, 0, 1);
}

static void run_single(void) {
    rank_state *rank = calloc(1, sizeof *rank);
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.transport = GSYNC_TRANSPORT_SINGLE;
    require(gsync_comm_create(&rank->comm, &options));
    open_reducer(rank);
    watched_step(rank);
    require(gsync_finish(rank->reducer, NULL));
    gsync_reducer_destroy(&rank->reducer);
    gsync_comm_destroy(&rank->comm);
    free(rank);
}

static void *open_late(void *argument) {
    open_reducer(argument);
    return NULL;
}

static void *step_late(void *argument) {
    rank_state *rank = argument;
    require(gsync_begin(rank->reducer, GSYNC_SYNC));
    require(gsync_finish(rank->reducer, NULL));
    return NULL;
}

static void with_other_rank(void *(*other)(void *), rank_state *argument, void (*own)(rank_state *), rank_state *rank) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, other, argument) != 0) {
        exit(EXIT_FAILURE);
    }
    own(rank);
    pthread_join(thread, NULL);
}

static void finish(rank_state *rank) {
    require(gsync_finish(rank->reducer, NULL));
}

static void run_threads(void) {
    rank_state *ranks = calloc(2, sizeof *ranks);
    gsync_comm *comms[2];
    require(gsync_comm_threads(comms, 2, NULL));
    ranks[0].comm = comms[0];
    ranks[1].comm = comms[1];
    with_other_rank(open_late, &ranks[1], open_reducer, &ranks[0]);
    watched_step(&ranks[0]);
    with_other_rank(step_late, &ranks[1], finish, &ranks[0]);
    for (int i = 0; i < 2; i++) {
        gsync_reducer_destroy(&ranks[i].reducer);
        gsync_comm_destroy(&ranks[i].comm);
    }
    free(ranks);
}

int main(int argc, char **argv) {
    is_spoiled = argc > 1 && strcmp(argv[1], "spoiled") == 0;
    run_single();
    run_threads();
    return EXIT_SUCCESS;
}
