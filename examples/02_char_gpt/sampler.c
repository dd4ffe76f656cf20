/* SPDX-License-Identifier: Apache-2.0 */
#include "sampler.h"

#include "random_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Below 1 the likely characters become likelier: fewer slips, less variety. */
static const double TEMPERATURE = 0.8;

static int draw_token(const float *logits, int vocabulary, double unit) {
    float largest = logits[0];
    for (int j = 1; j < vocabulary; j++) {
        largest = logits[j] > largest ? logits[j] : largest;
    }
    double sum = 0.0;
    for (int j = 0; j < vocabulary; j++) {
        sum += exp((double)(logits[j] - largest) / TEMPERATURE);
    }
    double left = unit * sum;
    for (int j = 0; j < vocabulary; j++) {
        left -= exp((double)(logits[j] - largest) / TEMPERATURE);
        if (left < 0.0) {
            return j;
        }
    }
    return vocabulary - 1;
}

bool sampler_write(model *m, const text *t, uint64_t seed, int count, FILE *to) {
    const int context = m->shape.context;
    const size_t vocabulary = (size_t)m->shape.vocabulary;
    int32_t *window = malloc((size_t)context * sizeof *window);
    if (window == NULL) {
        return false;
    }
    /* Not from the beginning, which tends to be a title: a model left alone with blanks goes on with blanks. */
    const unsigned char *middle = t->bytes + (t->length - (size_t)context) / 2;
    for (int i = 0; i < context; i++) {
        window[i] = t->token_of[middle[i]];
    }
    for (int n = 0; n < count; n++) {
        model_forward(m, window, 1);
        const float *logits = m->logits + (size_t)(context - 1) * vocabulary;
        const int token = draw_token(logits, m->shape.vocabulary, random_unit(seed, RANDOM_TEXT, (uint64_t)n));
        fputc(t->character_of[token], to);
        memmove(window, window + 1, (size_t)(context - 1) * sizeof *window);
        window[context - 1] = token;
    }
    fputc('\n', to);
    free(window);
    return true;
}
