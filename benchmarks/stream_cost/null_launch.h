/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NULL_LAUNCH_H
#define NULL_LAUNCH_H

/* In place of src/device/cuda_launch.cuh and cuda_phases.cuh: a launch does nothing, at once. */

#include "device/cuda_tiles.cuh"

namespace gs_cuda_code {

template <class Pass>
int launch(const char *, const typename Pass::Arguments &, const gs_cuda_term *, unsigned, void *) {
    return 0;
}

template <class Pass>
int launch_blocks(const char *, const typename Pass::Arguments &, const gs_cuda_term *, unsigned, void *) {
    return 0;
}

template <class Pass> int launch_phases(const char *, const typename Pass::Arguments &, unsigned, void *) {
    return 0;
}

template <class Pass> int load_phases() {
    return 0;
}

template <class Pass> int load_blocks_kernel() {
    return 0;
}

template <class Pass> int load_kernel() {
    return 0;
}

inline bool has_driver() {
    return true;
}

} // namespace gs_cuda_code

#endif
