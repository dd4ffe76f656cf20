/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "matrix.h"
#include "random_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_OUTSIDE_BLOCKS = 4, TENSORS_PER_BLOCK = 11 };

/* ---- Layout of the parameters ------------------------------------------------------------------------------ */

/*
 * The initial standard deviation of matrices. GPT-2's 0.02 is for a width of 768 and up: in a narrow model rows that
 * small can cancel to nearly nothing, the norm that follows divides by it, and the gradient jumps.
 */
static float initial_deviation(const model *m) {
    return 1.0f / sqrtf((float)m->shape.width);
}

/* Appends a slice. Called twice: once to learn the total, once (with buffers) to hand out the addresses. */
static variable add_tensor(model *m, const char *name, size_t count, bool is_matrix) {
    tensor *slice = &m->tensors[m->tensor_count++];
    snprintf(slice->name, sizeof slice->name, "%s", name);
    slice->offset = m->parameter_count;
    slice->count = count;
    slice->is_matrix = is_matrix;
    slice->deviation = is_matrix ? initial_deviation(m) : 0.0f;
    slice->start = 0.0f;
    m->parameter_count += count;
    if (m->parameters == NULL) {
        return (variable){NULL, NULL};
    }
    return (variable){m->parameters + slice->offset, m->gradients + slice->offset};
}

static variable add_block_tensor(model *m, int index, const char *name, size_t count, bool is_matrix) {
    char full[sizeof m->tensors->name];
    snprintf(full, sizeof full, "blocks.%d.%s", index, name);
    return add_tensor(m, full, count, is_matrix);
}

static void starts_at_one(model *m) {
    m->tensors[m->tensor_count - 1].start = 1.0f;
}

/* Smaller where a layer adds to the residual stream, which would else grow with the number of layers. */
static void adds_to_residual(model *m) {
    m->tensors[m->tensor_count - 1].deviation = initial_deviation(m) / sqrtf(2.0f * (float)m->shape.layers);
}

/*
 * Queries, keys and values have no bias. A bias of the keys shifts all scores of a query alike, which softmax does
 * not see: its gradient is rounding noise around zero, and Adam would blow that noise up to full steps.
 */
static void lay_out_block(model *m, int index) {
    const size_t c = (size_t)m->shape.width;
    block *b = &m->blocks[index];
    b->attention_norm.weight = add_block_tensor(m, index, "attention_norm.weight", c, false);
    starts_at_one(m);
    b->attention_norm.bias = add_block_tensor(m, index, "attention_norm.bias", c, false);
    b->qkv.weight = add_block_tensor(m, index, "attention.qkv.weight", 3 * c * c, true);
    b->projection.weight = add_block_tensor(m, index, "attention.projection.weight", c * c, true);
    adds_to_residual(m);
    b->projection.bias = add_block_tensor(m, index, "attention.projection.bias", c, false);
    b->mlp_norm.weight = add_block_tensor(m, index, "mlp_norm.weight", c, false);
    starts_at_one(m);
    b->mlp_norm.bias = add_block_tensor(m, index, "mlp_norm.bias", c, false);
    b->up.weight = add_block_tensor(m, index, "mlp.up.weight", 4 * c * c, true);
    b->up.bias = add_block_tensor(m, index, "mlp.up.bias", 4 * c, false);
    b->down.weight = add_block_tensor(m, index, "mlp.down.weight", 4 * c * c, true);
    adds_to_residual(m);
    b->down.bias = add_block_tensor(m, index, "mlp.down.bias", c, false);
}

static void lay_out(model *m) {
    const size_t c = (size_t)m->shape.width;
    m->tensor_count = 0;
    m->parameter_count = 0;
    m->token_embedding = add_tensor(m, "token_embedding.weight", (size_t)m->shape.vocabulary * c, true);
    m->position_embedding = add_tensor(m, "position_embedding.weight", (size_t)m->shape.context * c, true);
    for (int i = 0; i < m->shape.layers; i++) {
        lay_out_block(m, i);
    }
    m->final_norm.weight = add_tensor(m, "final_norm.weight", c, false);
    starts_at_one(m);
    m->final_norm.bias = add_tensor(m, "final_norm.bias", c, false);
}

