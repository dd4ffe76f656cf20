/* SPDX-License-Identifier: Apache-2.0 */
#include "api/device_nccl.h"

#include "base/memory.h"
#include "device/device_cuda.h"

#include <stdatomic.h>

/* The last user closes it. */
typedef struct shared_device {
    _Atomic int users;
    gs_cuda *cuda;
} shared_device;

static gs_cuda *cuda_of(void *device) {
    return ((shared_device *)device)->cuda;
}

static gsync_status stream_new(void *device, void **stream) {
    return gs_cuda_stream_new(cuda_of(device), true, stream);
}

static void stream_free(void *device, void *stream) {
    gs_cuda_stream_free(cuda_of(device), stream);
}

static gsync_status event_new(void *device, void **event) {
    return gs_cuda_event_new(cuda_of(device), event);
}

static void event_free(void *device, void *event) {
    gs_cuda_event_free(cuda_of(device), event);
}

static gsync_status record(void *device, void *event, void *stream) {
    return gs_cuda_record(cuda_of(device), event, stream);
}

static gsync_status is_done(void *device, void *event, bool *result) {
    return gs_cuda_is_done(cuda_of(device), event, result);
}

static gsync_status memory_new(void *device, void **memory, size_t bytes) {
    return gs_cuda_new(cuda_of(device), memory, bytes, "messages over NCCL");
}

static void memory_free(void *device, void *memory) {
    gs_cuda_free(cuda_of(device), memory);
}

static gsync_status pinned_new(void *device, void **memory, size_t bytes) {
    return gs_cuda_pinned_new(cuda_of(device), memory, bytes, "messages over NCCL");
}

static void pinned_free(void *device, void *memory) {
    gs_cuda_pinned_free(cuda_of(device), memory);
}

static gsync_status copy(void *device, void *to, const void *from, size_t bytes, void *stream) {
    return gs_cuda_copy(cuda_of(device), to, from, bytes, stream);
}

static const char *bus_id(void *device) {
    return gs_cuda_bus_id(cuda_of(device));
}

static void hold(void *device) {
    atomic_fetch_add(&((shared_device *)device)->users, 1);
}

static void release(void *device) {
    shared_device *of = device;
    if (atomic_fetch_sub(&of->users, 1) == 1) {
        gs_cuda_close(of->cuda);
        gs_memory_free(of);
    }
}

static const gs_nccl_device_ops cuda_ops = {
    .stream_new = stream_new,
    .stream_free = stream_free,
    .event_new = event_new,
    .event_free = event_free,
    .record = record,
    .is_done = is_done,
    .memory_new = memory_new,
    .memory_free = memory_free,
    .pinned_new = pinned_new,
    .pinned_free = pinned_free,
    .copy = copy,
    .bus_id = bus_id,
    .hold = hold,
    .release = release,
};

static gsync_status open_shared(shared_device **out) {
    shared_device *of = NULL;
    GS_TRY(gs_memory_new(&of, 1, sizeof *of, "device"));
    of->users = 1;
    const gsync_status status = gs_cuda_open(&of->cuda);
    if (status != GSYNC_OK) {
        gs_memory_free(of);
        return status;
    }
    *out = of;
    return GSYNC_OK;
}

void gs_nccl_device_open(gs_nccl_settings *settings) {
    shared_device *of = NULL;
    settings->ops = &cuda_ops;
    settings->own = open_shared(&of);
    settings->device = of;
    settings->ordinal = of != NULL ? gs_cuda_device(of->cuda) : -1;
}

void gs_nccl_device_release(const gs_nccl_settings *settings) {
    if (settings->device != NULL) {
        release(settings->device);
    }
}
