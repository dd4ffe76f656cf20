/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAN_NOTATION_H
#define PLAN_NOTATION_H

/*
 * Models and plans as text, so that a test shows both at a glance. "100f 25d 3f!" is three gradients: 100 float32, 25
 * float64, and 3 float32 that are frozen (h: float16, b: bfloat16). "[0 2][1]" is a plan of two buckets.
 */

#include "plan/bucket_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_MODEL_MAX 128
#define PLAN_TEXT_MAX 1024

typedef struct plan_model {
    size_t count;
    gs_plan_gradient gradients[PLAN_MODEL_MAX];
    uint32_t order[PLAN_MODEL_MAX]; /* as registered, until a test says otherwise */
} plan_model;

static inline gsync_dtype plan_dtype_of(char letter) {
    switch (letter) {
    case 'd':
        return GSYNC_FLOAT64;
    case 'h':
        return GSYNC_FLOAT16;
    case 'b':
        return GSYNC_BFLOAT16;
    default:
        return GSYNC_FLOAT32;
    }
}

static inline plan_model plan_model_read(const char *notation) {
    plan_model model = {0};
    while (*notation != '\0') {
        char *end = NULL;
        gs_plan_gradient *const gradient = &model.gradients[model.count];
        gradient->count = strtoull(notation, &end, 10);
        gradient->dtype = plan_dtype_of(*end++);
        gradient->uses = 1;
        gradient->is_trainable = *end != '!';
        model.order[model.count] = (uint32_t)model.count;
        model.count++;
        notation = end + strspn(end, "! ");
    }
    return model;
}

static inline void plan_model_set_order(plan_model *model, const uint32_t *order) {
    memcpy(model->order, order, model->count * sizeof *order);
}

static inline void plan_write(const gs_bucket_plan *plan, char text[PLAN_TEXT_MAX]) {
    size_t length = 0;
    text[0] = '\0';
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *const bucket = &plan->buckets[b];
        for (uint32_t i = 0; i < bucket->gradient_count; i++) {
            length += (size_t)snprintf(text + length, PLAN_TEXT_MAX - length, "%s%u", i == 0 ? "[" : " ",
                                       (unsigned)plan->members[bucket->first + i]);
        }
        length += (size_t)snprintf(text + length, PLAN_TEXT_MAX - length, "]");
    }
}

static inline gs_plan_rule plan_rule_ddp(size_t bytes_first_max, size_t bytes_max) {
    return (gs_plan_rule){GSYNC_STRATEGY_DDP, bytes_max, bytes_first_max};
}

static inline gs_plan_rule plan_rule_fixed(size_t bytes_max) {
    return (gs_plan_rule){GSYNC_STRATEGY_FIXED, bytes_max, 1};
}

static inline gs_plan_rule plan_rule_single(void) {
    return (gs_plan_rule){GSYNC_STRATEGY_SINGLE, 1, 1};
}

#endif
