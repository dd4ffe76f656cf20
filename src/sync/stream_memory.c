/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"
#include "sync/stream_internal.h"

#include <string.h>

/*
 * What a reducer has on its device. Everything is allocated at once, for any plan over its gradients: agreeing on
 * another order then allocates nothing, and no two buckets share memory.
 */

static size_t align(size_t bytes, size_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

/* ---- sizes ---- */

static size_t place_size(const gs_stream *stream, gsync_dtype dtype, uint32_t wire) {
    return gs_narrow_place_size(dtype, wire, stream->accumulates);
}

/* Every rank's part of a bucket begins at a multiple of GS_STREAM_PART. */
static size_t bucket_bytes(const gs_stream *stream, size_t count, size_t size, bool has_blocks) {
    const size_t ranks = (size_t)stream->world_size;
    const size_t plain = align((count + ranks - 1) / ranks * size, GS_STREAM_PART);
    /* Of few blocks some ranks have none, but room for one. */
    const size_t blocks = has_blocks ? gs_cuda_blocks_of(GS_CUDA_INT8, count, stream->world_size).part_bytes : 0;
    return align((plain > blocks ? plain : blocks) * ranks, GS_STREAM_ALIGNMENT);
}

/* Of the buckets of any plan. Gradients in a bucket of their own need the most. */
static size_t buffer_bytes(const gs_stream *stream, const gs_stream_wish *wish) {
    size_t total = 0;
    for (size_t i = 0; i < wish->gradient_count; i++) {
        const gs_plan_gradient *shape = &wish->shapes[i];
        total += bucket_bytes(stream, gs_narrow_place_count(shape), place_size(stream, shape->dtype, shape->wire),
                              shape->block > 1);
    }
    return total;
}

/* In some step. During a warm-up halves are added up in this order on every narrow wire. */
static bool is_summed_in_order(const gs_stream *stream, const gs_plan_gradient *shape) {
    const gs_wire_rule *rule = &stream->pipeline->wires[shape->wire];
    const bool is_short = gsync_dtype_size(shape->dtype) == 2;
    const bool is_narrow = rule->wire != GSYNC_WIRE_NATIVE && rule->wire != GSYNC_WIRE_TOPK;
    return rule->sum == GSYNC_WIRE_SUM_FAST ? is_short && is_narrow : is_short || is_narrow;
}

/* Buckets that are summed in the order of ranks need room for what the others send. */
static bool has_parts(const gs_stream *stream, const gs_stream_wish *wish) {
    bool has_any = stream->is_deterministic;
    for (size_t i = 0; i < wish->gradient_count; i++) {
        has_any = has_any || is_summed_in_order(stream, &wish->shapes[i]);
    }
    return has_any && stream->world_size > 1;
}

/* ---- carving ---- */

/* The next piece of a block of memory; of NULL, to learn how much is needed. */
static void *carve(unsigned char *base, size_t *used, size_t bytes) {
    unsigned char *piece = base != NULL ? base + *used : NULL;
    *used = align(*used + bytes, GS_STREAM_ALIGNMENT);
    return piece;
}

static size_t carve_arena(gs_stream *stream, unsigned char *base, const gs_stream_wish *wish) {
    size_t used = 0;
    const size_t bytes = buffer_bytes(stream, wish);
    if (wish->has_views) {
        const size_t views = gs_pipeline_slot_bytes(wish->shapes, wish->gradient_count, stream->accumulates);
        stream->views = carve(base, &used, views);
    }
    stream->buffers = carve(base, &used, bytes);
    if (has_parts(stream, wish)) {
        stream->parts = carve(base, &used, bytes);
    }
    if (stream->accumulates) {
        stream->sums = carve(base, &used, bytes);
    }
    return used;
}

/* Gradients of which a step has to know whether they are used. */
static size_t unused_count(const gs_stream *stream) {
    return stream->finds_unused ? stream->capacity : 0;
}

static size_t digest_count(const gs_stream *stream) {
    return stream->compares_replicas || stream->checks_writes ? stream->capacity : 0;
}

static size_t mark_count(const gs_stream *stream) {
    return stream->checks_writes ? stream->capacity : 0;
}

/* The table of results behind that of contributions; none where nothing feeds back. */
static void carve_residuals(gs_cuda_residual **tables, unsigned char *base, size_t *used, size_t count) {
    gs_cuda_residual *table = carve(base, used, GS_STREAM_RESIDUALS * count * sizeof *table);
    for (size_t stage = 0; stage < GS_STREAM_RESIDUALS && base != NULL && count != 0; stage++) {
        tables[stage] = table + stage * count;
    }
}

static size_t carve_small(gs_stream *stream, unsigned char *base, size_t residual_count) {
    size_t used = 0;
    const size_t ranks = (size_t)stream->world_size;
    gs_cuda_term *tables = carve(base, &used, GS_STREAM_TABLES * stream->capacity * sizeof *tables);
    for (size_t i = 0; i < GS_STREAM_TABLES && base != NULL; i++) {
        stream->tables[i] = tables + i * stream->capacity;
    }
    stream->shares = carve(base, &used, ranks * sizeof *stream->shares);
    stream->refusals = carve(base, &used, ranks * sizeof *stream->refusals);
    stream->divisor = carve(base, &used, sizeof *stream->divisor);
    stream->brings = carve(base, &used, unused_count(stream) * sizeof *stream->brings);
    stream->used = carve(base, &used, unused_count(stream) * sizeof *stream->used);
    stream->digests = carve(base, &used, digest_count(stream) * sizeof *stream->digests);
    stream->marked = carve(base, &used, mark_count(stream) * sizeof *stream->marked);
    carve_residuals(stream->residuals, base, &used, residual_count);
    stream->written = carve(base, &used, residual_count * sizeof *stream->written);
    stream->kept_divisor = carve(base, &used, sizeof *stream->kept_divisor);
    stream->notebook = carve(base, &used, sizeof *stream->notebook);
    stream->blank = carve(base, &used, sizeof stream->blank->found);
    return used;
}

static size_t carve_pinned(gs_stream *stream, unsigned char *base, size_t residual_count) {
    size_t used = 0;
    const size_t ranks = (size_t)stream->world_size;
    for (int i = 0; i < 2; i++) {
        stream->images[i] = carve(base, &used, GS_STREAM_TABLES * stream->capacity * sizeof(gs_cuda_term));
    }
    carve_residuals(stream->host_residuals, base, &used, residual_count);
    for (int i = 0; i < GS_STREAM_TURNS; i++) {
        gs_stream_turn *turn = &stream->turns[i];
        turn->own = carve(base, &used, sizeof *turn->own);
        turn->shares = carve(base, &used, ranks * sizeof *turn->shares);
        turn->divisor = carve(base, &used, sizeof *turn->divisor);
        turn->own_refusal = carve(base, &used, sizeof *turn->own_refusal);
        turn->refusals = carve(base, &used, ranks * sizeof *turn->refusals);
        turn->findings = carve(base, &used, GS_STREAM_STAGES * stream->capacity * sizeof *turn->findings);
        turn->brings = carve(base, &used, unused_count(stream) * sizeof *turn->brings);
        turn->own_used = carve(base, &used, unused_count(stream) * sizeof *turn->own_used);
        turn->used = carve(base, &used, unused_count(stream) * sizeof *turn->used);
        turn->digests = carve(base, &used, digest_count(stream) * sizeof *turn->digests);
        turn->marked = carve(base, &used, mark_count(stream) * sizeof *turn->marked);
        turn->written = carve(base, &used, residual_count * sizeof *turn->written);
    }
    return used;
}

/* An NCCL that has no memory to give is as good as a wish that nobody had. */
static gsync_status allocate_arena(gs_stream *stream, const gs_stream_wish *wish) {
    stream->arena_bytes = carve_arena(stream, NULL, wish);
    if (wish->registers && stream->world_size > 1 && stream->arena_bytes > 0) {
        const gsync_status status = gs_nccl_memory_new(&stream->arena, stream->arena_bytes);
        stream->is_arena_nccls = status == GSYNC_OK;
        if (status != GSYNC_ERR_UNSUPPORTED) {
            GS_TRY(status);
            return gs_cuda_zero_now(stream->cuda, stream->arena, stream->arena_bytes);
        }
    }
    return gs_cuda_new(stream->cuda, &stream->arena, stream->arena_bytes, "buckets");
}

static gsync_status allocate_memory(gs_stream *stream, const gs_stream_wish *wish) {
    const char *what = "what steps exchange";
    const size_t owing = gs_stream_residual_count(wish, stream->pipeline);
    GS_TRY(allocate_arena(stream, wish));
    GS_TRY(gs_cuda_new(stream->cuda, &stream->small, carve_small(stream, NULL, owing), what));
    GS_TRY(gs_cuda_pinned_new(stream->cuda, &stream->pinned, carve_pinned(stream, NULL, owing), what));
    (void)carve_arena(stream, stream->arena, wish);
    (void)carve_small(stream, stream->small, owing);
    (void)carve_pinned(stream, stream->pinned, owing);
    return GSYNC_OK;
}

/* ---- streams and events ---- */

static gsync_status make_bucket_events(gs_stream *stream, gs_stream_bucket *bucket) {
    for (int i = 0; i < GS_STREAM_PRODUCERS; i++) {
        GS_TRY(gs_cuda_event_new(stream->cuda, &bucket->producers[i].event));
    }
    return gs_cuda_event_new(stream->cuda, &bucket->done);
}

static gsync_status make_events(gs_stream *stream, const gs_stream_wish *wish) {
    GS_TRY(gs_cuda_stream_new(stream->cuda, !stream->has_normal_priority, &stream->queue));
    GS_TRY(gs_cuda_event_new(stream->cuda, &stream->followed));
    for (int i = 0; i < 2; i++) {
        GS_TRY(gs_cuda_event_new(stream->cuda, &stream->uploaded[i]));
    }
    for (int i = 0; i < GS_STREAM_TURNS; i++) {
        GS_TRY(gs_cuda_event_new(stream->cuda, &stream->turns[i].finished));
    }
    GS_TRY(gs_memory_new(&stream->buckets, stream->capacity, sizeof *stream->buckets, "buckets"));
    for (size_t b = 0; b < stream->capacity; b++) {
        GS_TRY(make_bucket_events(stream, &stream->buckets[b]));
    }
    return gs_stream_make_timers(stream, wish);
}

static void free_events(gs_stream *stream) {
    for (size_t b = 0; b < stream->capacity && stream->buckets != NULL; b++) {
        for (int i = 0; i < GS_STREAM_PRODUCERS; i++) {
            gs_cuda_event_free(stream->cuda, stream->buckets[b].producers[i].event);
        }
        gs_cuda_event_free(stream->cuda, stream->buckets[b].done);
    }
    for (int i = 0; i < GS_STREAM_TURNS; i++) {
        gs_cuda_event_free(stream->cuda, stream->turns[i].finished);
    }
    for (int i = 0; i < 2; i++) {
        gs_cuda_event_free(stream->cuda, stream->uploaded[i]);
    }
    gs_cuda_event_free(stream->cuda, stream->followed);
    gs_stream_free_timers(stream);
}

/* ---- life ---- */

static gsync_status allocate(gs_stream *stream, const gs_stream_wish *wish) {
    GS_TRY(gs_cuda_open(&stream->cuda));
    GS_TRY(allocate_memory(stream, wish));
    GS_TRY(gs_memory_new(&stream->known_digests, digest_count(stream), sizeof *stream->known_digests, "digests"));
    GS_TRY(make_events(stream, wish));
    GS_TRY(gs_stream_allocate_sparse(stream, wish));
    return gs_stream_allocate_residuals(stream, wish);
}

gsync_status gs_stream_open(gs_stream **out, gs_pipeline *pipeline, const gs_stream_wish *wish) {
    gs_stream *stream = NULL;
    GS_TRY(gs_memory_new(&stream, 1, sizeof *stream, "stream pipeline"));
    stream->pipeline = pipeline;
    stream->turn = &stream->turns[0]; /* for what is copied before the first step */
    gs_stream_init_watch(stream);
    stream->world_size = pipeline->group->world_size;
    stream->rank = pipeline->group->rank;
    stream->capacity = wish->gradient_count;
    stream->is_deterministic = wish->is_deterministic;
    stream->accumulates = wish->accumulates;
    stream->finds_unused = wish->finds_unused;
    stream->compares_replicas = wish->compares_replicas;
    stream->checks_writes = wish->checks_writes;
    stream->exchanges_refusals = wish->exchanges_refusals;
    stream->nccl_ctas_max = wish->nccl_ctas_max;
    stream->allows_shared_device = wish->allows_shared_device;
    stream->has_normal_priority = wish->has_normal_priority;
    const gsync_status status = allocate(stream, wish);
    if (status != GSYNC_OK) {
        gs_stream_close(stream, true);
        return status;
    }
    *out = stream;
    return GSYNC_OK;
}

/* When nothing of NCCL is queued any more. What the device still uses stays; freeing it would wait, perhaps for ever.
 */
static void release(void *argument) {
    gs_stream *stream = argument;
    if (stream->cuda != NULL && !gs_stream_drain(stream)) {
        return;
    }
    if (stream->cuda != NULL) {
        free_events(stream);
        gs_cuda_stream_free(stream->cuda, stream->queue);
        if (stream->is_arena_nccls) {
            gs_nccl_memory_free(stream->arena);
        } else {
            gs_cuda_free(stream->cuda, stream->arena);
        }
        gs_cuda_free(stream->cuda, stream->small);
        gs_cuda_free(stream->cuda, stream->sides);
        gs_stream_free_sparse(stream);
        gs_cuda_pinned_free(stream->cuda, stream->pinned);
        gs_cuda_close(stream->cuda);
    }
    gs_memory_free(stream->known_digests);
    gs_memory_free(stream->buckets);
    gs_memory_free(stream);
}

void gs_stream_close(gs_stream *stream, bool has_ended) {
    if (stream == NULL) {
        return;
    }
    gs_stream_end_watch(stream);
    /* What no host has waited for is right to end well, and the others count on it; but not for long. */
    if (!has_ended || stream->status != GSYNC_OK || !gs_stream_drain(stream)) {
        gs_nccl_abort(stream->nccl);
    }
    gs_nccl *nccl = stream->nccl;
    stream->nccl = NULL;
    if (nccl != NULL) {
        gs_nccl_close_then(nccl, release, stream);
    } else {
        release(stream);
    }
}

/* ---- plans ---- */

static void *find_place(const gs_stream *stream, const gs_bucket *bucket) {
    const gs_pipeline *pipeline = stream->pipeline;
    const uint32_t *members = &pipeline->plan->members[bucket->first];
    unsigned char *start = pipeline->gradients[members[0]].tensor.data;
    unsigned char *end = start;
    for (uint32_t i = 0; i < bucket->gradient_count; i++) {
        const gs_tensor *tensor = &pipeline->gradients[members[i]].tensor;
        if (tensor->data != end || !gs_tensor_is_dense(tensor)) {
            return NULL;
        }
        end += gs_tensor_bytes(tensor);
    }
    const size_t bytes = bucket->element_count * gsync_dtype_size(bucket->dtype);
    return (size_t)(end - start) == bytes ? start : NULL; /* nothing is missing to fill up a block */
}

void gs_stream_lay_out(gs_stream *stream) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    size_t at = 0;
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *bucket = &plan->buckets[b];
        stream->buckets[b].at = at;
        at += bucket_bytes(stream, bucket->element_count, place_size(stream, bucket->dtype, bucket->wire),
                           gs_wire_rule_block(&stream->pipeline->wires[bucket->wire]) > 1);
    }
    stream->has_moved = true;
}

