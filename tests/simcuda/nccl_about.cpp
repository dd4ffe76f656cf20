/* SPDX-License-Identifier: Apache-2.0 */

/* NCCL's entry points that tell something, and those for memory. */

#include "device_memory.h"
#include "nccl_comm.h"

#include <algorithm>

using namespace simcuda;

namespace {

ncclResult_t tell(const char *name, ncclComm_t handle, int Comm::*member, int *value) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(name, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm || is_in_progress(*comm)) {
        return ncclInvalidArgument;
    }
    *value = (*comm).*member;
    return ncclSuccess;
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    Quiet quiet;
    const NcclCall call(__func__, thread_rank());
    *version = settings().nccl_version;
    return call.is_refused() ? call.refusal() : ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    return tell(__func__, comm, &Comm::size, count);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    return tell(__func__, comm, &Comm::rank, rank);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    return tell(__func__, comm, &Comm::device, device);
}

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "operation in progress";
    default:
        return "unknown result code";
    }
}

ncclResult_t ncclMemAlloc(void **start, size_t bytes) {
    Quiet quiet;
    const NcclCall call(__func__, thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    return memory_create_device(start, bytes, current_device()) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *start) {
    Quiet quiet;
    const NcclCall call(__func__, thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    return cudaFree(start) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void *start, size_t bytes, void **registered) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm || !memory_is_sound(start, bytes, true, __func__, "buffer")) {
        return ncclInvalidArgument;
    }
    auto *const registration = new Registration{start, bytes};
    Guard guard(comm->lock);
    comm->registrations.push_back(registration);
    *registered = registration;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void *registered) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm) {
        return ncclInvalidArgument;
    }
    Guard guard(comm->lock);
    auto &all = comm->registrations;
    const auto found = std::find(all.begin(), all.end(), registered);
    if (found == all.end()) {
        return ncclInvalidArgument;
    }
    delete *found;
    all.erase(found);
    return ncclSuccess;
}

} // extern "C"
