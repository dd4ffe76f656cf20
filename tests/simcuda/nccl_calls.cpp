/* SPDX-License-Identifier: Apache-2.0 */

/* NCCL's entry points that move data, and its reduction operators. */

#include "nccl_arithmetic.h"
#include "nccl_comm.h"

using namespace simcuda;

namespace {

/* The first lines of an entry point: the communicator, and a fault that was asked for. */
ncclResult_t enter(const char *name, ncclComm_t handle, CommPointer *comm, Fault *fault) {
    *comm = comm_find(handle);
    const NcclCall call(name, *comm ? (*comm)->rank : thread_rank());
    *fault = call.fault();
    if (!*comm) {
        return ncclInvalidArgument;
    }
    return call.is_refused() ? call.refusal() : ncclSuccess;
}

/* Replaces a communicator's own operator by what it does. */
ncclResult_t resolve_op(Comm &comm, Step &step) {
    if (step.op < ncclNumOps) {
        return ncclSuccess;
    }
    Guard guard(comm.lock);
    const auto index = static_cast<size_t>(step.op) - ncclNumOps;
    if (index >= comm.ops.size() || !comm.ops[index].exists || comm.ops[index].type != step.type) {
        return ncclInvalidArgument;
    }
    step.premultiplied = comm.ops[index];
    step.op = ncclSum;
    return ncclSuccess;
}

ncclResult_t enqueue(ncclComm_t handle, Step step, cudaStream_t stream) {
    Quiet quiet;
    CommPointer comm;
    ncclResult_t result = enter(step.name, handle, &comm, &step.fault);
    if (result == ncclSuccess) {
        result = resolve_op(*comm, step);
    }
    return result == ncclSuccess ? enqueue_step(comm, step, stream) : result;
}

Step step_of(Kind kind, const char *name, const void *from, void *to, size_t count, ncclDataType_t type) {
    Step step = {};
    step.kind = kind;
    step.name = name;
    step.from = static_cast<const char *>(from);
    step.to = static_cast<char *>(to);
    step.count = count;
    step.type = type;
    step.op = ncclSum;
    return step;
}

} // namespace

extern "C" {

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    Step step = step_of(Kind::all_reduce, __func__, from, to, count, type);
    step.op = op;
    return enqueue(comm, step, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    Step step = step_of(Kind::reduce_scatter, __func__, from, to, count, type);
    step.op = op;
    return enqueue(comm, step, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return enqueue(comm, step_of(Kind::all_gather, __func__, from, to, count, type), stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    Step step = step_of(Kind::broadcast, __func__, from, to, count, type);
    step.peer = root;
    return enqueue(comm, step, stream);
}

ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
    return enqueue(comm, step_of(Kind::all_to_all, __func__, from, to, count, type), stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    Step step = step_of(Kind::send, __func__, from, nullptr, count, type);
    step.peer = peer;
    return enqueue(comm, step, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    Step step = step_of(Kind::receive, __func__, nullptr, to, count, type);
    step.peer = peer;
    return enqueue(comm, step, stream);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
    Quiet quiet;
    CommPointer comm;
    Fault fault;
    const ncclResult_t result = enter(__func__, handle, &comm, &fault);
    if (result != ncclSuccess) {
        return result;
    }
    if (bytes_of(type) == 0 || scalar == nullptr) {
        return ncclInvalidArgument;
    }
    const bool is_on_device = residence == ncclScalarDevice;
    Guard guard(comm->lock);
    comm->ops.push_back({true, type, is_on_device ? 0 : scalar_of(scalar, type), is_on_device ? scalar : nullptr});
    *op = static_cast<ncclRedOp_t>(ncclNumOps + comm->ops.size() - 1);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
    Quiet quiet;
    CommPointer comm;
    Fault fault;
    const ncclResult_t result = enter(__func__, handle, &comm, &fault);
    if (result != ncclSuccess) {
        return result;
    }
    Guard guard(comm->lock);
    const auto index = static_cast<size_t>(op) - ncclNumOps;
    if (op < ncclNumOps || index >= comm->ops.size() || !comm->ops[index].exists) {
        return ncclInvalidArgument;
    }
    comm->ops[index].exists = false;
    return ncclSuccess;
}

} // extern "C"
