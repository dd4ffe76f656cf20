/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * What the ranks of a step tell each other besides gradients, in two small exchanges on the library's stream: before
 * the first bucket what each brings, of which the device makes the divisor; behind the last one who refuses. The host
 * reads both when the step is over, which is too late to leave gradients alone, but not to say what was wrong.
 */

/* The words of a share. */
enum { WORD_STEP, WORD_PLAN, WORD_LOSS_SCALE, WORD_COMPARES };

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static gs_cuda_share own_share(const gs_stream *stream) {
    const gs_pipeline *pipeline = stream->pipeline;
    const gs_step_terms *step = &pipeline->step;
    gs_cuda_share share = {
        .weight = step->weight, .micro_batches = step->micro_batches, .contributes = step->contributes ? 1 : 0};
    share.words[WORD_STEP] = step->step;
    share.words[WORD_PLAN] = pipeline->plan->digest;
    share.words[WORD_LOSS_SCALE] = bits_of(step->loss_scale);
    share.words[WORD_COMPARES] = pipeline->terms.compares_micro_batches && !step->ends_early;
    return share;
}

/* ---- the divisor ---- */

/* Of a rank that knows all shares: 0 where nobody contributes. */
static double divisor_of(const gs_stream *stream, const gs_cuda_share *shares, gs_lane_outcome *outcome) {
    const gs_pipeline_terms *terms = &stream->pipeline->terms;
    uint64_t micro_batches = 0;
    uint32_t window = 0;
    for (int rank = 0; rank < stream->world_size; rank++) {
        if (shares[rank].contributes == 0) {
            continue;
        }
        outcome->participants++;
        outcome->weight_total += shares[rank].weight;
        micro_batches += shares[rank].micro_batches;
        window = shares[rank].micro_batches > window ? shares[rank].micro_batches : window;
    }
    switch (terms->divide) {
    case GS_DIVIDE_NOT:
        return 1.0;
    case GS_DIVIDE_WORLD:
        return (double)stream->world_size * (terms->divides_by_micro_batches ? window : 1.0);
    case GS_DIVIDE_PARTICIPANTS:
        return terms->divides_by_micro_batches ? (double)micro_batches : outcome->participants;
    case GS_DIVIDE_WEIGHT:
        break;
    }
    return outcome->weight_total;
}

double gs_stream_known_divisor(const gs_stream *stream) {
    const gs_pipeline *pipeline = stream->pipeline;
    const double scale = pipeline->step.loss_scale;
    if (stream->world_size == 1) {
        const gs_cuda_share own = own_share(stream);
        gs_lane_outcome outcome = {.refusing_rank = -1};
        return divisor_of(stream, &own, &outcome) * scale;
    }
    if (pipeline->terms.divide == GS_DIVIDE_NOT) {
        return scale;
    }
    const bool is_fixed = pipeline->terms.divide == GS_DIVIDE_WORLD && !pipeline->terms.divides_by_micro_batches;
    return is_fixed ? stream->world_size * scale : -1.0;
}

static gs_cuda_divide way_of(const gs_pipeline_terms *terms) {
    if (terms->divide == GS_DIVIDE_WEIGHT) {
        return GS_CUDA_DIVIDE_WEIGHT;
    }
    if (terms->divide == GS_DIVIDE_WORLD) {
        return GS_CUDA_DIVIDE_WINDOW;
    }
    return terms->divides_by_micro_batches ? GS_CUDA_DIVIDE_MICRO_BATCHES : GS_CUDA_DIVIDE_PARTICIPANTS;
}

/* To where the kernels read it. One that all steps share is sent once. */
static gsync_status store_divisor(gs_stream *stream) {
    if (stream->stored_divisor == stream->known_divisor) {
        return GSYNC_OK;
    }
    *stream->turn->divisor = stream->known_divisor;
    GS_TRY(gs_cuda_copy(stream->cuda, stream->divisor, stream->turn->divisor, sizeof *stream->divisor, stream->queue));
    stream->stored_divisor = stream->known_divisor;
    return GSYNC_OK;
}