/* ---- Wiring of the activations ----------------------------------------------------------------------------- */

/* Hands out slices of one allocation; with a NULL base it only counts. */
typedef struct arena {
    float *base;
    size_t used;
} arena;

static float *take(arena *a, size_t count) {
    float *slice = a->base == NULL ? NULL : a->base + a->used;
    a->used += count;
    return slice;
}

/* Gradients of activations live only from one layer to the next, so all blocks share one set. */
typedef struct shared_gradients {
    float *stream; /* of the residual stream: it runs through the whole model, and layers add to it */
    float *normalised;
    float *qkv;
    float *attended;
    float *up;
    float *activated;
    float *scores;
    float *transposed_head;
    float *transposed_weight;
} shared_gradients;

static void wire_norm(model *m, norm *layer, arena *a, float *input, const shared_gradients *g) {
    const size_t rows = (size_t)m->sequences_max * (size_t)m->shape.context;
    layer->width = m->shape.width;
    layer->context = m->shape.context;
    layer->input = (variable){input, g->stream};
    layer->output = (variable){take(a, rows * (size_t)m->shape.width), g->normalised};
    layer->mean = take(a, rows);
    layer->inverse_deviation = take(a, rows);
    layer->sums = m->norm_sums;
}

static void wire_linear(model *m, linear *layer, variable input, variable output, const shared_gradients *g) {
    layer->input = input;
    layer->output = output;
    layer->context = m->shape.context;
    layer->transposed = g->transposed_weight;
}

/* Returns the residual stream as the block leaves it. */
static float *wire_block(model *m, block *b, arena *a, float *stream, const shared_gradients *g) {
    const size_t context = (size_t)m->shape.context;
    const size_t rows = (size_t)m->sequences_max * context;
    const int width = m->shape.width;
    const size_t c = (size_t)width;

    wire_norm(m, &b->attention_norm, a, stream, g);
    const variable qkv = {take(a, rows * 3 * c), g->qkv};
    wire_linear(m, &b->qkv, b->attention_norm.output, qkv, g);
    b->qkv.inputs = width;
    b->qkv.outputs = 3 * width;

    b->attention.input = qkv;
    b->attention.output = (variable){take(a, rows * c), g->attended};
    b->attention.probabilities = take(a, rows * (size_t)m->shape.heads * context);
    b->attention.score_gradient = g->scores;
    b->attention.transposed = g->transposed_head;
    b->attention.width = width;
    b->attention.heads = m->shape.heads;
    b->attention.context = m->shape.context;

    const variable middle = {take(a, rows * c), g->stream};
    wire_linear(m, &b->projection, b->attention.output, middle, g);
    b->projection.inputs = width;
    b->projection.outputs = width;
    b->projection.residual = stream;

    wire_norm(m, &b->mlp_norm, a, middle.value, g);
    const variable up = {take(a, rows * 4 * c), g->up};
    wire_linear(m, &b->up, b->mlp_norm.output, up, g);
    b->up.inputs = width;
    b->up.outputs = 4 * width;

    const variable activated = {take(a, rows * 4 * c), g->activated};
    b->gelu = (gelu){.input = up, .output = activated, .width = 4 * width, .context = m->shape.context};

    const variable end = {take(a, rows * c), g->stream};
    wire_linear(m, &b->down, activated, end, g);
    b->down.inputs = 4 * width;
    b->down.outputs = width;
    b->down.residual = middle.value;
    return end.value;
}

static void wire(model *m, arena *a) {
    const size_t context = (size_t)m->shape.context;
    const size_t rows = (size_t)m->sequences_max * context;
    const size_t c = (size_t)m->shape.width;
    const size_t vocabulary = (size_t)m->shape.vocabulary;
    const shared_gradients g = {
        .stream = take(a, rows * c),
        .normalised = take(a, rows * c),
        .qkv = take(a, rows * 3 * c),
        .attended = take(a, rows * c),
        .up = take(a, rows * 4 * c),
        .activated = take(a, rows * 4 * c),
        .scores = take(a, context * context),
        .transposed_head = take(a, context * c),
        .transposed_weight = take(a, 4 * c * c),
    };
    float *stream = take(a, rows * c);
    for (int i = 0; i < m->shape.layers; i++) {
        stream = wire_block(m, &m->blocks[i], a, stream, &g);
    }
    wire_norm(m, &m->final_norm, a, stream, &g);
    m->logits = take(a, rows * vocabulary);
    m->embedding_transposed = take(a, c * vocabulary);
}

