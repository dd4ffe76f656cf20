/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

/*
 * Which gradients bring something into a step, and which take its result. A bucket whose gradients this rank has all
 * used needs to know nothing of the others: some rank has used them. Of the rest the ranks tell each other when the
 * micro-batch ends, behind all buckets: each adds up 1 for what it has used, and where the sum is 0 nothing is written.
 */

static bool is_set(const _Atomic unsigned char *flag) {
    return atomic_load_explicit(flag, memory_order_relaxed) != 0;
}

static bool is_marked(const gs_stream *stream, uint32_t index) {
    return atomic_load_explicit(&stream->pipeline->ledger->marks[index], memory_order_relaxed) != 0;
}

/* In this window, by this rank. */
static bool is_used(const gs_stream *stream, uint32_t index) {
    return stream->pipeline->step.contributes && is_set(&stream->pipeline->ledger->is_used[index]);
}

/* ---- what is brought ---- */

static int sum_of(const gs_stream *stream, uint32_t index) {
    return stream->sums != NULL && stream->pipeline->gradients[index].has_accumulated ? GS_STREAM_HAS_SUM : 0;
}

/* With the library accumulating, only what was marked in this very micro-batch may be read again. */
static int brings_to_step(const gs_stream *stream, uint32_t index) {
    const gs_step_terms *step = &stream->pipeline->step;
    const bool counts =
        !stream->finds_unused || (is_used(stream, index) && (!stream->accumulates || is_marked(stream, index)));
    if (!step->contributes) {
        return 0;
    }
    return (step->has_gradient && counts ? GS_STREAM_HAS_DATA : 0) | sum_of(stream, index);
}

static int brings_to_sum(const gs_stream *stream, uint32_t index) {
    const bool counts = !stream->finds_unused || is_marked(stream, index);
    return (counts ? GS_STREAM_HAS_DATA : 0) | sum_of(stream, index);
}

typedef int brings_function(const gs_stream *stream, uint32_t index);

static int brings_of_all(const gs_stream *stream, size_t bucket, brings_function *brings, bool *differs) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    const gs_bucket *of = &plan->buckets[bucket];
    const int first = brings(stream, plan->members[of->first]);
    *differs = false;
    for (uint32_t i = 1; stream->finds_unused && i < of->gradient_count; i++) {
        *differs = *differs || brings(stream, plan->members[of->first + i]) != first;
    }
    return *differs ? GS_STREAM_HAS_DATA | GS_STREAM_HAS_SUM : first;
}

int gs_stream_brings(const gs_stream *stream, size_t bucket, bool *differs) {
    return brings_of_all(stream, bucket, brings_to_step, differs);
}

int gs_stream_accumulates(const gs_stream *stream, size_t bucket, bool *differs) {
    return brings_of_all(stream, bucket, brings_to_sum, differs);
}

gsync_status gs_stream_send_brings(gs_stream *stream, size_t bucket, bool is_accumulated) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    const gs_bucket *of = &plan->buckets[bucket];
    uint8_t *own = stream->turn->brings + of->first;
    for (uint32_t i = 0; i < of->gradient_count; i++) {
        const uint32_t index = plan->members[of->first + i];
        own[i] = (uint8_t)(is_accumulated ? brings_to_sum(stream, index) : brings_to_step(stream, index));
    }
    return gs_cuda_copy(stream->cuda, stream->brings + of->first, own, of->gradient_count * sizeof *own, stream->queue);
}

/* ---- what takes a result ---- */

bool gs_stream_is_held(const gs_stream *stream, size_t bucket) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    const gs_bucket *of = &plan->buckets[bucket];
    bool is_held = stream->checks_writes;
    for (uint32_t i = 0; stream->finds_unused && i < of->gradient_count; i++) {
        is_held = is_held || !is_used(stream, plan->members[of->first + i]);
    }
    return is_held;
}

size_t gs_stream_member_count(const gs_stream *stream) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    const gs_bucket *last = plan->bucket_count != 0 ? &plan->buckets[plan->bucket_count - 1] : NULL;
    return last != NULL ? (size_t)last->first + last->gradient_count : 0;
}

static gsync_status send_own_used(gs_stream *stream, size_t count) {
    const float *own = stream->turn->own_used;
    return gs_cuda_copy(stream->cuda, stream->used, own, count * sizeof *own, stream->queue);
}

gsync_status gs_stream_exchange_used(gs_stream *stream) {
    const uint32_t *members = stream->pipeline->plan->members;
    const size_t count = gs_stream_member_count(stream);
    gs_stream_turn *turn = stream->turn;
    for (size_t i = 0; i < count; i++) {
        turn->own_used[i] = is_used(stream, members[i]) ? 1.0f : 0.0f;
    }
    GS_TRY(send_own_used(stream, count));
    if (stream->world_size > 1) {
        GS_TRY(gs_nccl_all_reduce(stream->nccl, stream->used, count, GSYNC_FLOAT32, 1.0, stream->queue));
    }
    return gs_cuda_copy(stream->cuda, turn->used, stream->used, count * sizeof *turn->used, stream->queue);
}

gsync_status gs_stream_send_used(gs_stream *stream) {
    const uint32_t *members = stream->pipeline->plan->members;
    const size_t count = gs_stream_member_count(stream);
    for (size_t i = 0; i < count; i++) {
        stream->turn->own_used[i] = stream->pipeline->gradients[members[i]].is_used_anywhere ? 1.0f : 0.0f;
    }
    return send_own_used(stream, count);
}

void gs_stream_take_used(gs_stream *stream, const gs_stream_turn *turn) {
    const gs_pipeline *pipeline = stream->pipeline;
    if (!stream->finds_unused) {
        return;
    }
    for (size_t i = 0; i < pipeline->plan->gradient_count; i++) {
        pipeline->gradients[i].is_used_anywhere = false;
    }
    for (size_t i = 0; i < gs_stream_member_count(stream); i++) {
        pipeline->gradients[pipeline->plan->members[i]].is_used_anywhere = turn->used[i] != 0.0f;
    }
}
