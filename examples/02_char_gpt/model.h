/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_MODEL_H
#define CHAR_GPT_MODEL_H

/*
 * A small GPT: token and position embedding, blocks of (norm, causal attention, residual, norm, MLP, residual), a
 * final norm, and an output whose weight is the token embedding itself.
 *
 * All parameters lie in one flat buffer and all gradients in another of the same layout; a tensor is a slice of both.
 * The model knows nothing of ranks: while model_backward runs, it only tells a callback which gradient is final.
 */

#include "layers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct model_shape {
    int vocabulary;
    int context; /* characters a sequence is long */
    int layers;
    int width;
    int heads;
} model_shape;

typedef struct tensor {
    char name[48]; /* such as "blocks.3.attention.qkv.weight" */
    size_t offset; /* into the parameters and the gradients */
    size_t count;
    bool is_matrix;  /* weight decay is for matrices; biases and norms are left alone */
    float deviation; /* of the initial normal distribution */
    float start;     /* its mean: 1 for the weight of a norm */
} tensor;

typedef struct block {
    norm attention_norm;
    linear qkv;
    attention attention;
    linear projection;
    norm mlp_norm;
    linear up;
    gelu gelu;
    linear down;
} block;

/* Called with the slice's gradient as soon as this backward pass will not write it again. */
typedef void (*gradient_final_function)(void *user, const float *gradient);

typedef struct model {
    model_shape shape;
    int sequences_max;
    size_t parameter_count;
    float *parameters;
    float *gradients;
    size_t tensor_count;
    tensor *tensors; /* in the order in which forward uses them */

    variable token_embedding; /* [vocabulary][width]; the output layer uses it too */
    variable position_embedding;
    block *blocks;
    norm final_norm;

    float *logits; /* after model_backward: their gradient */
    float *embedding_transposed;
    float *activations; /* one allocation that all activations are slices of */
    double *norm_sums;
    int sequences; /* of the last forward pass */
} model;

/* False when the memory does not suffice; model_destroy is then still to be called. Parameters are not set yet. */
bool model_create(model *m, model_shape shape, int sequences_max);
void model_destroy(model *m);

/* Every parameter is drawn from (seed, its index). */
void model_initialize(model *m, uint64_t seed);

/* Computes the logits of sequences * context tokens. */
void model_forward(model *m, const int32_t *tokens, int sequences);

/* The sum of the cross-entropy over all positions of the last forward pass. To be called once after each. */
double model_loss(model *m, const int32_t *targets);

/*
 * Adds the gradient of model_loss to the gradients. Tensors become final from the last layer to the first; each is
 * announced once to is_final, which may be NULL. With no sequences nothing is added but all are announced.
 */
void model_backward(model *m, const int32_t *tokens, gradient_final_function is_final, void *user);

void model_zero_gradients(model *m);

#endif
