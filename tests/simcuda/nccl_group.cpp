/* SPDX-License-Identifier: Apache-2.0 */

/* When things are enqueued: at once, at the end of a group, or later. */

#include "device_memory.h"
#include "nccl_arithmetic.h"
#include "nccl_comm.h"
#include "nccl_pending.h"

#include <algorithm>
#include <set>
#include <unistd.h>

namespace simcuda {

namespace {

struct Grouped {
    CommPointer comm;
    cudaStream_t stream;
    std::vector<Step> steps;
};

struct Attempt {
    CommPointer comm;
    std::function<ncclResult_t()> progress;
    bool is_done;
};

struct Group {
    unsigned depth = 0;
    ncclResult_t error = ncclSuccess;
    std::vector<Grouped> operations;
    std::vector<Attempt> attempts;
};

thread_local Group group;

/* Communicators in which something is, or was, in progress. */
Lock pending_lock;
std::vector<std::weak_ptr<Comm>> &pending() {
    static auto *const pending = new std::vector<std::weak_ptr<Comm>>;
    return *pending;
}

const char *name_of_group(const std::vector<Step> &steps) {
    const auto differs = [&](const Step &step) { return step.name != steps[0].name; };
    return std::any_of(steps.begin(), steps.end(), differs) ? "ncclGroup" : steps[0].name;
}

ncclResult_t submit(const Grouped &grouped) {
    const CommPointer comm = grouped.comm;
    const std::vector<Step> steps = grouped.steps;
    const uint64_t turn = comm->issued++;
    auto operation = operation_create(name_of_group(steps),
                                      [comm, steps, turn](CUstream_st &on) { run_steps(*comm, turn, steps, on); });
    for (const Step &step : steps) {
        const auto accesses = accesses_of(*comm, step);
        operation->accesses.insert(operation->accesses.end(), accesses.begin(), accesses.end());
    }
    operation->is_kernel = true;
    if (stream_submit(grouped.stream, std::move(operation)) != cudaSuccess) {
        comm->issued--;
        return comm->fail(ncclUnhandledCudaError, "there is no such stream");
    }
    return ncclSuccess;
}

void set_progress(const CommPointer &comm, std::function<ncclResult_t()> progress) {
    {
        Guard guard(comm->lock);
        comm->progress = std::move(progress);
        comm->polls_left = settings().polls;
        comm->progress_thread = gettid();
    }
    Guard guard(pending_lock);
    auto &all = pending();
    if (std::none_of(all.begin(), all.end(), [&](const std::weak_ptr<Comm> &weak) { return weak.lock() == comm; })) {
        all.push_back(comm);
    }
}

ncclResult_t wait_for(const CommPointer &comm, const std::function<ncclResult_t()> &progress) {
    for (;;) {
        const uint32_t seen = comm->meeting->news();
        const ncclResult_t result = progress();
        if (result != ncclInProgress) {
            return result == ncclSuccess
                       ? result
                       : comm->fail(result, words_of(result, "the communicator could not be created"));
        }
        comm->meeting->wait_for_news(seen);
    }
}

ncclResult_t check(const Comm &comm, const Step &step) {
    if (bytes_of(step.type) == 0 || step.peer < 0 || step.peer >= comm.size) {
        return ncclInvalidArgument;
    }
    for (const Access &access : accesses_of(comm, step)) {
        if (access.bytes > 0 && !memory_is_sound(access.start, access.bytes, true, step.name,
                                                 access.is_write ? "receive buffer" : "send buffer")) {
            return ncclInvalidArgument;
        }
    }
    return ncclSuccess;
}

void add_to_group(const CommPointer &comm, const Step &step, cudaStream_t stream) {
    for (Grouped &grouped : group.operations) {
        if (grouped.comm == comm && grouped.stream == stream) {
            grouped.steps.push_back(step);
            return;
        }
    }
    group.operations.push_back({comm, stream, {step}});
}

/* The operations of one non-blocking communicator together: they have one state. */
ncclResult_t submit_later(const CommPointer &comm, const std::vector<Grouped> &operations) {
    std::vector<Grouped> mine;
    std::copy_if(operations.begin(), operations.end(), std::back_inserter(mine),
                 [&](const Grouped &grouped) { return grouped.comm == comm; });
    for (Grouped &grouped : mine) {
        grouped.comm.reset(); /* the communicator holds what is pending in it, not the other way round */
    }
    const std::weak_ptr<Comm> weak = comm;
    set_progress(comm, [weak, mine] {
        ncclResult_t result = ncclSuccess;
        for (const Grouped &grouped : mine) {
            const ncclResult_t one = submit({weak.lock(), grouped.stream, grouped.steps});
            result = result == ncclSuccess ? one : result;
        }
        return result;
    });
    return ncclInProgress;
}

ncclResult_t end_operations(const std::vector<Grouped> &operations) {
    ncclResult_t result = ncclSuccess;
    std::set<CommPointer> later;
    for (const Grouped &grouped : operations) {
        if (grouped.comm->is_blocking) {
            const ncclResult_t one = submit(grouped);
            result = result == ncclSuccess ? one : result;
        } else if (later.insert(grouped.comm).second) {
            submit_later(grouped.comm, operations);
        }
    }
    return result == ncclSuccess && !later.empty() ? ncclInProgress : result;
}

/* All together: communicators of several ranks on one thread need each other. */
ncclResult_t end_attempts(std::vector<Attempt> attempts) {
    ncclResult_t result = ncclSuccess;
    bool is_later = false;
    for (Attempt &attempt : attempts) {
        attempt.is_done = !attempt.comm->is_blocking;
        if (attempt.is_done) {
            set_progress(attempt.comm, attempt.progress);
            is_later = true;
        }
    }
    for (bool are_done = false; !are_done;) {
        are_done = true;
        for (Attempt &attempt : attempts) {
            const ncclResult_t one = attempt.is_done ? ncclSuccess : attempt.progress();
            attempt.is_done = one != ncclInProgress;
            are_done &= attempt.is_done;
            result = result == ncclSuccess && attempt.is_done ? one : result;
        }
        if (!are_done) {
            Comm &comm = *attempts.back().comm;
            comm.meeting->wait_for_news(comm.meeting->news());
        }
    }
    return result == ncclSuccess && is_later ? ncclInProgress : result;
}

} // namespace

bool is_in_group() {
    return group.depth > 0;
}

bool is_in_progress(Comm &comm) {
    Guard guard(comm.lock);
    return comm.progress || comm.is_polled;
}

ncclResult_t enqueue_step(const CommPointer &comm, const Step &step, cudaStream_t stream) {
    ncclResult_t result = check(*comm, step);
    if (result == ncclSuccess && is_in_progress(*comm)) {
        result = ncclInvalidArgument; /* as real NCCL: its last call has not happened yet */
    }
    if (result == ncclSuccess && comm->has_to_end()) {
        result = comm->error != ncclSuccess ? static_cast<ncclResult_t>(comm->error.load()) : ncclInvalidUsage;
    }
    if (is_in_group()) {
        group.error = group.error == ncclSuccess ? result : group.error;
        if (result == ncclSuccess) {
            add_to_group(comm, step, stream);
        }
        return result;
    }
    return result == ncclSuccess ? end_operations({{comm, stream, {step}}}) : result;
}

ncclResult_t start_progress(const CommPointer &comm, std::function<ncclResult_t()> progress) {
    if (is_in_group()) {
        group.attempts.push_back({comm, std::move(progress), false});
        return comm->is_blocking ? ncclSuccess : ncclInProgress;
    }
    if (comm->is_blocking) {
        return wait_for(comm, progress);
    }
    set_progress(comm, std::move(progress));
    return ncclInProgress;
}

ncclResult_t poll_progress(Comm &comm) {
    std::function<ncclResult_t()> progress;
    {
        Guard guard(comm.lock);
        if (comm.is_polled || (comm.progress && comm.polls_left > 0)) {
            comm.polls_left -= comm.polls_left > 0 ? 1 : 0;
            return ncclInProgress;
        }
        progress = std::move(comm.progress);
        comm.progress = nullptr;
        comm.is_polled = static_cast<bool>(progress);
    }
    if (!progress) {
        return ncclSuccess;
    }
    /* Without the lock: in a seeded schedule this may run operations of the communicator. */
    const ncclResult_t result = progress();
    {
        Guard guard(comm.lock);
        comm.is_polled = false;
        if (result == ncclInProgress && !comm.is_aborted) {
            comm.progress = std::move(progress);
            return ncclInProgress;
        }
    }
    return result == ncclSuccess ? result : comm.fail(result, words_of(result, "what was in progress failed"));
}

void nccl_enqueue_pending() {
    std::vector<CommPointer> mine;
    {
        Guard guard(pending_lock);
        if (pending().empty()) {
            return;
        }
        std::vector<std::weak_ptr<Comm>> left;
        for (const std::weak_ptr<Comm> &weak : pending()) {
            const CommPointer comm = weak.lock();
            if (comm && is_in_progress(*comm)) {
                left.push_back(weak);
                if (comm->progress_thread == gettid()) {
                    mine.push_back(comm);
                }
            }
        }
        pending().swap(left);
    }
    for (const CommPointer &comm : mine) {
        {
            Guard guard(comm->lock);
            comm->polls_left = 0;
        }
        poll_progress(*comm);
    }
}

void nccl_reset() {
    Guard guard(pending_lock);
    pending().clear();
}

} // namespace simcuda

using namespace simcuda;

extern "C" {

ncclResult_t ncclGroupStart() {
    Quiet quiet;
    count_call(__func__, thread_rank());
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    Quiet quiet;
    const NcclCall call(__func__, thread_rank());
    if (group.depth == 0) {
        return ncclInvalidUsage;
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    Group ended;
    std::swap(ended, group);
    if (call.is_refused() || ended.error != ncclSuccess) {
        return call.is_refused() ? call.refusal() : ended.error;
    }
    const ncclResult_t attempts = end_attempts(std::move(ended.attempts));
    const ncclResult_t operations = end_operations(ended.operations);
    return attempts != ncclSuccess ? attempts : operations;
}

} // extern "C"
