/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "device_memory.h"
#include "scheduler.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <pthread.h>

namespace simcuda {

Lock monitor;

namespace {

/* In a seeded schedule, after so long without a call of the host, operations run anyway. Long, since a host that a busy
 * machine does not let run would otherwise change the order. */
constexpr unsigned idle_us = 100000;
constexpr unsigned long_us = 1000000;

/* Never destroyed, as everything that workers use. */
VectorClock &host() {
    static auto *const clock = new VectorClock;
    return *clock;
}

cudaError_t device_errors[max_devices];

void check_accesses(const CUstream_st &stream, const Operation &operation) {
    for (const Access &access : operation.accesses) {
        history_check(access, stream.actor, stream.clock, operation.name);
    }
}

void run(CUstream_st &stream, Operation &operation) {
    operation.edge.acquire();
    if (operation.waits_for) {
        operation.waits_for->edge.acquire();
    }
    if (stream.delay_us > 0) {
        const timespec delay = {static_cast<time_t>(stream.delay_us / 1000000), (stream.delay_us % 1000000) * 1000L};
        nanosleep(&delay, nullptr);
    }
    if (operation.fault.is_set && operation.fault.effect == SIMCUDA_FAILS_LATER) {
        device_fail(stream.device, static_cast<cudaError_t>(operation.fault.result));
        return;
    }
    if (operation.accesses.empty() && !operation.is_kernel) {
        operation.run(stream);
        return;
    }
    check_accesses(stream, operation);
    const std::string name = stream_name(stream);
    memory_open(operation.accesses, operation.name, name);
    operation.run(stream);
    memory_close();
}

void learn(CUstream_st &stream, const Operation &operation) {
    stream.clock.join(operation.clock);
    if (operation.waits_for) {
        stream.clock.join(operation.waits_for->clock);
    }
    stream.clock.tick(stream.actor);
}

/* Returns without the monitor. */
void worker_ends(CUstream_st *stream) {
    auto &streams = all_streams();
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    actor_destroy(stream->actor, stream->clock);
    delete stream;
    wake_hosts();
    monitor.unlock();
}

/* Returns with the monitor and something to run, or, if there will be nothing any more, with false. */
bool wait_for_work(CUstream_st &stream) {
    while (!scheduler_may_start(stream)) {
        if (stream.has_quit && stream.queue.empty()) {
            return false;
        }
        const uint64_t calls = scheduler.calls;
        const uint64_t starts = scheduler.starts;
        const bool is_seeded = scheduler.seed != 0;
        const bool was_long = sleep_as_worker(stream, is_seeded ? idle_us : long_us);
        if (is_seeded && was_long && calls == scheduler.calls && starts == scheduler.starts) {
            scheduler.is_left_alone = true;
            wake_workers();
        }
    }
    return true;
}

void *worker(void *argument) {
    auto *const stream = static_cast<CUstream_st *>(argument);
    Quiet quiet;
    monitor.lock();
    while (wait_for_work(*stream)) {
        Operation &operation = *stream->queue.front();
        scheduler_starts(*stream);
        learn(*stream, operation);
        monitor.unlock();
        run(*stream, operation);
        stream->finished_edge.release();
        monitor.lock();
        OperationPointer done = std::move(stream->queue.front());
        stream->queue.pop_front();
        scheduler_finishes(*stream);
        wake_workers();
        wake_hosts();
        monitor.unlock();
        done.reset();
        monitor.lock();
    }
    worker_ends(stream);
    return nullptr;
}

double now_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

/* With the monitor, as all that follows here. */
void push(CUstream_st &stream, OperationPointer operation) {
    static uint64_t tickets = 0;
    operation->ticket = tickets++;
    operation->clock = host();
    operation->edge.release();
    stream.queue.push_back(std::move(operation));
}

RecordPointer push_record(CUstream_st &stream) {
    const auto record = std::make_shared<Record>();
    push(stream, operation_create("cudaEventRecord", [record](CUstream_st &on) {
             record->edge.release();
             Guard guard(monitor);
             record->clock = on.clock;
             record->time_ms = now_ms();
             record->is_done = true;
         }));
    return record;
}

void push_wait(CUstream_st &stream, const RecordPointer &record) {
    auto operation = operation_create("cudaStreamWaitEvent", [](CUstream_st &) {});
    operation->waits_for = record;
    push(stream, std::move(operation));
}

CUstream_st *create(int device, bool is_blocking, int priority) {
    static unsigned numbers[max_devices];
    auto *const stream = new CUstream_st;
    stream->device = device;
    stream->number = numbers[device]++;
    stream->is_blocking = is_blocking;
    stream->priority = priority;
    stream->actor = actor_create("stream " + std::to_string(stream->number) + " of device " + std::to_string(device),
                                 &stream->clock);
    all_streams().push_back(stream);
    pthread_t thread;
    pthread_create(&thread, nullptr, worker, stream);
    pthread_detach(thread); /* joining would be an edge that cudaStreamDestroy does not promise */
    return stream;
}

CUstream_st *default_streams[max_devices];
thread_local CUstream_st *thread_streams[max_devices];

CUstream_st *default_stream(CUstream_st **slot, const char *name) {
    if (*slot == nullptr) {
        *slot = create(current_device(), slot != &default_streams[current_device()], 0);
        actor_rename((*slot)->actor, name + std::string(" of device ") + std::to_string(current_device()));
    }
    return *slot;
}

/* The stream behind a handle, null if there is none. */
CUstream_st *resolve(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) {
        count_default_stream();
        return default_stream(&default_streams[current_device()], "the legacy default stream");
    }
    if (handle == cudaStreamPerThread) {
        count_default_stream();
        return default_stream(&thread_streams[current_device()], "a thread's default stream");
    }
    const auto &streams = all_streams();
    const auto found = std::find(streams.begin(), streams.end(), handle);
    return found != streams.end() && !(*found)->has_quit ? *found : nullptr;
}

bool is_legacy(const CUstream_st *stream) {
    return stream == default_streams[stream->device];
}

/* The legacy default stream waits for the device's blocking streams ... */
void wait_for_blocking(CUstream_st &legacy) {
    for (CUstream_st *other : all_streams()) {
        if (other->device == legacy.device && other->is_blocking && !other->has_quit) {
            push_wait(legacy, push_record(*other));
        }
    }
}

/* ... and they for it. */
void let_blocking_wait(CUstream_st &legacy) {
    const RecordPointer record = push_record(legacy);
    for (CUstream_st *other : all_streams()) {
        if (other->device == legacy.device && other->is_blocking && !other->has_quit) {
            push_wait(*other, record);
        }
    }
}

cudaError_t submit(cudaStream_t handle, const std::function<void(CUstream_st &)> &enqueue) {
    {
        Guard guard(monitor);
        CUstream_st *const stream = resolve(handle);
        if (stream == nullptr) {
            return cudaErrorInvalidResourceHandle;
        }
        if (stream->is_capturing) {
            return cudaSuccess; /* captured, that is: not run */
        }
        host().tick(host_actor);
        if (is_legacy(stream)) {
            wait_for_blocking(*stream);
        }
        enqueue(*stream);
        if (is_legacy(stream)) {
            let_blocking_wait(*stream);
        }
        wake_workers();
    }
    scheduler_pace();
    return cudaSuccess;
}

} // namespace

