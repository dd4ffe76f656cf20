/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STREAM_H
#define STREAM_H

/*
 * Streams are threads that run one operation after the other. All state here is guarded by `monitor`; what an operation
 * does, it does without it.
 */

#include "control.h"
#include "invisible.h"
#include "vector_clock.h"

#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace simcuda {

extern Lock monitor;

/* One record of an event; the event points at its latest. */
struct Record {
    bool is_done = false;
    double time_ms = 0; /* of this machine */
    VectorClock clock;
    Edge edge;
};
using RecordPointer = std::shared_ptr<Record>;

struct Operation {
    const char *name; /* lives for ever */
    std::function<void(CUstream_st &)> run;
    std::vector<Access> accesses; /* what is compared with other accesses, and opened while it runs */
    RecordPointer waits_for;      /* null: nothing */
    bool is_kernel = false;
    uint64_t ticket = 0; /* in the order of enqueuing, over all streams */
    Fault fault = {false, SIMCUDA_RETURNS, 0};

    /* Set when it is enqueued: what the host knew. */
    VectorClock clock;
    Edge edge;
};
using OperationPointer = std::unique_ptr<Operation>;

/* Makes an operation that only runs a function. The name has to live for ever: see intern(). */
OperationPointer operation_create(const char *name, std::function<void(CUstream_st &)> run);

cudaError_t stream_create(int device, bool is_blocking, int priority, cudaStream_t *handle);
/* Returns at once; the stream ends when it has run what it has. */
cudaError_t stream_destroy(cudaStream_t handle);
/* Looks at a stream, or changes it, with the monitor. */
cudaError_t stream_visit(cudaStream_t handle, const std::function<cudaError_t(CUstream_st &)> &visit);

/* Enqueues; with the two-way edges of the legacy default stream where it is one. */
cudaError_t stream_submit(cudaStream_t handle, OperationPointer operation);
/* A new record behind everything enqueued so far. */
cudaError_t stream_record(cudaStream_t handle, RecordPointer *record);
/* Makes the stream wait for a record; null: nothing to wait for. */
cudaError_t stream_wait(cudaStream_t handle, RecordPointer record);

/* The host waits, and knows afterwards what the record knows. */
void host_wait(const RecordPointer &record);
/* The host looks: true if done, and then as above. */
bool host_query(const RecordPointer &record);
/* Whether it is done, and when that was; the host knows no more than before. */
bool record_time(const RecordPointer &record, double *ms);
/* The host looks at a stream: cudaSuccess if it has nothing left, and then the host knows what the stream knows. */
cudaError_t host_query_stream(cudaStream_t handle);
/* The host looks at something else: in a seeded schedule that lets an operation run. */
void host_looks();
/* Waits for all streams of a device, as some calls of CUDA do in passing. */
void device_synchronise(int device);

/* After a host function: whoever heard of it on the host now knows what the stream knows. */
void host_learns(const CUstream_st &stream);
/* The host touches memory. */
void host_access(const Access &access, const char *name);

int current_device();

/* The first error of an operation on the device; all later calls that wait return it. */
void device_fail(int device, cudaError_t error);
cudaError_t device_error(int device);

/* Within an operation that waits for other ranks: nobody else has to wait for it because of the seeded schedule. */
void operation_lets_go(CUstream_st &stream);

std::string stream_name(const CUstream_st &stream);

/* Resets the parts of simcuda_reset. */
void control_reset();
void sites_reset();
void streams_reset();
void nccl_reset();

} // namespace simcuda

/* CUDA's own name for it. */
struct CUstream_st {
    int device = 0;
    unsigned number = 0;      /* within its device */
    bool is_blocking = false; /* towards the legacy default stream */
    int priority = 0;
    simcuda::Actor actor = 0;

    std::deque<simcuda::OperationPointer> queue; /* the head stays until it has finished */
    uint64_t finished = 0;
    bool is_running = false;
    bool is_held = false;
    bool has_quit = false;
    unsigned delay_us = 0;

    bool is_capturing = false;
    bool captures_globally = false; /* meanwhile calls that could wait are forbidden to all threads */

    simcuda::Edge finished_edge; /* released by every operation at its end */
    simcuda::VectorClock clock;  /* the worker's own but for reads under the monitor when nothing runs */

    simcuda::FutexWord word{0};
    bool is_sleeping = false;
};

struct CUevent_st {
    simcuda::RecordPointer latest;
    bool has_time = true;
};

#endif
