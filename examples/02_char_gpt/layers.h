/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_LAYERS_H
#define CHAR_GPT_LAYERS_H

/*
 * The layers of a transformer: forward, and backward by hand.
 *
 * A layer is a struct of pointers that the model wires up once: where its input and output are, and where its
 * parameters are. Each of these is a variable, a value together with its gradient. Both passes then only need the
 * number of sequences.
 *
 * Backward: parameter gradients are always added to what is there, so that the micro-batches of an accumulation
 * window add up. Gradients of activations are overwritten, except where it says "added".
 */

#include <stdint.h>

typedef struct variable {
    float *value;
    float *gradient;
} variable;

/* output = input * weight + bias (+ residual). weight is [inputs][outputs]. */
typedef struct linear {
    variable weight;
    variable bias; /* NULL values: none */
    variable input;
    variable output;
    const float *residual; /* added to the output; NULL: none. Its gradient is the output's, nothing is computed */
    float *transposed;     /* room for the transposed weight */
    int inputs;
    int outputs;
    int context;
} linear;

/* Layer normalisation. The input's gradient is added: the residual stream's gradient passes by the layer. */
typedef struct norm {
    variable weight;
    variable bias;
    variable input;
    variable output;
    float *mean; /* of each row, kept for backward */
    float *inverse_deviation;
    double *sums; /* room for 2 * width numbers */
    int width;
    int context;
} norm;

/* Causal attention with several heads. A row of input is query, key and value side by side, each `width` wide. */
typedef struct attention {
    variable input;
    variable output;
    float *probabilities;  /* [sequence][head][context][context], kept for backward */
    float *score_gradient; /* room for [context][context] */
    float *transposed;     /* room for [width / heads][context] */
    int width;
    int heads;
    int context;
} attention;

typedef struct gelu {
    variable input;
    variable output;
    int width;
    int context;
} gelu;

void linear_forward(const linear *layer, int sequences);
void linear_backward(const linear *layer, int sequences);

void norm_forward(const norm *layer, int sequences);
void norm_backward(const norm *layer, int sequences);

void attention_forward(const attention *layer, int sequences);
void attention_backward(const attention *layer, int sequences);

void gelu_forward(const gelu *layer, int sequences);
void gelu_backward(const gelu *layer, int sequences);

/*
 * Cross-entropy of `count` rows of logits against their targets. Returns the sum over the rows, in nats, and
 * overwrites the logits with the gradient of that sum.
 */
double cross_entropy(float *logits, const int32_t *targets, int count, int vocabulary);

#endif
