/* SPDX-License-Identifier: Apache-2.0 */
/* What the library calls itself, as a trainer without it would: a communicator of its own, and ncclAllReduce. */
#include "perf_memory_cuda.h"
#include "perf_options.h"
#include "perf_peer.h"

#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_WORDS = sizeof(ncclUniqueId) / sizeof(int64_t) };

typedef struct nccl_peer {
    perf_peer_ranks ranks;
    ncclComm_t comm;
    char description[160];
    /* Of the row that has been started. */
    void *buffer;
    void *registration;
} nccl_peer;

static const char *explain(ncclResult_t result) {
    return result == ncclSuccess ? NULL : ncclGetErrorString(result);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Rank 0's id, or that it has none, goes to all. */
static const char *share_id(const perf_peer_ranks *ranks, ncclUniqueId *id) {
    int64_t words[1 + ID_WORDS] = {ncclSuccess};
    if (ranks->rank == 0) {
        words[0] = (int64_t)ncclGetUniqueId(id);
        memcpy(&words[1], id, sizeof *id);
    }
    if (gsync_broadcast(ranks->comm, words, 1 + ID_WORDS, GSYNC_INT64, 0) != GSYNC_OK) {
        return gsync_last_error();
    }
    memcpy(id, &words[1], sizeof *id);
    return explain((ncclResult_t)words[0]);
}

static void write_description(nccl_peer *self) {
    const perf_options *options = self->ranks.options;
    char limit[64] = "as many multiprocessors as it likes";
    int version = 0;
    (void)ncclGetVersion(&version);
    if (options->ctas != 0) {
        snprintf(limit, sizeof limit, "at most %u multiprocessors", options->ctas);
    }
    snprintf(self->description, sizeof self->description,
             "ncclAllReduce in place, ncclSum, NCCL %d.%d.%d, %s, memory of %s", version / 10000, version % 10000 / 100,
             version % 100, limit, options->registers ? "ncclMemAlloc, registered" : "cudaMalloc");
}

static const char *open_peer(const perf_peer_ranks *ranks, void **state) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    const char *problem = share_id(ranks, &id);
    nccl_peer *self = problem == NULL ? calloc(1, sizeof *self) : NULL;
    if (self == NULL) {
        return problem != NULL ? problem : "not enough memory";
    }
    self->ranks = *ranks;
    if (ranks->options->ctas != 0) {
        config.maxCTAs = (int)ranks->options->ctas;
    }
    problem = explain(ncclCommInitRankConfig(&self->comm, ranks->world, id, ranks->rank, &config));
    if (problem != NULL) {
        free(self);
        return problem;
    }
    write_description(self);
    *state = self;
    return NULL;
}

static void close_peer(void *state) {
    nccl_peer *self = state;
    if (self->comm != NULL) {
        (void)ncclCommDestroy(self->comm);
    }
    free(self);
}

static const char *describe(const void *state) {
    return ((const nccl_peer *)state)->description;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static ncclDataType_t type_of(gsync_dtype dtype) {
    switch (dtype) {
    case GSYNC_FLOAT64:
        return ncclFloat64;
    case GSYNC_FLOAT16:
        return ncclFloat16;
    case GSYNC_BFLOAT16:
        return ncclBfloat16;
    default:
        return ncclFloat32;
    }
}

static bool takes(const void *state, gsync_dtype dtype, size_t count) {
    (void)state;
    (void)dtype;
    return count > 0;
}

/* As the library does with its buckets. */
static const char *start_registered(nccl_peer *self, size_t bytes) {
    const char *problem = explain(ncclMemAlloc(&self->buffer, bytes));
    return problem != NULL ? problem : explain(ncclCommRegister(self->comm, self->buffer, bytes, &self->registration));
}

static const char *start(void *state, gsync_dtype dtype, size_t count, void **buffer) {
    nccl_peer *self = state;
    const size_t bytes = count * gsync_dtype_size(dtype);
    const char *problem = NULL;
    if (self->ranks.options->registers) {
        problem = start_registered(self, bytes);
    } else {
        self->buffer = perf_memory_allocate(self->ranks.memory, bytes);
        problem = self->buffer == NULL ? "not enough memory on the GPU" : NULL;
    }
    *buffer = self->buffer;
    return problem;
}

static const char *look(void *state) {
    const nccl_peer *self = state;
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(self->comm, &result);
    return explain(asked != ncclSuccess ? asked : result);
}

/* On the GPU's clock the host does not wait here. */
static const char *sum(void *state, gsync_dtype dtype, size_t count, void *buffer) {
    nccl_peer *self = state;
    const char *problem = explain(ncclAllReduce(buffer, buffer, count, type_of(dtype), ncclSum, self->comm,
                                                perf_memory_stream(self->ranks.memory)));
    return problem != NULL || self->ranks.options->uses_stream_clock ? problem
                                                                     : perf_memory_wait(self->ranks.memory, look, self);
}

/* What still waits for a rank that does not come would keep its memory, and this rank, for ever. */
static void stop(void *state) {
    nccl_peer *self = state;
    if (perf_memory_is_busy(self->ranks.memory)) {
        (void)ncclCommAbort(self->comm);
        self->comm = NULL;
    }
    if (self->registration != NULL && self->comm != NULL) {
        (void)ncclCommDeregister(self->comm, self->registration);
    }
    if (self->buffer != NULL && self->ranks.options->registers) {
        (void)ncclMemFree(self->buffer);
    } else if (self->buffer != NULL) {
        perf_memory_free(self->ranks.memory, self->buffer);
    }
    self->registration = NULL;
    self->buffer = NULL;
}

const perf_peer perf_peer_nccl = {.name = "nccl",
                                  .takes_threads = true,
                                  .brings_memory = true,
                                  .open = open_peer,
                                  .close = close_peer,
                                  .describe = describe,
                                  .takes = takes,
                                  .start = start,
                                  .sum = sum,
                                  .stop = stop};
