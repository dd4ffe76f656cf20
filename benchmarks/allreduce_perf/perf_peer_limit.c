/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What memory allows. The buffers of all ranks lie in memory that all of them map; each rank sums its own shard of all
 * buffers and writes it into all of them: every byte of every buffer is read once and written once, and nobody waits
 * for anybody. No all-reduce in place moves less. What it leaves out is what a real one has to add: to learn that the
 * others' gradients are there, and that they are done.
 */
#include "perf_peer.h"
#include "perf_shard.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINE_BYTES = 64, PAGE_BYTES = 4096, RANKS_MAX = 64 };

typedef struct limit {
    perf_peer_ranks ranks;
    bool are_threads;
    char description[160];
    /* Of the row that has been started. */
    unsigned char *base; /* all ranks' buffers */
    size_t stride;       /* from one to the next */
    perf_shard_sum *sum;
    void *buffers[RANKS_MAX];
} limit;

/* ---- Memory that all ranks have ---------------------------------------------------------------------------------- */

static const char *share_int64(const limit *self, int64_t *value, gsync_op op) {
    return gsync_allreduce(self->ranks.comm, value, 1, GSYNC_INT64, op) == GSYNC_OK ? NULL : gsync_last_error();
}

/* Threads of one process: rank 0 allocates, the others get the address. */
static const char *allocate_plain(limit *self, size_t bytes) {
    int64_t address = 0;
    if (self->ranks.rank == 0) {
        self->base = aligned_alloc(PAGE_BYTES, bytes);
        address = (int64_t)(intptr_t)self->base;
    }
    const char *problem = share_int64(self, &address, GSYNC_SUM);
    self->base = (unsigned char *)(intptr_t)address;
    return problem != NULL || address != 0 ? problem : "not enough memory";
}

static void *map(int file, size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    return base != MAP_FAILED ? base : NULL;
}

/* Processes: rank 0 makes a file without a name, which the others find through /proc. It is not limited by /dev/shm. */
static const char *allocate_shared(limit *self, size_t bytes) {
    int64_t pid_and_file[2] = {0, -1};
    int file = -1;
    if (self->ranks.rank == 0) {
        file = memfd_create("allreduce_perf", MFD_CLOEXEC);
        if (file >= 0 && posix_fallocate(file, 0, (off_t)bytes) == 0) {
            self->base = map(file, bytes);
            pid_and_file[0] = getpid();
            pid_and_file[1] = self->base != NULL ? file : -1;
        }
    }
    if (gsync_broadcast(self->ranks.comm, pid_and_file, 2, GSYNC_INT64, 0) != GSYNC_OK) {
        return gsync_last_error();
    }
    if (self->ranks.rank != 0 && pid_and_file[1] >= 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)pid_and_file[0], (long long)pid_and_file[1]);
        file = open(path, O_RDWR | O_CLOEXEC);
        self->base = file >= 0 ? map(file, bytes) : NULL;
    }
    /* Also: rank 0 keeps the file open until all have found it. */
    int64_t have_all = self->base != NULL;
    const char *problem = share_int64(self, &have_all, GSYNC_MIN);
    if (file >= 0) {
        close(file);
    }
    return problem != NULL || have_all != 0 ? problem : "not enough shared memory, or another rank's cannot be opened";
}

static void touch(unsigned char *base, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE_BYTES) {
        /* Adds nothing, atomically: others do the same. */
        atomic_fetch_add((_Atomic unsigned char *)(base + at), 0);
    }
}

/*
 * The owner first, so that its pages are near it; then everybody, since a process's first write to a page costs a
 * fault, and on some virtual machines many times more than on real ones.
 */
static const char *touch_all(const limit *self) {
    touch(self->buffers[self->ranks.rank], self->stride);
    if (gsync_barrier(self->ranks.comm) != GSYNC_OK) {
        return gsync_last_error();
    }
    touch(self->base, self->stride * (size_t)self->ranks.world);
    return gsync_barrier(self->ranks.comm) == GSYNC_OK ? NULL : gsync_last_error();
}

/* ---- The peer ---------------------------------------------------------------------------------------------------- */

static const char *open_peer(const perf_peer_ranks *ranks, void **state) {
    if (!ranks->is_one_host || ranks->world > RANKS_MAX) {
        return "needs ranks on one host, and at most 64";
    }
    limit *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return "not enough memory";
    }
    self->ranks = *ranks;
    int64_t least = getpid();
    int64_t most = least;
    const char *problem = share_int64(self, &least, GSYNC_MIN);
    problem = problem != NULL ? problem : share_int64(self, &most, GSYNC_MAX);
    self->are_threads = least == most;
    const char *instructions = "";
    perf_shard_find(GSYNC_FLOAT32, ranks->world, &instructions);
    snprintf(self->description, sizeof self->description,
             "each byte of each rank's buffer in %s read once and written once, %s, no waiting",
             self->are_threads ? "common memory" : "shared memory", instructions);
    *state = self;
    return problem;
}

static void close_peer(void *state) {
    free(state);
}

static const char *describe(const void *state) {
    const limit *self = state;
    return self->description;
}

static bool takes(const void *state, gsync_dtype dtype, size_t count) {
    const limit *self = state;
    const char *instructions = NULL;
    (void)count;
    return perf_shard_find(dtype, self->ranks.world, &instructions) != NULL;
}

static const char *start(void *state, gsync_dtype dtype, size_t count, void **buffer) {
    limit *self = state;
    const char *instructions = NULL;
    self->sum = perf_shard_find(dtype, self->ranks.world, &instructions);
    self->stride = (count * gsync_dtype_size(dtype) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    const size_t bytes = self->stride * (size_t)self->ranks.world;
    const char *problem = self->are_threads ? allocate_plain(self, bytes) : allocate_shared(self, bytes);
    if (problem != NULL) {
        return problem;
    }
    for (int rank = 0; rank < self->ranks.world; rank++) {
        self->buffers[rank] = self->base + (size_t)rank * self->stride;
    }
    *buffer = self->buffers[self->ranks.rank];
    return touch_all(self);
}

/* Shards of whole cache lines, the last one shorter. */
static const char *sum(void *state, gsync_dtype dtype, size_t count, void *buffer) {
    const limit *self = state;
    (void)buffer;
    const size_t line = LINE_BYTES / gsync_dtype_size(dtype);
    const size_t world = (size_t)self->ranks.world;
    const size_t shard = ((count + world - 1) / world + line - 1) / line * line;
    const size_t begin = shard * (size_t)self->ranks.rank;
    if (begin < count) {
        self->sum(self->buffers, self->ranks.world, begin, count - begin < shard ? count : begin + shard);
    }
    return NULL;
}

static void stop(void *state) {
    limit *self = state;
    if (self->base == NULL) {
        return;
    }
    if (!self->are_threads) {
        munmap(self->base, self->stride * (size_t)self->ranks.world);
    } else if (gsync_barrier(self->ranks.comm) == GSYNC_OK && self->ranks.rank == 0) {
        /* Nobody looks at it any more. After a failure somebody might, and then the process ends anyway. */
        free(self->base);
    }
    self->base = NULL;
}

const perf_peer perf_peer_limit = {.name = "limit",
                                   .takes_threads = true,
                                   .brings_memory = true,
                                   .needs_barrier = true,
                                   .open = open_peer,
                                   .close = close_peer,
                                   .describe = describe,
                                   .takes = takes,
                                   .start = start,
                                   .sum = sum,
                                   .stop = stop};
