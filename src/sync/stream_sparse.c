/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

#include <assert.h>

/*
 * Buckets of which only the largest elements travel, as in sparse.c: every rank chooses on its device, all ranks get
 * all entries, and each adds them up in the order of ranks. How many there are follows from the plan, so nothing has to
 * be told beforehand; who contributes nothing sends as much as the others, and the shares say that it does not count.
 *
 * What is wanted of a bucket lies where the bucket does, and its result later; entries and what the search needs are of
 * the bucket at work, of which there is one at a time.
 */

/* ---- memory ---- */

static bool is_sparse(const gs_stream *stream, uint32_t wire) {
    return stream->pipeline->wires[wire].wire == GSYNC_WIRE_TOPK;
}

static void *carve(unsigned char *base, size_t *used, size_t bytes) {
    unsigned char *piece = base != NULL ? base + *used : NULL;
    *used += (bytes + GS_STREAM_ALIGNMENT - 1) / GS_STREAM_ALIGNMENT * GS_STREAM_ALIGNMENT;
    return piece;
}

/* base NULL: only says how much is needed. */
static size_t carve_sparse(gs_stream *stream, const gs_stream_wish *wish, unsigned char *base) {
    gs_stream_sparse *sparse = &stream->sparse;
    size_t used = 0;
    size_t tiles = 0;
    sparse->choices_max = 0;
    for (size_t i = 0; i < wish->gradient_count; i++) {
        const bool is_one = is_sparse(stream, wish->shapes[i].wire);
        sparse->choices_max += is_one;
        tiles += is_one ? gs_cuda_topk_tiles(wish->shapes[i].count) : 0;
    }
    const size_t entries = sparse->entries_max * (size_t)stream->world_size;
    sparse->choices = carve(base, &used, stream->capacity * sizeof *sparse->choices);
    sparse->scratch = carve(base, &used, gs_cuda_topk_scratch_bytes(sparse->choices_max, tiles));
    sparse->entries = carve(base, &used, entries * sizeof *sparse->entries);
    return used;
}

gsync_status gs_stream_allocate_sparse(gs_stream *stream, const gs_stream_wish *wish) {
    gs_stream_sparse *sparse = &stream->sparse;
    const char *what = "the largest elements";
    const size_t image_bytes = stream->capacity * sizeof *sparse->images[0];
    sparse->entries_max =
        gs_sparse_entries_max(wish->shapes, wish->gradient_count, stream->pipeline->wires, wish->bucket_elements_max);
    if (sparse->entries_max == 0) {
        return GSYNC_OK;
    }
    GS_TRY(gs_cuda_new(stream->cuda, &sparse->memory, carve_sparse(stream, wish, NULL), what));
    GS_TRY(gs_cuda_pinned_new(stream->cuda, &sparse->pinned, 2 * image_bytes, what));
    (void)carve_sparse(stream, wish, sparse->memory);
    sparse->images[0] = sparse->pinned;
    sparse->images[1] = sparse->images[0] + stream->capacity;
    return GSYNC_OK;
}

void gs_stream_free_sparse(gs_stream *stream) {
    gs_cuda_free(stream->cuda, stream->sparse.memory);
    gs_cuda_pinned_free(stream->cuda, stream->sparse.pinned);
}

/* ---- what is to be chosen ---- */

static void fill_choices(gs_stream *stream, size_t bucket, gs_cuda_choice *image) {
    const gs_pipeline *pipeline = stream->pipeline;
    const gs_bucket *of = &pipeline->plan->buckets[bucket];
    size_t entries = 0;
    uint32_t tiles = 0;
    for (uint32_t i = of->first; i < of->first + of->gradient_count; i++) {
        const uint32_t index = pipeline->plan->members[i];
        const size_t count = gs_tensor_count(&pipeline->gradients[index].tensor);
        const size_t kept = gs_wire_rule_kept(&pipeline->wires[of->wire], count);
        image[i] = (gs_cuda_choice){.offset = pipeline->plan->element_offset[index],
                                    .first_entry = entries,
                                    .count = (uint32_t)count,
                                    .kept = (uint32_t)kept,
                                    .first_tile = tiles,
                                    .number = index};
        entries += kept;
        tiles += gs_cuda_topk_tiles(count);
    }
    assert(entries <= stream->sparse.entries_max);
    stream->buckets[bucket].entry_count = entries;
    stream->buckets[bucket].tile_count = tiles;
}

gsync_status gs_stream_send_choices(gs_stream *stream, int image) {
    gs_stream_sparse *sparse = &stream->sparse;
    const gs_bucket_plan *plan = stream->pipeline->plan;
    if (sparse->entries_max == 0) {
        return GSYNC_OK;
    }
    for (size_t b = 0; b < plan->bucket_count; b++) {
        if (is_sparse(stream, plan->buckets[b].wire)) {
            fill_choices(stream, b, sparse->images[image]);
        }
    }
    const size_t bytes = stream->capacity * sizeof *sparse->choices;
    return gs_cuda_copy(stream->cuda, sparse->choices, sparse->images[image], bytes, stream->queue);
}

/* ---- a bucket ---- */

static gs_cuda_topk topk_of(const gs_stream *stream, const gs_stream_route *way) {
    const gs_stream_sparse *sparse = &stream->sparse;
    const gs_bucket *of = &stream->pipeline->plan->buckets[way->bucket];
    const bool feeds_back = gs_stream_feeds_back(stream, way->bucket);
    return (gs_cuda_topk){.choices = sparse->choices + of->first,
                          .choice_count = of->gradient_count,
                          .tile_count = stream->buckets[way->bucket].tile_count,
                          .entry_count = stream->buckets[way->bucket].entry_count,
                          .element_count = of->element_count,
                          .scratch = sparse->scratch,
                          .choices_max = sparse->choices_max,
                          .bucket = (float *)(void *)way->at,
                          .residuals = feeds_back ? stream->residuals[GS_WIRE_CONTRIBUTION] : NULL,
                          .residual_count = stream->capacity,
                          .host_residuals = stream->host_residuals[GS_WIRE_CONTRIBUTION],
                          .host_choices = sparse->images[stream->image] + of->first,
                          .unit = (float)stream->pipeline->step.loss_scale};
}

/* A rank that has no data does not send what it owes either. */
static gsync_status choose(gs_stream *stream, const gs_stream_route *way, const gs_cuda_topk *topk) {
    gs_cuda_entry *own = stream->sparse.entries + (size_t)stream->rank * topk->entry_count;
    if (!stream->pipeline->step.contributes) {
        return GSYNC_OK;
    }
    GS_TRY(gs_cuda_topk_select(stream->cuda, topk, own, stream->queue));
    if (topk->residuals != NULL) {
        gs_stream_note_written(stream, way->bucket, GS_WIRE_CONTRIBUTION);
    }
    return GSYNC_OK;
}

gsync_status gs_stream_reduce_sparse(gs_stream *stream, const gs_stream_route *way) {
    const gs_cuda_topk topk = topk_of(stream, way);
    gs_cuda_entry *entries = stream->sparse.entries;
    GS_TRY(choose(stream, way, &topk));
    GS_TRY(gs_nccl_all_gather(stream->nccl, entries, topk.entry_count * sizeof *entries, stream->queue));
    return gs_cuda_topk_sum(stream->cuda, &topk, entries, stream->shares, stream->world_size, stream->queue);
}
