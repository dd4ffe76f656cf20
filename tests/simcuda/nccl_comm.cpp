/* SPDX-License-Identifier: Apache-2.0 */

/* How communicators begin and end. */

#include "nccl_comm.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <set>
#include <unistd.h>

namespace simcuda {

namespace {

Lock handles_lock;
std::set<ncclComm_t> &handles() {
    static auto *const handles = new std::set<ncclComm_t>;
    return *handles;
}

thread_local std::string thread_error;

/* As NCCL, which takes NCCL_HOSTID for the host: two ranks on one GPU are refused unless they say that their hosts
 * differ. Never 0. */
uint64_t identity(int device) {
    const char *const host = getenv("NCCL_HOSTID");
    return std::hash<std::string>{}((host != nullptr ? host : "this host") + std::string(" ") + bus_id(device)) | 1;
}

ncclResult_t find_duplicate(Comm &comm) {
    Board &board = comm.meeting->board();
    for (int other = 0; other < comm.size; other++) {
        if (other != comm.rank && board.identities[other] == board.identities[comm.rank]) {
            return comm.fail(ncclInvalidUsage, "duplicate GPU: rank " + std::to_string(comm.rank) + " and rank " +
                                                   std::to_string(other) + " both on " + bus_id(comm.device));
        }
    }
    return ncclSuccess;
}

CommPointer comm_create(const std::string &name, int rank, int size, int device, bool is_blocking) {
    auto comm = std::make_shared<Comm>();
    comm->name = name;
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    comm->is_blocking = is_blocking;
    comm->meeting.reset(Meeting::create(name, rank, size));
    return comm->meeting ? comm : nullptr;
}

ncclComm_t handle_create(const CommPointer &comm) {
    auto *const handle = new ncclComm{comm};
    Guard guard(handles_lock);
    handles().insert(handle);
    count_object(1);
    return handle;
}

bool handle_destroy(ncclComm_t handle) {
    Guard guard(handles_lock);
    if (handles().erase(handle) == 0) {
        return false;
    }
    for (const Registration *registration : handle->comm->registrations) {
        delete registration;
    }
    handle->comm->registrations.clear();
    delete handle;
    count_object(-1);
    return true;
}

void join(Comm &comm) {
    Board &board = comm.meeting->board();
    board.identities[comm.rank] = identity(comm.device);
    board.joined++;
    comm.meeting->tell_all();
}

/* Waits for the others as often as it is called. It may not hold the communicator, which holds it. */
std::function<ncclResult_t()> meet(const CommPointer &comm, const Fault &fault) {
    Comm *const raw = comm.get();
    if (fault.is_set && fault.effect == SIMCUDA_FAILS_LATER) {
        return [fault] { return static_cast<ncclResult_t>(fault.result); };
    }
    if (fault.is_set && fault.effect == SIMCUDA_HANGS) {
        return [] { return ncclInProgress; };
    }
    join(*raw);
    return [raw] { return raw->meeting->is_complete() ? find_duplicate(*raw) : ncclInProgress; };
}

/* The handle is there at once, so that a non-blocking communicator can be aborted before it is complete. */
ncclResult_t begin(const CommPointer &comm, const Fault &fault, ncclComm_t *handle) {
    if (!comm) {
        return ncclSystemError;
    }
    *handle = handle_create(comm);
    const ncclResult_t result = start_progress(comm, meet(comm, fault));
    if (result != ncclSuccess && result != ncclInProgress) {
        thread_error = comm->last_error;
        handle_destroy(*handle);
        *handle = nullptr;
    }
    return result;
}

bool is_valid(const ncclConfig_t *config) {
    return config == nullptr || config->magic == 0xcafebeef;
}

bool blocks(const ncclConfig_t *config, bool otherwise) {
    if (config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT) {
        return otherwise;
    }
    return config->blocking != 0;
}

/* Until all that was enqueued has run, or has to end. */
void wait_until_quiet(Comm &comm) {
    while (!comm.has_to_end() && (comm.completed != comm.issued || is_in_progress(comm))) {
        const uint32_t seen = comm.meeting->news();
        poll_progress(comm);
        host_looks();
        if (comm.completed != comm.issued) {
            comm.meeting->wait_for_news(seen);
        }
    }
}

/* Ends what runs on the communicator. */
void stop(Comm &comm) {
    comm.meeting->tell(comm.rank);
    while (comm.running > 0) {
        comm.meeting->wait_for_news(comm.meeting->news());
    }
}

/* The wishes of all ranks for the split, once they are there. */
bool read_wishes(Comm &comm, uint32_t generation, std::vector<std::pair<int, int>> *same_color, int color) {
    same_color->clear();
    for (int rank = 0; rank < comm.size; rank++) {
        const SplitWish &wish = comm.meeting->board().wishes[generation % 2][rank];
        if (wish.generation != generation) {
            return false;
        }
        if (wish.color == color) {
            same_color->push_back({wish.key, rank});
        }
    }
    std::sort(same_color->begin(), same_color->end());
    return true;
}

void post_wish(Comm &comm, uint32_t generation, int color, int key) {
    SplitWish &wish = comm.meeting->board().wishes[generation % 2][comm.rank];
    wish.color = color;
    wish.key = key;
    wish.generation = generation;
    comm.meeting->tell_all();
}

/* Blocking even where the communicator is not, since the child's size follows from what the others wish. */
bool wait_for_wishes(Comm &comm, uint32_t generation, std::vector<std::pair<int, int>> *same_color, int color) {
    while (!comm.has_to_end()) {
        const uint32_t seen = comm.meeting->news();
        if (read_wishes(comm, generation, same_color, color)) {
            return true;
        }
        comm.meeting->wait_for_news(seen);
    }
    return false;
}

std::string child_name(const Comm &parent, const char *how, uint32_t generation, size_t color) {
    return "/simcuda-" + std::to_string(std::hash<std::string>{}(parent.name)) + "-" + how +
           std::to_string(generation) + "-" + std::to_string(color);
}

} // namespace

bool Comm::has_to_end() {
    const auto everybody = static_cast<int>(meeting->board().has_failed.load());
    if (everybody != ncclSuccess) {
        int none = ncclSuccess;
        error.compare_exchange_strong(none, everybody);
    }
    return is_aborted || is_revoked || error != ncclSuccess;
}

ncclResult_t Comm::fail(ncclResult_t result, const std::string &why) {
    int none = ncclSuccess;
    error.compare_exchange_strong(none, result);
    Guard guard(lock);
    last_error = last_error.empty() ? why : last_error;
    return result;
}

ncclResult_t NcclCall::refusal() const {
    const auto result = static_cast<ncclResult_t>(fault_.result);
    thread_error = words_of(result, "");
    return result;
}

std::string words_of(ncclResult_t result, const std::string &otherwise) {
    return result == ncclUnhandledCudaError ? "Cuda failure 2 'out of memory'" : otherwise;
}

CommPointer comm_find(ncclComm_t handle) {
    Guard guard(handles_lock);
    return handles().count(handle) > 0 ? handle->comm : nullptr;
}

void nccl_memory_destroyed(const void *start, size_t bytes, const char *name) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(start);
    Guard guard(handles_lock);
    for (const ncclComm_t handle : handles()) {
        Guard comm_guard(handle->comm->lock);
        for (const Registration *registration : handle->comm->registrations) {
            const uintptr_t other = reinterpret_cast<uintptr_t>(registration->start);
            if (other < first + bytes && first < other + registration->bytes) {
                report_add(SIMCUDA_REGISTERED, {"ncclCommRegister", ""}, {name, ""},
                           std::string(name) + " of memory that a communicator has registered");
            }
        }
    }
}

} // namespace simcuda