OperationPointer operation_create(const char *name, std::function<void(CUstream_st &)> run) {
    OperationPointer operation(new Operation);
    operation->name = name;
    operation->run = std::move(run);
    return operation;
}

cudaError_t stream_submit(cudaStream_t handle, OperationPointer operation) {
    return submit(handle, [&](CUstream_st &stream) { push(stream, std::move(operation)); });
}

cudaError_t stream_record(cudaStream_t handle, RecordPointer *record) {
    return submit(handle, [&](CUstream_st &stream) { *record = push_record(stream); });
}

cudaError_t stream_wait(cudaStream_t handle, RecordPointer record) {
    return submit(handle, [&](CUstream_st &stream) {
        if (record) {
            push_wait(stream, record);
        }
    });
}

void host_wait(const RecordPointer &record) {
    Guard guard(monitor);
    scheduler.awaited.push_back(record);
    wake_workers();
    while (!record->is_done) {
        sleep_as_host(long_us);
    }
    scheduler.awaited.erase(std::find(scheduler.awaited.begin(), scheduler.awaited.end(), record));
    host().join(record->clock);
    record->edge.acquire();
}

cudaError_t host_query_stream(cudaStream_t handle) {
    scheduler_pace_query();
    Guard guard(monitor);
    CUstream_st *const stream = resolve(handle);
    if (stream == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    if (stream->is_capturing) {
        return cudaErrorStreamCaptureUnsupported;
    }
    if (!stream->queue.empty()) {
        return cudaErrorNotReady;
    }
    host().join(stream->clock);
    stream->finished_edge.acquire();
    return cudaSuccess;
}

void host_looks() {
    scheduler_pace_query();
}

bool host_query(const RecordPointer &record) {
    scheduler_pace_query();
    Guard guard(monitor);
    if (!record->is_done) {
        return false;
    }
    host().join(record->clock);
    record->edge.acquire();
    return true;
}

bool record_time(const RecordPointer &record, double *ms) {
    Guard guard(monitor);
    *ms = record->time_ms;
    return record->is_done;
}

void device_synchronise(int device) {
    count_host_synchronisation();
    std::vector<RecordPointer> records;
    {
        Guard guard(monitor);
        for (CUstream_st *stream : all_streams()) {
            if (stream->device == device && !stream->is_capturing) {
                records.push_back(push_record(*stream));
            }
        }
        wake_workers();
    }
    for (const RecordPointer &record : records) {
        host_wait(record);
    }
}

void host_access(const Access &access, const char *name) {
    Guard guard(monitor);
    host().tick(host_actor);
    history_check(access, host_actor, host(), intern(name));
}

void device_fail(int device, cudaError_t error) {
    Guard guard(monitor);
    if (device_errors[device] == cudaSuccess) {
        device_errors[device] = error;
    }
}

cudaError_t device_error(int device) {
    Guard guard(monitor);
    return device_errors[device];
}

void operation_lets_go(CUstream_st &stream) {
    Guard guard(monitor);
    if (scheduler.running == &stream) {
        scheduler.running = nullptr;
        wake_workers();
        wake_hosts();
    }
}

void host_learns(const CUstream_st &stream) {
    Guard guard(monitor);
    host().join(stream.clock);
}

cudaError_t stream_create(int device, bool is_blocking, int priority, cudaStream_t *handle) {
    Guard guard(monitor);
    *handle = create(device, is_blocking, priority);
    return cudaSuccess;
}

cudaError_t stream_destroy(cudaStream_t handle) {
    Guard guard(monitor);
    CUstream_st *const stream = resolve(handle);
    if (stream == nullptr || is_legacy(stream)) {
        return cudaErrorInvalidResourceHandle;
    }
    stream->has_quit = true;
    wake_workers();
    return cudaSuccess;
}

cudaError_t stream_visit(cudaStream_t handle, const std::function<cudaError_t(CUstream_st &)> &visit) {
    Guard guard(monitor);
    CUstream_st *const stream = resolve(handle);
    const cudaError_t error = stream != nullptr ? visit(*stream) : cudaErrorInvalidResourceHandle;
    wake_workers();
    return error;
}

std::string stream_name(const CUstream_st &stream) {
    return actor_name(stream.actor);
}

void streams_reset() {
    simcuda_wait_idle();
    Guard guard(monitor);
    for (cudaError_t &error : device_errors) {
        error = cudaSuccess;
    }
    const char *const seed = getenv("SIMCUDA_SEED");
    scheduler.seed = seed != nullptr ? strtoull(seed, nullptr, 0) : 0;
    scheduler.calls = scheduler.credits = 0;
    scheduler.is_left_alone = false;
    scheduler.one_kernel_at_a_time = false;
    history_forget_all();
}

} // namespace simcuda

