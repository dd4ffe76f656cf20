/* SPDX-License-Identifier: Apache-2.0 */

/* Launches the passes of the wire TOPK. Compiled as C++ for the host too: GS_CUDA_PHASES. */

#include "device/cuda_topk.cuh"

#if defined(__CUDACC__)
#include "device/cuda_phases.cuh"
#else
#include GS_CUDA_PHASES
#endif

using namespace gs_cuda_code;

namespace {

template <class Pass> int launch_topk(const char *what, const void *arguments, void *stream) {
    const gs_cuda_topk_arguments &of = *static_cast<const gs_cuda_topk_arguments *>(arguments);
    const uint32_t most = GS_CUDA_BLOCKS_MAX;
    return of.tile_count == 0 ? 0 : launch_phases<Pass>(what, of, of.tile_count < most ? of.tile_count : most, stream);
}

} // namespace

int gs_cuda_topk_launch_digit(const void *arguments, void *stream) {
    return launch_topk<TopkDigit>("find digit", arguments, stream);
}

int gs_cuda_topk_launch_count(const void *arguments, void *stream) {
    return launch_topk<TopkCount>("count largest", arguments, stream);
}

int gs_cuda_topk_launch_take(const void *arguments, void *stream) {
    return launch_topk<TopkTake>("take largest", arguments, stream);
}

int gs_cuda_topk_launch_sum(const void *arguments, void *stream) {
    return launch_topk<TopkSum>("add largest", arguments, stream);
}

int gs_cuda_topk_load(void) {
    const int results[] = {load_phases<TopkDigit>(), load_phases<TopkCount>(), load_phases<TopkTake>(),
                           load_phases<TopkSum>()};
    for (const int result : results) {
        if (result != 0) {
            return result;
        }
    }
    return 0;
}
