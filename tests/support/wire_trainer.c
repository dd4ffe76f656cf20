/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_trainer.h"

#include <math.h>
#include <string.h>

static gsync_status choose_wires(bits_model *model) {
    const wire_trainer *trainer = model->prepare_with;
    for (size_t i = 0; i < model->tensor_count; i++) {
        const wire_choice *choice = &trainer->choices[i % trainer->choice_count];
        const gsync_status status =
            gsync_reducer_set_wire(model->reducer, model->tensors[i].name, choice->wire, &choice->options);
        if (status != GSYNC_OK) {
            return status;
        }
    }
    return GSYNC_OK;
}

wire_trainer *wire_trainer_new(ranks_context *ctx, const size_t *counts, size_t count, gsync_dtype dtype) {
    bits_shape shapes[WIRE_GRADIENTS_MAX];
    const oracle_terms terms = {.world = ctx->world, .divisor = ctx->world};
    wire_trainer *trainer = ranks_memory(ctx, sizeof *trainer);
    for (size_t i = 0; i < count; i++) {
        shapes[i] = (bits_shape){counts[i], dtype};
    }
    *trainer = (wire_trainer){.ctx = ctx, .kind = WIRE_MIXED, .absent = -1, .poisoned_rank = -1};
    for (size_t i = 0; i < WIRE_GRADIENTS_MAX; i++) {
        trainer->magnitudes[i] = 1.0;
    }
    trainer->model = bits_model_new(ctx, shapes, count, &terms);
    trainer->model->prepare = choose_wires;
    trainer->model->prepare_with = trainer;
    trainer->inputs = ranks_memory(ctx, count * (size_t)ctx->world * sizeof *trainer->inputs);
    for (size_t i = 0; i < count * (size_t)ctx->world; i++) {
        trainer->inputs[i] = ranks_memory(ctx, (counts[i / (size_t)ctx->world] + 1) * sizeof(float));
    }
    return trainer;
}

gsync_status wire_trainer_open(wire_trainer *trainer, gsync_comm *comm, int ranks_per_host,
                               const gsync_options *options, bits_place place, const wire_choice *choices,
                               size_t choice_count) {
    const bits_model *model = trainer->model;
    trainer->choices = choices;
    trainer->choice_count = choice_count;
    trainer->round = 0;
    trainer->reference = wire_reference_new(trainer->ctx, trainer->ctx->world, ranks_per_host);
    for (size_t i = 0; i < model->tensor_count; i++) {
        const wire_choice *choice = &choices[i % choice_count];
        wire_reference_add(trainer->reference, model->tensors[i].count, model->tensors[i].dtype, choice->wire,
                           &choice->options);
    }
    if (options != NULL && options->op == GSYNC_SUM) {
        trainer->reference->divisor = 1;
    }
    return bits_model_open(trainer->model, comm, options, place);
}

void wire_trainer_close(wire_trainer *trainer) {
    bits_model_close(trainer->model);
}

static int micro_batches_of(const wire_trainer *trainer) {
    return trainer->micro_batches != 0 ? trainer->micro_batches : 1;
}

/* One micro-batch of one rank, as the gradient's dtype holds it. */
static void make_values(const wire_trainer *trainer, size_t gradient, int rank, int micro_batch, float *to) {
    const bits_tensor *tensor = &trainer->model->tensors[gradient];
    const uint64_t round = trainer->round * 16 + (uint64_t)micro_batch;
    wire_values(trainer->kind, oracle_key(trainer->ctx, round, gradient), rank, to, tensor->count);
    for (size_t k = 0; k < tensor->count; k++) {
        const double scale = trainer->loss_scale != 0 ? trainer->loss_scale : 1.0;
        to[k] = (float)((double)to[k] * scale * trainer->magnitudes[gradient]);
        if (rank == trainer->poisoned_rank && gradient == trainer->poisoned_gradient && micro_batch == 0 &&
            k == trainer->poisoned_element) {
            to[k] = trainer->poison;
        }
        if (tensor->dtype != GSYNC_FLOAT32) {
            const uint16_t bits = oracle_narrowed(tensor->dtype, to[k]);
            to[k] = (float)ranks_load(&bits, tensor->dtype, 0);
        }
    }
}

/* What the ranks bring into the window, added up in float32. */
static void make_inputs(wire_trainer *trainer) {
    const bits_model *model = trainer->model;
    const int world = trainer->ctx->world;
    float *one = ranks_memory(trainer->ctx, (model->bytes + 1) * sizeof *one);
    for (size_t i = 0; i < model->tensor_count * (size_t)world; i++) {
        const size_t gradient = i / (size_t)world;
        make_values(trainer, gradient, (int)(i % (size_t)world), 0, trainer->inputs[i]);
        for (int micro_batch = 1; micro_batch < micro_batches_of(trainer); micro_batch++) {
            make_values(trainer, gradient, (int)(i % (size_t)world), micro_batch, one);
            for (size_t k = 0; k < model->tensors[gradient].count; k++) {
                trainer->inputs[i][k] = (float)((double)trainer->inputs[i][k] + (double)one[k]);
            }
        }
    }
    ranks_memory_free(trainer->ctx, one);
}

