/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/options.h"

/* Questions about a reducer that change nothing. */

int gsync_is_synced(const gsync_reducer *reducer) {
    return reducer != NULL && reducer->is_synced;
}

int gsync_is_used(const gsync_reducer *reducer, const char *name) {
    const uint32_t index = reducer != NULL ? gs_reducer_find(reducer, name) : GS_NO_INDEX;
    if (index == GS_NO_INDEX) {
        return -1;
    }
    return reducer->options.finds_unused == 0 || reducer->gradients[index].is_used_anywhere;
}

size_t gsync_bucket_count(const gsync_reducer *reducer) {
    return reducer != NULL && reducer->was_committed ? reducer->plan.bucket_count : 0;
}

gsync_status gsync_bucket_get(const gsync_reducer *reducer, size_t bucket_index, gsync_bucket_info *info) {
    if (reducer == NULL || info == NULL || bucket_index >= gsync_bucket_count(reducer)) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_bucket_get: reducer or info is NULL, or there is no bucket %zu",
                       bucket_index);
    }
    const gs_bucket *bucket = &reducer->plan.buckets[bucket_index];
    const gsync_bucket_info known = {
        .struct_size = sizeof known,
        .gradient_count = bucket->gradient_count,
        .bytes = bucket->element_count * gsync_dtype_size(bucket->dtype),
        .dtype = bucket->dtype,
    };
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
