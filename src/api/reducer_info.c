/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/options.h"

/* Questions about a reducer that change nothing. */

int gsync_is_synced(const gsync_reducer *reducer) {
    return reducer != NULL && reducer->is_synced;
}

int gsync_is_used(const gsync_reducer *reducer, const char *name) {
    const uint32_t index = reducer != NULL ? gs_reducer_find(reducer, name) : GS_NO_INDEX;
    if (index == GS_NO_INDEX || (reducer->options.finds_unused != 0 && !gs_reducer_knows_used(reducer))) {
        return -1;
    }
    return reducer->options.finds_unused == 0 || reducer->gradients[index].is_used_anywhere;
}

size_t gsync_bucket_count(const gsync_reducer *reducer) {
    return reducer != NULL && reducer->was_committed ? reducer->plan.bucket_count : 0;
}

static size_t bytes_of(const gsync_reducer *reducer, const gs_bucket *bucket) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < bucket->gradient_count; i++) {
        bytes += gs_tensor_bytes(&reducer->gradients[reducer->plan.members[bucket->first + i]].tensor);
    }
    return bytes;
}

/* As it would travel in a step that is past all warm-ups. */
static gsync_wire wire_of(const gsync_reducer *reducer, size_t bucket) {
    const gs_choice *choices = reducer->pipeline.choices;
    const bool is_native = choices != NULL && choices[bucket].is_made && choices[bucket].is_native;
    return is_native ? GSYNC_WIRE_NATIVE : reducer->pipeline.wires[reducer->plan.buckets[bucket].wire].wire;
}

static void add_choice(const gsync_reducer *reducer, size_t bucket, gsync_bucket_info *info) {
    const gs_choice *choices = reducer->pipeline.choices;
    if (choices != NULL && choices[bucket].is_made) {
        info->native_ns = choices[bucket].native_ns;
        info->narrow_ns = choices[bucket].narrow_ns;
    }
}

gsync_status gsync_bucket_get(const gsync_reducer *reducer, size_t bucket_index, gsync_bucket_info *info) {
    if (reducer == NULL || info == NULL || bucket_index >= gsync_bucket_count(reducer)) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_bucket_get: reducer or info is NULL, or there is no bucket %zu",
                       bucket_index);
    }
    const gs_bucket *bucket = &reducer->plan.buckets[bucket_index];
    gsync_bucket_info known = {
        .struct_size = sizeof known,
        .gradient_count = bucket->gradient_count,
        .bytes = bytes_of(reducer, bucket),
        .dtype = bucket->dtype,
        .wire = wire_of(reducer, bucket_index),
    };
    add_choice(reducer, bucket_index, &known);
    return gs_options_give(info, &known, sizeof known, "gsync_bucket_info");
}

long gsync_bucket_of(const gsync_reducer *reducer, const char *name) {
    if (reducer == NULL || !reducer->was_committed) {
        return -1;
    }
    const uint32_t index = gs_reducer_find(reducer, name);
    if (index == GS_NO_INDEX || reducer->plan.bucket_of[index] == GS_NO_BUCKET) {
        return -1;
    }
    return (long)reducer->plan.bucket_of[index];
}

uint64_t gsync_plan_digest(const gsync_reducer *reducer) {
    return reducer != NULL && reducer->was_committed ? reducer->plan.digest : 0;
}
