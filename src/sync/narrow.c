/* SPDX-License-Identifier: Apache-2.0 */
#include "base/float_mode.h"
#include "sync/pipeline.h"

#include <math.h>

/*
 * Buckets on a narrow wire. The lane says what it is about to add up or to send; here is known which gradients that
 * is, so here it is rounded, gradient by gradient: blocks, random numbers and residuals belong to gradients, and the
 * bits do not depend on how they were put into buckets.
 */

/* A few blocks of every codec; they stay in the first-level cache. */
enum { CHUNK = 1024 };

static const gs_wire_rule *rule_of(const gs_pipeline *pipeline, size_t bucket) {
    return &pipeline->wires[pipeline->plan->buckets[bucket].wire];
}

bool gs_narrow_is_on(const gs_pipeline *pipeline, size_t bucket) {
    const gs_wire_rule *rule = rule_of(pipeline, bucket);
    if (rule->wire == GSYNC_WIRE_NATIVE || pipeline->step.step <= rule->warmup_steps) {
        return false;
    }
    return (rule->wire != GSYNC_WIRE_FLOAT16 || pipeline->half_scale != 0.0f) && !gs_choice_is_native(pipeline, bucket);
}

/* Native, but how large the elements are has to be known before they can travel as float16. */
static bool is_measured(const gs_pipeline *pipeline, size_t bucket) {
    const gs_wire_rule *rule = rule_of(pipeline, bucket);
    const bool is_known = pipeline->step.step > rule->warmup_steps && pipeline->half_scale != 0.0f;
    return rule->wire == GSYNC_WIRE_FLOAT16 && !is_known;
}

gsync_dtype gs_narrow_dtype(const gs_pipeline *pipeline, size_t bucket) {
    const gsync_dtype dtype = pipeline->plan->buckets[bucket].dtype;
    if (gs_narrow_is_on(pipeline, bucket) || is_measured(pipeline, bucket)) {
        return GSYNC_FLOAT32;
    }
    return pipeline->terms.sums_wide ? gs_dtype_wide(dtype) : dtype;
}

size_t gs_narrow_place_size(gsync_dtype dtype, uint32_t wire, bool sums_wide) {
    const size_t own = gsync_dtype_size(sums_wide ? gs_dtype_wide(dtype) : dtype);
    return wire >= GS_PLAN_NARROW_FIRST && own < sizeof(float) ? sizeof(float) : own;
}

size_t gs_narrow_place_count(const gs_plan_gradient *shape) {
    const size_t block = shape->block > 1 ? shape->block : 1;
    return (shape->count + block - 1) / block * block;
}

/* A sum over ranks, and gradients that grow 32 times from one step to the next, are still below 65504. */
float gs_narrow_half_scale(double absmax, int world_size) {
    enum { ROOM = 11 };
    int magnitude;
    int ranks;
    (void)frexp(absmax, &magnitude);
    (void)frexp((double)world_size, &ranks);
    int exponent = ROOM - magnitude - ranks;
    exponent = exponent > GS_HALF_EXPONENT_MAX ? GS_HALF_EXPONENT_MAX : exponent;
    return ldexpf(1.0f, exponent < GS_HALF_EXPONENT_MIN ? GS_HALF_EXPONENT_MIN : exponent);
}

/* ---- one gradient's elements ---- */

static uint64_t key_of(const gs_pipeline *pipeline, const gs_wire_rule *rule, uint32_t index) {
    const uint64_t words[] = {rule->seed, pipeline->step.step, (uint64_t)pipeline->group->rank, index};
    return gs_host_hash(words, sizeof words, 0);
}

/* As many times smaller as contributions are results, but for those that a mean over all ranks leaves as they were. */
static double shrinkage(const gs_pipeline *pipeline) {
    const double times = gs_lane_last_outcome(pipeline->lane)->divisor / (double)pipeline->group->world_size;
    return times > 0.0 ? ldexp(1.0, ilogb(times)) : 1.0;
}

