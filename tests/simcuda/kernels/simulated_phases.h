/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMULATED_PHASES_H
#define SIMULATED_PHASES_H

/* src/device/cuda_phases.cuh on the host: in each phase the threads of a block one after the other, and blocks one
 * after the other. What threads share holds nonsense at first. */

#include "device/cuda_topk.cuh"
#include "simulated_launch.h"

#include <cstring>
#include <memory>

namespace gs_cuda_code {

/* ---- what a launch touches ---- */

inline void touch_choices(Touched *touched, const gs_cuda_topk_arguments &of) {
    touched->add(of.choices, of.choice_count * sizeof *of.choices, false);
}

inline void touch_progress(Touched *touched, const gs_cuda_topk_arguments &of) {
    touched->add(of.progress, of.choice_count * sizeof *of.progress, false);
    touched->add(of.progress, of.choice_count * sizeof *of.progress, true);
}

inline void touch_bucket(Touched *touched, const gs_cuda_topk_arguments &of, bool is_write) {
    touched->add(of.bucket, of.element_count * sizeof *of.bucket, is_write);
}

/* Which side is valid the device alone knows. */
inline void touch_residuals(Touched *touched, const gs_cuda_topk_arguments &of, bool is_write) {
    if (of.residuals == nullptr) {
        return;
    }
    touched->add(of.residuals, of.residual_count * sizeof *of.residuals, false);
    for (size_t i = 0; i < of.choice_count; i++) {
        for (const float *side : of.host_residuals[of.host_choices[i].number].sides) {
            touched->add(side, of.host_choices[i].count * sizeof *side, is_write);
        }
    }
}

inline void touch(Touched *touched, const TopkDigit *, const gs_cuda_topk_arguments &of) {
    touch_choices(touched, of);
    touch_progress(touched, of);
    touch_bucket(touched, of, false);
    if (of.is_first && of.residuals != nullptr) {
        touch_bucket(touched, of, true);
        touch_residuals(touched, of, false);
    }
}

inline void touch(Touched *touched, const TopkCount *, const gs_cuda_topk_arguments &of) {
    touch_choices(touched, of);
    touch_progress(touched, of);
    touch_bucket(touched, of, false);
    touched->add(of.sums, of.tile_count * sizeof *of.sums, false);
    touched->add(of.sums, of.tile_count * sizeof *of.sums, true);
}

inline void touch(Touched *touched, const TopkTake *, const gs_cuda_topk_arguments &of) {
    touch_choices(touched, of);
    touched->add(of.progress, of.choice_count * sizeof *of.progress, false);
    touch_bucket(touched, of, false);
    touched->add(of.sums, of.tile_count * sizeof *of.sums, false);
    touched->add(of.entries, of.entry_count * sizeof *of.entries, true);
    touch_residuals(touched, of, true);
}

inline void touch(Touched *touched, const TopkSum *, const gs_cuda_topk_arguments &of) {
    const size_t ranks = static_cast<size_t>(of.ranks);
    touch_choices(touched, of);
    touched->add(of.entries, ranks * of.entry_count * sizeof *of.entries, false);
    touched->add(of.shares, ranks * sizeof *of.shares, false);
    touch_bucket(touched, of, true);
}

/* ---- running ---- */

template <class Pass> struct PhasesLaunch {
    typename Pass::Arguments of;
    unsigned blocks;
};

template <class Pass> void simulate_block(const PhasesLaunch<Pass> &launch, unsigned block) {
    const std::unique_ptr<typename Pass::Shared> shared(new typename Pass::Shared);
    std::vector<Pass> threads;
    std::memset(static_cast<void *>(shared.get()), 0xa5, sizeof *shared);
    for (unsigned thread = 0; thread < GS_CUDA_THREADS; thread++) {
        threads.emplace_back(launch.of, shared.get(), thread);
    }
    for (uint32_t tile = block; tile < launch.of.tile_count; tile += launch.blocks) {
        for (Pass &each : threads) {
            each.start(tile);
        }
        for (unsigned phase = 0; phase < threads[0].phases(); phase++) {
            for (Pass &each : threads) {
                each.run(phase);
            }
        }
    }
}

template <class Pass> void simulate_phases(void *copy) {
    const PhasesLaunch<Pass> &launch = *static_cast<const PhasesLaunch<Pass> *>(copy);
    for (unsigned block = 0; block < launch.blocks; block++) {
        simulate_block(launch, block);
    }
}

template <class Pass>
int launch_phases(const char *what, const typename Pass::Arguments &of, unsigned blocks, void *stream) {
    const PhasesLaunch<Pass> copied = {of, blocks};
    Touched touched;
    touch(&touched, static_cast<const Pass *>(nullptr), of);
    return simcuda_launch(static_cast<cudaStream_t>(stream), simulate_phases<Pass>, &copied, sizeof copied, what,
                          touched.accesses().data(), touched.accesses().size());
}

template <class Pass> int load_phases() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(&simulate_phases<Pass>));
}

} // namespace gs_cuda_code

#endif
