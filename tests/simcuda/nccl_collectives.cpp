/* SPDX-License-Identifier: Apache-2.0 */

/* What collectives do: a ring of messages, with the sums in the order in which NCCL's ring makes them. */

#include "nccl_arithmetic.h"
#include "nccl_transfer.h"

#include <algorithm>
#include <cstring>

namespace simcuda {

namespace {

/* Elements [begin, end) of a buffer. */
struct Part {
    size_t begin;
    size_t end;
    size_t count() const {
        return end - begin;
    }
};

struct Work {
    Comm &comm;
    const Step &step;
    CUstream_st &stream;
    size_t element;

    int wrap(int rank) const {
        return ((rank % comm.size) + comm.size) % comm.size;
    }
    Part part(int index, size_t total) const {
        const size_t each = (total + static_cast<size_t>(comm.size) - 1) / static_cast<size_t>(comm.size);
        const size_t begin = std::min(total, each * static_cast<size_t>(wrap(index)));
        return {begin, std::min(total, begin + each)};
    }
    Transfer transfer(int peer, bool is_send, char *data, size_t count) const {
        const Kind kind = step.kind == Kind::receive ? Kind::send : step.kind;
        const bool between_two = kind == Kind::send;
        const Signature signature = {static_cast<uint32_t>(kind), static_cast<uint32_t>(step.type),
                                     static_cast<uint32_t>(step.op), between_two ? 0 : static_cast<uint32_t>(step.peer),
                                     step.count};
        return {peer, is_send, data, count * element, signature};
    }
    ncclResult_t exchange(std::vector<Transfer> transfers) const {
        return run_transfers(comm, std::move(transfers), stream);
    }
};

/* Afterwards part r of `data` is reduced on rank r: part c begins on rank c + 1 and goes once around. */
ncclResult_t reduce_around(const Work &work, char *data, size_t total) {
    const int rank = work.comm.rank;
    std::vector<char> received(work.part(0, total).count() * work.element);
    for (int round = 0; round < work.comm.size - 1; round++) {
        const Part out = work.part(rank - 1 - round, total);
        const Part in = work.part(rank - 2 - round, total);
        const ncclResult_t result =
            work.exchange({work.transfer(work.wrap(rank + 1), true, data + out.begin * work.element, out.count()),
                           work.transfer(work.wrap(rank - 1), false, received.data(), in.count())});
        if (result != ncclSuccess) {
            return result;
        }
        reduce(data + in.begin * work.element, received.data(), in.count(), work.step.type, work.step.op);
    }
    return ncclSuccess;
}

/* Rank r's part r of `data` goes to all. */
ncclResult_t gather_around(const Work &work, char *data, size_t total) {
    const int rank = work.comm.rank;
    for (int round = 0; round < work.comm.size - 1; round++) {
        const Part out = work.part(rank - round, total);
        const Part in = work.part(rank - 1 - round, total);
        const ncclResult_t result =
            work.exchange({work.transfer(work.wrap(rank + 1), true, data + out.begin * work.element, out.count()),
                           work.transfer(work.wrap(rank - 1), false, data + in.begin * work.element, in.count())});
        if (result != ncclSuccess) {
            return result;
        }
    }
    return ncclSuccess;
}

void multiply_before(const Work &work, char *data, size_t count) {
    const Step &step = work.step;
    if (step.op == ncclAvg && is_floating(step.type)) {
        multiply(data, count, step.type, 1.0 / work.comm.size);
    } else if (step.premultiplied.exists) {
        const Premultiplied &how = step.premultiplied;
        multiply(data, count, step.type, how.on_device != nullptr ? scalar_of(how.on_device, step.type) : how.factor);
    }
}

void divide_after(const Work &work, char *data, size_t count) {
    if (work.step.op == ncclAvg && !is_floating(work.step.type)) {
        divide(data, count, work.step.type, work.comm.size);
    }
}

ncclResult_t all_reduce(const Work &work) {
    const Step &step = work.step;
    memmove(step.to, step.from, step.count * work.element);
    multiply_before(work, step.to, step.count);
    ncclResult_t result = reduce_around(work, step.to, step.count);
    if (result == ncclSuccess) {
        const Part mine = work.part(work.comm.rank, step.count);
        divide_after(work, step.to + mine.begin * work.element, mine.count());
        result = gather_around(work, step.to, step.count);
    }
    return result;
}

ncclResult_t reduce_scatter(const Work &work) {
    const Step &step = work.step;
    const size_t total = step.count * static_cast<size_t>(work.comm.size);
    std::vector<char> copy(step.from, step.from + total * work.element);
    multiply_before(work, copy.data(), total);
    const ncclResult_t result = reduce_around(work, copy.data(), total);
    if (result == ncclSuccess) {
        const Part mine = work.part(work.comm.rank, total);
        divide_after(work, copy.data() + mine.begin * work.element, mine.count());
        memcpy(step.to, copy.data() + mine.begin * work.element, mine.count() * work.element);
    }
    return result;
}

ncclResult_t all_gather(const Work &work) {
    const Step &step = work.step;
    const size_t bytes = step.count * work.element;
    memmove(step.to + static_cast<size_t>(work.comm.rank) * bytes, step.from, bytes);
    return gather_around(work, step.to, step.count * static_cast<size_t>(work.comm.size));
}

/* Along a chain that begins at the root. */
ncclResult_t broadcast(const Work &work) {
    const Step &step = work.step;
    const int place = work.wrap(work.comm.rank - step.peer);
    ncclResult_t result = ncclSuccess;
    if (place == 0) {
        memmove(step.to, step.from, step.count * work.element);
    } else {
        result = work.exchange({work.transfer(work.wrap(work.comm.rank - 1), false, step.to, step.count)});
    }
    if (result == ncclSuccess && place < work.comm.size - 1) {
        result = work.exchange({work.transfer(work.wrap(work.comm.rank + 1), true, step.to, step.count)});
    }
    return result;
}

ncclResult_t all_to_all(const Work &work) {
    const Step &step = work.step;
    const size_t bytes = step.count * work.element;
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < work.comm.size; peer++) {
        const size_t offset = static_cast<size_t>(peer) * bytes;
        transfers.push_back(work.transfer(peer, true, const_cast<char *>(step.from) + offset, step.count));
        transfers.push_back(work.transfer(peer, false, step.to + offset, step.count));
    }
    return work.exchange(std::move(transfers));
}

ncclResult_t run_collective(const Work &work) {
    switch (work.step.kind) {
    case Kind::all_reduce:
        return all_reduce(work);
    case Kind::reduce_scatter:
        return reduce_scatter(work);
    case Kind::all_gather:
        return all_gather(work);
    case Kind::broadcast:
        return broadcast(work);
    default:
        return all_to_all(work);
    }
}

bool is_between_two(const Step &step) {
    return step.kind == Kind::send || step.kind == Kind::receive;
}

/* All sends and receives of a group at the same time, then its collectives in their order. */
ncclResult_t run_all(Comm &comm, const std::vector<Step> &steps, CUstream_st &stream) {
    std::vector<Transfer> transfers;
    for (const Step &step : steps) {
        if (is_between_two(step)) {
            const bool is_send = step.kind == Kind::send;
            const Work work = {comm, step, stream, bytes_of(step.type)};
            transfers.push_back(
                work.transfer(step.peer, is_send, is_send ? const_cast<char *>(step.from) : step.to, step.count));
        }
    }
    ncclResult_t result = run_transfers(comm, std::move(transfers), stream);
    for (size_t i = 0; i < steps.size() && result == ncclSuccess; i++) {
        if (!is_between_two(steps[i])) {
            result = run_collective({comm, steps[i], stream, bytes_of(steps[i].type)});
        }
    }
    return result;
}

void wait_until_it_has_to_end(Comm &comm, CUstream_st &stream) {
    while (!comm.has_to_end()) {
        wait_in_operation(comm, comm.meeting->news(), stream);
    }
}

void run_fault(Comm &comm, const Step &step, CUstream_st &stream) {
    if (step.fault.effect == SIMCUDA_HANGS) {
        wait_until_it_has_to_end(comm, stream);
        return;
    }
    const auto result = static_cast<ncclResult_t>(step.fault.result);
    comm.fail(result, words_of(result, std::string(step.name) + " failed as asked for"));
    if (settings().peers_notice) {
        comm.meeting->board().has_failed = ncclRemoteError;
        comm.meeting->tell_all();
    }
}

void declare(const Comm &comm, const std::vector<Step> &steps) {
    Loud loud;
    for (const Step &step : steps) {
        for (const Access &access : accesses_of(comm, step)) {
            declare_access(access.start, access.bytes, access.is_write);
        }
    }
}

} // namespace

