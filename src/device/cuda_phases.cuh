/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_PHASES_CUH
#define GS_DEVICE_CUDA_PHASES_CUH

/*
 * Passes in which the threads of a block work together. A block takes tiles in turn, each in phases; between two phases
 * its threads wait for each other. A thread keeps what is its own in a Pass, and all of them share a Pass::Shared,
 * which holds anything at first. tests/simcuda/kernels/simulated_phases.h does the same on the host.
 */

#include "device/device_cuda_kernels.h" /* nvcc brings the runtime's declarations */

namespace gs_cuda_code {

template <class Pass>
static __global__ void __launch_bounds__(GS_CUDA_THREADS, 4)
    run_phases(const __grid_constant__ typename Pass::Arguments of) {
    __shared__ typename Pass::Shared shared;
    Pass each(of, &shared, threadIdx.x);
    for (uint32_t tile = blockIdx.x; tile < of.tile_count; tile += gridDim.x) {
        each.start(tile);
        for (unsigned phase = 0; phase < each.phases(); phase++) {
            each.run(phase);
            __syncthreads();
        }
    }
}

template <class Pass>
static int launch_phases(const char *, const typename Pass::Arguments &of, unsigned blocks, void *stream) {
    typename Pass::Arguments copy = of;
    void *arguments[] = {&copy};
    return cudaLaunchKernel((const void *)&run_phases<Pass>, dim3(blocks), dim3(GS_CUDA_THREADS), arguments, 0,
                            (cudaStream_t)stream);
}

template <class Pass> static int load_phases() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (const void *)&run_phases<Pass>);
}

} // namespace gs_cuda_code

#endif
