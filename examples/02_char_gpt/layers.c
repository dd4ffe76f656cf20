/* SPDX-License-Identifier: Apache-2.0 */
#include "layers.h"

#include "matrix.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- Linear ------------------------------------------------------------------------------------------------ */

void linear_forward(const linear *layer, int sequences) {
    const int rows = sequences * layer->context;
    const size_t outputs = (size_t)layer->outputs;
    for (size_t r = 0; r < (size_t)rows; r++) {
        float *out = layer->output.value + r * outputs;
        for (size_t j = 0; j < outputs; j++) {
            out[j] = layer->bias.value != NULL ? layer->bias.value[j] : 0.0f;
        }
        for (size_t j = 0; layer->residual != NULL && j < outputs; j++) {
            out[j] += layer->residual[r * outputs + j];
        }
    }
    matrix_multiply_add(matrix_of(layer->output.value, rows, layer->outputs),
                        matrix_of(layer->input.value, rows, layer->inputs),
                        matrix_of(layer->weight.value, layer->inputs, layer->outputs));
}

/* A few columns at a time, so that memory is read along its rows. */
static void add_bias_gradient(float *bias_gradient, matrix output_gradient) {
    enum { TILE = 64 };
    for (int first = 0; first < output_gradient.columns; first += TILE) {
        double sums[TILE] = {0.0};
        const int width = output_gradient.columns - first < TILE ? output_gradient.columns - first : TILE;
        for (int r = 0; r < output_gradient.rows; r++) {
            const float *row = output_gradient.data + (size_t)r * (size_t)output_gradient.stride + first;
            for (int j = 0; j < width; j++) {
                sums[j] += (double)row[j];
            }
        }
        for (int j = 0; j < width; j++) {
            bias_gradient[first + j] += (float)sums[j];
        }
    }
}

void linear_backward(const linear *layer, int sequences) {
    const int rows = sequences * layer->context;
    const matrix weight = matrix_of(layer->weight.value, layer->inputs, layer->outputs);
    const matrix transposed = matrix_of(layer->transposed, layer->outputs, layer->inputs);
    const matrix output_gradient = matrix_of(layer->output.gradient, rows, layer->outputs);
    const matrix input_gradient = matrix_of(layer->input.gradient, rows, layer->inputs);
    const matrix input = matrix_of(layer->input.value, rows, layer->inputs);

    matrix_transpose(transposed, weight);
    matrix_zero(input_gradient);
    matrix_multiply_add(input_gradient, output_gradient, transposed);

    for (int s = 0; s < sequences; s++) {
        const matrix gradient = matrix_rows(output_gradient, s * layer->context, layer->context);
        matrix_multiply_transposed_add(matrix_of(layer->weight.gradient, layer->inputs, layer->outputs),
                                       matrix_rows(input, s * layer->context, layer->context), gradient);
        if (layer->bias.gradient != NULL) {
            add_bias_gradient(layer->bias.gradient, gradient);
        }
    }
}

/* ---- Layer normalisation ----------------------------------------------------------------------------------- */

void norm_forward(const norm *layer, int sequences) {
    const size_t width = (size_t)layer->width;
    const size_t rows = (size_t)sequences * (size_t)layer->context;
    for (size_t r = 0; r < rows; r++) {
        const float *in = layer->input.value + r * width;
        float *out = layer->output.value + r * width;
        double sum = 0.0;
        double squares = 0.0;
        for (size_t j = 0; j < width; j++) {
            sum += (double)in[j];
        }
        const double mean = sum / (double)width;
        for (size_t j = 0; j < width; j++) {
            squares += ((double)in[j] - mean) * ((double)in[j] - mean);
        }
        layer->mean[r] = (float)mean;
        layer->inverse_deviation[r] = (float)(1.0 / sqrt(squares / (double)width + 1e-5));
        for (size_t j = 0; j < width; j++) {
            const float normalised = (in[j] - layer->mean[r]) * layer->inverse_deviation[r];
            out[j] = normalised * layer->weight.value[j] + layer->bias.value[j];
        }
    }
}

/*
 * With n = (x - mean) / deviation and g = gradient of n: the gradient of x is (g - mean(g) - n * mean(g * n)) /
 * deviation, since x also moves its row's mean and deviation.
 */