/* half_scale is for gradients without a loss scale. Contributions have it; results were divided, also by weights. On a
 * GPU results get the same scale from gs_narrowing_of_results. */
float gs_narrow_scale(const gs_pipeline *pipeline, gs_wire_stage stage) {
    const double least = ldexp(1.0, GS_HALF_EXPONENT_MIN);
    const double most = ldexp(1.0, GS_HALF_EXPONENT_MAX);
    const double unit = stage == GS_WIRE_RESULT ? shrinkage(pipeline) : 1.0 / pipeline->step.loss_scale;
    const double scale = (double)pipeline->half_scale * unit;
    return (float)(scale > most ? most : (scale < least ? least : scale));
}

static float result_scale(void *owner) {
    return gs_narrow_scale(owner, GS_WIRE_RESULT);
}

/* What is rounded at random has the right mean, and what is rounded last has to be as close as it can. */
static gs_codec_terms terms_of(const gs_pipeline *pipeline, gs_wire_stage stage, const gs_stretch *part) {
    const gs_wire_rule *rule = rule_of(pipeline, pipeline->bucket);
    const bool is_stochastic = rule->is_stochastic && stage == GS_WIRE_CONTRIBUTION;
    return (gs_codec_terms){.scale = rule->wire == GSYNC_WIRE_FLOAT16 ? gs_narrow_scale(pipeline, stage) : 1.0f,
                            .is_stochastic = is_stochastic,
                            .key = is_stochastic ? key_of(pipeline, rule, part->index) : 0,
                            .element = part->first};
}

/*
 * The residual to use, or NULL. A rank that has no data does not send what it owes either; nor does a host. Results are
 * the same whatever this rank marked or brought: of a short one every host keeps the residual, and all must agree.
 */
static gs_residual *residual_of(gs_pipeline *pipeline, gs_wire_stage stage, uint32_t index) {
    gs_residual *residual = &pipeline->gradients[index].residuals[stage];
    const bool has_data =
        pipeline->group->host_count > 1 ? gs_lane_host_contributes(pipeline->lane) : pipeline->step.contributes;
    const bool is_divided = gs_lane_last_outcome(pipeline->lane)->divisor != 0.0; /* else the result is zero */
    const bool takes_part = stage == GS_WIRE_RESULT ? is_divided : has_data;
    return residual->sides[0] != NULL && takes_part ? residual : NULL;
}

/* Contributions are multiplied by the loss scale, a power of two; results are divided by it already. */
static float unit_of(const gs_pipeline *pipeline, gs_wire_stage stage) {
    return stage == GS_WIRE_CONTRIBUTION ? (float)pipeline->step.loss_scale : 1.0f;
}

void gs_narrow_add_residual(float *data, const gs_residual *residual, size_t first, size_t count, float unit) {
    const float *from = residual->sides[residual->valid] + first;
    for (size_t k = 0; k < count; k++) {
        data[k] += from[k] * unit;
    }
}

static void keep_residual(gs_residual *residual, size_t first, const float *wanted, const float *sent, size_t count,
                          float unit) {
    float *to = residual->sides[1 - residual->valid] + first;
    for (size_t k = 0; k < count; k++) {
        to[k] = (wanted[k] - sent[k]) / unit;
    }
    residual->is_written = true;
}

void gs_narrow_owe(gs_residual *residual, const float *rest, size_t count, float unit) {
    float *to = residual->sides[1 - residual->valid];
    for (size_t k = 0; k < count; k++) {
        to[k] = rest[k] / unit;
    }
    residual->is_written = true;
}

/* A chunk at most; *wire NULL: nothing is sent. sent: with what fills up the last block, which is zero. */
typedef struct chunk {
    float *data;
    size_t count;
    size_t sent;
    void *wire;
} chunk;

static void pass(const gs_codec *codec, const chunk *part, const gs_codec_terms *terms, gs_findings *found) {
    if (part->wire == NULL) {
        codec->round(part->data, part->count, terms, found);
    } else {
        codec->encode(part->wire, part->data, part->sent, terms, found);
        codec->decode(part->data, part->wire, part->sent, terms);
    }
}

