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

static gsync_dtype wire_of(const gs_pipeline *pipeline, size_t bucket) {
    return gs_narrow_dtype(pipeline, bucket);
}

static unsigned char *place_of(const gs_pipeline *pipeline, size_t bucket, unsigned char *base, uint32_t index) {
    return base + pipeline->plan->element_offset[index] * gsync_dtype_size(wire_of(pipeline, bucket));
}

/* ---- what one gradient brings ---- */

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

/* Gradients that the lane may add up as they are. */
static bool is_plain(const gs_pipeline *pipeline, size_t bucket) {
    return bucket_at(pipeline, bucket)->dtype == wire_of(pipeline, bucket) && !pipeline->terms.sums_wide &&
           !pipeline->terms.is_deferred && pipeline->step.factor == 1.0 &&
           (pipeline->step.has_gradient || !pipeline->step.contributes);
}

/* ---- gradients that peers can reach ---- */

/* Where the bucket's gradients lie one behind the other, or NULL. */
static unsigned char *find_contiguous(const gs_pipeline *pipeline, size_t bucket) {
    unsigned char *start = pipeline->gradients[member(pipeline, bucket, 0)].tensor.data;
    unsigned char *end = start;
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        const gs_tensor *tensor = &pipeline->gradients[member(pipeline, bucket, i)].tensor;
        if (tensor->data != end || !gs_tensor_is_dense(tensor)) {
            return NULL;
        }
        end += gs_tensor_bytes(tensor);
    }
    const size_t bytes = bucket_at(pipeline, bucket)->element_count * gsync_dtype_size(wire_of(pipeline, bucket));
    return (size_t)(end - start) == bytes ? start : NULL; /* nothing is missing to fill up a block */
}

void gs_bucket_unpack(gs_pipeline *pipeline, size_t bucket) {
    const gsync_dtype wire = wire_of(pipeline, bucket);
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        const uint32_t index = member(pipeline, bucket, i);
        const gs_gradient *gradient = &pipeline->gradients[index];
        if (pipeline->terms.finds_unused && !gradient->is_used_anywhere) {
            continue;
        }
        gs_host_scatter(&gradient->tensor, place_of(pipeline, bucket, slot_of(pipeline, bucket), index), wire);
        pipeline->bytes_copied += gs_tensor_bytes(&gradient->tensor);
    }
    gs_float_mode_leave(&mode);
}

/* ---- gradients that they cannot: the lane asks for elements of the bucket ---- */

