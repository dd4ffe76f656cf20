/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INVISIBLE_H
#define INVISIBLE_H

/*
 * Locks, waits and edges. ThreadSanitizer must see those edges that CUDA promises and no others: an ordinary mutex
 * between a stream's worker and the host would hide most missing waits. So this library is never instrumented, locks
 * with futexes, which ThreadSanitizer does not intercept, and states CUDA's edges itself.
 */

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace simcuda {

using FutexWord = std::atomic<uint32_t>;

/* Sleeps while the word is what it was, at most so long: true if it was so long. A shared word lies in memory of
 * several processes. */
bool futex_wait(FutexWord &word, uint32_t seen, unsigned microseconds, bool is_shared);
void futex_wake_all(FutexWord &word, bool is_shared);

class Lock {
  public:
    void lock();
    void unlock();

  private:
    FutexWord state_{0}; /* 0 free, 1 taken, 2 taken and waited for */
};

class Guard {
  public:
    explicit Guard(Lock &lock) : lock_(lock) {
        lock_.lock();
    }
    ~Guard() {
        lock_.unlock();
    }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

  private:
    Lock &lock_;
};

/* One promise: whoever acquires comes after whoever released. One per operation, never one per stream: what is released
 * later to the same address would leak back to those who acquired for an earlier reason. */
class Edge {
  public:
    void release();
    void acquire();

  private:
    char address_ = 0;
};

/* ThreadSanitizer intercepts memcpy and free even here; in this scope it does not look. */
class Quiet {
  public:
    Quiet();
    ~Quiet();
    Quiet(const Quiet &) = delete;
    Quiet &operator=(const Quiet &) = delete;
};

/* The trainer's code inside a Quiet scope: ThreadSanitizer looks again. */
class Loud {
  public:
    Loud();
    ~Loud();
    Loud(const Loud &) = delete;
    Loud &operator=(const Loud &) = delete;
};

/* Tells ThreadSanitizer of an access that uninstrumented code makes for the trainer. */
void declare_access(const void *start, size_t bytes, bool is_write);

} // namespace simcuda

#endif