static void norm_backward_row(const norm *layer, size_t row) {
    const size_t width = (size_t)layer->width;
    const float *in = layer->input.value + row * width;
    const float *out_gradient = layer->output.gradient + row * width;
    float *in_gradient = layer->input.gradient + row * width;
    const float mean = layer->mean[row];
    const float inverse = layer->inverse_deviation[row];
    double *weight_sums = layer->sums;
    double *bias_sums = layer->sums + width;
    double sum = 0.0;
    double sum_normalised = 0.0;
    for (size_t j = 0; j < width; j++) {
        const double normalised = (double)((in[j] - mean) * inverse);
        const double gradient = (double)(out_gradient[j] * layer->weight.value[j]);
        sum += gradient;
        sum_normalised += gradient * normalised;
        weight_sums[j] += (double)out_gradient[j] * normalised;
        bias_sums[j] += (double)out_gradient[j];
    }
    const float mean_gradient = (float)(sum / (double)width);
    const float mean_normalised = (float)(sum_normalised / (double)width);
    for (size_t j = 0; j < width; j++) {
        const float normalised = (in[j] - mean) * inverse;
        const float gradient = out_gradient[j] * layer->weight.value[j];
        in_gradient[j] += (gradient - mean_gradient - normalised * mean_normalised) * inverse;
    }
}

void norm_backward(const norm *layer, int sequences) {
    const size_t width = (size_t)layer->width;
    const size_t context = (size_t)layer->context;
    for (size_t s = 0; s < (size_t)sequences; s++) {
        memset(layer->sums, 0, 2 * width * sizeof *layer->sums);
        for (size_t t = 0; t < context; t++) {
            norm_backward_row(layer, s * context + t);
        }
        for (size_t j = 0; j < width; j++) {
            layer->weight.gradient[j] += (float)layer->sums[j];
            layer->bias.gradient[j] += (float)layer->sums[width + j];
        }
    }
}

/* ---- Attention --------------------------------------------------------------------------------------------- */

/* What one head of one sequence works on: windows into the layer's buffers. */
typedef struct head {
    matrix query, key, value;
    matrix query_gradient, key_gradient, value_gradient;
    matrix output, output_gradient;
    matrix probabilities;
    matrix transposed;
    float scale;
} head;

static head head_of(const attention *layer, int sequence, int index) {
    const int context = layer->context;
    const int width = layer->width;
    const int size = width / layer->heads;
    const size_t first_row = (size_t)sequence * (size_t)context;
    const size_t square = (size_t)context * (size_t)context;
    const matrix in = matrix_of(layer->input.value + first_row * 3 * (size_t)width, context, 3 * width);
    const matrix in_gradient = matrix_of(layer->input.gradient + first_row * 3 * (size_t)width, context, 3 * width);
    const matrix out = matrix_of(layer->output.value + first_row * (size_t)width, context, width);
    const matrix out_gradient = matrix_of(layer->output.gradient + first_row * (size_t)width, context, width);
    const int column = index * size;
    return (head){
        .query = matrix_columns(in, column, size),
        .key = matrix_columns(in, width + column, size),
        .value = matrix_columns(in, 2 * width + column, size),
        .query_gradient = matrix_columns(in_gradient, column, size),
        .key_gradient = matrix_columns(in_gradient, width + column, size),
        .value_gradient = matrix_columns(in_gradient, 2 * width + column, size),
        .output = matrix_columns(out, column, size),
        .output_gradient = matrix_columns(out_gradient, column, size),
        .probabilities =
            matrix_of(layer->probabilities + ((size_t)sequence * (size_t)layer->heads + (size_t)index) * square,
                      context, context),
        .transposed = matrix_of(layer->transposed, size, context),
        .scale = 1.0f / sqrtf((float)size),
    };
}

/* Turns one row of scores into probabilities over the `seen` positions up to and including its own. */
static void causal_softmax(float *row, int seen, int context, float scale) {
    float largest = row[0];
    for (int j = 1; j < seen; j++) {
        largest = row[j] > largest ? row[j] : largest;
    }
    double sum = 0.0;
    for (int j = 0; j < seen; j++) {
        row[j] = expf((row[j] - largest) * scale);
        sum += (double)row[j];
    }
    const float inverse = (float)(1.0 / sum);
    for (int j = 0; j < seen; j++) {
        row[j] *= inverse;
    }
    memset(row + seen, 0, (size_t)(context - seen) * sizeof *row);
}

