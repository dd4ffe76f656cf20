/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

#include <string.h>

/*
 * Error feedback of gradients on a GPU. Which side of a residual is valid is known to the device alone: kernels of the
 * next step may be queued before any host knows whether this one counts. A host that has waited says which sides become
 * valid, by the same rules as for gradients on the host; otherwise the device looks at the divisor, at what the passes
 * found and at what the ranks have used. gs_gradient.residuals have no sides here, and their flags are about one step:
 * is_written as ever, and valid is set where a host has decided that the other side becomes valid.
 */

enum { STAGES = GS_STREAM_RESIDUALS };

static const gs_wire_rule *rule_of(const gs_stream *stream, const gs_plan_gradient *shape) {
    return &stream->pipeline->wires[shape->wire];
}

/* What is not rounded but left out loses nothing of results. */
static bool keeps(const gs_wire_rule *rule, int stage) {
    return rule->has_feedback && (stage == GS_WIRE_CONTRIBUTION || rule->codec != NULL);
}

/* ---- memory ---- */

size_t gs_stream_residual_count(const gs_stream_wish *wish, const gs_pipeline *pipeline) {
    for (size_t i = 0; i < wish->gradient_count; i++) {
        if (pipeline->wires[wish->shapes[i].wire].has_feedback) {
            return wish->gradient_count;
        }
    }
    return 0;
}

static size_t side_bytes(const gs_plan_gradient *shape) {
    return (shape->count * sizeof(float) + GS_STREAM_ALIGNMENT - 1) / GS_STREAM_ALIGNMENT * GS_STREAM_ALIGNMENT;
}

/* base NULL: only says how much is needed. */
static size_t carve_sides(gs_stream *stream, const gs_stream_wish *wish, unsigned char *base) {
    size_t used = 0;
    for (size_t i = 0; i < wish->gradient_count; i++) {
        for (int stage = 0; stage < STAGES; stage++) {
            for (int side = 0; side < 2 && keeps(rule_of(stream, &wish->shapes[i]), stage); side++) {
                if (base != NULL) {
                    stream->host_residuals[stage][i].sides[side] = (float *)(void *)(base + used);
                }
                used += side_bytes(&wish->shapes[i]);
            }
        }
    }
    return used;
}

/* To the device, and waits. */
static gsync_status send_tables(gs_stream *stream) {
    const size_t bytes = STAGES * stream->capacity * sizeof(gs_cuda_residual);
    GS_TRY(gs_cuda_copy(stream->cuda, stream->residuals[0], stream->host_residuals[0], bytes, stream->queue));
    GS_TRY(gs_stream_end_turn(stream));
    return gs_stream_wait_event(stream, stream->turn->finished, NULL, NULL);
}

gsync_status gs_stream_allocate_residuals(gs_stream *stream, const gs_stream_wish *wish) {
    if (stream->residuals[0] == NULL) {
        return GSYNC_OK;
    }
    const size_t bytes = carve_sides(stream, wish, NULL);
    GS_TRY(gs_cuda_new(stream->cuda, &stream->sides, bytes, "error feedback"));
    (void)carve_sides(stream, wish, stream->sides);
    return send_tables(stream);
}

/* ---- a step ---- */

gsync_status gs_stream_begin_feedback(gs_stream *stream) {
    if (stream->residuals[0] == NULL) {
        return GSYNC_OK;
    }
    uint32_t *has_nonfinite = &stream->notebook->has_nonfinite;
    return gs_cuda_zero(stream->cuda, has_nonfinite, sizeof *has_nonfinite, stream->queue);
}

bool gs_stream_feeds_back(const gs_stream *stream, size_t bucket) {
    const gs_pipeline *pipeline = stream->pipeline;
    return pipeline->wires[pipeline->plan->buckets[bucket].wire].has_feedback && gs_narrow_is_on(pipeline, bucket);
}

void gs_stream_note_written(gs_stream *stream, size_t bucket, gs_wire_stage stage) {
    const gs_pipeline *pipeline = stream->pipeline;
    const gs_bucket *of = &pipeline->plan->buckets[bucket];
    for (uint32_t i = of->first; i < of->first + of->gradient_count; i++) {
        pipeline->gradients[pipeline->plan->members[i]].residuals[stage].is_written = true;
    }
}