using namespace simcuda;

extern "C" {

void simcuda_wait_idle(void) {
    Quiet quiet;
    Guard guard(monitor);
    const auto leaves = [](const CUstream_st *stream) { return stream->has_quit && !stream->is_held; };
    const auto runs = [](const CUstream_st *stream) { return stream->is_running; };
    auto &streams = all_streams();
    while (scheduler_is_busy() || std::any_of(streams.begin(), streams.end(), leaves) ||
           std::any_of(streams.begin(), streams.end(), runs)) {
        scheduler.credits++;
        wake_workers();
        sleep_as_host(idle_us);
    }
    scheduler.credits = 0;
}

void simcuda_name(cudaStream_t stream, const char *name) {
    Quiet quiet;
    stream_visit(stream, [&](CUstream_st &named) {
        actor_rename(named.actor, name);
        return cudaSuccess;
    });
}

void simcuda_hold(cudaStream_t stream) {
    Quiet quiet;
    stream_visit(stream, [](CUstream_st &held) {
        held.is_held = true;
        return cudaSuccess;
    });
}

void simcuda_release(cudaStream_t stream) {
    Quiet quiet;
    stream_visit(stream, [](CUstream_st &held) {
        held.is_held = false;
        return cudaSuccess;
    });
}

void simcuda_delay(cudaStream_t stream, unsigned microseconds) {
    Quiet quiet;
    stream_visit(stream, [&](CUstream_st &delayed) {
        delayed.delay_us = microseconds;
        return cudaSuccess;
    });
}

} // extern "C"