using namespace simcuda;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    Quiet quiet;
    const NcclCall call(__func__, thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    /* As NCCL: everybody who is told an address has the id of it. */
    const char *const address = getenv("NCCL_COMM_ID");
    if (address != nullptr) {
        memset(id, 0, sizeof *id);
        snprintf(id->internal, sizeof id->internal, "/simcuda-at-%s", address);
        return ncclSuccess;
    }
    static std::atomic<unsigned> count{0};
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/simcuda-%ld-%u-%lld%09ld", static_cast<long>(getpid()), count++,
             static_cast<long long>(now.tv_sec), now.tv_nsec);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *handle, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    Quiet quiet;
    const NcclCall call(__func__, rank);
    *handle = nullptr;
    if (call.is_refused()) {
        return call.refusal();
    }
    if (size < 1 || size > ranks_max || rank < 0 || rank >= size || !is_valid(config) || id.internal[0] != '/') {
        return ncclInvalidArgument;
    }
    if (settings().device_count == 0) {
        return ncclUnhandledCudaError;
    }
    return begin(comm_create(id.internal, rank, size, current_device(), blocks(config, true)), call.fault(), handle);
}

ncclResult_t ncclCommInitRank(ncclComm_t *handle, int size, ncclUniqueId id, int rank) {
    Quiet quiet;
    const NcclCall call(__func__, rank);
    return call.is_refused() ? call.refusal() : ncclCommInitRankConfig(handle, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *child, ncclConfig_t *config) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    *child = nullptr;
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm || !is_valid(config) || is_in_progress(*comm)) {
        return ncclInvalidArgument;
    }
    const uint32_t generation = ++comm->children;
    post_wish(*comm, generation, color, key);
    std::vector<std::pair<int, int>> members;
    if (!wait_for_wishes(*comm, generation, &members, color)) {
        return ncclRemoteError;
    }
    if (color == NCCL_SPLIT_NOCOLOR) {
        return ncclSuccess;
    }
    const auto me = std::find(members.begin(), members.end(), std::make_pair(key, comm->rank));
    return begin(comm_create(child_name(*comm, "split", generation, static_cast<size_t>(color)),
                             static_cast<int>(me - members.begin()), static_cast<int>(members.size()), comm->device,
                             blocks(config, comm->is_blocking)),
                 call.fault(), child);
}

