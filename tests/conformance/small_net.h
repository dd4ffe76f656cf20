/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SMALL_NET_H
#define SMALL_NET_H

/*
 * A network just large enough to be trained: 4 inputs, 5 hidden units, 1 output, squared error. Four tensors; the
 * gradients are added to what is in their buffers, as backward does.
 */

#include "ranks.h"

#include <math.h>
#include <string.h>

enum { NET_INPUTS = 4, NET_HIDDEN = 5, NET_TENSORS = 4 };
static const size_t net_counts[NET_TENSORS] = {NET_HIDDEN * NET_INPUTS, NET_HIDDEN, NET_HIDDEN, 1};

typedef struct net {
    float parameters[NET_TENSORS][NET_HIDDEN * NET_INPUTS];
} net;

static inline double net_noise(uint64_t seed, uint64_t at) {
    ranks_random random = ranks_random_from(seed, at);
    return ldexp((double)(ranks_random_next(&random) >> 11), -52) - 1.0;
}

static inline void net_init(net *self, uint64_t seed) {
    memset(self, 0, sizeof *self);
    for (size_t t = 0; t < NET_TENSORS; t++) {
        for (size_t i = 0; i < net_counts[t]; i++) {
            self->parameters[t][i] = (float)(0.5 * net_noise(seed, 100 * t + i));
        }
    }
}

/* Adds scale x the gradients of the squared errors of samples [first, first + count) of the data set `data`. */
static inline void net_backward(const net *self, float *const grads[NET_TENSORS], uint64_t data, size_t first,
                                size_t count, double scale) {
    for (size_t s = first; s < first + count; s++) {
        float hidden[NET_HIDDEN];
        float inputs[NET_INPUTS];
        float output = self->parameters[3][0];
        for (size_t i = 0; i < NET_INPUTS; i++) {
            inputs[i] = (float)net_noise(data, s * 16 + i);
        }
        for (size_t h = 0; h < NET_HIDDEN; h++) {
            float sum = self->parameters[1][h];
            for (size_t i = 0; i < NET_INPUTS; i++) {
                sum += self->parameters[0][h * NET_INPUTS + i] * inputs[i];
            }
            hidden[h] = tanhf(sum);
            output += self->parameters[2][h] * hidden[h];
        }
        const float error = (float)(2.0 * scale) * (output - (float)net_noise(data, s * 16 + 15));
        grads[3][0] += error;
        for (size_t h = 0; h < NET_HIDDEN; h++) {
            const float back = error * self->parameters[2][h] * (1 - hidden[h] * hidden[h]);
            grads[2][h] += error * hidden[h];
            grads[1][h] += back;
            for (size_t i = 0; i < NET_INPUTS; i++) {
                grads[0][h * NET_INPUTS + i] += back * inputs[i];
            }
        }
    }
}

/* Plain gradient descent. */
static inline void net_descend(net *self, float *const grads[NET_TENSORS], float rate) {
    for (size_t t = 0; t < NET_TENSORS; t++) {
        for (size_t i = 0; i < net_counts[t]; i++) {
            self->parameters[t][i] -= rate * grads[t][i];
        }
    }
}

static inline void net_zero(float *const grads[NET_TENSORS]) {
    for (size_t t = 0; t < NET_TENSORS; t++) {
        memset(grads[t], 0, net_counts[t] * sizeof(float));
    }
}

/* The largest difference between two nets' parameters. */
static inline double net_distance(const net *a, const net *b) {
    double largest = 0;
    for (size_t t = 0; t < NET_TENSORS; t++) {
        for (size_t i = 0; i < net_counts[t]; i++) {
            largest = fmax(largest, fabs((double)a->parameters[t][i] - (double)b->parameters[t][i]));
        }
    }
    return largest;
}

/* The gradients of a model of net_counts, wherever they live. */
static inline void net_grads_of(const ranks_model *model, float *grads[NET_TENSORS]) {
    for (size_t t = 0; t < NET_TENSORS; t++) {
        grads[t] = gsync_reducer_grad(model->reducer, model->tensors[t].name);
        model->tensors[t].grad = grads[t];
    }
}

/* Memory of the test for the gradients of a net that is trained without the library. */
static inline void net_grads_new(ranks_context *ctx, float *grads[NET_TENSORS]) {
    for (size_t t = 0; t < NET_TENSORS; t++) {
        grads[t] = ranks_memory(ctx, net_counts[t] * sizeof(float));
    }
    net_zero(grads);
}

/* Checks that all ranks hold the same bytes. */
static inline bool net_is_replicated(ranks_context *ctx, const net *self) {
    const void *bufs[] = {self};
    const size_t bytes = sizeof *self;
    return CHECK_OK(gsync_check_replicas(ctx->comm, NULL, bufs, &bytes, 1));
}

#endif
