/* SPDX-License-Identifier: Apache-2.0 */

/* CUDA's entry points for devices, versions and errors, and simcuda_reset. */

#include "control.h"
#include "stream.h"

#include <cstdio>
#include <cstring>
#include <strings.h>

using namespace simcuda;

namespace {

thread_local int this_device = 0;

struct ErrorName {
    cudaError_t error;
    const char *name;
    const char *text;
};

const ErrorName error_names[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "the driver is older than the runtime"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the object's state does not permit this"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "a kernel touched an illegal address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "a kernel failed"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "not permitted during stream capture"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorName *find_name(cudaError_t error) {
    for (const ErrorName &name : error_names) {
        if (name.error == error) {
            return &name;
        }
    }
    return nullptr;
}

bool is_device(int device) {
    return device >= 0 && device < settings().device_count;
}

int attribute(cudaDeviceAttr attribute) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        return 9;
    case cudaDevAttrMultiProcessorCount:
        return 132;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return attribute == cudaDevAttrMaxThreadsPerBlock ? 1024 : 2048;
    case cudaDevAttrWarpSize:
        return 32;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrConcurrentKernels:
        return 1;
    default:
        return 0;
    }
}

void reset_everything() {
    streams_reset();
    nccl_reset();
    sites_reset();
    control_reset();
}

} // namespace

int simcuda::current_device() {
    return this_device;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    SIMCUDA_CALL(call);
    *count = settings().device_count;
    return call.ends(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    SIMCUDA_CALL(call);
    if (!is_device(device)) {
        return call.ends(cudaErrorInvalidDevice);
    }
    if (device != this_device) {
        count_device_change();
    }
    this_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    SIMCUDA_CALL(call);
    *device = this_device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device) {
    SIMCUDA_CALL(call);
    if (!is_device(device) || room <= 0) {
        return call.ends(is_device(device) ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    snprintf(text, static_cast<size_t>(room), "%s", bus_id(device).c_str());
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
    SIMCUDA_CALL(call);
    for (int i = 0; i < settings().device_count; i++) {
        if (strcasecmp(bus_id(i).c_str(), text) == 0) {
            *device = i;
            return cudaSuccess;
        }
    }
    return call.ends(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int device) {
    SIMCUDA_CALL(call);
    *value = attribute(which);
    return call.ends(is_device(device) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    SIMCUDA_CALL(call);
    if (!is_device(device)) {
        return call.ends(cudaErrorInvalidDevice);
    }
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "simulated device %d", device);
    properties->uuid.bytes[0] = static_cast<char>(device + 1);
    properties->totalGlobalMem = size_t{80} << 30;
    properties->major = attribute(cudaDevAttrComputeCapabilityMajor);
    properties->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    properties->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    properties->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    properties->warpSize = attribute(cudaDevAttrWarpSize);
    properties->unifiedAddressing = 1;
    properties->concurrentKernels = 1;
    properties->pciBusID = device + 16;
    return cudaSuccess;
}

/* There are no kernels that it could know; a launcher that loads its kernels early finds them loaded. */
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    SIMCUDA_CALL(call);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    SIMCUDA_CALL(call);
    *version = settings().driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    SIMCUDA_CALL(call);
    *version = settings().runtime_version;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    count_call(__func__, thread_rank());
    const cudaError_t error = last_error(true);
    return error != cudaSuccess ? error : device_error(this_device);
}

cudaError_t cudaPeekAtLastError(void) {
    count_call(__func__, thread_rank());
    const cudaError_t error = last_error(false);
    return error != cudaSuccess ? error : device_error(this_device);
}

const char *cudaGetErrorString(cudaError_t error) {
    const ErrorName *const name = find_name(error);
    return name != nullptr ? name->text : "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) {
    const ErrorName *const name = find_name(error);
    return name != nullptr ? name->name : "unrecognized error code";
}

void simcuda_reset(void) {
    Quiet quiet;
    reset_everything();
}

} // extern "C"
