/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_STEP_H
#define WIRE_STEP_H

/* A ranks_model that travels on one narrow wire, for cases with a few numbers. */

#include "ranks.h"

/* Without feedback, and nothing is too short. */
static inline gsync_wire_options wire_step_options(void) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.elements_min = 1;
    options.feedback = GSYNC_FEEDBACK_OFF;
    return options;
}

static inline ranks_model *wire_step_model(ranks_context *ctx, const size_t *counts, size_t count, gsync_dtype dtype,
                                           gsync_wire wire, const gsync_wire_options *wire_options,
                                           const gsync_options *options) {
    ranks_model *model = ranks_model_new(ctx, counts, count, dtype);
    CHECK_OK(ranks_model_register(model, NULL, options));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, wire, wire_options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    return model;
}

static inline void wire_step_set(ranks_model *model, size_t tensor, double value) {
    const ranks_tensor *of = &model->tensors[tensor];
    for (size_t k = 0; k < of->count; k++) {
        ranks_store(of->grad, of->dtype, k, value);
    }
}

static inline double wire_step_get(const ranks_model *model, size_t tensor, size_t element) {
    return ranks_load(model->tensors[tensor].grad, model->tensors[tensor].dtype, element);
}

#endif
