/* SPDX-License-Identifier: Apache-2.0 */
#include "validation.h"

#include <stdlib.h>

static void load_sequence(const text *t, size_t index, size_t context, int32_t *tokens, int32_t *targets) {
    const unsigned char *start = t->bytes + t->length + index * context;
    for (size_t i = 0; i < context; i++) {
        tokens[i] = t->token_of[start[i]];
        targets[i] = t->token_of[start[i + 1]];
    }
}

bool validation_loss(model *m, const text *t, double *loss) {
    const size_t context = (size_t)m->shape.context;
    const size_t at_once = (size_t)m->sequences_max;
    const size_t sequences = (t->held_out - 1) / context; /* the last target is one character further on */
    int32_t *tokens = calloc(at_once * context, sizeof *tokens);
    int32_t *targets = calloc(at_once * context, sizeof *targets);
    const bool is_possible = tokens != NULL && targets != NULL;
    double sum = 0.0;
    for (size_t first = 0; is_possible && first < sequences; first += at_once) {
        const size_t count = sequences - first < at_once ? sequences - first : at_once;
        for (size_t i = 0; i < count; i++) {
            load_sequence(t, first + i, context, tokens + i * context, targets + i * context);
        }
        model_forward(m, tokens, (int)count);
        sum += model_loss(m, targets);
    }
    free(targets);
    free(tokens);
    *loss = sum / (double)(sequences * context);
    return is_possible;
}
