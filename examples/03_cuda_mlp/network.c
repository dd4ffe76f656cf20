/* SPDX-License-Identifier: Apache-2.0 */
#include "network.h"

#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Making it --------------------------------------------------------------------------------------------- */

static bool allocate(void **memory, size_t bytes) {
    return check_cuda(cudaMalloc(memory, bytes), "memory for the network");
}

static void add_tensor(network *n, const char *kind, int layer, size_t count) {
    network_tensor *tensor = &n->tensors[n->tensor_count++];
    snprintf(tensor->name, sizeof tensor->name, "%s %d", kind, layer);
    tensor->offset = n->parameter_count;
    tensor->count = count;
    n->parameter_count += count;
}

static void lay_out(network *n) {
    n->layer_count = n->shape.hidden + 1;
    for (int i = 0; i <= n->layer_count; i++) {
        n->widths[i] = i == 0 ? NETWORK_INPUTS : i == n->layer_count ? n->shape.classes : n->shape.width;
    }
    for (int i = 0; i < n->layer_count; i++) {
        add_tensor(n, "weight", i, (size_t)n->widths[i] * (size_t)n->widths[i + 1]);
        add_tensor(n, "bias", i, (size_t)n->widths[i + 1]);
    }
}

static bool allocate_all(network *n) {
    const size_t rows = (size_t)n->shape.rows;
    const size_t bytes = n->parameter_count * sizeof(float);
    size_t widest = 0;
    bool is_ok = allocate((void **)&n->parameters, bytes) && allocate((void **)&n->gradients, bytes) &&
                 allocate((void **)&n->velocities, bytes) && allocate((void **)&n->labels, rows * sizeof *n->labels) &&
                 allocate((void **)&n->verdicts, rows * sizeof *n->verdicts) &&
                 check_cuda(cudaMallocHost((void **)&n->verdicts_on_host, rows * sizeof *n->verdicts), "verdicts");
    for (int i = 0; i <= n->layer_count && is_ok; i++) {
        const size_t width = (size_t)n->widths[i];
        widest = width > widest ? width : widest;
        is_ok = allocate((void **)&n->outputs[i], rows * width * sizeof(float));
    }
    return is_ok && allocate((void **)&n->output_gradients[0], rows * widest * sizeof(float)) &&
           allocate((void **)&n->output_gradients[1], rows * widest * sizeof(float)) &&
           check_cuda(cudaMemsetAsync(n->velocities, 0, bytes, n->stream), "velocities");
}

bool network_create(network *n, const network_shape *shape, cudaStream_t stream) {
    memset(n, 0, sizeof *n);
    n->shape = *shape;
    n->stream = stream;
    lay_out(n);
    return allocate_all(n) && check_cublas(cublasCreate(&n->cublas), "cublasCreate") &&
           check_cublas(cublasSetStream(n->cublas, stream), "cublasSetStream");
}

void network_destroy(network *n) {
    if (n->stream != NULL) {
        (void)cudaStreamSynchronize(n->stream);
    }
    if (n->cublas != NULL) {
        (void)cublasDestroy(n->cublas);
    }
    for (int i = 0; i <= n->layer_count; i++) {
        (void)cudaFree(n->outputs[i]);
    }
    void *const others[] = {n->parameters, n->gradients,           n->velocities,         n->labels,
                            n->verdicts,   n->output_gradients[0], n->output_gradients[1]};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        (void)cudaFree(others[i]);
    }
    (void)cudaFreeHost(n->verdicts_on_host);
    memset(n, 0, sizeof *n);
}

/* ---- Parameters -------------------------------------------------------------------------------------------- */

/* In [-1, 1). */
static float draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 8388608.0f - 1.0f;
}

/* Weights are uniform with a variance of 2 over the inputs, which max(x, 0) neither shrinks nor grows; biases are 0. */
void network_draw_parameters(const network *n, uint64_t seed, float *parameters) {
    uint64_t state = seed * 2862933555777941757u + 3037000493u;
    for (int i = 0; i < n->tensor_count; i++) {
        const network_tensor *tensor = &n->tensors[i];
        const bool is_weight = i % 2 == 0;
        const float most = is_weight ? sqrtf(6.0f / (float)n->widths[i / 2]) : 0.0f;
        for (size_t e = 0; e < tensor->count; e++) {
            parameters[tensor->offset + e] = most * draw(&state);
        }
    }
}

static bool copy_and_wait(network *n, void *to, const void *from, size_t bytes) {
    return check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, n->stream), "copy") &&
           check_cuda(cudaStreamSynchronize(n->stream), "copy");
}

bool network_set_parameters(network *n, const float *parameters) {
    return copy_and_wait(n, n->parameters, parameters, n->parameter_count * sizeof *parameters);
}

bool network_get_parameters(network *n, float *parameters) {
    return copy_and_wait(n, parameters, n->parameters, n->parameter_count * sizeof *parameters);
}

/* ---- Products ---------------------------------------------------------------------------------------------- */

/*
 * cuBLAS has matrices column by column. What lies row by row is for it the transposed matrix: instead of C = A B it is
 * asked for C' = B' A'.
 */

