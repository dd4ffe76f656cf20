/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Compares the hand-written backward pass with differences of the loss, for every tensor of a tiny model, and checks
 * what a synchronising library relies on: that every gradient is announced exactly once, and never written after
 * that. Exit status 0 when all holds, else 1.
 */

#include "model.h"
#include "random_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 3, CONTEXT = 7, VOCABULARY = 13, DIRECTIONS = 6 };

static const model_shape SHAPE = {VOCABULARY, CONTEXT, 2, 12, 3};

/* Float32 losses are good to about 1e-7: this step keeps both rounding and curvature below a thousandth of a gradient.
 */
static const double STEP = 1e-2;
static const double TOLERANCE = 3e-3;

typedef struct checker {
    model model;
    int32_t tokens[SEQUENCES * CONTEXT];
    int32_t targets[SEQUENCES * CONTEXT];
    float *saved;       /* the parameters */
    float *announced;   /* each gradient as it was when it was announced */
    int *announcements; /* per tensor */
    uint64_t drawn;
} checker;

static double draw(checker *c) {
    return random_unit(1, RANDOM_CHECK, c->drawn++);
}

static double loss(checker *c) {
    model_forward(&c->model, c->tokens, SEQUENCES);
    return model_loss(&c->model, c->targets);
}

static void on_final(void *user, const float *gradient) {
    checker *c = user;
    for (size_t i = 0; i < c->model.tensor_count; i++) {
        const tensor *slice = &c->model.tensors[i];
        if (c->model.gradients + slice->offset == gradient) {
            c->announcements[i]++;
            memcpy(c->announced + slice->offset, gradient, slice->count * sizeof *gradient);
        }
    }
}

/* The loss with the tensor's parameters moved by `distance` along `direction`. */
static double moved_loss(checker *c, const tensor *slice, const float *direction, double distance) {
    float *parameters = c->model.parameters + slice->offset;
    for (size_t i = 0; i < slice->count; i++) {
        parameters[i] = c->saved[slice->offset + i] + (float)(distance * (double)direction[i]);
    }
    const double result = loss(c);
    memcpy(parameters, c->saved + slice->offset, slice->count * sizeof *parameters);
    return result;
}

/* The loss's derivative along the direction, from four points: the error is of the fourth order in the step. */
static double measured_slope(checker *c, const tensor *slice, const float *direction) {
    const double near = moved_loss(c, slice, direction, STEP) - moved_loss(c, slice, direction, -STEP);
    const double far = moved_loss(c, slice, direction, 2 * STEP) - moved_loss(c, slice, direction, -2 * STEP);
    return (8.0 * near - far) / (12.0 * STEP);
}

/* Half of the directions touch all elements, half touch one; all have length 1. */
static void choose_direction(checker *c, float *direction, size_t count, int index) {
    if (index % 2 == 0) {
        for (size_t i = 0; i < count; i++) {
            direction[i] = (float)((draw(c) < 0.5 ? -1.0 : 1.0) / sqrt((double)count));
        }
        return;
    }
    memset(direction, 0, count * sizeof *direction);
    direction[(size_t)(draw(c) * (double)count)] = 1.0f;
}

/* The largest difference over the directions, relative to a typical element of the tensor's gradient. */
static double worst_difference(checker *c, const tensor *slice, float *direction) {
    const float *gradient = c->announced + slice->offset;
    double length = 0.0;
    double worst = 0.0;
    for (size_t i = 0; i < slice->count; i++) {
        length += (double)gradient[i] * (double)gradient[i];
    }
    const double typical = sqrt(length / (double)slice->count);
    for (int d = 0; d < DIRECTIONS; d++) {
        double slope = 0.0;
        choose_direction(c, direction, slice->count, d);
        for (size_t i = 0; i < slice->count; i++) {
            slope += (double)gradient[i] * (double)direction[i];
        }
        const double difference = fabs(slope - measured_slope(c, slice, direction)) / typical;
        worst = difference > worst || isnan(difference) ? difference : worst;
    }
    return worst;
}

static bool check_tensor(checker *c, size_t index, float *direction) {
    const tensor *slice = &c->model.tensors[index];
    const double difference = worst_difference(c, slice, direction);
    const bool is_right = difference <= TOLERANCE;
    const bool is_once = c->announcements[index] == 1;
    const bool is_kept =
        memcmp(c->announced + slice->offset, c->model.gradients + slice->offset, slice->count * sizeof(float)) == 0;
    printf("%-36s differs by %.1e%s%s%s\n", slice->name, difference, is_right ? "" : ": WRONG GRADIENT",
           is_once ? "" : ": NOT ANNOUNCED EXACTLY ONCE", is_kept ? "" : ": WRITTEN AFTER IT WAS ANNOUNCED");
    return is_right && is_once && is_kept;
}

static bool check_all(checker *c, float *direction) {
    model *m = &c->model;
    model_initialize(m, 5);
    for (size_t i = 0; i < m->parameter_count; i++) {
        /* Larger weights than training starts with: every path through the model then carries a visible gradient. */
        m->parameters[i] += (float)(0.8 * (draw(c) - 0.5));
    }
    memcpy(c->saved, m->parameters, m->parameter_count * sizeof(float));
    for (int i = 0; i < SEQUENCES * CONTEXT; i++) {
        c->tokens[i] = (int32_t)(draw(c) * VOCABULARY);
        c->targets[i] = (int32_t)(draw(c) * VOCABULARY);
    }
    loss(c);
    model_backward(m, c->tokens, on_final, c);
    bool is_good = true;
    for (size_t i = 0; i < m->tensor_count; i++) {
        is_good = check_tensor(c, i, direction) && is_good;
    }
    return is_good;
}

int main(void) {
    checker c = {.drawn = 0};
    bool is_good = false;
    float *direction = NULL;
    if (model_create(&c.model, SHAPE, SEQUENCES)) {
        c.saved = calloc(c.model.parameter_count, sizeof *c.saved);
        c.announced = calloc(c.model.parameter_count, sizeof *c.announced);
        c.announcements = calloc(c.model.tensor_count, sizeof *c.announcements);
        direction = calloc(c.model.parameter_count, sizeof *direction);
    }
    if (c.saved == NULL || c.announced == NULL || c.announcements == NULL || direction == NULL) {
        fprintf(stderr, "not enough memory\n");
    } else {
        is_good = check_all(&c, direction);
        printf("%s\n", is_good ? "all gradients are right" : "GRADIENTS ARE WRONG");
    }
    free(direction);
    free(c.announcements);
    free(c.announced);
    free(c.saved);
    model_destroy(&c.model);
    return is_good ? 0 : 1;
}