static gsync_status compute_divisor(gs_stream *stream) {
    const gs_pipeline_terms *terms = &stream->pipeline->terms;
    const double ranks = terms->divide == GS_DIVIDE_WORLD ? stream->world_size : 1.0;
    stream->stored_divisor = -1.0;
    return gs_cuda_add_shares(stream->cuda, stream->shares, stream->world_size, way_of(terms),
                              ranks * stream->pipeline->step.loss_scale, stream->divisor, stream->queue);
}

/* ---- the exchanges ---- */

/* own, on the host, to its place among those of all ranks, on the device; and then all of them to the host. */
static gsync_status exchange(gs_stream *stream, const void *own, void *on_device, void *all, size_t bytes) {
    unsigned char *place = (unsigned char *)on_device + (size_t)stream->rank * bytes;
    GS_TRY(gs_cuda_copy(stream->cuda, place, own, bytes, stream->queue));
    GS_TRY(gs_nccl_all_gather(stream->nccl, on_device, bytes, stream->queue));
    return gs_cuda_copy(stream->cuda, all, on_device, (size_t)stream->world_size * bytes, stream->queue);
}

gsync_status gs_stream_exchange_shares(gs_stream *stream) {
    gs_stream_turn *turn = stream->turn;
    *turn->own = own_share(stream);
    turn->step = stream->pipeline->step.step;
    turn->plan = stream->pipeline->plan->digest;
    stream->known_divisor = gs_stream_known_divisor(stream);
    if (stream->world_size == 1) {
        turn->shares[0] = *turn->own;
    } else {
        GS_TRY(exchange(stream, turn->own, stream->shares, turn->shares, sizeof *turn->own));
    }
    return stream->known_divisor >= 0 ? store_divisor(stream) : compute_divisor(stream);
}

gsync_status gs_stream_end_turn(gs_stream *stream) {
    GS_TRY(gs_cuda_record(stream->cuda, stream->turn->finished, stream->queue));
    stream->turn->is_busy = true;
    return GSYNC_OK;
}

gsync_status gs_stream_exchange_end(gs_stream *stream, bool looks) {
    gs_stream_turn *turn = stream->turn;
    stream->has_found = looks;
    if (stream->world_size == 1) {
        turn->refusals[0] = *turn->own_refusal;
    } else if (stream->exchanges_refusals) {
        GS_TRY(exchange(stream, turn->own_refusal, stream->refusals, turn->refusals, sizeof *turn->own_refusal));
    }
    GS_TRY(gs_stream_end_turn(stream));
    turn->is_open = true;
    return GSYNC_OK;
}

/* ---- what was exchanged ---- */

static gsync_status compare_with(const gs_cuda_share *other, const gs_cuda_share *zero, int rank) {
    if (other->words[WORD_STEP] != zero->words[WORD_STEP]) {
        return gs_fail(GSYNC_ERR_MISMATCH,
                       "rank %d is at step %" PRIu64 " while rank 0 is at step %" PRIu64
                       ": all ranks must make the same calls in the same order",
                       rank, other->words[WORD_STEP], zero->words[WORD_STEP]);
    }
    if (other->words[WORD_LOSS_SCALE] != zero->words[WORD_LOSS_SCALE]) {
        return gs_fail(GSYNC_ERR_MISMATCH,
                       "rank %d has the loss scale %g, rank 0 has %g: update the scaler on all ranks alike", rank,
                       double_of(other->words[WORD_LOSS_SCALE]), double_of(zero->words[WORD_LOSS_SCALE]));
    }
    if (other->words[WORD_PLAN] != zero->words[WORD_PLAN]) {
        return gs_fail(GSYNC_ERR_MISMATCH, "rank %d and rank 0 disagree on the plan of the buckets", rank);
    }
    return GSYNC_OK;
}

