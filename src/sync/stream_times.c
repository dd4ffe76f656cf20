/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

/*
 * is_auto: how long buckets take on the device, from what is encoded first to what is decoded last, between two events
 * of the library's stream. wire_choice.c makes of it what it makes of times on the host. While buckets are on trial the
 * next step begins only when the host has read this one's events, so two for each bucket are enough.
 */

static bool has_any(const gs_stream *stream, const gs_stream_wish *wish) {
    for (size_t i = 0; i < wish->gradient_count; i++) {
        if (stream->pipeline->wires[wish->shapes[i].wire].is_auto) {
            return true;
        }
    }
    return false;
}

/* Any plan may have a bucket for each gradient. */
gsync_status gs_stream_make_timers(gs_stream *stream, const gs_stream_wish *wish) {
    const size_t count = has_any(stream, wish) ? stream->capacity : 0;
    for (size_t b = 0; b < count; b++) {
        GS_TRY(gs_cuda_timer_new(stream->cuda, &stream->buckets[b].began));
        GS_TRY(gs_cuda_timer_new(stream->cuda, &stream->buckets[b].ended));
    }
    return GSYNC_OK;
}

void gs_stream_free_timers(gs_stream *stream) {
    for (size_t b = 0; b < stream->capacity && stream->buckets != NULL; b++) {
        gs_cuda_event_free(stream->cuda, stream->buckets[b].began);
        gs_cuda_event_free(stream->cuda, stream->buckets[b].ended);
    }
}

gsync_status gs_stream_note_began(gs_stream *stream, size_t bucket) {
    return gs_choice_is_on_trial(stream->pipeline, bucket)
               ? gs_cuda_record(stream->cuda, stream->buckets[bucket].began, stream->queue)
               : GSYNC_OK;
}

/* What is held is decoded at the end of the step, behind other buckets: either way it counts without that. */
gsync_status gs_stream_note_ended(gs_stream *stream, size_t bucket) {
    return gs_choice_is_on_trial(stream->pipeline, bucket)
               ? gs_cuda_record(stream->cuda, stream->buckets[bucket].ended, stream->queue)
               : GSYNC_OK;
}

static gsync_status read_times(gs_stream *stream) {
    for (size_t b = 0; b < stream->launched; b++) {
        uint64_t ns;
        if (gs_choice_is_on_trial(stream->pipeline, b)) {
            const gs_stream_bucket *bucket = &stream->buckets[b];
            GS_TRY(gs_cuda_elapsed(stream->cuda, bucket->began, bucket->ended, &ns));
            gs_choice_note(stream->pipeline, b, ns);
        }
    }
    return GSYNC_OK;
}

gsync_status gs_stream_read_times(gs_stream *stream) {
    const gsync_status status = read_times(stream);
    if (status != GSYNC_OK) {
        gs_stream_fail(stream, status);
    }
    return gs_stream_status(stream);
}

gsync_status gs_stream_wait_for_times(gs_stream *stream, gs_idle_function idle, void *argument) {
    GS_TRY(gs_stream_status(stream));
    GS_TRY(gs_stream_wait_event(stream, stream->turn->finished, idle, argument));
    return gs_stream_read_times(stream);
}
