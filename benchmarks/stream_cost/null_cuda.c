/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A CUDA runtime whose calls succeed at once and do nothing, so that what is measured is the library's own. Its device
 * memory is the host's: nobody computes with it, but for what NCCL's part beside this copies.
 */

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEVICES = 8 };
static const size_t arena_bytes = (size_t)8 << 30; /* of addresses; memory is taken as it is touched */

static unsigned char *arena(void) {
    static unsigned char *_Atomic start;
    unsigned char *mine = atomic_load(&start);
    if (mine == NULL) {
        unsigned char *expected = NULL;
        mine = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!atomic_compare_exchange_strong(&start, &expected, mine)) {
            (void)munmap(mine, arena_bytes);
            mine = expected;
        }
    }
    return mine;
}

static _Thread_local int current_device;

/* Streams and events are told apart by nobody. */
static void *handle(void) {
    static _Atomic uintptr_t last;
    return (void *)((atomic_fetch_add(&last, 1) + 1) * 64); // NOLINT(performance-no-int-to-ptr)
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = DEVICES;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error) {
    (void)error;
    return "cudaSuccess";
}

const char *cudaGetErrorString(cudaError_t error) {
    (void)error;
    return "no error";
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    static _Atomic size_t used;
    const size_t at = atomic_fetch_add(&used, (bytes + 255) / 256 * 256);
    if (at + bytes > arena_bytes) {
        return cudaErrorMemoryAllocation;
    }
    *memory = arena() + at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    (void)memory;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int flags) {
    (void)flags;
    *memory = calloc(1, bytes);
    return *memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *memory) {
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
    const size_t at = (size_t)((const unsigned char *)address - arena());
    *attributes = (struct cudaPointerAttributes){
        .type = at < arena_bytes ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, .device = current_device};
    return cudaSuccess;
}

/* What ranks tell each other has to arrive; it is short. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    (void)memory, (void)value, (void)bytes, (void)stream; /* new memory is zero already */
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    (void)flags;
    *stream = handle();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    (void)stream, (void)event, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    (void)mode;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    (void)flags;
    *event = handle();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)event, (void)stream;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    (void)start, (void)end;
    *ms = 0;
    return cudaSuccess;
}
