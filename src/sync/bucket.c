/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/pipeline.h"

#include "base/float_mode.h"

static const gs_bucket *bucket_at(const gs_pipeline *pipeline, size_t bucket) {
    return &pipeline->plan->buckets[bucket];
}

static unsigned char *slot_of(const gs_pipeline *pipeline, size_t bucket) {
    return gs_lane_slots(pipeline->lane) + pipeline->slot_offset[bucket];
}

static uint32_t member(const gs_pipeline *pipeline, size_t bucket, uint32_t i) {
    return pipeline->plan->members[bucket_at(pipeline, bucket)->first + i];
}

static unsigned char *place_of(const gs_pipeline *pipeline, size_t bucket, unsigned char *base, uint32_t index) {
    const gsync_dtype wire = gs_pipeline_wire(pipeline, bucket_at(pipeline, bucket)->dtype);
    return base + pipeline->plan->element_offset[index] * gsync_dtype_size(wire);
}

/* A gradient nobody marked in the window counts as zero when unused ones are looked for. */
static bool is_unused(const gs_pipeline *pipeline, uint32_t index) {
    return pipeline->terms.finds_unused &&
           atomic_load_explicit(&pipeline->ledger->is_used[index], memory_order_relaxed) == 0;
}

/* With the library accumulating, only what was marked in this very micro-batch may be read again. */
static bool brings_gradient(const gs_pipeline *pipeline, uint32_t index) {
    if (!pipeline->step.has_gradient || is_unused(pipeline, index)) {
        return false;
    }
    return !pipeline->terms.finds_unused || pipeline->gradients[index].accumulator == NULL ||
           atomic_load_explicit(&pipeline->ledger->marks[index], memory_order_relaxed) != 0;
}

static gs_host_term term_of(const gs_pipeline *pipeline, uint32_t index) {
    const gs_gradient *gradient = &pipeline->gradients[index];
    return (gs_host_term){
        .tensor = &gradient->tensor,
        .has_tensor = brings_gradient(pipeline, index),
        .accumulator = gradient->has_accumulated ? gradient->accumulator : NULL,
        .factor = pipeline->step.factor,
    };
}

/* A rank that is alone, with nothing to add and nothing to divide by, already has the result. */
static bool is_result(const gs_pipeline *pipeline) {
    const gs_pipeline_terms *terms = &pipeline->terms;
    return pipeline->group->world_size == 1 && !terms->is_deferred && !terms->sums_wide &&
           terms->divide != GS_DIVIDE_WEIGHT && !terms->divides_by_micro_batches && pipeline->step.has_gradient;
}

/*
 * Ranks of one address space can add up gradients where the trainer has them, if they lie one behind the other. If
 * so, returns where; nothing is packed or unpacked then.
 */
static void *find_contiguous(const gs_pipeline *pipeline, size_t bucket) {
    if (!pipeline->group->ops->shares_address_space || pipeline->terms.is_deferred || pipeline->terms.sums_wide) {
        return NULL;
    }
    unsigned char *start = pipeline->gradients[member(pipeline, bucket, 0)].tensor.data;
    unsigned char *end = start;
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        const gs_gradient *gradient = &pipeline->gradients[member(pipeline, bucket, i)];
        if (gradient->tensor.data != end || !gs_tensor_is_dense(&gradient->tensor) || gradient->accumulator != NULL) {
            return NULL;
        }
        end += gs_tensor_bytes(&gradient->tensor);
    }
    return start;
}

static void pack(gs_pipeline *pipeline, size_t bucket) {
    const gsync_dtype wire = gs_pipeline_wire(pipeline, bucket_at(pipeline, bucket)->dtype);
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        const uint32_t index = member(pipeline, bucket, i);
        const gs_host_term term = term_of(pipeline, index);
        unsigned char *place = place_of(pipeline, bucket, slot_of(pipeline, bucket), index);
        const bool is_there = term.tensor->data == place && term.has_tensor && term.accumulator == NULL;
        gs_host_gather(place, wire, &term);
        pipeline->bytes_copied += is_there ? 0 : gs_tensor_count(term.tensor) * gsync_dtype_size(wire);
    }
    gs_float_mode_leave(&mode);
}

void *gs_bucket_encode(gs_pipeline *pipeline, size_t bucket) {
    const bool has_result = is_result(pipeline);
    pipeline->has_in_place = false;
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        const uint32_t index = member(pipeline, bucket, i);
        const gs_tensor *tensor = &pipeline->gradients[index].tensor;
        pipeline->bytes_reduced += gs_tensor_bytes(tensor);
        pipeline->has_in_place |=
            !has_result && tensor->data == place_of(pipeline, bucket, slot_of(pipeline, bucket), index);
    }
    void *in_place = find_contiguous(pipeline, bucket);
    pipeline->is_in_slot = in_place == NULL && !has_result;
    pipeline->is_in_place = in_place != NULL && !has_result;
    if (in_place != NULL) {
        return in_place;
    }
    if (pipeline->step.contributes && pipeline->is_in_slot) {
        pack(pipeline, bucket);
    }
    return slot_of(pipeline, bucket);
}

void gs_bucket_decode(gs_pipeline *pipeline, size_t bucket) {
    if (!pipeline->is_in_slot && !pipeline->terms.is_deferred) {
        return;
    }
    const gsync_dtype wire = gs_pipeline_wire(pipeline, bucket_at(pipeline, bucket)->dtype);
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        const uint32_t index = member(pipeline, bucket, i);
        const gs_gradient *gradient = &pipeline->gradients[index];
        if (pipeline->terms.finds_unused && !gradient->is_used_anywhere) {
            continue;
        }
        const unsigned char *place = place_of(pipeline, bucket, slot_of(pipeline, bucket), index);
        gs_host_scatter(&gradient->tensor, place, wire);
        pipeline->bytes_copied += gradient->tensor.data == place ? 0 : gs_tensor_bytes(&gradient->tensor);
    }
    gs_float_mode_leave(&mode);
}

uint32_t gs_bucket_find_changed(const gs_pipeline *pipeline, size_t bucket) {
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        const uint32_t index = member(pipeline, bucket, i);
        if (gs_gradient_has_changed(&pipeline->gradients[index])) {
            return index;
        }
    }
    return GS_NO_BUCKET;
}

void gs_pipeline_note_hash(gs_gradient *gradient) {
    gradient->hash = gs_host_hash_tensor(&gradient->tensor);
    gradient->is_hashed = true;
}

bool gs_gradient_has_changed(const gs_gradient *gradient) {
    return gradient->is_hashed && gs_host_hash_tensor(&gradient->tensor) != gradient->hash;
}

gsync_status gs_gradient_fail_changed(const char *name, int rank) {
    return gs_fail(GSYNC_ERR_CHANGED,
                   "rank %d: gradient '%s' was written after it was marked ready: mark it after its last write", rank,
                   name);
}
