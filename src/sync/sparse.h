/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_SYNC_SPARSE_H
#define GS_SYNC_SPARSE_H

/*
 * Buckets of which only the largest elements travel. What ranks keep differs, so nothing can be added up on the way:
 * every rank gets all ranks' entries, and adds them up in the order of ranks.
 */

#include "plan/bucket_plan.h"
#include "wire/wire_rule.h"

typedef struct gs_pipeline gs_pipeline;
typedef struct gs_lane_operation gs_lane_operation;

typedef struct gs_sparse_entry {
    uint32_t index; /* of the gradient's elements */
    float value;
} gs_sparse_entry;

/* Memory for the bucket at work. */
typedef struct gs_sparse {
    size_t entries_max; /* 0: no gradient travels so */
    gs_sparse_entry *own;
    gs_sparse_entry *gathered; /* world_size x entries_max */
    size_t *gathered_count;    /* world_size */
    float *dense;              /* the longest gradient */
    uint32_t *indices;
    void *scratch;
    size_t own_count;
    size_t sent; /* of all ranks' entries, which have the same number each */
} gs_sparse;

/* The most that one rank has in a bucket of any plan; 0: no gradient travels so. */
size_t gs_sparse_entries_max(const gs_plan_gradient *shapes, size_t gradient_count, const gs_wire_rule *wires,
                             size_t bucket_elements_max);

gsync_status gs_sparse_init(gs_sparse *sparse, const gs_plan_gradient *shapes, size_t gradient_count,
                            const gs_wire_rule *wires, size_t bucket_elements_max, int world_size);
void gs_sparse_clear(gs_sparse *sparse);

/* In this step the bucket at work travels so. */
bool gs_sparse_is_on(const gs_pipeline *pipeline, size_t bucket);
/* Makes the operation carry the next entries. Chooses them first, if it is the bucket's first operation. */
void gs_sparse_offer(gs_pipeline *pipeline, gs_lane_operation *operation);
/* The operation is done. *has_more: the bucket needs another one; else the result is where it belongs. */
gsync_status gs_sparse_take(gs_pipeline *pipeline, bool *has_more);

#endif
