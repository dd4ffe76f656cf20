/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/pipeline.h"

/* Do all ranks hold the same results? Hashes of gradients, compared by all ranks alike. */

enum { HASHES_PER_PIECE = 256 };

/* A gradient that no rank used holds whatever it held. */
static bool is_compared(const gs_pipeline *pipeline, size_t index) {
    return pipeline->plan->bucket_of[index] != GS_NO_BUCKET &&
           (!pipeline->terms.finds_unused || pipeline->gradients[index].is_used_anywhere);
}

static gsync_status find_difference(const gs_pipeline *pipeline, size_t first, size_t count) {
    size_t index;
    int rank;
    if (!gs_lane_find_difference(pipeline->lane, count, &index, &rank)) {
        return GSYNC_OK;
    }
    return gs_fail(GSYNC_ERR_MISMATCH, "replicas: after step %llu gradient '%s' of rank %d differs from rank 0's",
                   (unsigned long long)pipeline->step.step, pipeline->gradients[first + index].name, rank);
}

static uint64_t digest_of(const gs_pipeline *pipeline, const uint64_t *digests, size_t index) {
    if (!is_compared(pipeline, index)) {
        return 0;
    }
    return digests != NULL ? digests[index] : gs_host_hash_tensor(&pipeline->gradients[index].tensor);
}

static gsync_status check_piece(gs_pipeline *pipeline, const uint64_t *digests, size_t first, size_t count,
                                gs_idle_function idle, void *argument) {
    uint64_t hashes[HASHES_PER_PIECE];
    for (size_t i = 0; i < count; i++) {
        hashes[i] = digest_of(pipeline, digests, first + i);
    }
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "replicas", .step = pipeline->step.step, .part = first, .digest = pipeline->plan->digest},
        .mail = hashes,
        .mail_bytes = count * sizeof *hashes,
    };
    GS_TRY(gs_lane_run(pipeline->lane, &operation, idle, argument));
    return find_difference(pipeline, first, count);
}

gsync_status gs_pipeline_check_replicas(gs_pipeline *pipeline, const uint64_t *digests, gs_idle_function idle,
                                        void *argument) {
    const size_t total = pipeline->plan->gradient_count;
    for (size_t first = 0; first < total; first += HASHES_PER_PIECE) {
        const size_t left = total - first;
        GS_TRY(
            check_piece(pipeline, digests, first, left < HASHES_PER_PIECE ? left : HASHES_PER_PIECE, idle, argument));
    }
    return GSYNC_OK;
}