static void expect(wire_trainer *trainer, int round) {
    const bits_model *model = trainer->model;
    const size_t world = (size_t)trainer->ctx->world;
    const float **inputs = ranks_memory(trainer->ctx, (model->tensor_count * world + 1) * sizeof *inputs);
    void *results[WIRE_GRADIENTS_MAX];
    make_inputs(trainer);
    for (size_t i = 0; i < model->tensor_count * world; i++) {
        inputs[i] = (int)(i % world) == trainer->absent ? NULL : trainer->inputs[i];
    }
    for (size_t i = 0; i < model->tensor_count; i++) {
        results[i] = model->tensors[i].expected[round];
    }
    if (trainer->weighs) {
        const double ranks = (double)world;
        trainer->reference->divisor = ranks * (ranks + 1) / 2 * micro_batches_of(trainer);
        trainer->reference->divisor -= trainer->absent >= 0 ? (trainer->absent + 1.0) * micro_batches_of(trainer) : 0.0;
    }
    trainer->reference->loss_scale = trainer->loss_scale != 0 ? trainer->loss_scale : 1.0;
    wire_reference_step(trainer->reference, inputs, results);
    ranks_memory_free(trainer->ctx, inputs);
}

static void load(wire_trainer *trainer, int round, int micro_batch) {
    bits_model *model = trainer->model;
    float *one = ranks_memory(trainer->ctx, (model->bytes + 1) * sizeof *one);
    for (size_t i = 0; i < model->tensor_count; i++) {
        make_values(trainer, i, trainer->ctx->rank, micro_batch, one);
        for (size_t k = 0; k < model->tensors[i].count; k++) {
            ranks_store(model->tensors[i].input[round], model->tensors[i].dtype, k, (double)one[k]);
        }
    }
    ranks_memory_free(trainer->ctx, one);
    bits_model_load(model, round);
}

static gsync_status mark(const wire_trainer *trainer, ranks_random *random) {
    if (!trainer->marks_all) {
        return bits_model_mark(trainer->model, random);
    }
    for (size_t i = trainer->model->tensor_count; i-- > 0;) {
        const bits_tensor *tensor = &trainer->model->tensors[i];
        const gsync_status status = tensor->count != 0 ? gsync_ready(trainer->model->reducer, tensor->grad) : GSYNC_OK;
        if (status != GSYNC_OK) {
            return status;
        }
    }
    return GSYNC_OK;
}

static void set_mode(const wire_trainer *trainer, bool is_on) {
    if (trainer->set_mode != NULL) {
        trainer->set_mode(trainer, is_on);
    }
}

static gsync_status take_micro_batch(wire_trainer *trainer, ranks_random *random, bool is_last) {
    gsync_reducer *reducer = trainer->model->reducer;
    trainer->info = (gsync_step_info)GSYNC_STEP_INFO_INIT;
    set_mode(trainer, true);
    gsync_status status = gsync_begin(reducer, is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE);
    if (status == GSYNC_OK && trainer->weighs) {
        status = gsync_set_weight(reducer, trainer->ctx->rank + 1.0);
    }
    if (status == GSYNC_OK) {
        status = mark(trainer, random);
    }
    const gsync_status finish = gsync_finish(reducer, &trainer->info);
    set_mode(trainer, false);
    return status != GSYNC_OK ? status : finish;
}

gsync_status wire_trainer_step(wire_trainer *trainer, ranks_random *random) {
    const int round = (int)(trainer->round % BITS_ROUNDS);
    gsync_status status = GSYNC_OK;
    expect(trainer, round);
    if (trainer->absent == trainer->ctx->rank) {
        load(trainer, round, 0);
        trainer->info = (gsync_step_info)GSYNC_STEP_INFO_INIT;
        status = gsync_finish_empty(trainer->model->reducer, &trainer->info);
    }
    const int micro_batches = trainer->absent == trainer->ctx->rank ? 0 : micro_batches_of(trainer);
    for (int i = 0; i < micro_batches && status == GSYNC_OK; i++) {
        load(trainer, round, i);
        status = take_micro_batch(trainer, random, i + 1 == micro_batches);
    }
    if (status == GSYNC_OK) {
        bits_model_check(trainer->model, round);
        CHECK_EQ(trainer->info.found_inf, trainer->reference->found_inf);
    }
    trainer->round++;
    return status;
}
