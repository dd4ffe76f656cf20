/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_MLP_NETWORK_H
#define CUDA_MLP_NETWORK_H

/*
 * A multi-layer perceptron on one GPU and one stream: linear layers with max(x, 0) between them, and softmax at the
 * end. Nothing here knows of other ranks. Calls queue work on the stream; none waits for it but those that say so.
 */

#include "kernels.h"

#include <cublas_v2.h>

enum { NETWORK_INPUTS = 2, NETWORK_LAYERS_MAX = 64, NETWORK_TENSORS_MAX = 2 * NETWORK_LAYERS_MAX };

typedef struct network_shape {
    int hidden; /* layers */
    int width;  /* of each of them */
    int classes;
    int rows; /* samples at once */
} network_shape;

/* A slice of parameters, gradients and velocities. */
typedef struct network_tensor {
    char name[24];
    size_t offset;
    size_t count;
} network_tensor;

typedef struct network {
    network_shape shape;
    cudaStream_t stream;
    cublasHandle_t cublas;

    int layer_count;
    int widths[NETWORK_LAYERS_MAX + 1]; /* layer l makes widths[l + 1] numbers from widths[l] */
    int tensor_count;
    network_tensor tensors[NETWORK_TENSORS_MAX]; /* in the order of forward: weight and bias of each layer */
    size_t parameter_count;

    /* All of this is memory of the GPU. */
    float *parameters;
    float *gradients;
    float *velocities;
    float *outputs[NETWORK_LAYERS_MAX + 1]; /* 0: the inputs */
    float *output_gradients[2];             /* of the layer at hand, and of the one before it */
    int *labels;
    kernels_verdict *verdicts;

    kernels_verdict *verdicts_on_host;
} network;

/* Called in backward for each gradient, as soon as the work that makes it final is queued. False ends backward. */
typedef bool network_final(void *user, float *gradient);

/* The stream stays the caller's. False: the reason was said, and what there is waits for network_destroy. */
bool network_create(network *n, const network_shape *shape, cudaStream_t stream);
/* Waits for the stream. */
void network_destroy(network *n);

/* Random parameters, on the host; and between host and GPU, which wait. */
void network_draw_parameters(const network *n, uint64_t seed, float *parameters);
bool network_set_parameters(network *n, const float *parameters);
bool network_get_parameters(network *n, float *parameters);

/* Samples number first to first + rows - 1, and what the network thinks of them. adds: to the verdicts that are there.
 * scale multiplies the gradients of a backward that follows. */
bool network_forward(network *n, uint64_t seed, uint64_t first, float scale, bool adds);

/* After forward. adds: to the gradients that are there. */
bool network_backward(network *n, bool adds, network_final *is_final, void *user);

/* With the gradients that are there. */
bool network_step(network *n, float rate, float momentum);

/* Waits. The sums over all verdicts. */
bool network_judge(network *n, double *loss, double *right);

#endif
