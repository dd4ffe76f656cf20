/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks_private.h"

#include <stdio.h>
#include <stdlib.h>

ranks_model *ranks_model_new(ranks_context *ctx, const size_t *counts, size_t tensor_count, gsync_dtype dtype) {
    ranks_owned_model *owned = ranks_allocate(sizeof(*owned));
    owned->model = (ranks_model){ctx, NULL, ranks_allocate(tensor_count * sizeof(ranks_tensor)), tensor_count};
    for (size_t i = 0; i < tensor_count; i++) {
        ranks_tensor *tensor = &owned->model.tensors[i];
        snprintf(tensor->name, sizeof(tensor->name), "p%zu", i);
        tensor->count = counts[i];
        tensor->dtype = dtype;
        tensor->grad = ranks_memory(ctx, counts[i] * gsync_dtype_size(dtype));
    }
    owned->next = ctx->hidden->models;
    ctx->hidden->models = owned;
    return &owned->model;
}

void ranks_models_destroy(ranks_context *ctx) {
    while (ctx->hidden->models != NULL) {
        ranks_owned_model *owned = ctx->hidden->models;
        ctx->hidden->models = owned->next;
        gsync_reducer_destroy(&owned->model.reducer);
        free(owned->model.tensors);
        free(owned);
    }
}

gsync_status ranks_model_register(ranks_model *model, gsync_comm *comm, const gsync_options *options) {
    gsync_status status = gsync_reducer_create(&model->reducer, comm != NULL ? comm : model->ctx->comm, options);
    for (size_t i = 0; status == GSYNC_OK && i < model->tensor_count; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        status = gsync_reducer_add(model->reducer, tensor->name, tensor->grad, tensor->count, tensor->dtype);
    }
    return status;
}

gsync_status ranks_model_open(ranks_model *model, const gsync_options *options) {
    const gsync_status status = ranks_model_register(model, NULL, options);
    return status != GSYNC_OK ? status : gsync_reducer_commit(model->reducer);
}

static ranks_source source_of(ranks_kind kind, uint64_t round, size_t tensor) {
    return (ranks_source){.kind = kind, .round = round, .tensor = tensor};
}

void ranks_model_fill(ranks_model *model, ranks_kind kind, uint64_t round) {
    for (size_t i = 0; i < model->tensor_count; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        ranks_fill(model->ctx, tensor->grad, tensor->count, tensor->dtype, source_of(kind, round, i));
    }
}

gsync_status ranks_model_ready(ranks_model *model, size_t tensor) {
    return gsync_ready(model->reducer, model->tensors[tensor].grad);
}

gsync_status ranks_model_step(ranks_model *model, const size_t *order, gsync_step_info *info) {
    gsync_status first = gsync_begin(model->reducer, GSYNC_SYNC);
    for (size_t i = 0; first == GSYNC_OK && i < model->tensor_count; i++) {
        first = ranks_model_ready(model, order != NULL ? order[i] : model->tensor_count - 1 - i);
    }
    const gsync_status finish = gsync_finish(model->reducer, info);
    return first != GSYNC_OK ? first : finish;
}

bool ranks_model_check(const ranks_model *model, ranks_kind kind, uint64_t round, double divisor, const char *file,
                       int line) {
    bool all_hold = true;
    for (size_t i = 0; i < model->tensor_count; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        all_hold = ranks_check_reduced(model->ctx, tensor->grad, tensor->count, tensor->dtype,
                                       source_of(kind, round, i), divisor, file, line) &&
                   all_hold;
    }
    return all_hold;
}

bool ranks_model_check_own(const ranks_model *model, ranks_kind kind, uint64_t round, const char *file, int line) {
    bool all_hold = true;
    for (size_t i = 0; i < model->tensor_count; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        all_hold = ranks_check_own(model->ctx, tensor->grad, tensor->count, tensor->dtype, source_of(kind, round, i),
                                   file, line) &&
                   all_hold;
    }
    return all_hold;
}
