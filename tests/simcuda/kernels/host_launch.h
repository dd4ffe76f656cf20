/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_LAUNCH_CUH /* stands in its place */
#define EXAMPLES_LAUNCH_CUH

/*
 * The kernels of examples and benchmarks on the host, in place of examples/launch.cuh: all threads one after the other.
 * Include it before their source.
 */

#include "simcuda.h"

#include <initializer_list>
#include <vector>

enum { LAUNCH_THREADS = 256 };

struct launch_memory {
    const void *start;
    size_t bytes;
    bool is_read;
    bool is_written;
};

template <class T> launch_memory reads(const T *start, size_t count) {
    return {start, count * sizeof(T), true, false};
}

template <class T> launch_memory writes(const T *start, size_t count) {
    return {start, count * sizeof(T), false, true};
}

template <class T> launch_memory updates(const T *start, size_t count) {
    return {start, count * sizeof(T), true, true};
}

static thread_local size_t launch_at;

static size_t launch_index() {
    return launch_at;
}

/* Whole blocks, so that kernels have to see to the threads that are too many. */
template <class Body> void launch_blocks(void *copy) {
    const Body &body = *static_cast<const Body *>(copy);
    const size_t end = (body.indices + LAUNCH_THREADS - 1) / LAUNCH_THREADS * LAUNCH_THREADS;
    for (launch_at = 0; launch_at < end; launch_at++) {
        body.run();
    }
}

template <class Run> struct launch_body {
    size_t indices;
    Run run;
};

template <class... Parameters, class... Arguments>
cudaError_t launch(const char *name, cudaStream_t stream, size_t indices, std::initializer_list<launch_memory> touched,
                   void (*kernel)(Parameters...), Arguments... arguments) {
    const auto run = [=] { kernel(arguments...); };
    const launch_body<decltype(run)> body = {indices, run};
    std::vector<simcuda_access> accesses;
    for (const launch_memory &memory : touched) {
        if (memory.is_read) {
            accesses.push_back({memory.start, memory.bytes, 0});
        }
        if (memory.is_written) {
            accesses.push_back({memory.start, memory.bytes, 1});
        }
    }
    return simcuda_launch(stream, launch_blocks<launch_body<decltype(run)>>, &body, sizeof body, name, accesses.data(),
                          accesses.size());
}

#endif
