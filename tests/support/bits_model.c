/* SPDX-License-Identifier: Apache-2.0 */
#include "bits_model.h"

#include <stdio.h>
#include <string.h>

#define AROUND 0xc3 /* between and around gradients */
#define GAP 3       /* elements between the rows of a pitched gradient */

/* ---- Making ---------------------------------------------------------------------------------------------------- */

static void compute(const ranks_context *ctx, bits_tensor *tensor, size_t index, oracle_terms terms) {
    terms.dtype = tensor->dtype;
    for (uint64_t round = 0; round < BITS_ROUNDS; round++) {
        terms.key = oracle_key(ctx, round, index);
        oracle_fill(&terms, ctx->rank, tensor->input[round], tensor->count);
        oracle_reduce(&terms, tensor->expected[round], tensor->count);
    }
}

bits_model *bits_model_new(ranks_context *ctx, const bits_shape *shapes, size_t tensor_count,
                           const oracle_terms *terms) {
    bits_model *model = ranks_memory(ctx, sizeof *model);
    *model = (bits_model){.ctx = ctx, .tensor_count = tensor_count, .setting = ""};
    model->keeper = ranks_model_new(ctx, NULL, 0, GSYNC_FLOAT32);
    model->tensors = ranks_memory(ctx, tensor_count * sizeof *model->tensors);
    for (size_t i = 0; i < tensor_count; i++) {
        bits_tensor *tensor = &model->tensors[i];
        *tensor = (bits_tensor){.count = shapes[i].count, .dtype = shapes[i].dtype};
        snprintf(tensor->name, sizeof tensor->name, "b%zu", i);
        const size_t bytes = tensor->count * gsync_dtype_size(tensor->dtype);
        for (int round = 0; round < BITS_ROUNDS; round++) {
            tensor->input[round] = ranks_memory(ctx, bytes);
            tensor->expected[round] = ranks_memory(ctx, bytes);
        }
        model->bytes += bytes;
        compute(ctx, tensor, i, *terms);
    }
    return model;
}

/* ---- Placing --------------------------------------------------------------------------------------------------- */

static size_t rows_of(size_t count) {
    static const size_t divisors[] = {17, 7, 3, 2};
    for (size_t i = 0; i < sizeof divisors / sizeof divisors[0]; i++) {
        if (count > divisors[i] && count % divisors[i] == 0) {
            return divisors[i];
        }
    }
    return 1;
}

static void place_one(bits_model *model, bits_tensor *tensor, bits_place place) {
    const size_t size = gsync_dtype_size(tensor->dtype);
    tensor->rows = place == BITS_PITCHED ? rows_of(tensor->count) : 1;
    tensor->columns = tensor->count / tensor->rows;
    tensor->pitch = tensor->columns + (place == BITS_PITCHED ? GAP : 0);
    tensor->block = NULL;
    tensor->grad = NULL;
    if (place != BITS_OWNED) {
        const size_t before = place == BITS_APART ? 0 : size;
        tensor->block_bytes = before + tensor->rows * tensor->pitch * size;
        tensor->block = ranks_memory(model->ctx, tensor->block_bytes);
        memset(tensor->block, AROUND, tensor->block_bytes);
        tensor->grad = tensor->block + before;
    }
}

/* The whole is filled with AROUND; whatever is no gradient is still so afterwards, or a check fails. */
static void place_flat(bits_model *model) {
    const size_t before = sizeof(double); /* one element of the largest dtype */
    model->flat = ranks_memory(model->ctx, before + model->bytes);
    memset(model->flat, AROUND, before + model->bytes);
    unsigned char *at = model->flat + before;
    for (size_t i = 0; i < model->tensor_count; i++) {
        bits_tensor *tensor = &model->tensors[i];
        tensor->rows = 1;
        tensor->columns = tensor->pitch = tensor->count;
        tensor->block = NULL;
        tensor->grad = at;
        at += tensor->count * gsync_dtype_size(tensor->dtype);
    }
}

static void place_all(bits_model *model, bits_place place) {
    static const bits_place turns[] = {BITS_APART, BITS_SHIFTED, BITS_PITCHED, BITS_OWNED};
    if (place == BITS_FLAT) {
        place_flat(model);
        return;
    }
    for (size_t i = 0; i < model->tensor_count; i++) {
        place_one(model, &model->tensors[i], place == BITS_MIXED ? turns[i % 4] : place);
    }
}

static gsync_status add(bits_model *model, const bits_tensor *tensor) {
    if (tensor->pitch == tensor->columns) {
        return gsync_reducer_add(model->reducer, tensor->name, tensor->grad, tensor->count, tensor->dtype);
    }
    return gsync_reducer_add_matrix(model->reducer, tensor->name, tensor->grad, tensor->rows, tensor->columns,
                                    tensor->pitch, tensor->dtype);
}

