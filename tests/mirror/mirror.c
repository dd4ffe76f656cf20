/* SPDX-License-Identifier: Apache-2.0 */
#include "mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Which reducers are mirrored, and the life of a test program. Readers of the list do not order each other, so that
 * ThreadSanitizer still sees marks of several threads as unordered. */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static mirror *mirrors;
static mirror_settings settings;

void mirror_do(cudaError_t error, const char *call) {
    if (error != cudaSuccess) {
        fprintf(stderr, "mirror: %s: %s\n", call, cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
}

const mirror_settings *mirror_get_settings(void) {
    return &settings;
}

/* ---- reducers ---- */

mirror *mirror_find(const gsync_reducer *reducer) {
    pthread_rwlock_rdlock(&lock);
    mirror *of = reducer != NULL ? mirrors : NULL;
    while (of != NULL && of->reducer != reducer) {
        of = of->next;
    }
    pthread_rwlock_unlock(&lock);
    return of;
}

/* Ranks have a device each as long as there are enough. */
static int device_of(int rank) {
    int count = 0;
    MIRROR_DO(cudaGetDeviceCount(&count));
    return rank % count;
}

/* Some bodies start ranks of their own. */
mirror *mirror_new(gsync_reducer *reducer, const gsync_comm *comm) {
    const ranks_context *ctx = ranks_current();
    mirror *of = ranks_allocate(sizeof *of);
    *of =
        (mirror){.reducer = reducer, .owner = ctx != NULL ? ctx->rank : NOBODY, .device = device_of(gsync_rank(comm))};
    pthread_rwlock_wrlock(&lock);
    of->next = mirrors;
    mirrors = of;
    pthread_rwlock_unlock(&lock);
    return of;
}

void mirror_forget(const gsync_reducer *reducer) {
    pthread_rwlock_wrlock(&lock);
    for (mirror *of = reducer != NULL ? mirrors : NULL; of != NULL; of = of->next) {
        if (of->reducer == reducer) {
            of->reducer = NULL;
        }
    }
    pthread_rwlock_unlock(&lock);
}

mirror_gradient *mirror_gradient_named(mirror *of, const char *name) {
    for (size_t i = 0; name != NULL && i < of->count; i++) {
        if (strcmp(of->gradients[i].name, name) == 0) {
            return &of->gradients[i];
        }
    }
    return NULL;
}

static mirror *take_one_of(int rank) {
    mirror *taken = NULL;
    pthread_rwlock_wrlock(&lock);
    for (mirror **link = &mirrors; *link != NULL && taken == NULL;) {
        if ((*link)->owner == rank || (*link)->owner == NOBODY) {
            taken = *link;
            *link = taken->next;
        } else {
            link = &(*link)->next;
        }
    }
    pthread_rwlock_unlock(&lock);
    return taken;
}

static void free_mirror(mirror *of) {
    /* A body that was left by ranks_refuse had no time to destroy its own. */
    gsync_reducer_destroy(&of->reducer);
    for (int i = 0; i < MIRROR_STREAMS; i++) {
        if (of->streams[i] != NULL) {
            MIRROR_DO(cudaStreamSynchronize(of->streams[i]));
            MIRROR_DO(cudaStreamDestroy(of->streams[i]));
        }
    }
    mirror_free_memory(of);
    for (size_t i = 0; i < of->count; i++) {
        free(of->gradients[i].name);
    }
    free(of->gradients);
    free((void *)of->by_address);
    free(of);
}

void mirror_end_rank(int rank) {
    for (mirror *of = take_one_of(rank); of != NULL; of = take_one_of(rank)) {
        free_mirror(of);
    }
}

/* ---- the program ---- */

static void begin(ranks_context *ctx) {
    MIRROR_DO(cudaSetDevice(device_of(ctx->rank)));
}

static void end(ranks_context *ctx) {
    mirror_end_rank(ctx->rank);
}

static bool asks_for(const char *word) {
    const char *value = getenv("GSYNC_TEST_MIRROR");
    const char *at = value != NULL ? strstr(value, word) : NULL;
    return at != NULL;
}

int __real_ranks_main(int argc, char **argv, const char *group, const ranks_test *tests, size_t test_count);
int __wrap_ranks_main(int argc, char **argv, const char *group, const ranks_test *tests, size_t test_count);

int __wrap_ranks_main(int argc, char **argv, const char *group, const ranks_test *tests, size_t test_count) {
    static const ranks_device_ops ops = {.begin = begin, .end = end};
    int count = 0;
    settings = (mirror_settings){.is_native = asks_for("native"), .finishes_on_streams = asks_for("streams")};
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        fprintf(stderr, "skipped: this program's gradients are on a GPU, and there is none\n");
        return 77;
    }
    ranks_use_device(&ops);
    return __real_ranks_main(argc, argv, group, tests, test_count);
}