void attention_forward(const attention *layer, int sequences) {
    for (int s = 0; s < sequences; s++) {
        for (int i = 0; i < layer->heads; i++) {
            const head h = head_of(layer, s, i);
            matrix_transpose(h.transposed, h.key);
            matrix_zero(h.probabilities);
            matrix_multiply_add(h.probabilities, h.query, h.transposed);
            for (int t = 0; t < layer->context; t++) {
                causal_softmax(h.probabilities.data + (size_t)t * (size_t)layer->context, t + 1, layer->context,
                               h.scale);
            }
            matrix_zero(h.output);
            matrix_multiply_add(h.output, h.probabilities, h.value);
        }
    }
}

/* Overwrites the gradient of one row of probabilities with that of the unscaled scores. */
static void causal_softmax_backward(float *gradient, const float *probabilities, int seen, int context, float scale) {
    double dot = 0.0;
    for (int j = 0; j < seen; j++) {
        dot += (double)gradient[j] * (double)probabilities[j];
    }
    for (int j = 0; j < seen; j++) {
        gradient[j] = probabilities[j] * (gradient[j] - (float)dot) * scale;
    }
    memset(gradient + seen, 0, (size_t)(context - seen) * sizeof *gradient);
}

void attention_backward(const attention *layer, int sequences) {
    const size_t context = (size_t)layer->context;
    const matrix scores = matrix_of(layer->score_gradient, layer->context, layer->context);
    memset(layer->input.gradient, 0, (size_t)sequences * context * 3 * (size_t)layer->width * sizeof(float));
    for (int s = 0; s < sequences; s++) {
        for (int i = 0; i < layer->heads; i++) {
            const head h = head_of(layer, s, i);
            matrix_multiply_transposed_add(h.value_gradient, h.probabilities, h.output_gradient);
            matrix_transpose(h.transposed, h.value);
            matrix_zero(scores);
            matrix_multiply_add(scores, h.output_gradient, h.transposed);
            for (size_t t = 0; t < context; t++) {
                causal_softmax_backward(scores.data + t * context, h.probabilities.data + t * context, (int)t + 1,
                                        layer->context, h.scale);
            }
            matrix_multiply_add(h.query_gradient, scores, h.key);
            matrix_multiply_transposed_add(h.key_gradient, scores, h.query);
        }
    }
}

/* ---- GELU -------------------------------------------------------------------------------------------------- */

/*
 * GELU in its tanh form, 0.5 x (1 + tanh(u)), written as x / (1 + exp(-2 u)), which is the same function: expf is
 * several times faster than tanhf.
 */
static const float GELU_SCALE = 1.5957691216057308f; /* 2 sqrt(2 / pi) */
static const float GELU_CUBE = 0.044715f;

void gelu_forward(const gelu *layer, int sequences) {
    const size_t count = (size_t)sequences * (size_t)layer->context * (size_t)layer->width;
    for (size_t i = 0; i < count; i++) {
        const float x = layer->input.value[i];
        layer->output.value[i] = x / (1.0f + expf(-GELU_SCALE * (x + GELU_CUBE * x * x * x)));
    }
}

void gelu_backward(const gelu *layer, int sequences) {
    const size_t count = (size_t)sequences * (size_t)layer->context * (size_t)layer->width;
    for (size_t i = 0; i < count; i++) {
        const float x = layer->input.value[i];
        const float gate = 1.0f / (1.0f + expf(-GELU_SCALE * (x + GELU_CUBE * x * x * x)));
        const float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
        layer->input.gradient[i] = layer->output.gradient[i] * (gate + x * gate * (1.0f - gate) * slope);
    }
}

/* ---- Loss -------------------------------------------------------------------------------------------------- */

double cross_entropy(float *logits, const int32_t *targets, int count, int vocabulary) {
    double total = 0.0;
    for (int r = 0; r < count; r++) {
        float *row = logits + (size_t)r * (size_t)vocabulary;
        float largest = row[0];
        for (int j = 1; j < vocabulary; j++) {
            largest = row[j] > largest ? row[j] : largest;
        }
        const double target = (double)row[targets[r]] - (double)largest;
        double sum = 0.0;
        for (int j = 0; j < vocabulary; j++) {
            row[j] = expf(row[j] - largest);
            sum += (double)row[j];
        }
        total += log(sum) - target;
        const float inverse = (float)(1.0 / sum);
        for (int j = 0; j < vocabulary; j++) {
            row[j] *= inverse;
        }
        row[targets[r]] -= 1.0f;
    }
    return total;
}
