/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_LAUNCH_CUH
#define EXAMPLES_LAUNCH_CUH

/*
 * How the examples launch kernels: one thread for each index, 256 of them in a block. What a kernel reads and writes is
 * said at its launch. A GPU does not need to know that; where there is none, the tests compile the same kernels for the
 * host with another header in place of this one, and compare what different streams touch.
 */

#include <cuda_runtime.h>

#include <initializer_list>
#include <stddef.h>

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

template <class... Parameters, class... Arguments>
cudaError_t launch(const char *, cudaStream_t stream, size_t indices, std::initializer_list<launch_memory>,
                   void (*kernel)(Parameters...), Arguments... arguments) {
    const unsigned blocks = (unsigned)((indices + LAUNCH_THREADS - 1) / LAUNCH_THREADS);
    kernel<<<blocks, LAUNCH_THREADS, 0, stream>>>(arguments...);
    return cudaGetLastError();
}

/* The calling thread's index; the last block has some too many. */
static __device__ size_t launch_index() {
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

#endif
