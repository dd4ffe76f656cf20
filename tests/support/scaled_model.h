/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SCALED_MODEL_H
#define SCALED_MODEL_H

/* Gradients of a loss that was multiplied by a loss scale, and what goes wrong with them. */

#include "ranks.h"

/* This rank's integers of a round times the scale: dividing the mean by it gives back exactly their mean. */
static inline void scaled_fill(ranks_model *model, uint64_t round, double scale) {
    ranks_model_fill(model, RANKS_INTEGERS, round);
    for (size_t t = 0; t < model->tensor_count; t++) {
        const ranks_tensor *tensor = &model->tensors[t];
        for (size_t i = 0; i < tensor->count; i++) {
            ranks_store(tensor->grad, tensor->dtype, i, ranks_load(tensor->grad, tensor->dtype, i) * scale);
        }
    }
}

static inline void scaled_poison(ranks_model *model, size_t tensor, size_t element, double value) {
    ranks_store(model->tensors[tensor].grad, model->tensors[tensor].dtype, element, value);
}

static inline gsync_scaler *scaled_scaler(double scale) {
    gsync_scaler *scaler = NULL;
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    options.scale = scale;
    CHECK_OK(gsync_scaler_create(&scaler, &options));
    return scaler;
}

/* FNV-1a, to compare the bits of buffers across ranks. */
static inline uint64_t scaled_hash(const void *data, size_t bytes) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

#endif
