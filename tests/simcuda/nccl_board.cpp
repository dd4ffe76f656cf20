/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace simcuda {

namespace {

constexpr size_t board_bytes = (sizeof(Board) + 63) / 64 * 64;

/* Short, since a rank's death may make no news. */
constexpr unsigned moment_us = 1000;

} // namespace

Meeting *Meeting::create(const std::string &name, int rank, int size) {
    const size_t bytes = board_bytes + sizeof(Mailbox) * static_cast<size_t>(size) * static_cast<size_t>(size);
    const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0) {
        return nullptr;
    }
    void *memory = MAP_FAILED;
    if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    close(file);
    return memory != MAP_FAILED ? new Meeting(name, rank, size, memory, bytes) : nullptr;
}

Meeting::Meeting(std::string name, int rank, int size, void *memory, size_t bytes)
    : name_(std::move(name)), rank_(rank), size_(size), bytes_(bytes), board_(static_cast<Board *>(memory)),
      mailboxes_(reinterpret_cast<Mailbox *>(static_cast<char *>(memory) + board_bytes)) {
}

Meeting::~Meeting() {
    if (!is_complete()) {
        shm_unlink(name_.c_str()); /* nobody else may meet a rank that has left */
    }
    munmap(board_, bytes_);
}

bool Meeting::is_complete() {
    if (board_->joined != static_cast<uint32_t>(size_)) {
        return false;
    }
    if (!is_forgotten_) {
        is_forgotten_ = true;
        shm_unlink(name_.c_str());
    }
    return true;
}

void Meeting::tell(int rank) {
    board_->words[rank]++;
    futex_wake_all(board_->words[rank], true);
}

void Meeting::tell_all() {
    for (int rank = 0; rank < size_; rank++) {
        tell(rank);
    }
}

uint32_t Meeting::news() {
    return board_->words[rank_];
}

void Meeting::wait_for_news(uint32_t seen) {
    futex_wait(board_->words[rank_], seen, moment_us, true);
}

} // namespace simcuda