/* A rank that has no data does not send what it owes either. Contributions are multiplied by the loss scale, a power of
 * two; results are divided by it already. */
gs_cuda_feedback gs_stream_feedback(gs_stream *stream, const gs_stream_route *way, gs_wire_stage stage) {
    const gs_step_terms *step = &stream->pipeline->step;
    const bool is_contribution = stage == GS_WIRE_CONTRIBUTION;
    const bool is_rounded = way->scale != 0.0f || way->blocks.codec != GS_CUDA_PLAIN; /* and not chosen from */
    if (!is_rounded || !gs_stream_feeds_back(stream, way->bucket) || (is_contribution && !step->contributes)) {
        return (gs_cuda_feedback){.residuals = NULL};
    }
    gs_stream_note_written(stream, way->bucket, stage);
    return (gs_cuda_feedback){.residuals = stream->residuals[stage],
                              .host_residuals = stream->host_residuals[stage],
                              .unit = is_contribution ? (float)step->loss_scale : 1.0f};
}

/* What of a gradient becomes valid, perhaps; and forgets it. */
static uint8_t take_written(gs_gradient *gradient, bool is_decided) {
    uint8_t written = 0;
    for (int stage = 0; stage < STAGES; stage++) {
        gs_residual *residual = &gradient->residuals[stage];
        const bool counts = is_decided ? residual->valid != 0 : residual->is_written;
        const int bit = stage == GS_WIRE_RESULT ? GS_CUDA_WROTE_RESULT : GS_CUDA_WROTE_CONTRIBUTION;
        written |= (uint8_t)(counts ? bit : 0);
        residual->valid = 0;
        residual->is_written = false;
    }
    return written;
}

static bool list_written(gs_stream *stream, size_t count, bool is_decided) {
    const gs_pipeline *pipeline = stream->pipeline;
    bool has_any = false;
    for (size_t i = 0; i < count; i++) {
        stream->turn->written[i] = take_written(&pipeline->gradients[pipeline->plan->members[i]], is_decided);
        has_any = has_any || stream->turn->written[i] != 0;
    }
    return has_any;
}

static gsync_status queue_settlement(gs_stream *stream, size_t count, bool is_decided) {
    const bool asks_for_use = stream->finds_unused && !is_decided;
    const gs_cuda_settlement settlement = {.contributions = stream->residuals[GS_WIRE_CONTRIBUTION],
                                           .results = stream->residuals[GS_WIRE_RESULT],
                                           .residual_count = stream->capacity,
                                           .terms = stream->tables[0],
                                           .term_count = count,
                                           .written = stream->written,
                                           .used = asks_for_use ? stream->used : NULL,
                                           .has_nonfinite = is_decided ? NULL : &stream->notebook->has_nonfinite,
                                           .divisor = stream->divisor,
                                           .loss_scale = stream->pipeline->step.loss_scale,
                                           .kept_divisor = stream->kept_divisor};
    GS_TRY(gs_cuda_copy(stream->cuda, stream->written, stream->turn->written, count, stream->queue));
    return gs_cuda_settle(stream->cuda, &settlement, stream->queue);
}

gsync_status gs_stream_settle_alone(gs_stream *stream) {
    const size_t count = gs_stream_member_count(stream);
    const bool has_any = stream->residuals[0] != NULL && list_written(stream, count, false);
    return has_any ? queue_settlement(stream, count, false) : GSYNC_OK;
}

gsync_status gs_stream_settle_decided(gs_stream *stream) {
    const size_t count = gs_stream_member_count(stream);
    if (stream->residuals[0] == NULL || !list_written(stream, count, true)) {
        return GSYNC_OK;
    }
    GS_TRY(queue_settlement(stream, count, true));
    return gs_stream_end_turn(stream);
}

/* ---- another plan ---- */

