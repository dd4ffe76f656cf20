/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEVICE_MEMORY_H
#define DEVICE_MEMORY_H

/*
 * Device memory is host memory that nobody may touch but while an operation has it open. What an operation declares is
 * opened for it; anything else faults: on a worker it is opened and reported as undeclared, on any other thread the
 * program ends with SIGSEGV and a line on stderr. While an operation has an allocation open, the host could touch it
 * unnoticed by this; ThreadSanitizer notices then.
 */

#include "vector_clock.h"

#include <cuda_runtime_api.h>
#include <vector>

namespace simcuda {

/* Filled with NaNs. */
cudaError_t memory_create_device(void **start, size_t bytes, int device);
cudaError_t memory_create_host(void **start, size_t bytes, int device);
/* Later touches fault: the addresses are not given again soon. */
cudaError_t memory_destroy(void *start, cudaMemoryType type);

/* The allocation that holds the address: its kind, device, start and size. False: it is ordinary host memory. */
struct Allocation {
    cudaMemoryType type;
    int device;
    char *start;
    size_t bytes;
};
bool memory_find(const void *address, Allocation *allocation);

/* Whether all of it lies in one device allocation, or none in any; reports it where it does not. Real CUDA may refuse
 * it, or crash, or corrupt what lies there. */
bool memory_is_sound(const void *start, size_t bytes, bool has_to_be_device, const char *call, const char *which);

/* Around an operation of the calling worker. */
void memory_open(const std::vector<Access> &accesses, const char *operation, const std::string &stream);
void memory_close();

/* NaN in every floating-point format. */
constexpr unsigned char poison_byte = 0xFF;

} // namespace simcuda

#endif
