/* SPDX-License-Identifier: Apache-2.0 */

/* CUDA's entry points for streams, events and what runs on streams. */

#include "control.h"
#include "nccl_pending.h"
#include "stream.h"

#include <atomic>
#include <memory>
#include <set>
#include <utility>
#include <vector>

using namespace simcuda;

namespace {

constexpr int priority_least = 0;
constexpr int priority_greatest = -5;

Lock events_lock;

std::set<cudaEvent_t> &events() {
    static auto *const events = new std::set<cudaEvent_t>;
    return *events;
}

/* The event's latest record: null if there is none. False if there is no such event. */
bool latest(cudaEvent_t event, RecordPointer *record) {
    Guard guard(events_lock);
    if (events().count(event) == 0) {
        return false;
    }
    *record = event->latest;
    return true;
}

cudaError_t is_capturing(cudaStream_t stream, bool *answer) {
    return stream_visit(stream, [&](const CUstream_st &asked) {
        *answer = asked.is_capturing;
        return cudaSuccess;
    });
}

thread_local cudaStreamCaptureMode thread_capture_mode = cudaStreamCaptureModeGlobal;
std::atomic<int> global_captures{0};
std::atomic<bool> is_capture_broken{false};

cudaError_t begin_capturing(cudaStream_t stream, bool globally) {
    return stream_visit(stream, [&](CUstream_st &asked) {
        if (asked.is_capturing) {
            return cudaErrorIllegalState;
        }
        asked.is_capturing = true;
        asked.captures_globally = globally;
        global_captures += globally ? 1 : 0;
        return cudaSuccess;
    });
}

cudaError_t end_capturing(cudaStream_t stream) {
    return stream_visit(stream, [&](CUstream_st &asked) {
        if (!asked.is_capturing) {
            return cudaErrorIllegalState;
        }
        asked.is_capturing = false;
        if (!asked.captures_globally) {
            return cudaSuccess;
        }
        const bool is_broken = is_capture_broken;
        if (--global_captures == 0) {
            is_capture_broken = false;
        }
        return is_broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    });
}

/* What may not be called while somebody captures in the global mode, unless the thread has said that it is apart. */
bool breaks_a_capture() {
    if (global_captures == 0 || thread_capture_mode == cudaStreamCaptureModeRelaxed) {
        return false;
    }
    is_capture_broken = true;
    return true;
}

/* A record behind all that is on the stream, for calls in which the host waits or looks. */
cudaError_t record_for_host(cudaStream_t stream, RecordPointer *record) {
    nccl_enqueue_pending();
    bool answer = false;
    const cudaError_t error = is_capturing(stream, &answer);
    if (error != cudaSuccess) {
        return error;
    }
    if (answer) {
        return cudaErrorStreamCaptureUnsupported;
    }
    return stream_record(stream, record);
}

} // namespace

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    SIMCUDA_CALL(call);
    *least = priority_least;
    *greatest = priority_greatest;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    SIMCUDA_CALL(call);
    if ((flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) {
        return call.ends(cudaErrorInvalidValue);
    }
    const int clamped = priority < priority_greatest ? priority_greatest : priority;
    count_object(1);
    return stream_create(current_device(), flags != cudaStreamNonBlocking,
                         clamped > priority_least ? priority_least : clamped, stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    SIMCUDA_CALL(call);
    return cudaStreamCreateWithPriority(stream, flags, priority_least);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    SIMCUDA_CALL(call);
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, priority_least);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    SIMCUDA_CALL(call);
    const cudaError_t error = stream_destroy(stream);
    count_object(error == cudaSuccess ? -1 : 0);
    return call.ends(error);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    SIMCUDA_CALL(call);
    return call.ends(stream_visit(stream, [&](const CUstream_st &asked) {
        *priority = asked.priority;
        return cudaSuccess;
    }));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    SIMCUDA_CALL(call);
    return call.ends(stream_visit(stream, [&](const CUstream_st &asked) {
        *flags = asked.is_blocking ? cudaStreamDefault : cudaStreamNonBlocking;
        return cudaSuccess;
    }));
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    SIMCUDA_CALL(call);
    return call.ends(stream_visit(stream, [&](const CUstream_st &asked) {
        *device = asked.device;
        return cudaSuccess;
    }));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    SIMCUDA_CALL(call);
    RecordPointer record;
    const cudaError_t error = record_for_host(stream, &record);
    if (error != cudaSuccess) {
        return call.ends(error);
    }
    count_host_synchronisation();
    host_wait(record);
    return call.ends(device_error(current_device()));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    SIMCUDA_CALL(call);
    nccl_enqueue_pending();
    const cudaError_t error = host_query_stream(stream);
    return call.ends(error == cudaSuccess ? device_error(current_device()) : error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    SIMCUDA_CALL(call);
    bool answer = false;
    const cudaError_t error = is_capturing(stream, &answer);
    *status = answer ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return call.ends(error);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    SIMCUDA_CALL(call);
    std::swap(*mode, thread_capture_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    SIMCUDA_CALL(call);
    return call.ends(begin_capturing(stream, mode == cudaStreamCaptureModeGlobal));
}

/* The graph is empty: what was captured is not kept. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    SIMCUDA_CALL(call);
    *graph = nullptr;
    return call.ends(end_capturing(stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t) {
    SIMCUDA_CALL(call);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    SIMCUDA_CALL(call);
    nccl_enqueue_pending();
    device_synchronise(current_device());
    return call.ends(device_error(current_device()));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    SIMCUDA_CALL(call);
    count_object(1);
    Guard guard(events_lock);
    *event = new CUevent_st;
    (*event)->has_time = (flags & cudaEventDisableTiming) == 0;
    events().insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    SIMCUDA_CALL(call);
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    SIMCUDA_CALL(call);
    Guard guard(events_lock);
    if (events().erase(event) == 0) {
        return call.ends(cudaErrorInvalidResourceHandle);
    }
    delete event;
    count_object(-1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    SIMCUDA_CALL(call);
    if (is_dropped(__func__, __builtin_return_address(0))) {
        return cudaSuccess;
    }
    RecordPointer record;
    if (!latest(event, &record)) {
        return call.ends(cudaErrorInvalidResourceHandle);
    }
    RecordPointer made;
    const cudaError_t error = stream_record(stream, &made);
    if (error == cudaSuccess) {
        Guard guard(events_lock);
        event->latest = made;
    }
    return call.ends(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    SIMCUDA_CALL(call);
    if (is_dropped(__func__, __builtin_return_address(0))) {
        return cudaSuccess;
    }
    RecordPointer record;
    if (!latest(event, &record)) {
        return call.ends(cudaErrorInvalidResourceHandle);
    }
    return call.ends(stream_wait(stream, record));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    SIMCUDA_CALL(call);
    if (breaks_a_capture()) {
        return call.ends(cudaErrorStreamCaptureUnsupported);
    }
    RecordPointer record;
    if (!latest(event, &record)) {
        return call.ends(cudaErrorInvalidResourceHandle);
    }
    if (record && !host_query(record)) {
        return cudaErrorNotReady;
    }
    return call.ends(device_error(current_device()));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    SIMCUDA_CALL(call);
    nccl_enqueue_pending();
    RecordPointer record;
    if (!latest(event, &record)) {
        return call.ends(cudaErrorInvalidResourceHandle);
    }
    count_host_synchronisation();
    if (record) {
        host_wait(record);
    }
    return call.ends(device_error(current_device()));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    SIMCUDA_CALL(call);
    RecordPointer from;
    RecordPointer to;
    if (!latest(start, &from) || !latest(end, &to) || !from || !to || !start->has_time || !end->has_time) {
        return call.ends(cudaErrorInvalidResourceHandle);
    }
    double from_ms = 0;
    double to_ms = 0;
    if (!record_time(from, &from_ms) || !record_time(to, &to_ms)) {
        return cudaErrorNotReady;
    }
    *ms = static_cast<float>(to_ms - from_ms);
    return call.ends(device_error(current_device()));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
    SIMCUDA_CALL(call);
    auto operation = operation_create(__func__, [function, argument](CUstream_st &on) {
        host_learns(on);
        Loud loud;
        function(argument);
    });
    operation->fault = call.fault();
    return call.ends(stream_submit(stream, std::move(operation)));
}

cudaError_t simcuda_launch(cudaStream_t stream, simcuda_function function, const void *arguments, size_t argument_bytes,
                           const char *name, const simcuda_access *accesses, size_t access_count) {
    SIMCUDA_CALL(call);
    count_launch(name);
    const auto *const first = static_cast<const char *>(arguments);
    const auto copy = std::make_shared<std::vector<char>>(first, first + argument_bytes);
    auto operation = operation_create(intern(name), [function, copy](CUstream_st &) {
        Loud loud;
        function(copy->data());
    });
    for (size_t i = 0; i < access_count; i++) {
        operation->accesses.push_back({accesses[i].start, accesses[i].bytes, accesses[i].is_write != 0});
    }
    operation->is_kernel = true;
    operation->fault = call.fault();
    const cudaError_t before = device_error(current_device()); /* not what this one will do */
    return call.ends(before != cudaSuccess ? before : stream_submit(stream, std::move(operation)));
}

void simcuda_host_access(const void *start, size_t bytes, int is_write, const char *name) {
    Quiet quiet;
    host_access({start, bytes, is_write != 0}, name);
}

} // extern "C"
