/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/pipeline.h"

/*
 * What each rank noticed while it added up and rounded its share becomes known to all in one small message: inf and
 * NaN and whose they were, the squared norm, how large gradients are. Every rank merges the same numbers in the same
 * order, so all skip a step, or none.
 */

static bool is_earlier(const gs_step_findings *a, const gs_step_findings *b) {
    if (a->bucket != b->bucket) {
        return a->bucket < b->bucket;
    }
    if (a->element != b->element || (a->rank >= 0) != (b->rank >= 0)) {
        return gs_findings_is_better(a->rank >= 0, a->element, b->rank >= 0, b->element);
    }
    return a->rank < b->rank;
}

static void merge_place(gs_step_findings *all, const gs_step_findings *one) {
    if (one->has_nonfinite && (!all->has_nonfinite || is_earlier(one, all))) {
        all->has_nonfinite = true;
        all->bucket = one->bucket;
        all->element = one->element;
        all->rank = one->rank;
        all->gradient = one->gradient;
    }
}

static void merge(gs_step_findings *all, const gs_step_findings *one) {
    merge_place(all, one);
    all->square_sum += one->square_sum;
    all->absmax = one->absmax > all->absmax ? one->absmax : all->absmax;
    all->saturated += one->saturated;
    all->flushed += one->flushed;
}

void gs_findings_note(gs_pipeline *pipeline, size_t bucket, const gs_findings *found) {
    const bool has_place = found->has_nonfinite;
    const gsync_wire wire = pipeline->wires[pipeline->plan->buckets[bucket].wire].wire;
    const gs_step_findings one = {
        .has_nonfinite = has_place,
        .rank = has_place ? found->nonfinite_source : -1,
        .gradient = has_place ? gs_bucket_member(pipeline, bucket, found->nonfinite_element) : 0,
        .bucket = bucket,
        .element = found->nonfinite_element,
        .square_sum = found->square_sum,
        .absmax = wire == GSYNC_WIRE_FLOAT16 ? found->absmax : 0.0f,
        .saturated = found->saturated,
        .flushed = found->flushed,
    };
    merge(&pipeline->noticed, &one);
}

gsync_status gs_findings_post(gs_pipeline *pipeline) {
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "findings", .step = pipeline->step.step, .digest = pipeline->plan->digest},
        .mail = &pipeline->noticed,
        .mail_bytes = sizeof pipeline->noticed,
    };
    return gs_lane_post(pipeline->lane, &operation);
}

void gs_findings_take(gs_pipeline *pipeline) {
    pipeline->findings = (gs_step_findings){.rank = -1};
    for (int rank = 0; rank < pipeline->group->world_size; rank++) {
        gs_step_findings one;
        size_t bytes;
        memcpy(&one, gs_lane_mail(pipeline->lane, rank, &bytes), sizeof one);
        merge(&pipeline->findings, &one);
    }
}