/* outputs = inputs x weight */
static bool multiply_forward(network *n, int layer) {
    const float one = 1.0f;
    const float zero = 0.0f;
    const int in = n->widths[layer];
    const int out = n->widths[layer + 1];
    return check_cublas(cublasSgemm(n->cublas, CUBLAS_OP_N, CUBLAS_OP_N, out, n->shape.rows, in, &one,
                                    n->parameters + n->tensors[2 * layer].offset, out, n->outputs[layer], in, &zero,
                                    n->outputs[layer + 1], out),
                        "outputs of a layer");
}

/* weight's gradient = inputs' x outputs' gradient */
static bool multiply_for_weight(network *n, int layer, const float *output_gradient, bool adds, float *to) {
    const float one = 1.0f;
    const float before = adds ? 1.0f : 0.0f;
    const int in = n->widths[layer];
    const int out = n->widths[layer + 1];
    return check_cublas(cublasSgemm(n->cublas, CUBLAS_OP_N, CUBLAS_OP_T, out, in, n->shape.rows, &one, output_gradient,
                                    out, n->outputs[layer], in, &before, to, out),
                        "a weight's gradient");
}

/* inputs' gradient = outputs' gradient x weight' */
static bool multiply_for_inputs(network *n, int layer, const float *output_gradient, float *to) {
    const float one = 1.0f;
    const float zero = 0.0f;
    const int in = n->widths[layer];
    const int out = n->widths[layer + 1];
    return check_cublas(cublasSgemm(n->cublas, CUBLAS_OP_T, CUBLAS_OP_N, in, n->shape.rows, out, &one,
                                    n->parameters + n->tensors[2 * layer].offset, out, output_gradient, out, &zero, to,
                                    in),
                        "the gradient of a layer's inputs");
}

/* ---- Forward and backward ---------------------------------------------------------------------------------- */

bool network_forward(network *n, uint64_t seed, uint64_t first, float scale, bool adds) {
    const int last = n->layer_count - 1;
    const int rows = n->shape.rows;
    bool is_ok = check_cuda(
        kernels_draw_samples(n->stream, seed, first, rows, n->shape.classes, n->outputs[0], n->labels), "samples");
    for (int layer = 0; layer <= last && is_ok; layer++) {
        const float *bias = n->parameters + n->tensors[2 * layer + 1].offset;
        is_ok = multiply_forward(n, layer) && check_cuda(kernels_add_bias(n->stream, n->outputs[layer + 1], bias, rows,
                                                                          n->widths[layer + 1], layer != last),
                                                         "bias");
    }
    return is_ok && check_cuda(kernels_softmax_loss(n->stream, n->outputs[n->layer_count], n->labels, rows,
                                                    n->shape.classes, scale, adds, n->verdicts),
                               "loss");
}

/* Its two gradients, each announced when its kernel is queued: what is announced early travels behind the rest. */
static bool layer_backward(network *n, int layer, const float *output_gradient, bool adds, network_final *is_final,
                           void *user) {
    float *weight = n->gradients + n->tensors[2 * layer].offset;
    float *bias = n->gradients + n->tensors[2 * layer + 1].offset;
    return multiply_for_weight(n, layer, output_gradient, adds, weight) && is_final(user, weight) &&
           check_cuda(kernels_sum_rows(n->stream, output_gradient, n->shape.rows, n->widths[layer + 1], adds, bias),
                      "a bias's gradient") &&
           is_final(user, bias);
}

/* The gradient of the layer's inputs, which are the outputs of the layer before it. */
static bool pass_on(network *n, int layer, const float *output_gradient, float *input_gradient) {
    const size_t count = (size_t)n->shape.rows * (size_t)n->widths[layer];
    return multiply_for_inputs(n, layer, output_gradient, input_gradient) &&
           check_cuda(kernels_rectify_gradient(n->stream, input_gradient, n->outputs[layer], count), "backward");
}

bool network_backward(network *n, bool adds, network_final *is_final, void *user) {
    const float *output_gradient = n->outputs[n->layer_count]; /* which softmax has left there */
    for (int layer = n->layer_count - 1; layer >= 0; layer--) {
        float *input_gradient = n->output_gradients[layer % 2];
        if (!layer_backward(n, layer, output_gradient, adds, is_final, user) ||
            (layer > 0 && !pass_on(n, layer, output_gradient, input_gradient))) {
            return false;
        }
        output_gradient = input_gradient;
    }
    return true;
}

bool network_step(network *n, float rate, float momentum) {
    return check_cuda(
        kernels_step(n->stream, n->parameters, n->velocities, n->gradients, n->parameter_count, rate, momentum),
        "optimizer");
}

bool network_judge(network *n, double *loss, double *right) {
    const size_t rows = (size_t)n->shape.rows;
    if (!copy_and_wait(n, n->verdicts_on_host, n->verdicts, rows * sizeof *n->verdicts)) {
        return false;
    }
    *loss = 0.0;
    *right = 0.0;
    for (size_t row = 0; row < rows; row++) {
        *loss += (double)n->verdicts_on_host[row].loss;
        *right += (double)n->verdicts_on_host[row].is_right;
    }
    return true;
}
