/* SPDX-License-Identifier: Apache-2.0 */
#include "../launch.cuh"
#include "kernels.h"

#include <math.h>

/* ---- Samples ----------------------------------------------------------------------------------------------- */

static __device__ uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In [0, 1). */
static __device__ float unit(uint64_t random) {
    return (float)(random >> 40) * (1.0f / 16777216.0f);
}

static __global__ void draw_samples(uint64_t seed, uint64_t first, int rows, int classes, float *inputs, int *labels) {
    const float full_turn = 6.2831853f;
    const float turns = 1.0f;
    const float noise = 0.4f;
    const size_t row = launch_index();
    if (row >= (size_t)rows) {
        return;
    }
    const uint64_t number = first + row;
    const uint64_t random = mix(seed ^ mix(number));
    const int label = (int)(number % (uint64_t)classes);
    const float radius = unit(random);
    const float angle =
        full_turn * ((float)label / (float)classes + turns * radius) + noise * (unit(mix(random)) - 0.5f);
    inputs[2 * row] = 2.0f * radius * cosf(angle);
    inputs[2 * row + 1] = 2.0f * radius * sinf(angle);
    labels[row] = label;
}

cudaError_t kernels_draw_samples(cudaStream_t stream, uint64_t seed, uint64_t first, int rows, int classes,
                                 float *inputs, int *labels) {
    return launch("draw samples", stream, (size_t)rows,
                  {writes(inputs, 2 * (size_t)rows), writes(labels, (size_t)rows)}, draw_samples, seed, first, rows,
                  classes, inputs, labels);
}

/* ---- Forward ----------------------------------------------------------------------------------------------- */

static __global__ void add_bias(float *outputs, const float *bias, int rows, int width, bool rectifies) {
    const size_t i = launch_index();
    if (i >= (size_t)rows * (size_t)width) {
        return;
    }
    const float sum = outputs[i] + bias[i % (size_t)width];
    outputs[i] = rectifies && sum < 0.0f ? 0.0f : sum;
}

cudaError_t kernels_add_bias(cudaStream_t stream, float *outputs, const float *bias, int rows, int width,
                             bool rectifies) {
    const size_t count = (size_t)rows * (size_t)width;
    return launch("add bias", stream, count, {updates(outputs, count), reads(bias, (size_t)width)}, add_bias, outputs,
                  bias, rows, width, rectifies);
}

/* ---- Loss -------------------------------------------------------------------------------------------------- */

/* There are few classes: one thread takes a whole row. */
static __global__ void softmax_loss(float *logits, const int *labels, int rows, int classes, float scale, bool adds,
                                    kernels_verdict *verdicts) {
    const size_t row = launch_index();
    if (row >= (size_t)rows) {
        return;
    }
    float *z = logits + row * (size_t)classes;
    const int label = labels[row];
    int best = 0;
    for (int c = 1; c < classes; c++) {
        best = z[c] > z[best] ? c : best;
    }
    const float most = z[best];
    float sum = 0.0f;
    for (int c = 0; c < classes; c++) {
        sum += expf(z[c] - most);
    }
    const kernels_verdict before = adds ? verdicts[row] : kernels_verdict{0.0f, 0.0f};
    verdicts[row].loss = before.loss + logf(sum) + most - z[label];
    verdicts[row].is_right = before.is_right + (best == label ? 1.0f : 0.0f);
    for (int c = 0; c < classes; c++) {
        z[c] = scale * (expf(z[c] - most) / sum - (c == label ? 1.0f : 0.0f));
    }
}

cudaError_t kernels_softmax_loss(cudaStream_t stream, float *logits, const int *labels, int rows, int classes,
                                 float scale, bool adds, kernels_verdict *verdicts) {
    const size_t count = (size_t)rows;
    return launch("softmax loss", stream, count,
                  {updates(logits, count * (size_t)classes), reads(labels, count),
                   adds ? updates(verdicts, count) : writes(verdicts, count)},
                  softmax_loss, logits, labels, rows, classes, scale, adds, verdicts);
}

/* ---- Backward ---------------------------------------------------------------------------------------------- */

static __global__ void rectify_gradient(float *gradient, const float *outputs, size_t count) {
    const size_t i = launch_index();
    if (i < count && outputs[i] == 0.0f) {
        gradient[i] = 0.0f;
    }
}

cudaError_t kernels_rectify_gradient(cudaStream_t stream, float *gradient, const float *outputs, size_t count) {
    return launch("rectify gradient", stream, count, {updates(gradient, count), reads(outputs, count)},
                  rectify_gradient, gradient, outputs, count);
}

/* A thread takes a column, so that neighbours read neighbours. */
static __global__ void sum_rows(const float *matrix, int rows, int width, bool adds, float *sums) {
    const size_t column = launch_index();
    if (column >= (size_t)width) {
        return;
    }
    float sum = 0.0f;
    for (size_t row = 0; row < (size_t)rows; row++) {
        sum += matrix[row * (size_t)width + column];
    }
    sums[column] = adds ? sums[column] + sum : sum;
}

cudaError_t kernels_sum_rows(cudaStream_t stream, const float *matrix, int rows, int width, bool adds, float *sums) {
    const size_t columns = (size_t)width;
    return launch("sum rows", stream, columns,
                  {reads(matrix, (size_t)rows * columns), adds ? updates(sums, columns) : writes(sums, columns)},
                  sum_rows, matrix, rows, width, adds, sums);
}

/* ---- Optimizer --------------------------------------------------------------------------------------------- */

static __global__ void step(float *parameters, float *velocities, const float *gradients, size_t count, float rate,
                            float momentum) {
    const size_t i = launch_index();
    if (i >= count) {
        return;
    }
    const float velocity = momentum * velocities[i] + gradients[i];
    velocities[i] = velocity;
    parameters[i] -= rate * velocity;
}

cudaError_t kernels_step(cudaStream_t stream, float *parameters, float *velocities, const float *gradients,
                         size_t count, float rate, float momentum) {
    return launch("step", stream, count,
                  {updates(parameters, count), updates(velocities, count), reads(gradients, count)}, step, parameters,
                  velocities, gradients, count, rate, momentum);
}
