/* SPDX-License-Identifier: Apache-2.0 */
#include "invisible.h"

#include <cerrno>
#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of ThreadSanitizer's runtime, null in programs without it. */
extern "C" {
void __tsan_acquire(void *address) __attribute__((weak));
void __tsan_release(void *address) __attribute__((weak));
void __tsan_read_range(void *start, unsigned long bytes) __attribute__((weak));
void __tsan_write_range(void *start, unsigned long bytes) __attribute__((weak));
void AnnotateIgnoreReadsBegin(const char *file, int line) __attribute__((weak));
void AnnotateIgnoreReadsEnd(const char *file, int line) __attribute__((weak));
void AnnotateIgnoreWritesBegin(const char *file, int line) __attribute__((weak));
void AnnotateIgnoreWritesEnd(const char *file, int line) __attribute__((weak));
}

namespace simcuda {

static void ignore_begin() {
    if (AnnotateIgnoreReadsBegin != nullptr) {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
}

static void ignore_end() {
    if (AnnotateIgnoreReadsEnd != nullptr) {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
}

bool futex_wait(FutexWord &word, uint32_t seen, unsigned microseconds, bool is_shared) {
    const timespec limit = {static_cast<time_t>(microseconds / 1000000), (microseconds % 1000000) * 1000L};
    return syscall(SYS_futex, &word, is_shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0) != 0 &&
           errno == ETIMEDOUT;
}

void futex_wake_all(FutexWord &word, bool is_shared) {
    syscall(SYS_futex, &word, is_shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Lock::lock() {
    uint32_t free = 0;
    if (state_.compare_exchange_strong(free, 1)) {
        return;
    }
    while (state_.exchange(2) != 0) {
        futex_wait(state_, 2, 1000000, false);
    }
}

void Lock::unlock() {
    if (state_.exchange(0) == 2) {
        syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
}

void Edge::release() {
    if (__tsan_release != nullptr) {
        __tsan_release(&address_);
    }
}

void Edge::acquire() {
    if (__tsan_acquire != nullptr) {
        __tsan_acquire(&address_);
    }
}

Quiet::Quiet() {
    ignore_begin();
}

Quiet::~Quiet() {
    ignore_end();
}

Loud::Loud() {
    ignore_end();
}

Loud::~Loud() {
    ignore_begin();
}

void declare_access(const void *start, size_t bytes, bool is_write) {
    if (bytes == 0 || __tsan_read_range == nullptr) {
        return;
    }
    void *const address = const_cast<void *>(start);
    if (is_write) {
        __tsan_write_range(address, bytes);
    } else {
        __tsan_read_range(address, bytes);
    }
}

} // namespace simcuda
