/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_COMM_H
#define NCCL_COMM_H

/* Communicators, what is enqueued on them, and groups. */

#include "control.h"
#include "nccl_board.h"
#include "stream.h"

#include <functional>
#include <memory>
#include <nccl.h>
#include <string>
#include <vector>

namespace simcuda {

/* A pre-multiplied sum that a communicator knows. */
struct Premultiplied {
    bool exists;
    ncclDataType_t type;
    double factor;
    const void *on_device; /* null: the factor is known */
};

struct Registration {
    const void *start;
    size_t bytes;
};

/* Lives as long as its handle or anything enqueued on it. */
struct Comm {
    int rank = 0;
    int size = 1;
    int device = 0;
    std::string name;
    bool is_blocking = true;
    std::unique_ptr<Meeting> meeting;

    std::atomic<int> error{ncclSuccess};
    std::atomic<bool> is_aborted{false};
    std::atomic<bool> is_revoked{false};
    std::atomic<uint64_t> issued{0};
    std::atomic<uint64_t> completed{0};
    std::atomic<unsigned> running{0};

    Lock lock; /* of what follows */
    bool is_finalized = false;
    unsigned polls_left = 0;
    /* Tries to come further: ncclInProgress as long as it has not. Null: nothing is in progress. */
    std::function<ncclResult_t()> progress;
    bool is_polled = false;
    long progress_thread = 0;
    uint32_t children = 0;
    std::vector<Premultiplied> ops;
    std::vector<Registration *> registrations;
    std::string last_error;

    /* Whether what runs on it has to end, and why. */
    bool has_to_end();
    ncclResult_t fail(ncclResult_t result, const std::string &why);
};
using CommPointer = std::shared_ptr<Comm>;

/* Null where there is none, or none any more. */
CommPointer comm_find(ncclComm_t handle);

/* Like Call, for calls with a communicator's rank. */
/* What NCCL says of a failure that was asked for. One in CUDA is a lack of memory, as it mostly is. */
std::string words_of(ncclResult_t result, const std::string &otherwise);

class NcclCall {
  public:
    NcclCall(const char *name, int rank) : fault_(count_call(name, rank)) {
    }
    bool is_refused() const {
        return fault_.is_set && fault_.effect == SIMCUDA_RETURNS;
    }
    ncclResult_t refusal() const;
    const Fault &fault() const {
        return fault_;
    }

  private:
    Fault fault_;
};

enum class Kind : uint32_t { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send, receive };

struct Step {
    Kind kind;
    const char *name;
    const char *from;
    char *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or root */
    Premultiplied premultiplied;
    Fault fault;
};

/* Does what the steps say, on the stream's worker. */
void run_steps(Comm &comm, uint64_t turn, const std::vector<Step> &steps, CUstream_st &stream);
/* The memory that a step touches. */
std::vector<Access> accesses_of(const Comm &comm, const Step &step);

/* Enqueues now, or at the end of the thread's group; with a non-blocking communicator somewhat later. */
ncclResult_t enqueue_step(const CommPointer &comm, const Step &step, cudaStream_t stream);

/* Does what takes several attempts: now, at the end of the thread's group, or in a non-blocking communicator bit by bit
 * when its state is asked for. */
ncclResult_t start_progress(const CommPointer &comm, std::function<ncclResult_t()> progress);
/* One attempt, once the state has been asked for often enough. */
ncclResult_t poll_progress(Comm &comm);
bool is_in_progress(Comm &comm);
bool is_in_group();

} // namespace simcuda

struct ncclComm {
    simcuda::CommPointer comm;
};

#endif
