/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_MLP_KERNELS_H
#define CUDA_MLP_KERNELS_H

/*
 * The network's own kernels; cuBLAS does the products. Each call queues one kernel on the stream and returns what its
 * launch said. Matrices lie row by row, a sample in each row.
 */

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the network thought of one sample. */
typedef struct kernels_verdict {
    float loss;
    float is_right; /* 1 or 0; a float, because it is added up */
} kernels_verdict;

/*
 * Samples number first, first + 1, ...: points of two coordinates on `classes` arms of a spiral. Which point is number
 * n follows from the seed and n alone, so every rank can draw its own share of the data.
 */
cudaError_t kernels_draw_samples(cudaStream_t stream, uint64_t seed, uint64_t first, int rows, int classes,
                                 float *inputs, int *labels);

/* outputs += bias in every row, and then max(outputs, 0) where rectifies. */
cudaError_t kernels_add_bias(cudaStream_t stream, float *outputs, const float *bias, int rows, int width,
                             bool rectifies);

/*
 * Softmax and cross-entropy. Verdicts are written, or added to what is there; then logits become the loss's gradient
 * with respect to them, times scale.
 */
cudaError_t kernels_softmax_loss(cudaStream_t stream, float *logits, const int *labels, int rows, int classes,
                                 float scale, bool adds, kernels_verdict *verdicts);

/* gradient = 0 where the output of max(x, 0) was 0. */
cudaError_t kernels_rectify_gradient(cudaStream_t stream, float *gradient, const float *outputs, size_t count);

/* The sum of each column, written or added to what is there. */
cudaError_t kernels_sum_rows(cudaStream_t stream, const float *matrix, int rows, int width, bool adds, float *sums);

/* velocities = momentum x velocities + gradients; parameters -= rate x velocities. */
cudaError_t kernels_step(cudaStream_t stream, float *parameters, float *velocities, const float *gradients,
                         size_t count, float rate, float momentum);

#ifdef __cplusplus
}
#endif

#endif
