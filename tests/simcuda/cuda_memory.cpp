/* SPDX-License-Identifier: Apache-2.0 */

/* CUDA's entry points for memory. */

#include "control.h"
#include "device_memory.h"
#include "nccl_pending.h"
#include "stream.h"

#include <cstring>

using namespace simcuda;

namespace {

bool is_device(const void *address, Allocation *allocation) {
    return memory_find(address, allocation) && allocation->type == cudaMemoryTypeDevice;
}

bool is_sound_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, const char *name) {
    if (kind == cudaMemcpyDefault || bytes == 0) {
        return true;
    }
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return memory_is_sound(to, bytes, to_device, name, "destination") &&
           memory_is_sound(from, bytes, from_device, name, "source");
}

cudaError_t copy_on(cudaStream_t stream, void *to, const void *from, size_t bytes, const Fault &fault,
                    const char *name) {
    auto operation = operation_create(name, [=](CUstream_st &) {
        {
            Loud loud;
            declare_access(from, bytes, false);
            declare_access(to, bytes, true);
        }
        memmove(to, from, bytes);
    });
    operation->accesses = {{from, bytes, false}, {to, bytes, true}};
    operation->fault = fault;
    return stream_submit(stream, std::move(operation));
}

cudaError_t set_on(cudaStream_t stream, void *to, int value, size_t bytes, const Fault &fault, const char *name) {
    auto operation = operation_create(name, [=](CUstream_st &) {
        {
            Loud loud;
            declare_access(to, bytes, true);
        }
        memset(to, value, bytes);
    });
    operation->accesses = {{to, bytes, true}};
    operation->fault = fault;
    return stream_submit(stream, std::move(operation));
}

cudaError_t destroy(void *start, cudaMemoryType type, const char *name) {
    if (start == nullptr) {
        return cudaSuccess;
    }
    Allocation allocation;
    if (!memory_find(start, &allocation) || allocation.start != start || allocation.type != type) {
        return cudaErrorInvalidValue;
    }
    nccl_enqueue_pending();
    device_synchronise(allocation.device);
    nccl_memory_destroyed(start, allocation.bytes, name);
    host_access({start, allocation.bytes, true}, name);
    return memory_destroy(start, type);
}

} // namespace

extern "C" {

cudaError_t cudaMalloc(void **start, size_t bytes) {
    SIMCUDA_CALL(call);
    return call.ends(memory_create_device(start, bytes, current_device()));
}

cudaError_t cudaFree(void *start) {
    SIMCUDA_CALL(call);
    return call.ends(destroy(start, cudaMemoryTypeDevice, __func__));
}

/* The memory is there at once; only its end is ordered by the stream. */
cudaError_t cudaMallocAsync(void **start, size_t bytes, cudaStream_t) {
    SIMCUDA_CALL(call);
    return call.ends(memory_create_device(start, bytes, current_device()));
}

cudaError_t cudaFreeAsync(void *start, cudaStream_t stream) {
    SIMCUDA_CALL(call);
    Allocation allocation;
    if (!is_device(start, &allocation) || allocation.start != start) {
        return call.ends(cudaErrorInvalidValue);
    }
    nccl_memory_destroyed(start, allocation.bytes, __func__);
    auto operation = operation_create(__func__, [=](CUstream_st &) { memory_destroy(start, cudaMemoryTypeDevice); });
    operation->accesses = {{start, allocation.bytes, true}};
    return call.ends(stream_submit(stream, std::move(operation)));
}

cudaError_t cudaHostAlloc(void **start, size_t bytes, unsigned) {
    SIMCUDA_CALL(call);
    return call.ends(memory_create_host(start, bytes, current_device()));
}

cudaError_t cudaMallocHost(void **start, size_t bytes) {
    SIMCUDA_CALL(call);
    return call.ends(memory_create_host(start, bytes, current_device()));
}

cudaError_t cudaFreeHost(void *start) {
    SIMCUDA_CALL(call);
    return call.ends(destroy(start, cudaMemoryTypeHost, __func__));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address) {
    SIMCUDA_CALL(call);
    memset(attributes, 0, sizeof *attributes);
    Allocation allocation;
    if (!memory_find(address, &allocation)) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = -2; /* as cudaInvalidDeviceId; CUDA too has no device for such memory */
        attributes->hostPointer = const_cast<void *>(address);
        return cudaSuccess;
    }
    attributes->type = allocation.type;
    attributes->device = allocation.device;
    attributes->devicePointer = const_cast<void *>(address);
    attributes->hostPointer = allocation.type == cudaMemoryTypeHost ? const_cast<void *>(address) : nullptr;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    SIMCUDA_CALL(call);
    if (!is_sound_copy(to, from, bytes, kind, __func__)) {
        return call.ends(cudaErrorInvalidValue);
    }
    return call.ends(copy_on(stream, to, from, bytes, call.fault(), __func__));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    SIMCUDA_CALL(call);
    if (!is_sound_copy(to, from, bytes, kind, __func__)) {
        return call.ends(cudaErrorInvalidValue);
    }
    const cudaError_t error = copy_on(cudaStreamLegacy, to, from, bytes, call.fault(), __func__);
    return call.ends(error != cudaSuccess ? error : cudaStreamSynchronize(cudaStreamLegacy));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    SIMCUDA_CALL(call);
    if (bytes > 0 && !memory_is_sound(to, bytes, true, __func__, "destination")) {
        return call.ends(cudaErrorInvalidValue);
    }
    return call.ends(set_on(stream, to, value, bytes, call.fault(), __func__));
}

cudaError_t simcuda_poison(cudaStream_t stream, void *start, size_t bytes) {
    SIMCUDA_CALL(call);
    return call.ends(set_on(stream, start, poison_byte, bytes, call.fault(), __func__));
}

} // extern "C"
