/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SCHEDULER_H
#define SCHEDULER_H

/* Which of the streams that could run may do so. Everything here is called with the monitor. */

#include "stream.h"

#include <vector>

namespace simcuda {

struct Scheduler {
    uint64_t seed = 0; /* 0: everybody may */
    uint64_t calls = 0;
    uint64_t starts = 0;
    uint64_t credits = 0;               /* operations that may start */
    std::vector<RecordPointer> awaited; /* by hosts: until they are done, all may start */
    bool is_left_alone = false;         /* no host has called for long: until one does, all may start */
    CUstream_st *running = nullptr;     /* in a seeded schedule the only one */
    bool one_kernel_at_a_time = false;
    CUstream_st *kernel_of[max_devices] = {};
};

extern Scheduler scheduler;

/* All streams that exist, in the order of their creation; those destroyed with work left included. */
std::vector<CUstream_st *> &all_streams();

bool scheduler_is_ready(const CUstream_st &stream);
bool scheduler_may_start(const CUstream_st &stream);
void scheduler_starts(CUstream_st &stream);
void scheduler_finishes(CUstream_st &stream);
/* Whether anything is running or could run without a further call of the host. */
bool scheduler_is_busy();

/* Wakes the workers that have something to run, and the hosts that wait. */
void wake_workers();
void wake_hosts();
/* Sleeps until something has changed, or so long: true if it was so long. Gives up the monitor meanwhile. */
bool sleep_as_worker(CUstream_st &stream, unsigned microseconds);
void sleep_as_host(unsigned microseconds);

/* After a call of the host in a seeded schedule: lets as many operations run as the seed says, or one. */
void scheduler_pace();
void scheduler_pace_query();

} // namespace simcuda

#endif
