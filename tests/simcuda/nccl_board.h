/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_BOARD_H
#define NCCL_BOARD_H

/*
 * Where the ranks of a communicator meet: shared memory, found by the name in the unique id, the same for ranks that
 * are threads and ranks that are processes. From each rank to each other leads a mailbox for one piece of a message.
 */

#include "invisible.h"

#include <nccl.h>
#include <string>

namespace simcuda {

constexpr int ranks_max = 64;
constexpr size_t piece_bytes = 65536;

/* What a rank called; both ends of a message compare theirs. */
struct Signature {
    uint32_t call; /* a CollectiveKind */
    uint32_t type;
    uint32_t op;
    uint32_t root;
    uint64_t count;
};

struct Mailbox {
    FutexWord is_full;
    uint32_t bytes;
    Signature signature;
    char data[piece_bytes];
};

struct SplitWish {
    FutexWord generation;
    int color;
    int key;
};

/* New memory is zeroes, which is how all of it begins. */
struct Board {
    FutexWord joined;
    FutexWord has_failed;       /* the ncclResult_t that all ranks get; 0: none */
    FutexWord words[ranks_max]; /* changes when there is news for the rank */
    std::atomic<uint64_t> identities[ranks_max];
    SplitWish wishes[2][ranks_max]; /* of even and odd splits: a fast rank may be one ahead */
};

/* One rank's view. */
class Meeting {
  public:
    /* Null where there is no memory for it. */
    static Meeting *create(const std::string &name, int rank, int size);
    ~Meeting();
    Meeting(const Meeting &) = delete;
    Meeting &operator=(const Meeting &) = delete;

    Board &board() {
        return *board_;
    }
    Mailbox &mailbox(int from, int to) {
        return mailboxes_[from * size_ + to];
    }
    void tell(int rank);
    void tell_all();
    /* Waits a moment, or until there is news since `seen`. */
    uint32_t news();
    void wait_for_news(uint32_t seen);
    /* Whether all have come. The name is not needed any more then. */
    bool is_complete();

  private:
    Meeting(std::string name, int rank, int size, void *memory, size_t bytes);

    std::string name_;
    bool is_forgotten_ = false;
    int rank_;
    int size_;
    size_t bytes_;
    Board *board_;
    Mailbox *mailboxes_;
};

} // namespace simcuda

#endif