/* ---- Life -------------------------------------------------------------------------------------------------- */

bool model_create(model *m, model_shape shape, int sequences_max) {
    *m = (model){.shape = shape, .sequences_max = sequences_max};
    const size_t tensor_count = TENSORS_OUTSIDE_BLOCKS + (size_t)shape.layers * TENSORS_PER_BLOCK;
    m->tensors = calloc(tensor_count, sizeof *m->tensors);
    m->blocks = calloc((size_t)shape.layers, sizeof *m->blocks);
    m->norm_sums = calloc(2 * (size_t)shape.width, sizeof *m->norm_sums);
    if (m->tensors == NULL || m->blocks == NULL || m->norm_sums == NULL) {
        return false;
    }
    lay_out(m);
    m->parameters = calloc(m->parameter_count, sizeof *m->parameters);
    m->gradients = calloc(m->parameter_count, sizeof *m->gradients);
    arena a = {NULL, 0};
    wire(m, &a);
    m->activations = calloc(a.used, sizeof *m->activations);
    if (m->parameters == NULL || m->gradients == NULL || m->activations == NULL) {
        return false;
    }
    lay_out(m);
    a = (arena){m->activations, 0};
    wire(m, &a);
    return true;
}

void model_destroy(model *m) {
    free(m->activations);
    free(m->gradients);
    free(m->parameters);
    free(m->norm_sums);
    free(m->blocks);
    free(m->tensors);
    *m = (model){.tensor_count = 0};
}

/* A normal deviate from two uniform ones (Box and Muller). */
static float normal_deviate(uint64_t seed, uint64_t index) {
    const double radius = sqrt(-2.0 * log(random_unit(seed, RANDOM_WEIGHTS, 2 * index)));
    return (float)(radius * cos(6.283185307179586 * random_unit(seed, RANDOM_WEIGHTS, 2 * index + 1)));
}

void model_initialize(model *m, uint64_t seed) {
    for (size_t i = 0; i < m->tensor_count; i++) {
        const tensor *slice = &m->tensors[i];
        for (size_t j = slice->offset; j < slice->offset + slice->count; j++) {
            m->parameters[j] = slice->start;
            if (slice->deviation > 0.0f) {
                m->parameters[j] += slice->deviation * normal_deviate(seed, j);
            }
        }
    }
}

void model_zero_gradients(model *m) {
    memset(m->gradients, 0, m->parameter_count * sizeof *m->gradients);
}

/* ---- Forward ----------------------------------------------------------------------------------------------- */

static void embed(const model *m, const int32_t *tokens) {
    const size_t width = (size_t)m->shape.width;
    const size_t context = (size_t)m->shape.context;
    float *stream = m->blocks[0].attention_norm.input.value;
    for (size_t r = 0; r < (size_t)m->sequences * context; r++) {
        const float *token = m->token_embedding.value + (size_t)tokens[r] * width;
        const float *position = m->position_embedding.value + (r % context) * width;
        for (size_t j = 0; j < width; j++) {
            stream[r * width + j] = token[j] + position[j];
        }
    }
}

void model_forward(model *m, const int32_t *tokens, int sequences) {
    const int rows = sequences * m->shape.context;
    m->sequences = sequences;
    embed(m, tokens);
    for (int i = 0; i < m->shape.layers; i++) {
        const block *b = &m->blocks[i];
        norm_forward(&b->attention_norm, sequences);
        linear_forward(&b->qkv, sequences);
        attention_forward(&b->attention, sequences);
        linear_forward(&b->projection, sequences);
        norm_forward(&b->mlp_norm, sequences);
        linear_forward(&b->up, sequences);
        gelu_forward(&b->gelu, sequences);
        linear_forward(&b->down, sequences);
    }
    norm_forward(&m->final_norm, sequences);

    const matrix embedding = matrix_of(m->token_embedding.value, m->shape.vocabulary, m->shape.width);
    const matrix transposed = matrix_of(m->embedding_transposed, m->shape.width, m->shape.vocabulary);
    const matrix logits = matrix_of(m->logits, rows, m->shape.vocabulary);
    matrix_transpose(transposed, embedding);
    matrix_zero(logits);
    matrix_multiply_add(logits, matrix_of(m->final_norm.output.value, rows, m->shape.width), transposed);
}

