/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

/*
 * What gradients hold, as numbers that the device makes of them. Those of a whole step are queued behind its last
 * result and before anyone may write gradients again, so the host may ask for them later.
 */

gsync_status gs_stream_digest_all(gs_stream *stream) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    const size_t bytes = stream->capacity * sizeof *stream->digests;
    GS_TRY(gs_cuda_zero(stream->cuda, stream->digests, bytes, stream->queue));
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_stream_route way = {.bucket = b};
        const gs_cuda_pass pass = gs_stream_pass_of(stream, &way, GS_STREAM_HAS_DATA);
        GS_TRY(gs_cuda_digest(stream->cuda, &pass, stream->digests + plan->buckets[b].first, stream->queue));
    }
    return gs_cuda_copy(stream->cuda, stream->turn->digests, stream->digests, bytes, stream->queue);
}

/* Of a step that may be over for long: its plan is still the present one. */
gsync_status gs_stream_digests(gs_stream *stream, gs_idle_function idle, void *argument, const uint64_t **digests) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    const gs_stream_turn *turn = stream->turn;
    GS_TRY(gs_stream_status(stream));
    const gsync_status status = gs_stream_wait_event(stream, turn->finished, idle, argument);
    if (status != GSYNC_OK) {
        gs_stream_fail(stream, status);
        return gs_stream_status(stream);
    }
    gs_stream_take_used(stream, turn);
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *bucket = &plan->buckets[b];
        for (uint32_t i = bucket->first; i < bucket->first + bucket->gradient_count; i++) {
            stream->known_digests[plan->members[i]] = turn->digests[i];
        }
    }
    *digests = stream->known_digests;
    return GSYNC_OK;
}
