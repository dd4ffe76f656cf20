/* SPDX-License-Identifier: Apache-2.0 */
#include "../launch.cuh"
#include "line.h"

/* The error of one sample, and its inputs. */
static __device__ float look_at(int sample, const float *weights, float *x) {
    x[0] = (float)(sample % 16) / 8 - 1;
    x[1] = (float)(sample / 16) / 8 - 1;
    x[2] = 1;
    const float wanted = 3 * x[0] - 2 * x[1] + 0.5f;
    return weights[0] * x[0] + weights[1] * x[1] + weights[2] * x[2] - wanted;
}

/* A thread for each sum; there is next to nothing to compute. */
static __global__ void add_up(const float *weights, int first, int stride, float *gradient, float *loss) {
    const size_t i = launch_index();
    float sum = 0;
    if (i > LINE_WEIGHTS) {
        return;
    }
    for (int sample = first; sample < LINE_SAMPLES; sample += stride) {
        float x[LINE_WEIGHTS];
        const float error = look_at(sample, weights, x);
        sum += i < LINE_WEIGHTS ? 2 * error * x[i] : error * error;
    }
    *(i < LINE_WEIGHTS ? &gradient[i] : loss) = sum;
}

cudaError_t line_gradient(cudaStream_t stream, const float *weights, int first, int stride, float *gradient,
                          float *loss) {
    return launch("line gradient", stream, LINE_WEIGHTS + 1,
                  {reads(weights, LINE_WEIGHTS), writes(gradient, LINE_WEIGHTS), writes(loss, 1)}, add_up, weights,
                  first, stride, gradient, loss);
}

static __global__ void step(float *weights, const float *gradient, float rate) {
    const size_t i = launch_index();
    if (i < LINE_WEIGHTS) {
        weights[i] -= rate * gradient[i];
    }
}

cudaError_t line_step(cudaStream_t stream, float *weights, const float *gradient, float rate) {
    return launch("line step", stream, LINE_WEIGHTS, {updates(weights, LINE_WEIGHTS), reads(gradient, LINE_WEIGHTS)},
                  step, weights, gradient, rate);
}