double model_loss(model *m, const int32_t *targets) {
    return cross_entropy(m->logits, targets, m->sequences * m->shape.context, m->shape.vocabulary);
}

/* ---- Backward ---------------------------------------------------------------------------------------------- */

typedef struct listener {
    gradient_final_function is_final;
    void *user;
} listener;

static void announce(const listener *l, variable parameter) {
    if (l->is_final != NULL && parameter.gradient != NULL) {
        l->is_final(l->user, parameter.gradient);
    }
}

static void announce_pair(const listener *l, variable weight, variable bias) {
    announce(l, bias);
    announce(l, weight);
}

/* The output layer's share of the embedding's gradient. It is not final yet: embedding_backward writes it again. */
static void output_backward(model *m) {
    const int rows = m->sequences * m->shape.context;
    const matrix logits = matrix_of(m->logits, rows, m->shape.vocabulary);
    const matrix normalised = matrix_of(m->final_norm.output.value, rows, m->shape.width);
    const matrix normalised_gradient = matrix_of(m->final_norm.output.gradient, rows, m->shape.width);
    matrix_zero(normalised_gradient);
    matrix_multiply_add(normalised_gradient, logits,
                        matrix_of(m->token_embedding.value, m->shape.vocabulary, m->shape.width));
    for (int s = 0; s < m->sequences; s++) {
        const int first = s * m->shape.context;
        matrix_multiply_transposed_add(matrix_of(m->token_embedding.gradient, m->shape.vocabulary, m->shape.width),
                                       matrix_rows(logits, first, m->shape.context),
                                       matrix_rows(normalised, first, m->shape.context));
    }
}

static void block_backward(const block *b, int sequences, const listener *l) {
    linear_backward(&b->down, sequences);
    announce_pair(l, b->down.weight, b->down.bias);
    gelu_backward(&b->gelu, sequences);
    linear_backward(&b->up, sequences);
    announce_pair(l, b->up.weight, b->up.bias);
    norm_backward(&b->mlp_norm, sequences);
    announce_pair(l, b->mlp_norm.weight, b->mlp_norm.bias);

    linear_backward(&b->projection, sequences);
    announce_pair(l, b->projection.weight, b->projection.bias);
    attention_backward(&b->attention, sequences);
    linear_backward(&b->qkv, sequences);
    announce_pair(l, b->qkv.weight, b->qkv.bias);
    norm_backward(&b->attention_norm, sequences);
    announce_pair(l, b->attention_norm.weight, b->attention_norm.bias);
}

static void embedding_backward(model *m, const int32_t *tokens) {
    const size_t width = (size_t)m->shape.width;
    const size_t context = (size_t)m->shape.context;
    const float *stream = m->blocks[0].attention_norm.input.gradient;
    for (size_t r = 0; r < (size_t)m->sequences * context; r++) {
        float *token = m->token_embedding.gradient + (size_t)tokens[r] * width;
        float *position = m->position_embedding.gradient + (r % context) * width;
        for (size_t j = 0; j < width; j++) {
            token[j] += stream[r * width + j];
            position[j] += stream[r * width + j];
        }
    }
}

void model_backward(model *m, const int32_t *tokens, gradient_final_function is_final, void *user) {
    const listener l = {is_final, user};
    output_backward(m);
    memset(m->final_norm.input.gradient, 0,
           (size_t)m->sequences * (size_t)m->shape.context * (size_t)m->shape.width * sizeof(float));
    norm_backward(&m->final_norm, m->sequences);
    announce_pair(&l, m->final_norm.weight, m->final_norm.bias);
    for (int i = m->shape.layers - 1; i >= 0; i--) {
        block_backward(&m->blocks[i], m->sequences, &l);
    }
    embedding_backward(m, tokens);
    announce(&l, m->position_embedding);
    announce(&l, m->token_embedding);
}