/* Ranks that contribute must have closed a window of the same length. */
static gsync_status compare_windows(const gs_stream *stream, const gs_cuda_share *shares) {
    int first = -1;
    for (int rank = 0; rank < stream->world_size; rank++) {
        if (shares[rank].contributes == 0 || shares[rank].words[WORD_COMPARES] == 0) {
            continue;
        }
        if (first < 0) {
            first = rank;
        } else if (shares[rank].micro_batches != shares[first].micro_batches) {
            return gs_fail(GSYNC_ERR_MISMATCH,
                           "rank %d closed a window of %u micro-batches while rank %d closed one of %u: all ranks must "
                           "begin GSYNC_SYNC after the same number of micro-batches",
                           rank, shares[rank].micro_batches, first, shares[first].micro_batches);
        }
    }
    return GSYNC_OK;
}

gsync_status gs_stream_judge(gs_stream *stream, const gs_stream_turn *turn, gs_lane_outcome *outcome) {
    const gs_cuda_share *shares = turn->shares;
    for (int rank = 1; rank < stream->world_size; rank++) {
        GS_TRY(compare_with(&shares[rank], &shares[0], rank));
    }
    GS_TRY(compare_windows(stream, shares));
    *outcome = (gs_lane_outcome){.refusing_rank = -1};
    outcome->divisor = divisor_of(stream, shares, outcome);
    return GSYNC_OK;
}

bool gs_stream_is_refused(const gs_stream *stream, const gs_stream_turn *turn) {
    for (int rank = 0; stream->exchanges_refusals && rank < stream->world_size; rank++) {
        if (turn->refusals[rank].count != 0) {
            return true;
        }
    }
    return false;
}

gsync_status gs_stream_fail_refused(const gs_stream *stream, const gs_stream_turn *turn) {
    int rank = 0;
    while (rank + 1 < stream->world_size && turn->refusals[rank].count == 0) {
        rank++;
    }
    const uint32_t index = turn->refusals[rank].gradients[0];
    const char *name = index < stream->capacity ? stream->pipeline->gradients[index].name : "?";
    return gs_fail(GSYNC_ERR_INCOMPLETE,
                   "step %" PRIu64 ": rank %d: %u gradients were never marked ready, the first is '%s': mark them with "
                   "gsync_ready_on, or leave out is_strict",
                   turn->step, rank, turn->refusals[rank].count, name);
}

/* ---- findings ---- */

static gs_findings findings_of(const gs_cuda_findings *found, int source) {
    gs_findings findings = {.square_sum = found->square_sum,
                            .saturated = found->saturated,
                            .flushed = found->flushed,
                            .has_nonfinite = found->has_nonfinite != 0,
                            .nonfinite_source = source,
                            .nonfinite_element = (size_t)found->first_nonfinite};
    memcpy(&findings.absmax, &found->absmax_bits, sizeof findings.absmax);
    return findings;
}

/*
 * Every rank has decoded everything and seen the same, so rank 0 speaks for all of what is in results. What went into
 * them each rank knows of its own, and what rounding did to sums each of its own part.
 */
void gs_stream_take_findings(gs_stream *stream, const gs_stream_turn *turn) {
    for (size_t b = 0; b < stream->pipeline->plan->bucket_count; b++) {
        const gs_cuda_findings *of = &turn->findings[b * GS_STREAM_STAGES];
        gs_findings sent = findings_of(&of[GS_STREAM_ENCODE], stream->rank);
        gs_findings summed = findings_of(&of[GS_STREAM_COMBINE], -1);
        const gs_findings result = findings_of(&of[GS_STREAM_DECODE], -1);
        sent.square_sum = 0;
        sent.has_nonfinite = sent.has_nonfinite && stream->pipeline->outcome.divisor != 0; /* else results are zeros */
        summed.square_sum = 0;
        summed.absmax = 0;
        summed.has_nonfinite = false; /* its elements are those of a part */
        gs_findings_note(stream->pipeline, b, &sent);
        gs_findings_note(stream->pipeline, b, &summed);
        if (stream->rank == 0) {
            gs_findings_note(stream->pipeline, b, &result);
        }
    }
}