/* ---- tables of terms ---- */

static void fill_term(const gs_stream *stream, size_t bucket, uint32_t index, int table, gs_cuda_term *term) {
    const gs_tensor *tensor = &stream->pipeline->gradients[index].tensor;
    const size_t offset = stream->pipeline->plan->element_offset[index];
    *term = (gs_cuda_term){.rows = tensor->rows,
                           .columns = tensor->columns,
                           .row_pitch = tensor->row_pitch,
                           .offset = offset,
                           .number = index};
    if ((table & GS_STREAM_HAS_DATA) != 0) {
        term->data = tensor->data;
    }
    if ((table & GS_STREAM_HAS_SUM) != 0 && stream->sums != NULL) {
        const size_t size = gsync_dtype_size(gs_dtype_wide(tensor->dtype));
        term->accumulator = stream->sums + stream->buckets[bucket].at + offset * size;
    }
}

static void fill_tables(const gs_stream *stream, gs_cuda_term *image) {
    const gs_bucket_plan *plan = stream->pipeline->plan;
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *bucket = &plan->buckets[b];
        stream->buckets[b].place = find_place(stream, bucket);
        for (uint32_t i = bucket->first; i < bucket->first + bucket->gradient_count; i++) {
            for (int table = 0; table < GS_STREAM_TABLES; table++) {
                fill_term(stream, b, plan->members[i], table, &image[(size_t)table * stream->capacity + i]);
            }
        }
    }
}

gsync_status gs_stream_upload(gs_stream *stream) {
    if (!stream->has_moved || stream->capacity == 0) {
        return GSYNC_OK;
    }
    const int next = 1 - stream->image;
    GS_TRY(gs_stream_wait_event(stream, stream->uploaded[next], NULL, NULL));
    fill_tables(stream, stream->images[next]);
    const size_t bytes = GS_STREAM_TABLES * stream->capacity * sizeof(gs_cuda_term);
    GS_TRY(gs_cuda_copy(stream->cuda, stream->tables[0], stream->images[next], bytes, stream->queue));
    GS_TRY(gs_stream_send_choices(stream, next));
    GS_TRY(gs_cuda_record(stream->cuda, stream->uploaded[next], stream->queue));
    stream->image = next;
    stream->has_moved = false;
    return GSYNC_OK;
}
