/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_LAUNCH_CUH
#define GS_DEVICE_CUDA_LAUNCH_CUH

/* Passes as kernels. tests/simcuda/simulated_launch.h runs them on the host instead, and adds in the same order. */

#include "device/cuda_tiles.cuh"

#include <cuda_runtime.h>
#include <link.h>
#include <string.h>

namespace gs_cuda_code {

enum { WARP = 32, WARPS = GS_CUDA_THREADS / WARP };

static __device__ gs_cuda_findings shuffled_down(const gs_cuda_findings &found, unsigned distance) {
    const unsigned everyone = 0xffffffffu;
    gs_cuda_findings other;
    other.square_sum = __shfl_down_sync(everyone, found.square_sum, distance);
    other.absmax_bits = __shfl_down_sync(everyone, found.absmax_bits, distance);
    other.has_nonfinite = __shfl_down_sync(everyone, found.has_nonfinite, distance);
    other.first_nonfinite = __shfl_down_sync(everyone, (unsigned long long)found.first_nonfinite, distance);
    other.saturated = __shfl_down_sync(everyone, (unsigned long long)found.saturated, distance);
    other.flushed = __shfl_down_sync(everyone, (unsigned long long)found.flushed, distance);
    return other;
}

/* What all threads of the block found; only the first thread's result holds. Shuffles rather than a library's
 * reduction, because here the order of the sums is promised. */
static __device__ gs_cuda_findings folded(gs_cuda_findings found) {
    __shared__ gs_cuda_findings of_warp[WARPS];
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
        const gs_cuda_findings other = shuffled_down(found, distance);
        gs_cuda_merge(&found, &other);
    }
    if (threadIdx.x % WARP == 0) {
        of_warp[threadIdx.x / WARP] = found;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned warp = 1; warp < WARPS; warp++) {
            gs_cuda_merge(&found, &of_warp[warp]);
        }
    }
    __syncthreads(); /* of_warp may be used again */
    return found;
}

/* Writes down what the block found; true in the block that does so last, once it can read what all others wrote. */
static __device__ bool settle_block(gs_cuda_notebook *notebook, const gs_cuda_findings &found) {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        notebook->partial[blockIdx.x] = found;
        __threadfence();
        is_last = atomicInc(&notebook->blocks_done, gridDim.x - 1) == gridDim.x - 1; /* then it is 0 again */
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

static __device__ void settle(gs_cuda_notebook *notebook, const gs_cuda_findings &found) {
    if (!settle_block(notebook, folded(found))) {
        return;
    }
    gs_cuda_findings sum = {};
    for (unsigned block = threadIdx.x; block < gridDim.x; block += GS_CUDA_THREADS) {
        gs_cuda_merge(&sum, &notebook->partial[block]);
    }
    sum = folded(sum);
    if (threadIdx.x == 0) {
        gs_cuda_note_pass(notebook, &sum);
    }
}

/* Four blocks on each multiprocessor: then the most that are launched run at once where there are 108, as on an A100.
 */
template <class Pass>
static __global__ void __launch_bounds__(GS_CUDA_THREADS, 4) run(const __grid_constant__ typename Pass::Arguments of) {
    gs_cuda_tally tally = gs_cuda_no_tally();
    Pass::run(of, blockIdx.x, gridDim.x, threadIdx.x, &tally);
    if (of.notebook != NULL) {
        settle(of.notebook, gs_cuda_findings_of(&tally));
    }
}

/* The same for passes in which a warp takes a block of elements, and its lanes agree on the largest magnitude. */
template <class Pass>
static __global__ void __launch_bounds__(GS_CUDA_THREADS, 4)
    run_blocks(const __grid_constant__ typename Pass::Arguments of) {
    gs_cuda_tally tally = gs_cuda_no_tally();
    Pass each(of, &tally);
    const unsigned lane = threadIdx.x % WARP;
    const size_t count = Pass::block_count(of);
    for (size_t b = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP; b < count; b += (size_t)gridDim.x * WARPS) {
        const uint32_t most = each.load(b, lane);
        each.store(b, lane, __reduce_max_sync(0xffffffffu, most));
    }
    if (of.notebook != NULL) {
        settle(of.notebook, gs_cuda_findings_of(&tally));
    }
}

/* The terms on the host are for the simulator, which has to be told what memory is touched. */
template <class Pass>
static int launch(const char *, const typename Pass::Arguments &of, const gs_cuda_term *, unsigned blocks,
                  void *stream) {
    typename Pass::Arguments copy = of;
    void *arguments[] = {&copy};
    return cudaLaunchKernel((const void *)&run<Pass>, dim3(blocks), dim3(GS_CUDA_THREADS), arguments, 0,
                            (cudaStream_t)stream);
}

template <class Pass>
static int launch_blocks(const char *, const typename Pass::Arguments &of, const gs_cuda_term *, unsigned blocks,
                         void *stream) {
    typename Pass::Arguments copy = of;
    void *arguments[] = {&copy};
    return cudaLaunchKernel((const void *)&run_blocks<Pass>, dim3(blocks), dim3(GS_CUDA_THREADS), arguments, 0,
                            (cudaStream_t)stream);
}

template <class Pass> static int load_blocks_kernel() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (const void *)&run_blocks<Pass>);
}

template <class Pass> static int load_kernel() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (const void *)&run<Pass>);
}

struct DriverSearch {
    unsigned long long known_loads; /* there was no driver after so many */
    unsigned long long loads;
    bool is_found;
};

static int look_for_driver(struct dl_phdr_info *object, size_t, void *argument) {
    DriverSearch *const search = (DriverSearch *)argument;
    const char *const slash = strrchr(object->dlpi_name, '/');
    search->loads = object->dlpi_adds;
    search->is_found = strcmp(slash != NULL ? slash + 1 : object->dlpi_name, "libcuda.so.1") == 0;
    return search->is_found || search->loads == search->known_loads;
}

/* Whatever runtime the trainer uses loads it by this name. dlopen would answer too, but looks through the directories
 * of the system first, for each gradient that is registered. */
static bool has_driver() {
    static unsigned long long loads_without = 0;
    DriverSearch search = {__atomic_load_n(&loads_without, __ATOMIC_RELAXED), 0, false};
    dl_iterate_phdr(look_for_driver, &search);
    if (!search.is_found) {
        __atomic_store_n(&loads_without, search.loads, __ATOMIC_RELAXED);
    }
    return search.is_found;
}

} // namespace gs_cuda_code

#endif
