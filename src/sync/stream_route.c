/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "sync/stream_internal.h"

#include <math.h>

/* How a bucket travels in a step. It follows from options and from what every rank knows, but for the last part. */

static const gs_bucket *bucket_at(const gs_stream *stream, size_t bucket) {
    return &stream->pipeline->plan->buckets[bucket];
}

static bool is_power_of_two(double value) {
    int exponent;
    return frexp(value, &exponent) == 0.5;
}

static void choose_wire(const gs_stream *stream, gs_stream_route *way) {
    const gs_pipeline *pipeline = stream->pipeline;
    const gsync_wire wire = pipeline->wires[bucket_at(stream, way->bucket)->wire].wire;
    way->wire = gs_narrow_dtype(pipeline, way->bucket);
    if (!gs_narrow_is_on(pipeline, way->bucket)) {
        way->size = gsync_dtype_size(way->wire);
        return;
    }
    if (wire == GSYNC_WIRE_INT8 || wire == GSYNC_WIRE_FLOAT8) {
        const gs_cuda_codec codec = wire == GSYNC_WIRE_INT8 ? GS_CUDA_INT8 : GS_CUDA_FLOAT8;
        way->blocks = gs_cuda_blocks_of(codec, bucket_at(stream, way->bucket)->element_count, stream->world_size);
    } else if (wire == GSYNC_WIRE_TOPK) {
        way->is_sparse = true;
    } else {
        way->wire = wire == GSYNC_WIRE_FLOAT16 ? GSYNC_FLOAT16 : GSYNC_BFLOAT16;
        way->scale = wire == GSYNC_WIRE_FLOAT16 ? gs_narrow_scale(pipeline, GS_WIRE_CONTRIBUTION) : 1.0f;
    }
    way->size = gsync_dtype_size(way->wire);
}

/* NCCL adds halves in halves, rank by rank: an error for each. Some ask for it. */
static bool is_fast(const gs_stream *stream, const gs_stream_route *way) {
    const gs_wire_rule *rule = &stream->pipeline->wires[bucket_at(stream, way->bucket)->wire];
    return rule->sum == GSYNC_WIRE_SUM_FAST &&
           (rule->wire == GSYNC_WIRE_NATIVE || gs_narrow_is_on(stream->pipeline, way->bucket));
}

/* NCCL, before the sum. It would make zeros of halves that are small, which a gradient often is, where dividing
 * afterwards finds at worst that the sum was too large. And what is narrow is decoded anyway, which can divide. */
static bool may_multiply(const gs_stream_route *way) {
    return !way->is_direct && !way->is_sparse && way->scale == 0.0f && way->wire != GSYNC_FLOAT16;
}

static void choose_sum(const gs_stream *stream, gs_stream_route *way) {
    const bool is_alone = stream->world_size == 1;
    const bool is_short = way->size == 2 || way->blocks.codec != GS_CUDA_PLAIN;
    const double divisor = stream->known_divisor;
    way->is_direct = !is_alone && !way->is_sparse && (stream->is_deterministic || (is_short && !is_fast(stream, way)));
    way->factor = 1.0;
    way->divides = divisor != 1.0;
    if (!is_alone && may_multiply(way) && divisor > 0 && is_power_of_two(divisor)) {
        way->factor = 1.0 / divisor;
        way->divides = false;
    }
}

static void choose_place(const gs_stream *stream, gs_stream_route *way) {
    const gs_pipeline *pipeline = stream->pipeline;
    void *place = stream->buckets[way->bucket].place;
    const bool is_native = way->wire == bucket_at(stream, way->bucket)->dtype && way->scale == 0.0f &&
                           way->blocks.codec == GS_CUDA_PLAIN && !way->is_sparse;
    way->brings = gs_stream_brings(stream, way->bucket, &way->differs);
    way->is_held = gs_stream_is_held(stream, way->bucket);
    way->is_in_place = place != NULL && is_native && !way->is_direct && !way->is_held && !pipeline->terms.looks;
    way->at = way->is_in_place ? place : stream->buffers + stream->buckets[way->bucket].at;
    way->encodes = !way->is_in_place || way->brings != GS_STREAM_HAS_DATA || pipeline->step.factor != 1.0;
}

gs_stream_route gs_stream_route_of(const gs_stream *stream, size_t bucket) {
    gs_stream_route way = {.bucket = bucket};
    choose_wire(stream, &way);
    choose_sum(stream, &way);
    choose_place(stream, &way);
    return way;
}

bool gs_stream_changes_nothing(const gs_stream *stream, const gs_stream_route *way) {
    const gs_pipeline *pipeline = stream->pipeline;
    return stream->world_size == 1 && !way->divides && !pipeline->terms.looks && pipeline->step.factor == 1.0 &&
           way->brings == GS_STREAM_HAS_DATA;
}

gs_cuda_result_scale gs_stream_result_scale(const gs_stream *stream, const gs_stream_route *way) {
    const gs_pipeline *pipeline = stream->pipeline;
    if (way->scale == 0.0f || way->wire != GSYNC_FLOAT16 || !way->is_direct) {
        return (gs_cuda_result_scale){.divisor = NULL};
    }
    return (gs_cuda_result_scale){.divisor = stream->divisor,
                                  .usual = (double)stream->world_size * pipeline->step.loss_scale,
                                  .scale = pipeline->half_scale};
}

gs_cuda_pass gs_stream_pass_of(const gs_stream *stream, const gs_stream_route *way, int table) {
    const gs_bucket *bucket = bucket_at(stream, way->bucket);
    const gs_cuda_term *image = stream->images[stream->image] + (size_t)table * stream->capacity;
    return (gs_cuda_pass){.terms = stream->tables[table] + bucket->first,
                          .host_terms = image + bucket->first,
                          .term_count = bucket->gradient_count,
                          .count = bucket->element_count,
                          .dtype = bucket->dtype,
                          .wire = way->wire,
                          .factor = 1.0,
                          .scale = way->scale,
                          .blocks = way->blocks,
                          .notebook = stream->pipeline->terms.looks ? stream->notebook : NULL};
}

gs_cuda_randomness gs_stream_randomness(const gs_stream *stream, const gs_stream_route *way) {
    const gs_pipeline *pipeline = stream->pipeline;
    const gs_wire_rule *rule = &pipeline->wires[bucket_at(stream, way->bucket)->wire];
    const uint64_t words[] = {rule->seed, pipeline->step.step, (uint64_t)stream->rank, 0};
    if (!rule->is_stochastic || way->blocks.codec != GS_CUDA_INT8) {
        return (gs_cuda_randomness){.is_on = false};
    }
    /* What gs_narrow hashes but for the last word, which is the gradient's. */
    uint64_t prefix = gs_hash_mix(0, sizeof words);
    for (int i = 0; i < 3; i++) {
        prefix = gs_hash_mix(prefix, words[i]);
    }
    return (gs_cuda_randomness){.is_on = true, .prefix = prefix};
}
