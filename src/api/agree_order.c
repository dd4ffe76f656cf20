/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include <string.h>

/*
 * After the first synchronised step all ranks take over the order in which gradients became ready on rank 0. A rank's
 * own order would not do: ranks that launch in different orders wait for each other for ever.
 */

enum { INDICES_AT_ONCE = 1000 };

typedef struct order_piece {
    uint32_t total;
    uint32_t indices[INDICES_AT_ONCE];
} order_piece;

static void fill_piece(const gsync_reducer *reducer, size_t first, order_piece *piece) {
    const gs_ready_ledger *ledger = &reducer->ledger;
    piece->total = atomic_load(&ledger->order_count);
    for (size_t i = 0; i < INDICES_AT_ONCE && first + i < piece->total; i++) {
        piece->indices[i] = atomic_load_explicit(&ledger->order[first + i], memory_order_relaxed);
    }
}

static gsync_status exchange_piece(gsync_reducer *reducer, size_t first, order_piece *piece) {
    const bool is_root = reducer->comm->group->rank == 0;
    gs_lane *lane = reducer->pipeline.lane;
    memset(piece, 0, sizeof *piece);
    if (is_root) {
        fill_piece(reducer, first, piece);
    }
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "ready order", .step = reducer->step, .part = first, .digest = reducer->plan.digest},
        .mail = piece,
        .mail_bytes = is_root ? sizeof *piece : 0,
    };
    gs_engine *engine = &reducer->comm->engine;
    GS_TRY(gs_lane_run(lane, &operation, engine->has_helper ? NULL : gs_engine_idle, engine));
    size_t bytes;
    memcpy(piece, gs_lane_mail(lane, 0, &bytes), sizeof *piece);
    return GSYNC_OK;
}

static gsync_status receive_order(gsync_reducer *reducer, uint32_t *observed, size_t *count) {
    size_t first = 0;
    order_piece piece;
    do {
        GS_TRY(exchange_piece(reducer, first, &piece));
        if (piece.total > reducer->gradient_count) {
            return gs_fail(GSYNC_ERR_INTERNAL, "rank 0 observed more gradients than there are");
        }
        for (size_t i = 0; i < INDICES_AT_ONCE && first + i < piece.total; i++) {
            observed[first + i] = piece.indices[i];
        }
        first += INDICES_AT_ONCE;
    } while (first < piece.total);
    *count = piece.total;
    return GSYNC_OK;
}

static void plan_anew(gsync_reducer *reducer) {
    if (reducer->has_views) {
        /* Gradients in the library's memory stay where they are; only the order of launching can follow. */
        gs_bucket_plan_reorder(&reducer->plan, reducer->order);
        gs_reducer_lay_out(reducer);
    } else {
        gs_reducer_plan(reducer);
    }
}

gsync_status gs_reducer_agree_order(gsync_reducer *reducer) {
    uint32_t *observed = reducer->order + reducer->gradient_count;
    size_t count = 0;
    GS_TRY(receive_order(reducer, observed, &count));
    reducer->observes_order = false;
    if (count == 0) {
        return GSYNC_OK; /* a trainer without marks: the plan stands */
    }
    if (!gs_bucket_plan_complete_order(&reducer->plan, observed, count, reducer->order)) {
        return gs_fail(GSYNC_ERR_INTERNAL, "rank 0 observed an impossible order");
    }
    gs_engine_lock(&reducer->comm->engine);
    plan_anew(reducer);
    gs_engine_unlock(&reducer->comm->engine);
    return GSYNC_OK;
}
