/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

namespace simcuda {

Scheduler scheduler;

namespace {

FutexWord host_word{0};
unsigned sleeping_hosts = 0;

uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

/* By the seed and by what the operation is, not by when it became ready. */
uint64_t lot(const CUstream_st &stream) {
    const uint64_t place = (static_cast<uint64_t>(stream.device) << 48) ^ (static_cast<uint64_t>(stream.number) << 32);
    return mix(mix(scheduler.seed + UINT64_C(0x9E3779B97F4A7C15)) ^ mix(place ^ stream.finished));
}

bool has_ready_head(const CUstream_st &stream) {
    if (stream.queue.empty() || stream.is_running || stream.is_held) {
        return false;
    }
    const Operation &head = *stream.queue.front();
    return !head.waits_for || head.waits_for->is_done;
}

/* A device with room for one kernel takes them as they came. */
bool is_next_kernel(const CUstream_st &stream) {
    for (const CUstream_st *other : all_streams()) {
        if (other->device == stream.device && has_ready_head(*other) && other->queue.front()->is_kernel &&
            other->queue.front()->ticket < stream.queue.front()->ticket) {
            return false;
        }
    }
    return true;
}

const CUstream_st *chosen() {
    const CUstream_st *best = nullptr;
    for (const CUstream_st *stream : all_streams()) {
        if (scheduler_is_ready(*stream) && (best == nullptr || lot(*stream) < lot(*best))) {
            best = stream;
        }
    }
    return best;
}

bool is_awaited() {
    for (const RecordPointer &record : scheduler.awaited) {
        if (!record->is_done) {
            return true;
        }
    }
    return false;
}

void pace(uint64_t credits) {
    Guard guard(monitor);
    if (scheduler.seed == 0) {
        return;
    }
    scheduler.is_left_alone = false;
    scheduler.credits += credits;
    wake_workers();
    while (scheduler.credits > 0 && scheduler_is_busy()) {
        sleep_as_host(1000);
    }
    scheduler.credits = 0;
    /* What was started has finished, so that what the host does next does not depend on how fast it was. */
    while (scheduler.running != nullptr) {
        sleep_as_host(1000);
    }
}

} // namespace

std::vector<CUstream_st *> &all_streams() {
    static auto *const streams = new std::vector<CUstream_st *>;
    return *streams;
}

bool scheduler_is_ready(const CUstream_st &stream) {
    if (!has_ready_head(stream)) {
        return false;
    }
    const Operation &head = *stream.queue.front();
    return !scheduler.one_kernel_at_a_time || !head.is_kernel ||
           (scheduler.kernel_of[stream.device] == nullptr && (scheduler.seed != 0 || is_next_kernel(stream)));
}

bool scheduler_may_start(const CUstream_st &stream) {
    if (!scheduler_is_ready(stream)) {
        return false;
    }
    if (scheduler.seed == 0) {
        return true;
    }
    return scheduler.running == nullptr && (scheduler.credits > 0 || scheduler.is_left_alone || is_awaited()) &&
           chosen() == &stream;
}

void scheduler_starts(CUstream_st &stream) {
    stream.is_running = true;
    scheduler.starts++;
    if (stream.queue.front()->is_kernel) {
        scheduler.kernel_of[stream.device] = &stream;
    }
    if (scheduler.seed != 0) {
        scheduler.running = &stream;
        scheduler.credits -= scheduler.credits > 0 ? 1 : 0;
    }
}

void scheduler_finishes(CUstream_st &stream) {
    stream.is_running = false;
    stream.finished++;
    if (scheduler.running == &stream) {
        scheduler.running = nullptr;
    }
    if (scheduler.kernel_of[stream.device] == &stream) {
        scheduler.kernel_of[stream.device] = nullptr;
    }
}

bool scheduler_is_busy() {
    if (scheduler.running != nullptr) {
        return true;
    }
    for (const CUstream_st *stream : all_streams()) {
        if (scheduler_is_ready(*stream)) {
            return true;
        }
    }
    return false;
}

void wake_workers() {
    for (CUstream_st *stream : all_streams()) {
        if (stream->is_sleeping && (scheduler_may_start(*stream) || stream->has_quit)) {
            stream->is_sleeping = false;
            stream->word++;
            futex_wake_all(stream->word, false);
        }
    }
}

void wake_hosts() {
    host_word++;
    if (sleeping_hosts > 0) {
        futex_wake_all(host_word, false);
    }
}

bool sleep_as_worker(CUstream_st &stream, unsigned microseconds) {
    const uint32_t seen = stream.word;
    stream.is_sleeping = true;
    monitor.unlock();
    const bool was_long = futex_wait(stream.word, seen, microseconds, false);
    monitor.lock();
    stream.is_sleeping = false;
    return was_long;
}

void sleep_as_host(unsigned microseconds) {
    const uint32_t seen = host_word;
    sleeping_hosts++;
    monitor.unlock();
    futex_wait(host_word, seen, microseconds, false);
    monitor.lock();
    sleeping_hosts--;
}

void scheduler_pace() {
    uint64_t credits;
    {
        Guard guard(monitor);
        credits = mix(scheduler.seed ^ mix(scheduler.calls++)) % 3;
    }
    pace(credits);
}

void scheduler_pace_query() {
    pace(1);
}

} // namespace simcuda

using namespace simcuda;

extern "C" {

void simcuda_schedule(uint64_t seed) {
    Guard guard(monitor);
    scheduler.seed = seed;
    scheduler.calls = 0;
    scheduler.credits = 0;
    wake_workers();
}

void simcuda_one_kernel_at_a_time(int is_on) {
    Guard guard(monitor);
    scheduler.one_kernel_at_a_time = is_on != 0;
    wake_workers();
}

} // extern "C"
