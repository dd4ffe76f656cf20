/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_memory_cuda.h"

#include <gradsync/gradsync_cuda.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STAGING_BYTES = 4 << 20 };

/* Longer than any all-reduce takes whose ranks are all there. */
static const int64_t PATIENCE_NS = 120 * INT64_C(1000000000);

struct perf_memory {
    cudaStream_t stream;
    cudaEvent_t started;
    cudaEvent_t stopped;
    void *staging; /* page-locked */
    char description[256];
};

const gsync_memory perf_memory_kind = GSYNC_MEMORY_DEVICE;

static const char *explain(cudaError_t error) {
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Where each rank sees its own GPU only, that is number 0; two ranks on one GPU the library refuses. */
const char *perf_memory_choose(int local_rank) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    error = error == cudaSuccess && count == 0 ? cudaErrorNoDevice : error;
    return explain(error == cudaSuccess ? cudaSetDevice(local_rank % count) : error);
}

static cudaError_t write_description(perf_memory *memory) {
    struct cudaDeviceProp gpu;
    int device = 0;
    int runtime = 0;
    int driver = 0;
    cudaError_t error = cudaGetDevice(&device);
    error = error == cudaSuccess ? cudaGetDeviceProperties(&gpu, device) : error;
    error = error == cudaSuccess ? cudaRuntimeGetVersion(&runtime) : error;
    error = error == cudaSuccess ? cudaDriverGetVersion(&driver) : error;
    if (error == cudaSuccess) {
        snprintf(memory->description, sizeof memory->description,
                 "%.160s, %d multiprocessors, CUDA %d.%d, driver for %d.%d", gpu.name, gpu.multiProcessorCount,
                 runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    }
    return error;
}

static cudaError_t open_parts(perf_memory *memory) {
    cudaError_t error = write_description(memory);
    error = error == cudaSuccess ? cudaStreamCreateWithFlags(&memory->stream, cudaStreamNonBlocking) : error;
    error = error == cudaSuccess ? cudaEventCreate(&memory->started) : error;
    error = error == cudaSuccess ? cudaEventCreate(&memory->stopped) : error;
    return error == cudaSuccess ? cudaMallocHost(&memory->staging, STAGING_BYTES) : error;
}

const char *perf_memory_open(perf_memory **memory) {
    perf_memory *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return "not enough memory";
    }
    const cudaError_t error = open_parts(opened);
    if (error != cudaSuccess) {
        perf_memory_close(&opened);
        return explain(error);
    }
    *memory = opened;
    return NULL;
}

void perf_memory_close(perf_memory **memory) {
    perf_memory *closed = *memory;
    if (closed == NULL) {
        return;
    }
    (void)cudaFreeHost(closed->staging);
    if (closed->stopped != NULL) {
        (void)cudaEventDestroy(closed->stopped);
    }
    if (closed->started != NULL) {
        (void)cudaEventDestroy(closed->started);
    }
    if (closed->stream != NULL) {
        (void)cudaStreamDestroy(closed->stream);
    }
    free(closed);
    *memory = NULL;
}

const char *perf_memory_describe(const perf_memory *memory) {
    return memory->description;
}

void *perf_memory_allocate(perf_memory *memory, size_t bytes) {
    void *allocated = NULL;
    (void)memory;
    return cudaMalloc(&allocated, bytes) == cudaSuccess ? allocated : NULL;
}

void perf_memory_free(perf_memory *memory, void *allocated) {
    (void)memory;
    (void)cudaFree(allocated);
}

/* ---- The stream -------------------------------------------------------------------------------------------------- */

cudaStream_t perf_memory_stream(const perf_memory *memory) {
    return memory->stream;
}

bool perf_memory_is_busy(const perf_memory *memory) {
    return cudaStreamQuery(memory->stream) == cudaErrorNotReady;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* NCCL's threads, and other ranks', may need the processor meanwhile. */
const char *perf_memory_wait(const perf_memory *memory, const char *(*look)(void *user), void *user) {
    const int64_t deadline = now_ns() + PATIENCE_NS;
    for (;;) {
        const cudaError_t error = cudaStreamQuery(memory->stream);
        if (error != cudaErrorNotReady) {
            return explain(error);
        }
        const char *problem = look != NULL ? look(user) : NULL;
        if (problem != NULL) {
            return problem;
        }
        if (now_ns() > deadline) {
            return "the GPU has not come to an end in two minutes: look for a rank that has stopped";
        }
        sched_yield();
    }
}

/* ---- What is in a gradient --------------------------------------------------------------------------------------- */

perf_piece perf_memory_piece(perf_memory *memory, void *at, size_t bytes) {
    return (perf_piece){
        .at = at, .host = memory->staging, .bytes = bytes < STAGING_BYTES ? bytes : (size_t)STAGING_BYTES};
}

static const char *copy(const perf_memory *memory, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, memory->stream);
    return explain(error == cudaSuccess ? cudaStreamSynchronize(memory->stream) : error);
}

const char *perf_memory_get(perf_memory *memory, const perf_piece *piece) {
    return copy(memory, piece->host, piece->at, piece->bytes, cudaMemcpyDeviceToHost);
}

const char *perf_memory_put(perf_memory *memory, const perf_piece *piece) {
    return copy(memory, piece->at, piece->host, piece->bytes, cudaMemcpyHostToDevice);
}

/* ---- The clock --------------------------------------------------------------------------------------------------- */

static const char *start_clock(perf_memory *memory) {
    return explain(cudaEventRecord(memory->started, memory->stream));
}

static gsync_status finish_step(perf_memory *memory, gsync_reducer *reducer, gsync_step_info *info) {
    return gsync_finish_on(reducer, memory->stream, info);
}

static const char *stop_clock(perf_memory *memory, double *time_us) {
    float ms = 0;
    const char *problem = explain(cudaEventRecord(memory->stopped, memory->stream));
    problem = problem == NULL ? perf_memory_wait(memory, NULL, NULL) : problem;
    problem = problem == NULL ? explain(cudaEventElapsedTime(&ms, memory->started, memory->stopped)) : problem;
    *time_us = (double)ms * 1e3;
    return problem;
}

static const perf_stream_clock stream_clock = {.start = start_clock, .finish = finish_step, .stop = stop_clock};
const perf_stream_clock *const perf_memory_stream_clock = &stream_clock;