ncclResult_t ncclCommShrink(ncclComm_t handle, int *excluded, int excluded_count, ncclComm_t *child,
                            ncclConfig_t *config, int flags) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    *child = nullptr;
    if (call.is_refused()) {
        return call.refusal();
    }
    const std::set<int> gone(excluded, excluded + excluded_count);
    if (!comm || !is_valid(config) || gone.count(comm->rank) > 0 || gone.empty()) {
        return ncclInvalidArgument;
    }
    if ((flags & NCCL_SHRINK_ABORT) != 0) {
        comm->is_revoked = true;
        stop(*comm);
    } else if (is_in_progress(*comm)) {
        return ncclInvalidArgument;
    }
    std::string list;
    for (const int rank : gone) {
        list += std::to_string(rank) + ",";
    }
    const auto before = std::distance(gone.begin(), gone.lower_bound(comm->rank));
    return begin(comm_create(child_name(*comm, "shrink", ++comm->children, std::hash<std::string>{}(list)),
                             comm->rank - static_cast<int>(before), comm->size - static_cast<int>(gone.size()),
                             comm->device, blocks(config, comm->is_blocking)),
                 call.fault(), child);
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm || comm->is_finalized || comm->is_revoked) {
        return comm ? ncclInvalidUsage : ncclInvalidArgument;
    }
    comm->is_finalized = true;
    if (comm->is_blocking) {
        wait_until_quiet(*comm);
        return static_cast<ncclResult_t>(comm->error.load());
    }
    Comm *const raw = comm.get();
    return start_progress(
        comm, [raw] { return raw->has_to_end() || raw->completed == raw->issued ? ncclSuccess : ncclInProgress; });
}

/* Like real NCCL it waits for what was enqueued; only ncclCommAbort does not. */
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm) {
        return ncclInvalidArgument;
    }
    wait_until_quiet(*comm);
    handle_destroy(handle);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm) {
        return ncclInvalidArgument;
    }
    comm->is_aborted = true;
    {
        Guard guard(comm->lock);
        comm->progress = nullptr;
    }
    if (settings().peers_notice) {
        comm->meeting->board().has_failed = ncclRemoteError;
        comm->meeting->tell_all();
    }
    stop(*comm);
    if (settings().abort_waits_for_device) {
        device_synchronise(comm->device);
    }
    handle_destroy(handle);
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm || flags != 0) {
        return ncclInvalidArgument;
    }
    comm->is_revoked = true;
    stop(*comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *error) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    const NcclCall call(__func__, comm ? comm->rank : thread_rank());
    if (call.is_refused()) {
        return call.refusal();
    }
    if (!comm) {
        return ncclInvalidArgument;
    }
    host_looks();
    const ncclResult_t result = poll_progress(*comm);
    comm->has_to_end();
    *error = result == ncclInProgress ? result : static_cast<ncclResult_t>(comm->error.load());
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t handle) {
    Quiet quiet;
    const CommPointer comm = comm_find(handle);
    if (comm) {
        Guard guard(comm->lock);
        thread_error = comm->last_error.empty() ? thread_error : comm->last_error;
    }
    return thread_error.c_str();
}

} // extern "C"
