/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_MEMORY_CUDA_H
#define PERF_MEMORY_CUDA_H

/* What a peer on GPUs needs of a rank's memory. */

#include "perf_memory.h"

#include <cuda_runtime_api.h>

/* The rank's, which does not synchronise with the default stream. */
cudaStream_t perf_memory_stream(const perf_memory *memory);

/* Whether something is queued on it that has not ended. */
bool perf_memory_is_busy(const perf_memory *memory);

/* Waits for the stream, and asks `look` meanwhile whether that still makes sense; NULL: nobody is asked. */
const char *perf_memory_wait(const perf_memory *memory, const char *(*look)(void *user), void *user);

#endif
