/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=single,mpi */

/* What a process notices of the library's own thread: neither signals nor processor time. Linux's /proc tells. */

#include "ranks.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS_MAX = 16, PARAMETERS = 20, IDLE_MS = 200, START_S = 10 };
static const char SLEEPS[] = "voluntary_ctxt_switches:";

typedef struct thread_list {
    int count;
    long ids[THREADS_MAX];
} thread_list;

static thread_list list_threads(void) {
    thread_list list = {0};
    DIR *directory = opendir("/proc/self/task");
    for (const struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] != '.' && list.count < THREADS_MAX) {
            list.ids[list.count++] = strtol(entry->d_name, NULL, 10);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return list;
}

/* The newest thread that is in `after` and was not in `before`; 0 if there is none. A sanitizer starts its own first.
 */
static long find_new(const thread_list *before, const thread_list *after) {
    long newest = 0;
    for (int i = 0; i < after->count; i++) {
        bool is_old = false;
        for (int k = 0; k < before->count; k++) {
            is_old = is_old || before->ids[k] == after->ids[i];
        }
        if (!is_old && after->ids[i] > newest) {
            newest = after->ids[i];
        }
    }
    return newest;
}

/* The number behind a key in /proc/self/task/ID/status. */
static unsigned long long status_of(long thread, const char *key, int base) {
    char path[64];
    char line[256];
    unsigned long long value = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/status", thread);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = strtoull(line + strlen(key), NULL, base);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return value;
}

/* Nanoseconds on a processor. */
static unsigned long long processor_time_of(long thread) {
    char path[64];
    unsigned long long time = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", thread);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%llu", &time) != 1) {
            time = 0;
        }
        fclose(file);
    }
    return time;
}

static ranks_model *open_with_helper(ranks_context *ctx, long *helper) {
    size_t counts[PARAMETERS];
    for (size_t i = 0; i < PARAMETERS; i++) {
        counts[i] = 1000;
    }
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 4096;
    ranks_model *model = ranks_model_new(ctx, counts, PARAMETERS, GSYNC_FLOAT32);
    const thread_list before = list_threads();
    CHECK_OK(ranks_model_open(model, &options));
    const thread_list after = list_threads();
    *helper = find_new(&before, &after);
    /* A thread starts with all signals blocked, and has no time yet. Wait until it has gone to sleep once. */
    const double limit = ranks_seconds() + START_S;
    while (*helper != 0 && status_of(*helper, SLEEPS, 10) == 0 && ranks_seconds() < limit) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return model;
}

/* A handler of the trainer's would run on our thread, and a signal that it waits for elsewhere would end the process.
 */
static void the_helper_takes_no_signals(ranks_context *ctx) {
    long helper;
    open_with_helper(ctx, &helper);
    if (helper == 0) {
        SKIP("no helper thread is seen here");
    }
    static const int blocked[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1, SIGUSR2};
    const unsigned long long mask = status_of(helper, "SigBlk:", 16);
    for (size_t i = 0; i < sizeof blocked / sizeof *blocked; i++) {
        CHECK_EQ((mask >> (blocked[i] - 1)) & 1u, 1);
    }
    /* These are about what the thread itself did; blocked, they would pass by the trainer's crash handler. */
    static const int open[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        CHECK_EQ((mask >> (open[i] - 1)) & 1u, 0);
    }
}

static void the_helper_sleeps_between_steps(ranks_context *ctx) {
    long helper;
    ranks_model *model = open_with_helper(ctx, &helper);
    if (helper == 0 || processor_time_of(helper) == 0) {
        SKIP("no helper thread is seen here, or the kernel does not count its time");
    }
    for (uint64_t round = 0; round < 10; round++) {
        ranks_model_fill(model, RANKS_INTEGERS, round);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    }
    REQUIRE(ranks_meet(ctx));
    const struct timespec pause = {.tv_nsec = 1000000L * IDLE_MS};
    nanosleep(&pause, NULL); /* it may still be on its way to sleep */
    const unsigned long long time = processor_time_of(helper);
    const unsigned long long wakings = status_of(helper, SLEEPS, 10);
    nanosleep(&pause, NULL);
    CHECK_EQ(processor_time_of(helper) - time, 0);
    CHECK_EQ(status_of(helper, SLEEPS, 10) - wakings, 0);
}

/* It asks for short slices only where the trainer has not said otherwise. */
static void the_helper_is_scheduled_as_the_trainer_chose(ranks_context *ctx) {
    long helper;
    const struct sched_param none = {.sched_priority = 0};
    const int nice_before = getpriority(PRIO_PROCESS, 0);
    const int nicer = nice_before < 19 ? nice_before + 1 : 19; /* there is no more */
    REQUIRE_EQ(sched_setscheduler(0, SCHED_BATCH, &none), 0);
    REQUIRE_EQ(setpriority(PRIO_PROCESS, 0, nicer), 0);
    open_with_helper(ctx, &helper);
    REQUIRE_EQ(sched_setscheduler(0, SCHED_OTHER, &none), 0);
    if (helper == 0) {
        SKIP("no helper thread is seen here");
    }
    CHECK_EQ(sched_getscheduler((pid_t)helper), SCHED_BATCH);
    CHECK_EQ(getpriority(PRIO_PROCESS, (id_t)helper), nicer);
}

RANKS_MAIN(RANKS_TEST(the_helper_takes_no_signals), RANKS_TEST(the_helper_sleeps_between_steps),
           RANKS_TEST(the_helper_is_scheduled_as_the_trainer_chose))
