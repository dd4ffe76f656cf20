/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROL_H
#define CONTROL_H

/* What a test asked for and what it may ask afterwards: settings, faults, counters, reports. */

#include "invisible.h"
#include "simcuda.h"

#include <string>

namespace simcuda {

constexpr int max_devices = 64;

struct Settings {
    int device_count;
    int nccl_version;
    int driver_version;
    int runtime_version;
    unsigned polls;
    bool peers_notice;
    bool abort_waits_for_device;
};

Settings settings();
std::string bus_id(int device);

struct Fault {
    bool is_set;
    simcuda_effect effect;
    int result;
};

/* Counts a call, and says whether a fault was asked for it. */
Fault count_call(const char *name, int rank);
void count_launch(const char *kernel);
void count_host_synchronisation();
void count_default_stream();
void count_device_change();
void count_object(int change);

int thread_rank();

/* Whether this event record or stream wait, made from `return_address`, has to do nothing. */
bool is_dropped(const char *call, const void *return_address);

struct Party {
    std::string operation;
    std::string stream;
};

void report_add(simcuda_kind kind, const Party &first, const Party &second, const std::string &text);

/* One call of the runtime: counts it, applies a fault, and is the scope in which ThreadSanitizer does not look. */
class Call {
  public:
    explicit Call(const char *name);
    /* What the call has to return at once, or cudaSuccess. */
    cudaError_t refusal() const;
    /* Keeps an error for cudaGetLastError. */
    cudaError_t ends(cudaError_t error) const;
    const Fault &fault() const {
        return fault_;
    }

  private:
    Quiet quiet_;
    Fault fault_;
};

cudaError_t last_error(bool is_taken);

} // namespace simcuda

/* The first line of an entry point. */
#define SIMCUDA_CALL(call)                                                                                             \
    simcuda::Call call(__func__);                                                                                      \
    if ((call).refusal() != cudaSuccess)                                                                               \
    return (call).ends((call).refusal())

#endif
