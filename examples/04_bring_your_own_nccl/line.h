/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BRING_YOUR_OWN_NCCL_LINE_H
#define BRING_YOUR_OWN_NCCL_LINE_H

/* The model: y = 3 a - 2 b + 0.5, to be found from samples, as in 01_quickstart. Each call queues one kernel. */

#include <cuda_runtime_api.h>

enum { LINE_SAMPLES = 240, LINE_WEIGHTS = 3 };

#ifdef __cplusplus
extern "C" {
#endif

/* The sums over samples first, first + stride, ...: of the gradients, and of the squared errors. */
cudaError_t line_gradient(cudaStream_t stream, const float *weights, int first, int stride, float *gradient,
                          float *loss);

/* weights -= rate x gradient */
cudaError_t line_step(cudaStream_t stream, float *weights, const float *gradient, float rate);

#ifdef __cplusplus
}
#endif

#endif
