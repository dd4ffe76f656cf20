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

/* ---- what the host learns ---- */

/* Of what was sent to the turn, when that is there. */
static gsync_status take_digests(gs_stream *stream, gs_idle_function idle, void *argument) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    const gs_stream_turn *turn = stream->turn;
    GS_TRY(gs_stream_status(stream));
    GS_TRY(gs_stream_wait_event(stream, turn->finished, idle, argument));
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *bucket = &plan->buckets[b];
        for (uint32_t i = bucket->first; i < bucket->first + bucket->gradient_count; i++) {
            stream->known_digests[plan->members[i]] = turn->digests[i];
        }
    }
    return GSYNC_OK;
}

/* Of a step that may be over for long: its plan is still the present one. */
gsync_status gs_stream_digests(gs_stream *stream, gs_idle_function idle, void *argument, const uint64_t **digests) {
    GS_TRY(take_digests(stream, idle, argument));
    gs_stream_take_used(stream, stream->turn);
    *digests = stream->known_digests;
    return GSYNC_OK;
}

/* ---- late writes ---- */

static gsync_status digest_marked(gs_stream *stream, uint32_t index, void *queue) {
    const gs_tensor *tensor = &stream->pipeline->gradients[index].tensor;
    const gs_cuda_term term = {
        .data = tensor->data, .rows = tensor->rows, .columns = tensor->columns, .row_pitch = tensor->row_pitch};
    uint64_t *digest = &stream->marked[index];
    GS_TRY(gs_cuda_zero(stream->cuda, digest, sizeof *digest, queue));
    return gs_cuda_digest_one(stream->cuda, &term, tensor->dtype, digest, queue);
}

/* Behind what makes the gradient final: what comes later is late. The comparison waits for the producer again, unless
 * it is one of many, which the library's stream follows already. */
static gsync_status note(gs_stream *stream, uint32_t index, void *const *producer) {
    const size_t bucket = stream->pipeline->plan->bucket_of[index];
    if (producer != NULL && gs_stream_has_producer(stream, bucket, *producer)) {
        return digest_marked(stream, index, *producer);
    }
    GS_TRY(gs_stream_wait_producers(stream, bucket));
    return digest_marked(stream, index, stream->queue);
}

void gs_stream_note_mark(gs_stream *stream, pthread_mutex_t *launch_lock, uint32_t index, void *const *producer) {
    pthread_mutex_lock(launch_lock);
    const gsync_status status = note(stream, index, producer);
    if (status != GSYNC_OK && stream->status == GSYNC_OK) {
        gs_stream_fail(stream, status);
    }
    pthread_mutex_unlock(launch_lock);
}

static gsync_status queue_comparison(gs_stream *stream) {
    const size_t bytes = stream->capacity * sizeof *stream->marked;
    GS_TRY(gs_stream_status(stream));
    GS_TRY(gs_stream_catch_up(stream));
    GS_TRY(gs_cuda_copy(stream->cuda, stream->turn->marked, stream->marked, bytes, stream->queue));
    GS_TRY(gs_stream_digest_all(stream));
    return gs_stream_end_turn(stream);
}

gsync_status gs_stream_compare_marks(gs_stream *stream, gs_idle_function idle, void *argument, const uint64_t **marked,
                                     const uint64_t **now) {
    const gsync_status status = queue_comparison(stream);
    if (status != GSYNC_OK && stream->status == GSYNC_OK) {
        gs_stream_fail(stream, status);
    }
    GS_TRY(take_digests(stream, idle, argument));
    *marked = stream->turn->marked;
    *now = stream->known_digests;
    return GSYNC_OK;
}
