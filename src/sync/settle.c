/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/pipeline.h"

#include "base/float_mode.h"

#include <string.h>

/*
 * The end of a step whose results were held back: the ranks first tell each other which gradients they used, and
 * whether one was written too late.
 */

/* One byte per gradient would do; a bit each keeps the message of 32,768 gradients in one piece. */
enum { BITS = 8, PIECE_BYTES_MAX = 4096 };

static size_t piece_gradients(const gs_pipeline *pipeline) {
    const size_t mail = gs_lane_mail_max(pipeline->lane);
    return (mail < PIECE_BYTES_MAX ? mail : PIECE_BYTES_MAX) * BITS;
}

static void set_used_bits(const gs_pipeline *pipeline, size_t first, size_t count, unsigned char *bits) {
    memset(bits, 0, (count + BITS - 1) / BITS);
    if (!pipeline->step.contributes) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&pipeline->ledger->is_used[first + i], memory_order_relaxed) != 0) {
            bits[i / BITS] |= (unsigned char)(1u << (i % BITS));
        }
    }
}

static void merge_used_bits(gs_pipeline *pipeline, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) {
        pipeline->gradients[first + i].is_used_anywhere = false;
    }
    for (int rank = 0; rank < pipeline->group->world_size; rank++) {
        size_t bytes;
        const unsigned char *bits = gs_lane_mail(pipeline->lane, rank, &bytes);
        for (size_t i = 0; i < count && i / BITS < bytes; i++) {
            if ((bits[i / BITS] >> (i % BITS)) & 1u) {
                pipeline->gradients[first + i].is_used_anywhere = true;
            }
        }
    }
}

static uint32_t find_changed(const gs_pipeline *pipeline) {
    uint32_t changed = GS_NO_BUCKET;
    for (size_t b = 0; b < pipeline->plan->bucket_count && changed == GS_NO_BUCKET; b++) {
        changed = gs_bucket_find_changed(pipeline, b);
    }
    return changed;
}

static gsync_status exchange_piece(gs_pipeline *pipeline, size_t first, size_t count, uint32_t changed,
                                   gs_idle_function idle, void *argument) {
    unsigned char bits[PIECE_BYTES_MAX];
    set_used_bits(pipeline, first, count, bits);
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "settlement", .step = pipeline->step.step, .part = first, .digest = pipeline->plan->digest},
        .verdict = changed == GS_NO_BUCKET ? GSYNC_OK : GSYNC_ERR_CHANGED,
        .verdict_index = changed,
        .mail = bits,
        .mail_bytes = (count + BITS - 1) / BITS,
    };
    const gsync_status status = gs_lane_run(pipeline->lane, &operation, idle, argument);
    const gs_lane_outcome *outcome = gs_lane_last_outcome(pipeline->lane);
    if (status == GSYNC_ERR_CHANGED && outcome->refusing_rank >= 0) {
        return gs_gradient_fail_changed(pipeline->gradients[outcome->verdict_index].name, outcome->refusing_rank);
    }
    GS_TRY(status);
    merge_used_bits(pipeline, first, count);
    return GSYNC_OK;
}

gsync_status gs_pipeline_agree_on_writes(gs_pipeline *pipeline, uint32_t changed, gs_idle_function idle,
                                         void *argument) {
    return exchange_piece(pipeline, 0, 0, changed, idle, argument);
}

static gsync_status settle(gs_pipeline *pipeline, gs_idle_function idle, void *argument) {
    /* The words of the divisor and so on belong to the buckets; this is asked for after they were read. */
    const uint32_t changed = pipeline->terms.checks_writes ? find_changed(pipeline) : GS_NO_BUCKET;
    const size_t total = pipeline->plan->gradient_count;
    const size_t piece = piece_gradients(pipeline);
    for (size_t first = 0; first < total; first += piece) {
        const size_t count = total - first < piece ? total - first : piece;
        GS_TRY(exchange_piece(pipeline, first, count, changed, idle, argument));
    }
    for (size_t b = 0; b < pipeline->plan->bucket_count; b++) {
        gs_bucket_unpack(pipeline, b);
        atomic_store(&pipeline->reduced, b + 1);
    }
    return GSYNC_OK;
}

gsync_status gs_pipeline_settle(gs_pipeline *pipeline, gs_idle_function idle, void *argument) {
    if (!pipeline->terms.is_deferred) {
        return GSYNC_OK;
    }
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    const gsync_status status = settle(pipeline, idle, argument);
    gs_narrow_settle(pipeline, status == GSYNC_OK && !pipeline->findings.has_nonfinite);
    gs_float_mode_leave(&mode);
    return status;
}
