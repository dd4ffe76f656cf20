/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/float_mode.h"

/* The end of a micro-batch that only accumulates. */

static void accumulate(gsync_reducer *reducer) {
    const bool weighs = reducer->options.weighting == GSYNC_WEIGHT_OF_MEANS;
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    for (uint32_t i = 0; i < reducer->gradient_count; i++) {
        gs_gradient *gradient = &reducer->gradients[i];
        const bool is_unused = reducer->options.finds_unused && atomic_load(&reducer->ledger.marks[i]) == 0;
        if (!reducer->shapes[i].is_trainable || reducer->shapes[i].count == 0 || is_unused) {
            continue;
        }
        gs_host_accumulate(gradient->accumulator, &gradient->tensor, weighs ? reducer->micro_weight : 1.0,
                           !gradient->has_accumulated);
        gradient->has_accumulated = true;
    }
    gs_float_mode_leave(&mode);
}

static gsync_status check_late_writes(gsync_reducer *reducer) {
    if (reducer->stream != NULL) {
        return reducer->options.checks_writes ? gs_step_device_check_writes(reducer) : GSYNC_OK;
    }
    for (size_t i = 0; reducer->options.checks_writes && i < reducer->gradient_count; i++) {
        if (gs_gradient_has_changed(&reducer->gradients[i])) {
            return gs_gradient_fail_changed(reducer->gradients[i].name, reducer->comm->group->rank);
        }
    }
    return GSYNC_OK;
}

gsync_status gs_step_accumulate(gsync_reducer *reducer) {
    gsync_status status = check_late_writes(reducer);
    if (status == GSYNC_OK && gs_reducer_overwrites(reducer) && reducer->stream != NULL) {
        status = gs_step_device_accumulate(reducer);
    } else if (status == GSYNC_OK && gs_reducer_overwrites(reducer)) {
        accumulate(reducer);
    }
    reducer->window_weight += reducer->micro_weight;
    reducer->info.step = reducer->step;
    reducer->info.micro_batches = reducer->window_micro_batches;
    reducer->info.bucket_count = reducer->plan.bucket_count;
    return status;
}