static void pass_chunk(gs_pipeline *pipeline, gs_wire_stage stage, const gs_stretch *at, const chunk *part,
                       gs_findings *found) {
    const gs_codec *codec = rule_of(pipeline, pipeline->bucket)->codec;
    const gs_codec_terms terms = terms_of(pipeline, stage, at);
    gs_residual *residual = residual_of(pipeline, stage, at->index);
    if (residual == NULL) {
        pass(codec, part, &terms, found);
        return;
    }
    float wanted[CHUNK];
    const float unit = unit_of(pipeline, stage);
    gs_narrow_add_residual(part->data, residual, at->first, part->count, unit);
    memcpy(wanted, part->data, part->count * sizeof *wanted);
    pass(codec, part, &terms, found);
    keep_residual(residual, at->first, wanted, part->data, part->count, unit);
}

static void measure(const chunk *part, gs_findings *found) {
    const gs_codec_terms terms = {.scale = 1.0f};
    gs_findings seen = {0};
    float copy[CHUNK];
    memcpy(copy, part->data, part->count * sizeof *copy);
    gs_codec_float16.round(copy, part->count, &terms, &seen);
    found->absmax = seen.absmax > found->absmax ? seen.absmax : found->absmax;
    if (part->wire != NULL) {
        memcpy(part->wire, part->data, part->count * sizeof *part->data);
    }
}

/* ---- what the lane asks for ---- */

static void pass_range(gs_pipeline *pipeline, gs_wire_stage stage, size_t first, size_t count, float *data, void *wire,
                       gs_findings *findings) {
    const gs_lane_wire *const lane = &pipeline->wire;
    const bool measures = is_measured(pipeline, pipeline->bucket);
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (size_t done = 0; done < count;) {
        const size_t left = count - done < CHUNK ? count - done : CHUNK;
        const gs_stretch at = gs_bucket_stretch(pipeline, pipeline->bucket, first + done, left);
        const size_t sent = (at.count + lane->block - 1) / lane->block * lane->block;
        unsigned char *to = wire;
        const chunk part = {.data = data + done,
                            .count = at.count,
                            .sent = sent,
                            .wire = to != NULL ? to + done / lane->block * lane->block_bytes : NULL};
        gs_findings found = {0};
        if (measures) {
            measure(&part, &found);
        } else {
            pass_chunk(pipeline, stage, &at, &part, &found);
        }
        gs_findings_add(findings, &found, done);
        done += sent < count - done ? sent : count - done;
    }
    gs_float_mode_leave(&mode);
}

static void round_range(void *owner, gs_wire_stage stage, size_t first, size_t count, float *data,
                        gs_findings *findings) {
    pass_range(owner, stage, first, count, data, NULL, findings);
}

static void encode_range(void *owner, gs_wire_stage stage, size_t first, size_t count, float *data, void *wire,
                         gs_findings *findings) {
    pass_range(owner, stage, first, count, data, wire, findings);
}

static void decode_range(void *owner, gs_wire_stage stage, size_t first, size_t count, const void *wire, float *data) {
    gs_pipeline *pipeline = owner;
    (void)first;
    if (is_measured(pipeline, pipeline->bucket)) {
        memcpy(data, wire, count * sizeof *data);
        return;
    }
    const gs_stretch start = {.index = 0};
    const gs_codec_terms terms = terms_of(pipeline, stage, &start);
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    rule_of(pipeline, pipeline->bucket)->codec->decode(data, wire, count, &terms);
    gs_float_mode_leave(&mode);
}

