/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include "stream.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nccl.h>
#include <string_view>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace simcuda {

namespace {

struct Planned {
    std::string call;
    int rank;
    unsigned nth;
    simcuda_effect effect;
    int result;
    unsigned seen;
};

/* Never destroyed: workers outlive main. */
struct State {
    Lock lock;
    Settings settings;
    std::map<int, std::string> bus_ids;
    std::unordered_map<std::string_view, uint64_t> calls; /* by literals */
    std::map<std::string, uint64_t> launches;
    uint64_t all_launches = 0;
    uint64_t host_synchronisations = 0;
    uint64_t default_stream_uses = 0;
    uint64_t device_changes = 0;
    uint64_t objects = 0;
    std::vector<Planned> planned;
    std::vector<simcuda_report> reports;
};

thread_local int this_rank = -1;
thread_local cudaError_t this_error = cudaSuccess;

uint64_t environment_number(const char *name, uint64_t otherwise) {
    const char *const text = getenv(name);
    return text != nullptr ? strtoull(text, nullptr, 0) : otherwise;
}

Settings settings_from_environment() {
    Settings settings = {};
    settings.device_count = static_cast<int>(environment_number("SIMCUDA_DEVICES", 8));
    settings.nccl_version = NCCL_VERSION_CODE;
    settings.driver_version = CUDART_VERSION;
    settings.runtime_version = CUDART_VERSION;
    settings.polls = 2;
    return settings;
}

void at_exit();

State &state() {
    static State *const state = [] {
        auto *made = new State;
        made->settings = settings_from_environment();
        atexit(at_exit);
        return made;
    }();
    return *state;
}

/* Under SIMCUDA_STRICT a program that passed its own checks fails when something was reported. */
void at_exit() {
    if (environment_number("SIMCUDA_STRICT", 0) == 0 || state().reports.empty()) {
        return;
    }
    for (const simcuda_report &report : state().reports) {
        fprintf(stderr, "simcuda: %s\n", report.text);
    }
    fflush(nullptr);
    _exit(66);
}

void copy_text(char *to, size_t room, const std::string &text) {
    snprintf(to, room, "%s", text.c_str());
}

bool is_equal(const simcuda_report &a, const simcuda_report &b) {
    return a.kind == b.kind && strcmp(a.first, b.first) == 0 && strcmp(a.first_stream, b.first_stream) == 0 &&
           strcmp(a.second, b.second) == 0 && strcmp(a.second_stream, b.second_stream) == 0;
}

} // namespace

Settings settings() {
    Guard guard(state().lock);
    return state().settings;
}

std::string bus_id(int device) {
    Guard guard(state().lock);
    const auto found = state().bus_ids.find(device);
    if (found != state().bus_ids.end()) {
        return found->second;
    }
    char text[32];
    snprintf(text, sizeof text, "0000:%02x:00.0", device + 16);
    return text;
}

Fault count_call(const char *name, int rank) {
    Guard guard(state().lock);
    state().calls[name]++;
    Fault fault = {false, SIMCUDA_RETURNS, 0};
    for (Planned &planned : state().planned) {
        if (planned.call != name || (planned.rank != SIMCUDA_ANY_RANK && planned.rank != rank)) {
            continue;
        }
        if (++planned.seen == planned.nth) {
            fault = {true, planned.effect, planned.result};
        }
    }
    return fault;
}

void count_launch(const char *kernel) {
    Guard guard(state().lock);
    state().launches[kernel]++;
    state().all_launches++;
}

void count_host_synchronisation() {
    Guard guard(state().lock);
    state().host_synchronisations++;
}

void count_default_stream() {
    Guard guard(state().lock);
    state().default_stream_uses++;
}

void count_device_change() {
    Guard guard(state().lock);
    state().device_changes++;
}

void count_object(int change) {
    Guard guard(state().lock);
    state().objects += static_cast<uint64_t>(change);
}

int thread_rank() {
    return this_rank >= 0 ? this_rank : current_device();
}

void report_add(simcuda_kind kind, const Party &first, const Party &second, const std::string &text) {
    simcuda_report report = {};
    report.kind = kind;
    copy_text(report.first, sizeof report.first, first.operation);
    copy_text(report.first_stream, sizeof report.first_stream, first.stream);
    copy_text(report.second, sizeof report.second, second.operation);
    copy_text(report.second_stream, sizeof report.second_stream, second.stream);
    copy_text(report.text, sizeof report.text, text);

    Guard guard(state().lock);
    auto &reports = state().reports;
    if (std::none_of(reports.begin(), reports.end(),
                     [&](const simcuda_report &other) { return is_equal(other, report); })) {
        reports.push_back(report);
    }
}