/* By the plan that was. What is not in a bucket owes nothing of results. */
gsync_status gs_stream_fold(gs_stream *stream) {
    const gs_pipeline *pipeline = stream->pipeline;
    const size_t count = stream->residuals[0] != NULL ? gs_stream_member_count(stream) : 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t index = pipeline->plan->members[i];
        const gs_cuda_folding folding = {
            .contribution = &stream->residuals[GS_WIRE_CONTRIBUTION][index],
            .result = &stream->residuals[GS_WIRE_RESULT][index],
            .host_contribution = &stream->host_residuals[GS_WIRE_CONTRIBUTION][index],
            .host_result = &stream->host_residuals[GS_WIRE_RESULT][index],
            .divisor = stream->kept_divisor,
        };
        if (folding.host_result->sides[0] != NULL) {
            const size_t elements = gs_tensor_count(&pipeline->gradients[index].tensor);
            GS_TRY(gs_cuda_fold(stream->cuda, &folding, elements, stream->queue));
        }
    }
    return GSYNC_OK;
}

/* ---- between steps: to the host and back ---- */

size_t gs_stream_owed_bytes(const gs_stream *stream, size_t index, gs_wire_stage stage) {
    const bool is_kept = stream->residuals[0] != NULL && stream->host_residuals[stage][index].sides[0] != NULL;
    return is_kept ? gs_tensor_count(&stream->pipeline->gradients[index].tensor) * sizeof(float) : 0;
}

static gsync_status wait_for_all(gs_stream *stream) {
    GS_TRY(gs_stream_end_turn(stream));
    return gs_stream_wait_event(stream, stream->turn->finished, NULL, NULL);
}

/* Which sides are valid, into host_residuals; and the divisor. */
static gsync_status fetch_tables(gs_stream *stream) {
    const size_t bytes = STAGES * stream->capacity * sizeof(gs_cuda_residual);
    GS_TRY(gs_cuda_copy(stream->cuda, stream->host_residuals[0], stream->residuals[0], bytes, stream->queue));
    GS_TRY(gs_cuda_copy(stream->cuda, stream->turn->divisor, stream->kept_divisor, sizeof(double), stream->queue));
    return wait_for_all(stream);
}

static gsync_status copy_owed(gs_stream *stream, size_t index, int stage, unsigned char *to, size_t bytes) {
    const gs_cuda_residual *residual = &stream->host_residuals[stage][index];
    return gs_cuda_copy(stream->cuda, to, residual->sides[residual->valid], bytes, stream->queue);
}

gsync_status gs_stream_save(gs_stream *stream, void *to, double *divisor) {
    unsigned char *at = to;
    if (stream->residuals[0] == NULL) {
        return GSYNC_OK;
    }
    GS_TRY(gs_stream_status(stream));
    GS_TRY(fetch_tables(stream));
    *divisor = *stream->turn->divisor;
    for (size_t i = 0; i < stream->capacity; i++) {
        for (int stage = 0; stage < STAGES; stage++) {
            const size_t bytes = gs_stream_owed_bytes(stream, i, (gs_wire_stage)stage);
            GS_TRY(bytes != 0 ? copy_owed(stream, i, stage, at, bytes) : GSYNC_OK);
            at += bytes;
        }
    }
    return wait_for_all(stream);
}

/* Elsewhere an element may be another rank's: of what is not this rank's nothing may be left on either side. */
static gsync_status put_owed(gs_stream *stream, size_t index, int stage, const unsigned char *from, size_t bytes) {
    gs_cuda_residual *residual = &stream->host_residuals[stage][index];
    residual->valid = 0;
    GS_TRY(gs_cuda_copy(stream->cuda, residual->sides[0], from, bytes, stream->queue));
    return gs_cuda_zero(stream->cuda, residual->sides[1], bytes, stream->queue);
}

gsync_status gs_stream_load(gs_stream *stream, const void *from, double divisor) {
    const unsigned char *at = from;
    if (stream->residuals[0] == NULL) {
        return GSYNC_OK;
    }
    GS_TRY(gs_stream_status(stream));
    GS_TRY(wait_for_all(stream)); /* what was queued may still read the turn's memory */
    *stream->turn->divisor = divisor;
    GS_TRY(gs_cuda_copy(stream->cuda, stream->kept_divisor, stream->turn->divisor, sizeof(double), stream->queue));
    for (size_t i = 0; i < stream->capacity; i++) {
        for (int stage = 0; stage < STAGES; stage++) {
            const size_t bytes = gs_stream_owed_bytes(stream, i, (gs_wire_stage)stage);
            GS_TRY(bytes != 0 ? put_owed(stream, i, stage, at, bytes) : GSYNC_OK);
            at += bytes;
        }
    }
    return send_tables(stream);
}
