/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

/*
 * After the first synchronised step all ranks take over the order in which gradients became ready on rank 0. A rank's
 * own order would not do: ranks that launch in different orders wait for each other for ever.
 */

void gs_reducer_plan_anew(gsync_reducer *reducer) {
    if (reducer->has_views_anywhere) {
        /* Gradients in the library's memory stay where they are; only the order of launching can follow. */
        gs_bucket_plan_reorder(&reducer->plan, reducer->order);
        gs_choice_start(&reducer->pipeline, reducer->step);
        gs_reducer_lay_out(reducer);
    } else {
        gs_reducer_plan(reducer);
    }
}

gsync_status gs_reducer_take_order(gsync_reducer *reducer) {
    const gs_pipeline *pipeline = &reducer->pipeline;
    reducer->observes_order = false;
    if (pipeline->observed_count == 0) {
        return GSYNC_OK; /* a trainer without marks: the plan stands */
    }
    if (!gs_bucket_plan_complete_order(&reducer->plan, pipeline->observed, pipeline->observed_count, reducer->order)) {
        return gs_fail(GSYNC_ERR_INTERNAL, "rank 0 observed an impossible order");
    }
    gs_engine_lock(&reducer->comm->engine);
    gs_reducer_fold(reducer);
    gs_reducer_plan_anew(reducer);
    gs_engine_unlock(&reducer->comm->engine);
    return GSYNC_OK;
}