Call::Call(const char *name) : fault_(count_call(name, thread_rank())) {
    /* Where there is no device only asking works: how many there are, and versions. */
    const bool only_asks = strcmp(name, "cudaGetDeviceCount") == 0 || strstr(name, "GetVersion") != nullptr;
    if (!fault_.is_set && !only_asks && settings().device_count == 0) {
        fault_ = {true, SIMCUDA_RETURNS, cudaErrorNoDevice};
    }
}

cudaError_t Call::refusal() const {
    if (fault_.is_set && fault_.effect == SIMCUDA_RETURNS) {
        return static_cast<cudaError_t>(fault_.result);
    }
    return cudaSuccess;
}

cudaError_t Call::ends(cudaError_t error) const {
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        this_error = error;
    }
    return error;
}

cudaError_t last_error(bool is_taken) {
    const cudaError_t error = this_error;
    if (is_taken) {
        this_error = cudaSuccess;
    }
    return error;
}

void control_reset() {
    Guard guard(state().lock);
    State &now = state();
    now.settings = settings_from_environment();
    now.bus_ids.clear();
    now.calls.clear();
    now.launches.clear();
    now.all_launches = now.host_synchronisations = now.default_stream_uses = now.device_changes = 0;
    now.planned.clear();
    now.reports.clear();
}

} // namespace simcuda

using namespace simcuda;

extern "C" {

size_t simcuda_reports(simcuda_report *reports, size_t capacity) {
    Quiet quiet;
    Guard guard(state().lock);
    const size_t count = state().reports.size();
    for (size_t i = 0; i < count && i < capacity; i++) {
        reports[i] = state().reports[i];
    }
    return count;
}

uint64_t simcuda_calls(const char *call) {
    Quiet quiet;
    Guard guard(state().lock);
    const auto found = state().calls.find(call);
    return found != state().calls.end() ? found->second : 0;
}

uint64_t simcuda_launches(const char *kernel) {
    Quiet quiet;
    Guard guard(state().lock);
    const auto found = state().launches.find(kernel);
    return found != state().launches.end() ? found->second : 0;
}

uint64_t simcuda_all_launches(void) {
    Guard guard(state().lock);
    return state().all_launches;
}

uint64_t simcuda_host_synchronisations(void) {
    Guard guard(state().lock);
    return state().host_synchronisations;
}

uint64_t simcuda_default_stream_uses(void) {
    Guard guard(state().lock);
    return state().default_stream_uses;
}

uint64_t simcuda_device_changes(void) {
    Guard guard(state().lock);
    return state().device_changes;
}

uint64_t simcuda_objects(void) {
    Guard guard(state().lock);
    return state().objects;
}

void simcuda_fault(const char *call, int rank, unsigned nth, simcuda_effect effect, int result) {
    Quiet quiet;
    Guard guard(state().lock);
    state().planned.push_back({call, rank, nth, effect, result, 0});
}

void simcuda_thread_rank(int rank) {
    this_rank = rank;
}

void simcuda_peers_notice(int is_on) {
    Guard guard(state().lock);
    state().settings.peers_notice = is_on != 0;
}

void simcuda_abort_waits_for_device(int is_on) {
    Guard guard(state().lock);
    state().settings.abort_waits_for_device = is_on != 0;
}

void simcuda_polls(unsigned polls) {
    Guard guard(state().lock);
    state().settings.polls = polls;
}

void simcuda_set_device_count(int count) {
    Guard guard(state().lock);
    state().settings.device_count = std::min(count, max_devices);
}

void simcuda_set_bus_id(int device, const char *text) {
    Quiet quiet;
    Guard guard(state().lock);
    state().bus_ids[device] = text;
}

void simcuda_set_nccl_version(int version) {
    Guard guard(state().lock);
    state().settings.nccl_version = version;
}

void simcuda_set_driver_version(int version) {
    Guard guard(state().lock);
    state().settings.driver_version = version;
}

void simcuda_set_runtime_version(int version) {
    Guard guard(state().lock);
    state().settings.runtime_version = version;
}

} // extern "C"
