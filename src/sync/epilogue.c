/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/pipeline.h"

#include <stdio.h>
#include <string.h>

/*
 * What the ranks still tell each other once the buckets of a step are through, or refused: in which order gradients
 * became ready on rank 0, or which ones were forgotten. It moves like a bucket, by whoever makes progress, and so
 * keeps nobody waiting who finishes another reducer first.
 */

static size_t piece_length(const gs_pipeline *pipeline, size_t total) {
    const size_t left = total - pipeline->observed_count;
    return left < GS_ORDER_INDICES_MAX ? left : GS_ORDER_INDICES_MAX;
}

/* Every gradient of a bucket that was launched by marks has its place in the order by now. */
static void fill_piece(gs_pipeline *pipeline) {
    const gs_ready_ledger *ledger = pipeline->ledger;
    gs_order_piece *piece = &pipeline->order_piece;
    piece->total = atomic_load(&ledger->order_count);
    for (size_t i = 0; i < piece_length(pipeline, piece->total); i++) {
        piece->indices[i] = atomic_load_explicit(&ledger->order[pipeline->observed_count + i], memory_order_relaxed);
    }
}

static gsync_status post_order(gs_pipeline *pipeline) {
    const bool is_root = pipeline->group->rank == 0;
    if (is_root) {
        fill_piece(pipeline);
    }
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "ready order",
                  .step = pipeline->step.step,
                  .part = pipeline->observed_count,
                  .digest = pipeline->plan->digest},
        .mail = &pipeline->order_piece,
        .mail_bytes = is_root ? sizeof pipeline->order_piece : 0,
    };
    return gs_lane_post(pipeline->lane, &operation);
}

static gsync_status take_order(gs_pipeline *pipeline) {
    size_t bytes;
    gs_order_piece piece;
    memcpy(&piece, gs_lane_mail(pipeline->lane, 0, &bytes), sizeof piece);
    if (piece.total > pipeline->plan->gradient_count) {
        return gs_fail(GSYNC_ERR_INTERNAL, "rank 0 observed more gradients than there are");
    }
    const size_t length = piece_length(pipeline, piece.total);
    if (length != 0) {
        memcpy(pipeline->observed + pipeline->observed_count, piece.indices, length * sizeof *piece.indices);
    }
    pipeline->observed_count += length;
    if (pipeline->observed_count == piece.total) {
        pipeline->epilogue = GS_EPILOGUE_NONE;
    }
    return GSYNC_OK;
}

static gsync_status post_missing(gs_pipeline *pipeline) {
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "forgotten", .step = pipeline->step.step, .digest = pipeline->plan->digest},
        .mail = pipeline->missing,
        .mail_bytes = strlen(pipeline->missing) + 1,
    };
    return gs_lane_post(pipeline->lane, &operation);
}

/* A rank that has not come to its finish yet cannot know what it will have forgotten: it has nothing to tell. */
static gsync_status take_missing(gs_pipeline *pipeline) {
    char text[GS_FAIL_TEXT_MAX] = "";
    size_t used = 0;
    for (int rank = 0; rank < pipeline->group->world_size; rank++) {
        size_t bytes;
        const char *names = gs_lane_mail(pipeline->lane, rank, &bytes);
        if (names[0] != '\0' && used < sizeof text) {
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%srank %d: %s", used == 0 ? "" : "; ", rank, names);
        }
    }
    pipeline->epilogue = GS_EPILOGUE_NONE;
    return gs_fail(GSYNC_ERR_INCOMPLETE,
                   "never marked ready in this micro-batch: %s: mark them with gsync_ready, or set finds_unused", text);
}

gs_epilogue gs_epilogue_after(gs_pipeline *pipeline, gs_epilogue last) {
    if (last < GS_EPILOGUE_FINDINGS && pipeline->terms.looks) {
        return GS_EPILOGUE_FINDINGS;
    }
    if (last < GS_EPILOGUE_CHOICE && gs_choice_is_due(pipeline)) {
        pipeline->choices_done = 0;
        return GS_EPILOGUE_CHOICE;
    }
    const bool was_told = atomic_load(&pipeline->early_order) == GS_EARLY_TOLD;
    return last < GS_EPILOGUE_ORDER && pipeline->step.wants_order && !was_told ? GS_EPILOGUE_ORDER : GS_EPILOGUE_NONE;
}

gsync_status gs_epilogue_post(gs_pipeline *pipeline) {
    switch (pipeline->epilogue) {
    case GS_EPILOGUE_FINDINGS:
        return gs_findings_post(pipeline);
    case GS_EPILOGUE_CHOICE:
        return gs_choice_post(pipeline);
    case GS_EPILOGUE_ORDER:
        return post_order(pipeline);
    case GS_EPILOGUE_NONE:
    case GS_EPILOGUE_MISSING:
        break;
    }
    return post_missing(pipeline);
}

gsync_status gs_epilogue_take(gs_pipeline *pipeline) {
    switch (pipeline->epilogue) {
    case GS_EPILOGUE_FINDINGS:
        gs_findings_take(pipeline);
        pipeline->epilogue = gs_epilogue_after(pipeline, GS_EPILOGUE_FINDINGS);
        return GSYNC_OK;
    case GS_EPILOGUE_CHOICE:
        if (gs_choice_take(pipeline)) {
            pipeline->epilogue = gs_epilogue_after(pipeline, GS_EPILOGUE_CHOICE);
        }
        return GSYNC_OK;
    case GS_EPILOGUE_ORDER:
        return take_order(pipeline);
    case GS_EPILOGUE_NONE:
    case GS_EPILOGUE_MISSING:
        break;
    }
    return take_missing(pipeline);
}