/* Which of the bucket's members holds an element of it. Their offsets ascend. */
static uint32_t position_of(const gs_pipeline *pipeline, size_t bucket, size_t element) {
    uint32_t low = 0;
    uint32_t high = bucket_at(pipeline, bucket)->gradient_count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (pipeline->plan->element_offset[member(pipeline, bucket, middle)] <= element) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t gs_bucket_member(const gs_pipeline *pipeline, size_t bucket, size_t element) {
    return member(pipeline, bucket, position_of(pipeline, bucket, element));
}

gs_stretch gs_bucket_stretch(const gs_pipeline *pipeline, size_t bucket, size_t element, size_t count) {
    const uint32_t position = position_of(pipeline, bucket, element);
    const uint32_t index = member(pipeline, bucket, position);
    const bool is_last = position + 1 == bucket_at(pipeline, bucket)->gradient_count;
    const size_t offset = pipeline->plan->element_offset[index];
    const size_t end = offset + gs_tensor_count(&pipeline->gradients[index].tensor);
    const size_t next = is_last ? bucket_at(pipeline, bucket)->element_count
                                : pipeline->plan->element_offset[member(pipeline, bucket, position + 1)];
    const size_t left = (element < end ? end : next) - element;
    return (gs_stretch){index, element - offset, left < count ? left : count, element >= end};
}

static gs_stretch stretch_at(const gs_pipeline *pipeline, size_t element, size_t count) {
    return gs_bucket_stretch(pipeline, pipeline->bucket, element, count);
}

/* Shorter runs cost more to be added up one by one than to copy. */
enum { RUN_ELEMENTS_MIN = 512 };

static void *find_run(void *owner, size_t first, size_t *count) {
    const gs_pipeline *pipeline = owner;
    const gs_stretch part = stretch_at(pipeline, first, *count);
    size_t elements = part.count;
    if (part.is_filling || !is_plain(pipeline, pipeline->bucket)) {
        return NULL;
    }
    const gs_tensor run = gs_tensor_part(&pipeline->gradients[part.index].tensor, part.first, &elements);
    const size_t in_a_row = gs_tensor_is_dense(&run) ? elements : run.columns;
    if (in_a_row < RUN_ELEMENTS_MIN) {
        return NULL;
    }
    *count = in_a_row;
    return run.data;
}

static void encode(void *owner, size_t first, size_t count, void *wire) {
    gs_pipeline *pipeline = owner;
    const gsync_dtype dtype = wire_of(pipeline, pipeline->bucket);
    unsigned char *at = wire;
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (size_t done = 0; done < count;) {
        const gs_stretch part = stretch_at(pipeline, first + done, count - done);
        if (part.is_filling) {
            memset(at, 0, part.count * gsync_dtype_size(dtype));
        } else {
            const gs_host_term term = term_of(pipeline, part.index);
            gs_host_gather_range(at, dtype, &term, part.first, part.count);
        }
        at += part.count * gsync_dtype_size(dtype);
        done += part.count;
    }
    gs_float_mode_leave(&mode);
    pipeline->bytes_copied += count * gsync_dtype_size(dtype);
}

static void decode(void *owner, size_t first, size_t count, const void *wire) {
    gs_pipeline *pipeline = owner;
    const gsync_dtype dtype = wire_of(pipeline, pipeline->bucket);
    if (pipeline->terms.is_deferred) {
        const size_t size = gsync_dtype_size(dtype);
        memcpy(slot_of(pipeline, pipeline->bucket) + first * size, wire, count * size);
        return;
    }
    const unsigned char *at = wire;
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (size_t done = 0; done < count;) {
        const gs_stretch part = stretch_at(pipeline, first + done, count - done);
        if (!part.is_filling) {
            gs_host_scatter_range(&pipeline->gradients[part.index].tensor, part.first, part.count, at, dtype);
        }
        at += part.count * gsync_dtype_size(dtype);
        done += part.count;
    }
    gs_float_mode_leave(&mode);
    pipeline->bytes_copied += count * gsync_dtype_size(bucket_at(pipeline, pipeline->bucket)->dtype);
}

void gs_bucket_gather(gs_pipeline *pipeline, uint32_t index, float *to) {
    const gs_host_term term = term_of(pipeline, index);
    const size_t count = gs_tensor_count(&pipeline->gradients[index].tensor);
    gs_host_gather_range(to, GSYNC_FLOAT32, &term, 0, count);
    pipeline->bytes_copied += count * sizeof *to;
}

void gs_bucket_scatter(gs_pipeline *pipeline, uint32_t index, const float *from) {
    const size_t first = pipeline->plan->element_offset[index];
    decode(pipeline, first, gs_tensor_count(&pipeline->gradients[index].tensor), from);
}

/* ---- offering a bucket ---- */

/* Ranks of one address space reach gradients where the trainer has them, other processes what lies in the slots. */
static unsigned char *find_reachable(const gs_pipeline *pipeline, size_t bucket) {
    if (!is_plain(pipeline, bucket)) {
        return NULL;
    }
    unsigned char *data = find_contiguous(pipeline, bucket);
    return data == slot_of(pipeline, bucket) || pipeline->group->ops->shares_address_space ? data : NULL;
}

void gs_bucket_note_bytes(gs_pipeline *pipeline, size_t bucket) {
    for (uint32_t i = 0; i < bucket_at(pipeline, bucket)->gradient_count; i++) {
        pipeline->bytes_reduced += gs_tensor_bytes(&pipeline->gradients[member(pipeline, bucket, i)].tensor);
    }
}

void gs_bucket_offer(gs_pipeline *pipeline, size_t bucket, gs_lane_operation *operation) {
    gs_bucket_note_bytes(pipeline, bucket);
    const bool is_only_rounded = operation->wire == NULL || operation->wire->rounding.to != GS_ROUND_NOT;
    if (!is_only_rounded) {
        operation->private_data = &pipeline->private_data;
        return;
    }
    if (pipeline->terms.is_deferred) {
        /* The result is to be held back, so it needs a place until the end of the step. */
        operation->data = slot_of(pipeline, bucket);
        if (pipeline->step.contributes) {
            encode(pipeline, 0, bucket_at(pipeline, bucket)->element_count, operation->data);
        }
        return;
    }
    operation->data = find_reachable(pipeline, bucket);
    if (operation->data == NULL) {
        operation->private_data = &pipeline->private_data;
    }
}

void gs_bucket_init(gs_pipeline *pipeline) {
    pipeline->private_data = (gs_lane_private){.owner = pipeline, .find = find_run, .encode = encode, .decode = decode};
}

/* ---- late writes ---- */

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