/* Without feedback float16 and bfloat16 need nothing but rounding, which a sum does in registers. */
static gs_rounding rounding_of(const gs_pipeline *pipeline, const gs_wire_rule *rule, bool measures) {
    gs_rounding rounding = {.to = GS_ROUND_NOT};
    if (rule->has_feedback || measures) {
        return rounding;
    }
    if (rule->wire == GSYNC_WIRE_FLOAT16) {
        rounding.to = GS_ROUND_HALF;
        rounding.scale = gs_narrow_scale(pipeline, GS_WIRE_CONTRIBUTION);
    } else if (rule->wire == GSYNC_WIRE_BFLOAT16) {
        rounding.to = GS_ROUND_BFLOAT;
    }
    return rounding;
}

const gs_lane_wire *gs_narrow_prepare(gs_pipeline *pipeline, size_t bucket) {
    const gs_wire_rule *rule = rule_of(pipeline, bucket);
    const bool measures = is_measured(pipeline, bucket);
    if (!measures && (rule->codec == NULL || !gs_narrow_is_on(pipeline, bucket))) {
        return NULL;
    }
    pipeline->wire = (gs_lane_wire){
        .owner = pipeline,
        .block = measures ? 1 : rule->codec->block,
        .block_bytes = measures ? sizeof(float) : rule->codec->block_bytes,
        .rounding = rounding_of(pipeline, rule, measures),
        .result_scale = result_scale,
        .round = round_range,
        .encode = encode_range,
        .decode = decode_range,
    };
    return &pipeline->wire;
}

/* Of what is so short that every host adds it up all hosts owe the same: one of them is enough. */
static bool owes(const gs_pipeline *pipeline, size_t bucket) {
    const bool is_shared = gs_lane_is_added_by_all(pipeline->lane, pipeline->plan->buckets[bucket].element_count);
    return !is_shared || pipeline->group->host == 0;
}

void gs_narrow_fold(gs_pipeline *pipeline) {
    const float divisor = (float)pipeline->divisor;
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (size_t i = 0; i < pipeline->plan->gradient_count; i++) {
        gs_residual *of = pipeline->gradients[i].residuals;
        const uint32_t bucket = pipeline->plan->bucket_of[i];
        if (of[GS_WIRE_RESULT].sides[0] == NULL || bucket == GS_NO_BUCKET) {
            continue;
        }
        float *from = of[GS_WIRE_RESULT].sides[of[GS_WIRE_RESULT].valid];
        float *to = of[GS_WIRE_CONTRIBUTION].sides[of[GS_WIRE_CONTRIBUTION].valid];
        const size_t count = gs_tensor_count(&pipeline->gradients[i].tensor);
        const bool is_owed = owes(pipeline, bucket);
        for (size_t k = 0; k < count; k++) {
            to[k] += is_owed ? from[k] * divisor : 0.0f;
        }
        memset(of[GS_WIRE_RESULT].sides[0], 0, count * sizeof(float));
        memset(of[GS_WIRE_RESULT].sides[1], 0, count * sizeof(float));
    }
    gs_float_mode_leave(&mode);
}

/* A gradient that no rank used does not get its result, so what was sent for it did not arrive. */
void gs_narrow_settle(gs_pipeline *pipeline, bool counts) {
    if (!pipeline->terms.looks) {
        return; /* nothing is narrow, so there is nothing to settle */
    }
    /* Where nothing divides the result is zero, whatever was sent. */
    const bool is_paid = counts && pipeline->outcome.divisor != 0.0;
    for (size_t i = 0; i < pipeline->plan->gradient_count; i++) {
        const bool arrives = !pipeline->terms.finds_unused || pipeline->gradients[i].is_used_anywhere;
        for (int stage = 0; stage < 2; stage++) {
            gs_residual *residual = &pipeline->gradients[i].residuals[stage];
            residual->valid ^= residual->is_written && is_paid && arrives;
            residual->is_written = false;
        }
    }
    if (is_paid) {
        pipeline->divisor = pipeline->outcome.divisor;
    }
    if (counts && pipeline->findings.absmax > 0.0f) {
        const double absmax = (double)pipeline->findings.absmax / pipeline->step.loss_scale;
        pipeline->half_scale = gs_narrow_half_scale(absmax, pipeline->group->world_size);
    }
}
