/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_OPTIMIZER_H
#define CHAR_GPT_OPTIMIZER_H

/*
 * AdamW and SGD with momentum. Both run alike on every rank: from the same gradients and the same state they make
 * the same parameters, bit for bit, so parameters never travel after the start.
 */

#include "model.h"

typedef enum optimizer_kind { OPTIMIZER_ADAMW = 0, OPTIMIZER_SGD = 1 } optimizer_kind;

enum { OPTIMIZER_STATES_MAX = 2 };

typedef struct optimizer {
    optimizer_kind kind;
    double learning_rate; /* after the warm-up */
    double momentum;      /* of SGD, from 0 to less than 1 */
    /* Flat like the parameters. AdamW: mean of the gradient, mean of its square. SGD: momentum. */
    float *states[OPTIMIZER_STATES_MAX];
    int state_count;
} optimizer;

/* False when the memory does not suffice; optimizer_destroy is then still to be called. */
bool optimizer_create(optimizer *o, optimizer_kind kind, double learning_rate, double momentum, size_t parameter_count);
void optimizer_destroy(optimizer *o);

/*
 * The learning rate of step 1, 2, ... It rises during the warm-up and then falls with the square root of the step.
 * It does not depend on how many steps are planned: a run that is resumed for longer goes on as if it had never
 * been interrupted.
 */
double optimizer_learning_rate(const optimizer *o, int64_t step);

/* Moves the parameters by one step; `step` counts from 1 over the whole training. */
void optimizer_step(optimizer *o, model *m, int64_t step);

#endif
