/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer.h"

#include <math.h>
#include <stdlib.h>

static const int64_t WARM_UP_STEPS = 40;
static const double WEIGHT_DECAY = 0.1;
static const float BETA_MEAN = 0.9f;
static const float BETA_SQUARE = 0.95f;

/*
 * Adam divides each gradient by its own size. Where a gradient is next to nothing, that is rounding noise, which
 * differs from one number of ranks to the next; an epsilon well above the noise and below the gradients that matter
 * keeps it from becoming a full step.
 */
static const float EPSILON = 1e-6f;

bool optimizer_create(optimizer *o, optimizer_kind kind, double learning_rate, double momentum,
                      size_t parameter_count) {
    *o = (optimizer){.kind = kind, .learning_rate = learning_rate, .momentum = momentum};
    const int wanted = kind == OPTIMIZER_ADAMW ? 2 : 1;
    for (o->state_count = 0; o->state_count < wanted; o->state_count++) {
        o->states[o->state_count] = calloc(parameter_count, sizeof(float));
        if (o->states[o->state_count] == NULL) {
            return false;
        }
    }
    return true;
}

void optimizer_destroy(optimizer *o) {
    for (int i = 0; i < o->state_count; i++) {
        free(o->states[i]);
    }
    *o = (optimizer){.state_count = 0};
}

double optimizer_learning_rate(const optimizer *o, int64_t step) {
    const double rise = (double)step / (double)WARM_UP_STEPS;
    const double fall = sqrt((double)WARM_UP_STEPS / (double)step);
    return o->learning_rate * (rise < fall ? rise : fall);
}

typedef struct adamw_rates {
    float step;        /* learning rate, corrected for the mean's start at zero */
    float square_root; /* corrects the square's start at zero */
    float keep;        /* what weight decay leaves */
} adamw_rates;

static void adamw_tensor(const optimizer *o, model *m, const tensor *slice, adamw_rates rates) {
    for (size_t i = slice->offset; i < slice->offset + slice->count; i++) {
        const float gradient = m->gradients[i];
        const float mean = BETA_MEAN * o->states[0][i] + (1.0f - BETA_MEAN) * gradient;
        const float square = BETA_SQUARE * o->states[1][i] + (1.0f - BETA_SQUARE) * gradient * gradient;
        o->states[0][i] = mean;
        o->states[1][i] = square;
        /* Decay acts on the parameter itself and not through the gradient: that is the W of AdamW. */
        m->parameters[i] =
            rates.keep * m->parameters[i] - rates.step * mean / (sqrtf(square) * rates.square_root + EPSILON);
    }
}

static void adamw_step(const optimizer *o, model *m, int64_t step) {
    const double rate = optimizer_learning_rate(o, step);
    adamw_rates rates = {
        .step = (float)(rate / (1.0 - pow((double)BETA_MEAN, (double)step))),
        .square_root = (float)(1.0 / sqrt(1.0 - pow((double)BETA_SQUARE, (double)step))),
    };
    for (size_t i = 0; i < m->tensor_count; i++) {
        rates.keep = m->tensors[i].is_matrix ? (float)(1.0 - rate * WEIGHT_DECAY) : 1.0f;
        adamw_tensor(o, m, &m->tensors[i], rates);
    }
}

static void sgd_step(const optimizer *o, model *m, int64_t step) {
    const float rate = (float)optimizer_learning_rate(o, step);
    const float keep = (float)o->momentum;
    float *momentum = o->states[0];
    for (size_t i = 0; i < m->parameter_count; i++) {
        momentum[i] = keep * momentum[i] + m->gradients[i];
        m->parameters[i] -= rate * momentum[i];
    }
}

void optimizer_step(optimizer *o, model *m, int64_t step) {
    if (o->kind == OPTIMIZER_ADAMW) {
        adamw_step(o, m, step);
    } else {
        sgd_step(o, m, step);
    }
}
