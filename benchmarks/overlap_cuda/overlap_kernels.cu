/* SPDX-License-Identifier: Apache-2.0 */
#include "../../examples/launch.cuh"
#include "overlap_kernels.h"

static __global__ void compute(float *work, size_t threads, int passes) {
    enum { PASS = 256 };
    const size_t i = launch_index();
    if (i >= threads) {
        return;
    }
    float x = work[i];
    for (int pass = 0; pass < passes; pass++) {
        for (int k = 0; k < PASS; k++) {
            x = x * 0.999f + 0.001f;
        }
    }
    work[i] = x;
}

cudaError_t overlap_kernels_compute(cudaStream_t stream, float *work, size_t threads, int passes) {
    return launch("compute", stream, threads, {updates(work, threads)}, compute, work, threads, passes);
}

static __global__ void write(float *gradient, size_t count, unsigned round, int rank) {
    const size_t i = launch_index();
    if (i < count) {
        gradient[i] = (float)((i + round) & 63u) + (float)rank;
    }
}

cudaError_t overlap_kernels_write(cudaStream_t stream, float *gradient, size_t count, unsigned round, int rank) {
    return launch("write", stream, count, {writes(gradient, count)}, write, gradient, count, round, rank);
}
