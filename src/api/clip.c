/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/float_mode.h"

#include <float.h>
#include <math.h>

/* Clipping reads and writes what a step left in the gradients; every rank has the same and computes the same. */

/* Those that the step wrote. */
static bool holds_result(const gsync_reducer *reducer, size_t index) {
    return reducer->shapes[index].is_trainable && reducer->shapes[index].count != 0 &&
           (!reducer->options.finds_unused || reducer->gradients[index].is_used_anywhere);
}

/* ---- the norm ---- */

static double square_sum(const gsync_reducer *reducer, double scale) {
    double sum = 0;
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        if (holds_result(reducer, i)) {
            sum += gs_host_square_sum(&reducer->gradients[i].tensor, scale);
        }
    }
    return sum;
}

static bool has_float64(const gsync_reducer *reducer) {
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        if (reducer->shapes[i].dtype == GSYNC_FLOAT64 && holds_result(reducer, i)) {
            return true;
        }
    }
    return false;
}

/* The squares of float64 may leave the range of float64 where the norm does not; those of other types never do. */
static double compute_norm(const gsync_reducer *reducer) {
    const double large = 0x1p600;
    const double sum = square_sum(reducer, 1.0);
    if (isnan(sum) || (sum > 0x1p-900 && !isinf(sum)) || !has_float64(reducer)) {
        return sqrt(sum);
    }
    const double unit = isinf(sum) ? large : 1.0 / large;
    return sqrt(square_sum(reducer, 1.0 / unit)) * unit;
}

/* The norm of what the gradients hold now. */
static double norm_of(const gsync_reducer *reducer) {
    if (!reducer->options.computes_norm) {
        return compute_norm(reducer);
    }
    const bool was_clipped = reducer->clipped_step == reducer->step;
    const double norm = was_clipped ? reducer->clipped_norm : reducer->info.grad_norm;
    return isinf(norm) && reducer->stream == NULL ? compute_norm(reducer) : norm;
}

/* ---- scaling ---- */

static gsync_status scale_all(const gsync_reducer *reducer, double factor) {
    if (reducer->stream != NULL) {
        gs_engine *engine = &reducer->comm->engine;
        return reducer->stream_ops->scale(reducer->stream, factor, gs_engine_idle_function(engine), engine);
    }
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        if (holds_result(reducer, i)) {
            gs_host_scale(&reducer->gradients[i].tensor, factor);
        }
    }
    return GSYNC_OK;
}

static gsync_status scale_to(const gsync_reducer *reducer, double max_norm, double norm) {
    /* A quotient that float64 holds with few bits, or not at all, is taken in parts. */
    while (max_norm / norm < DBL_MIN) {
        GS_TRY(scale_all(reducer, 0x1p-1000));
        norm *= 0x1p-1000;
    }
    return scale_all(reducer, max_norm / norm);
}

/* ---- the call ---- */

/* The host cannot read the gradients, so their norm has to be known. */
static gsync_status check_norm_on_device(const gsync_reducer *reducer, const char *call) {
    if (reducer->stream != NULL && reducer->options.computes_norm == 0) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED, "%s: the gradients are on a GPU: set gsync_options.computes_norm", call);
    }
    if (reducer->stream != NULL && !reducer->has_waited) {
        return gs_fail(GSYNC_ERR_STATE, "%s: no host has waited for the norm: end the step with gsync_finish", call);
    }
    return GSYNC_OK;
}

static gsync_status check(const gsync_reducer *reducer, double max_norm) {
    const char *call = "gsync_clip_grad_norm";
    if (reducer == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: the reducer is NULL", call);
    }
    GS_TRY(gs_comm_check(reducer->comm));
    if (!isfinite(max_norm) || max_norm <= 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: max_norm is %g: it has to be finite and above 0", call, max_norm);
    }
    if (!reducer->is_synced) {
        return gs_fail(GSYNC_ERR_STATE,
                       "%s: the gradients hold no result: clip after a synchronised gsync_finish that succeeded and "
                       "before the next gsync_begin",
                       call);
    }
    return check_norm_on_device(reducer, call);
}

static gsync_status clip(gsync_reducer *reducer, double max_norm, double *norm) {
    gsync_status status = GSYNC_OK;
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    *norm = norm_of(reducer);
    if (isfinite(*norm) && *norm > max_norm) {
        status = scale_to(reducer, max_norm, *norm);
        reducer->clipped_step = reducer->step;
        reducer->clipped_norm = max_norm;
    }
    gs_float_mode_leave(&mode);
    return status;
}

static gsync_status clip_checked(gsync_reducer *reducer, double max_norm, double *norm) {
    double before;
    GS_TRY(check(reducer, max_norm));
    const gsync_status status = clip(reducer, max_norm, &before);
    if (norm != NULL) {
        *norm = before;
    }
    GS_TRY(status);
    if (!isfinite(before)) {
        return gs_fail(GSYNC_ERR_NONFINITE,
                       "gsync_clip_grad_norm: the norm is %g: the gradients were left as they are; skip this step",
                       before);
    }
    return GSYNC_OK;
}

gsync_status gsync_clip_grad_norm(gsync_reducer *reducer, double max_norm, double *norm) {
    return gs_comm_report(gs_reducer_comm(reducer), clip_checked(reducer, max_norm, norm));
}