const char *name_of(Kind kind) {
    static const char *const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                        "ncclAlltoAll",  "ncclSend",          "ncclRecv"};
    return names[static_cast<uint32_t>(kind)];
}

std::vector<Access> accesses_of(const Comm &comm, const Step &step) {
    const size_t bytes = step.count * bytes_of(step.type);
    const size_t all = bytes * static_cast<size_t>(comm.size);
    const bool is_root = comm.rank == step.peer;
    const bool reads_all = step.kind == Kind::reduce_scatter || step.kind == Kind::all_to_all;
    const bool writes_all = step.kind == Kind::all_gather || step.kind == Kind::all_to_all;
    std::vector<Access> accesses;
    if (step.kind != Kind::receive && (step.kind != Kind::broadcast || is_root)) {
        accesses.push_back({step.from, reads_all ? all : bytes, false});
    }
    if (step.kind != Kind::send) {
        accesses.push_back({step.to, writes_all ? all : bytes, true});
    }
    if (step.premultiplied.on_device != nullptr) {
        accesses.push_back({step.premultiplied.on_device, bytes_of(step.type), false});
    }
    return accesses;
}

void run_steps(Comm &comm, uint64_t turn, const std::vector<Step> &steps, CUstream_st &stream) {
    comm.running++;
    /* Operations of one communicator follow each other whatever their streams, but nothing else may count on that. */
    while (comm.completed != turn && !comm.has_to_end()) {
        wait_in_operation(comm, comm.meeting->news(), stream);
    }
    if (!comm.has_to_end()) {
        declare(comm, steps);
        const auto faulty =
            std::find_if(steps.begin(), steps.end(), [](const Step &step) { return step.fault.is_set; });
        if (faulty != steps.end()) {
            run_fault(comm, *faulty, stream);
        } else {
            run_all(comm, steps, stream);
        }
    }
    comm.completed++;
    comm.running--;
    comm.meeting->tell(comm.rank);
}

} // namespace simcuda
