/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the unit tests of kernels ask the simulated GPU, answered by a real one. Launches are counted where the library
 * makes them, whatever their name; races, leaks and uses of the default stream are the simulator's to find.
 */

#include "simcuda.h"

#include <stdatomic.h>

static _Atomic uint64_t launches;

cudaError_t __real_cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                    cudaStream_t stream);
cudaError_t __wrap_cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                    cudaStream_t stream);

cudaError_t __wrap_cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                    cudaStream_t stream) {
    atomic_fetch_add(&launches, 1);
    return __real_cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

void simcuda_reset(void) {
    atomic_store(&launches, 0);
}

void simcuda_wait_idle(void) {
    (void)cudaDeviceSynchronize();
}

uint64_t simcuda_launches(const char *name) {
    (void)name;
    return atomic_load(&launches);
}

uint64_t simcuda_all_launches(void) {
    return atomic_load(&launches);
}

size_t simcuda_reports(simcuda_report *reports, size_t capacity) {
    (void)reports, (void)capacity;
    return 0;
}

uint64_t simcuda_allocations(void) {
    return 0;
}

uint64_t simcuda_objects(void) {
    return 0;
}

uint64_t simcuda_default_stream_uses(void) {
    return 0;
}
