/* SPDX-License-Identifier: Apache-2.0 */

/* Who calls cudaEventRecord and cudaStreamWaitEvent, and which of these calls do nothing. */

#include "control.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <unordered_map>
#include <vector>

namespace simcuda {

namespace {

/* Never destroyed: other threads may still call when main has returned. */
struct State {
    Lock lock;
    std::vector<simcuda_site> sites;
    std::unordered_map<const void *, size_t> by_address;
    unsigned calls = 0;
    unsigned dropped_call = 0;
    std::string dropped_module; /* empty: none */
    uintptr_t dropped_offset = 0;
};

void write_sites();

void settings_from_environment(State &state) {
    const char *const call = getenv("SIMCUDA_DROP");
    state.dropped_call = call != nullptr ? static_cast<unsigned>(strtoul(call, nullptr, 0)) : 0;
    state.dropped_module.clear();
    const char *const site = getenv("SIMCUDA_DROP_SITE");
    const char *const plus = site != nullptr ? strrchr(site, '+') : nullptr;
    if (plus != nullptr) {
        state.dropped_module.assign(site, plus);
        state.dropped_offset = strtoull(plus + 1, nullptr, 0);
    }
}

State &state() {
    static State *const state = [] {
        auto *made = new State;
        settings_from_environment(*made);
        atexit(write_sites);
        return made;
    }();
    return *state;
}

void write_sites() {
    const char *const path = getenv("SIMCUDA_SITES");
    FILE *const file = path != nullptr ? fopen(path, "w") : nullptr;
    if (file == nullptr) {
        return;
    }
    Guard guard(state().lock);
    for (const simcuda_site &site : state().sites) {
        fprintf(file, "%s %s+0x%zx %llu %s\n", site.call, site.module, static_cast<size_t>(site.offset),
                static_cast<unsigned long long>(site.calls), site.function);
    }
    fclose(file);
}

simcuda_site site_of(const char *call, const void *return_address) {
    simcuda_site site = {};
    site.call = call;
    Dl_info info;
    if (dladdr(return_address, &info) != 0) {
        const char *const slash = strrchr(info.dli_fname, '/');
        snprintf(site.module, sizeof site.module, "%s", slash != nullptr ? slash + 1 : info.dli_fname);
        site.offset = reinterpret_cast<uintptr_t>(return_address) - reinterpret_cast<uintptr_t>(info.dli_fbase);
        snprintf(site.function, sizeof site.function, "%s", info.dli_sname != nullptr ? info.dli_sname : "");
    }
    return site;
}

} // namespace

bool is_dropped(const char *call, const void *return_address) {
    Guard guard(state().lock);
    State &now = state();
    const auto known = now.by_address.emplace(return_address, now.sites.size());
    if (known.second) {
        now.sites.push_back(site_of(call, return_address));
    }
    simcuda_site &site = now.sites[known.first->second];
    site.calls++;
    now.calls++;
    return now.calls == now.dropped_call || (site.offset == now.dropped_offset && site.module == now.dropped_module);
}

void sites_reset() {
    Guard guard(state().lock);
    state().sites.clear();
    state().by_address.clear();
    state().calls = 0;
    settings_from_environment(state());
}

} // namespace simcuda

using namespace simcuda;

extern "C" {

void simcuda_drop(unsigned nth) {
    Guard guard(state().lock);
    state().dropped_call = nth;
}

size_t simcuda_sites(simcuda_site *sites, size_t capacity) {
    Quiet quiet;
    Guard guard(state().lock);
    const size_t count = state().sites.size();
    for (size_t i = 0; i < count && i < capacity; i++) {
        sites[i] = state().sites[i];
    }
    return count;
}

void simcuda_drop_site(const char *module, uintptr_t offset) {
    Quiet quiet;
    Guard guard(state().lock);
    state().dropped_module = module != nullptr ? module : "";
    state().dropped_offset = offset;
}

} // extern "C"
