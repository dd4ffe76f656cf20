/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

#include <sched.h>

/*
 * Which streams a bucket waits for. Each stream has one event per bucket, recorded anew with every mark: the last
 * record covers all that the stream queued before, and what a bucket waits for is no more than what was marked. Marks
 * of several threads only share a lock if they are for the same stream and bucket; the ledger's count makes all records
 * visible to the thread that launches.
 */

static uintptr_t key_of(void *producer) {
    return (uintptr_t)producer + 1; /* the default stream's handle is NULL */
}

/* Its place among the bucket's producers, NULL if all are taken by others, or if the handle is no name for it. */
static gs_stream_producer *find_producer(gs_stream_bucket *bucket, void *producer) {
    for (int i = 0; i < GS_STREAM_PRODUCERS && !gs_cuda_is_each_threads(producer); i++) {
        gs_stream_producer *at = &bucket->producers[i];
        uintptr_t key = 0;
        if (atomic_compare_exchange_strong(&at->key, &key, key_of(producer)) || key == key_of(producer)) {
            return at;
        }
    }
    return NULL;
}

static bool is_at_work(const gs_stream *stream, const gs_stream_producer *at) {
    bool is_done = true;
    return atomic_load_explicit(&at->key, memory_order_acquire) != 0 &&
           gs_cuda_is_done(stream->cuda, at->event, &is_done) == GSYNC_OK && !is_done;
}

bool gs_stream_find_busy_producer(const gs_stream *stream, size_t launched, size_t *bucket) {
    for (size_t b = 0; b < launched; b++) {
        for (int i = 0; i < GS_STREAM_PRODUCERS; i++) {
            if (is_at_work(stream, &stream->buckets[b].producers[i])) {
                *bucket = b;
                return true;
            }
        }
    }
    return false;
}

bool gs_stream_has_producer(const gs_stream *stream, size_t bucket, void *producer) {
    for (int i = 0; i < GS_STREAM_PRODUCERS; i++) {
        if (atomic_load_explicit(&stream->buckets[bucket].producers[i].key, memory_order_acquire) == key_of(producer)) {
            return true;
        }
    }
    return false;
}

/* Nobody promises which of two records at once the event keeps, and the earlier one would not do. */
static gsync_status record_alone(gs_stream *stream, gs_stream_producer *at, void *producer) {
    int expected = 0;
    while (!atomic_compare_exchange_weak(&at->is_taken, &expected, 1)) {
        expected = 0;
        sched_yield();
    }
    const gsync_status status = gs_cuda_record(stream->cuda, at->event, producer);
    atomic_store(&at->is_taken, 0);
    return status;
}

gsync_status gs_stream_note_producer(gs_stream *stream, pthread_mutex_t *launch_lock, size_t bucket, void *producer) {
    gs_stream_producer *at = find_producer(&stream->buckets[bucket], producer);
    if (at != NULL) {
        return record_alone(stream, at, producer);
    }
    /* One stream too many, or of many with one handle: all that is queued from now on waits for it, which is right, if
     * longer than it must. */
    pthread_mutex_lock(launch_lock);
    const gsync_status status = gs_stream_follow(stream, producer);
    pthread_mutex_unlock(launch_lock);
    return status;
}

gsync_status gs_stream_follow(gs_stream *stream, void *other) {
    GS_TRY(gs_cuda_record(stream->cuda, stream->followed, other));
    return gs_cuda_wait(stream->cuda, stream->queue, stream->followed);
}

gsync_status gs_stream_wait_producers(gs_stream *stream, size_t bucket) {
    for (int i = 0; i < GS_STREAM_PRODUCERS; i++) {
        const gs_stream_producer *at = &stream->buckets[bucket].producers[i];
        if (atomic_load_explicit(&at->key, memory_order_acquire) == 0) {
            break; /* they are taken in order */
        }
        GS_TRY(gs_cuda_wait(stream->cuda, stream->queue, at->event));
    }
    return GSYNC_OK;
}

static gsync_status catch_up_with(gs_stream *stream, const gs_stream_producer *producer, void *producing) {
    bool is_capturing; /* what a graph will do is nothing yet */
    GS_TRY(gs_cuda_is_capturing(stream->cuda, producing, &is_capturing));
    if (is_capturing) {
        return GSYNC_OK;
    }
    GS_TRY(gs_cuda_record(stream->cuda, producer->event, producing));
    return gs_cuda_wait(stream->cuda, stream->queue, producer->event);
}

gsync_status gs_stream_catch_up(gs_stream *stream) {
    for (size_t b = 0; b < stream->pipeline->plan->bucket_count; b++) {
        for (int i = 0; i < GS_STREAM_PRODUCERS; i++) {
            const gs_stream_producer *at = &stream->buckets[b].producers[i];
            const uintptr_t key = atomic_load_explicit(&at->key, memory_order_acquire);
            if (key != 0) {
                GS_TRY(catch_up_with(stream, at, (void *)(key - 1)));
            }
        }
    }
    return GSYNC_OK;
}

void gs_stream_forget_producers(gs_stream *stream) {
    for (size_t b = 0; b < stream->pipeline->plan->bucket_count; b++) {
        for (int i = 0; i < GS_STREAM_PRODUCERS; i++) {
            atomic_store_explicit(&stream->buckets[b].producers[i].key, 0, memory_order_relaxed);
        }
    }
}

gsync_status gs_stream_let_follow(gs_stream *stream, void *other) {
    if (stream->launched == 0) {
        return GSYNC_OK;
    }
    return gs_cuda_wait(stream->cuda, other, stream->buckets[stream->launched - 1].done);
}

gsync_status gs_stream_check_capture(gs_stream *stream, void *other, const char *call) {
    bool is_capturing;
    GS_TRY(gs_cuda_is_capturing(stream->cuda, other, &is_capturing));
    if (is_capturing) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED,
                       "%s: the stream is being captured into a graph: a step cannot be part of one; end the capture "
                       "first",
                       call);
    }
    return GSYNC_OK;
}