gsync_status bits_model_open(bits_model *model, gsync_comm *comm, const gsync_options *options, bits_place place) {
    place_all(model, place);
    gsync_status status = gsync_reducer_create(&model->keeper->reducer, comm, options);
    model->reducer = model->keeper->reducer;
    for (size_t i = 0; status == GSYNC_OK && i < model->tensor_count; i++) {
        status = add(model, &model->tensors[i]);
    }
    if (status == GSYNC_OK && model->prepare != NULL) {
        status = model->prepare(model);
    }
    if (status == GSYNC_OK) {
        status = gsync_reducer_commit(model->reducer);
    }
    for (size_t i = 0; status == GSYNC_OK && i < model->tensor_count; i++) {
        model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
    }
    return status;
}

void bits_model_close(bits_model *model) {
    gsync_reducer_destroy(&model->keeper->reducer);
    model->reducer = NULL;
    for (size_t i = 0; i < model->tensor_count; i++) {
        if (model->tensors[i].block != NULL) {
            ranks_memory_free(model->ctx, model->tensors[i].block);
            model->tensors[i].block = NULL;
        }
    }
    if (model->flat != NULL) {
        ranks_memory_free(model->ctx, model->flat);
        model->flat = NULL;
    }
}

/* ---- Stepping -------------------------------------------------------------------------------------------------- */

static unsigned char *row_of(const bits_tensor *tensor, size_t row) {
    return (unsigned char *)tensor->grad + row * tensor->pitch * gsync_dtype_size(tensor->dtype);
}

void bits_model_load(bits_model *model, int round) {
    for (size_t i = 0; i < model->tensor_count; i++) {
        const bits_tensor *tensor = &model->tensors[i];
        const size_t row_bytes = tensor->columns * gsync_dtype_size(tensor->dtype);
        for (size_t r = 0; r < tensor->rows && row_bytes != 0; r++) {
            memcpy(row_of(tensor, r), (const unsigned char *)tensor->input[round] + r * row_bytes, row_bytes);
        }
    }
}

gsync_status bits_model_mark(bits_model *model, ranks_random *random) {
    size_t order[64];
    ranks_shuffle(random, order, model->tensor_count);
    const size_t marked = model->tensor_count - ranks_random_below(random, model->tensor_count / 2 + 1);
    gsync_status first = GSYNC_OK;
    for (size_t i = 0; i < marked && first == GSYNC_OK; i++) {
        const bits_tensor *tensor = &model->tensors[order[i]];
        if (tensor->count != 0) {
            first = gsync_ready(model->reducer, tensor->grad);
        }
    }
    return first;
}

static bool holds_only(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != AROUND) {
            return false;
        }
    }
    return true;
}

static bool check_around(const bits_model *model, const bits_tensor *tensor) {
    if (tensor->block == NULL) {
        return true;
    }
    const size_t size = gsync_dtype_size(tensor->dtype);
    bool is_whole = holds_only(tensor->block, (size_t)((unsigned char *)tensor->grad - tensor->block));
    for (size_t r = 0; r < tensor->rows; r++) {
        const unsigned char *end = row_of(tensor, r) + tensor->columns * size;
        is_whole = is_whole && holds_only(end, (tensor->pitch - tensor->columns) * size);
    }
    return is_whole || ranks_fail(__FILE__, __LINE__, "%s: memory around %s was written", model->setting, tensor->name);
}

static bool check_one(const bits_model *model, const bits_tensor *tensor, int round) {
    const size_t row_bytes = tensor->columns * gsync_dtype_size(tensor->dtype);
    char what[200];
    snprintf(what, sizeof what, "%s: round %d %s", model->setting, round, tensor->name);
    bool is_right = true;
    for (size_t r = 0; r < tensor->rows && is_right; r++) {
        const unsigned char *expected = (const unsigned char *)tensor->expected[round] + r * row_bytes;
        is_right = CHECK_BITS(tensor->dtype, row_of(tensor, r), expected, tensor->columns, what);
    }
    return is_right && check_around(model, tensor);
}

bool bits_model_check(const bits_model *model, int round) {
    bool is_right = true;
    for (size_t i = 0; i < model->tensor_count && is_right; i++) {
        is_right = model->tensors[i].count == 0 || check_one(model, &model->tensors[i], round);
    }
    if (model->flat != NULL && !holds_only(model->flat, sizeof(double))) {
        is_right = ranks_fail(__FILE__, __LINE__, "%s: memory before the flat buffer was written", model->setting);
    }
    return CHECK_GUARDS(model->ctx) && is_right;
}

gsync_status bits_model_step(bits_model *model, int round, ranks_random *random, gsync_step_info *info) {
    bits_model_load(model, round);
    gsync_status status = gsync_begin(model->reducer, GSYNC_SYNC);
    if (status == GSYNC_OK) {
        status = bits_model_mark(model, random);
    }
    const gsync_status finish = gsync_finish(model->reducer, info);
    status = status != GSYNC_OK ? status : finish;
    if (status == GSYNC_OK) {
        bits_model_check(model, round);
    }
    return status;
}
