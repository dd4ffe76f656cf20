/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADSYNC_BENCHMARKS_OVERLAP_KERNELS_H
#define GRADSYNC_BENCHMARKS_OVERLAP_KERNELS_H

/* What backward is made of. Each call queues one kernel. */

#include <cuda_runtime_api.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As many threads as work has elements, each of which does so many passes of 256 multiplications and additions. */
cudaError_t overlap_kernels_compute(cudaStream_t stream, float *work, size_t threads, int passes);

/* Small integers, so that sums are exact in any order: (i + round) % 64 + rank. */
cudaError_t overlap_kernels_write(cudaStream_t stream, float *gradient, size_t count, unsigned round, int rank);

#ifdef __cplusplus
}
#endif

#endif
