/* SPDX-License-Identifier: Apache-2.0 */
#include "api/scaler.h"

#include "api/reducer.h"
#include "base/memory.h"
#include "base/options.h"
#include "train/loss_scaler.h"

#include <assert.h>

/* The loss scale as the trainer and its reducers see it; how it moves is train/loss_scaler.c's business. */

struct gsync_scaler {
    _Atomic int users; /* the trainer's handle and every reducer; the last one frees it */
    gs_loss_scaler loss;
    uint32_t open_windows; /* of all its reducers */
    bool has_result;       /* a step was finished since the last update */
    bool found_inf;        /* in any of them */
};

/* ---- life ---- */

static gsync_status create(gsync_scaler **out, const gsync_scaler_options *from) {
    gsync_scaler_options options;
    gs_loss_scaler loss;
    gsync_scaler *scaler = NULL;
    if (out == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_scaler_create: scaler is NULL");
    }
    GS_TRY(gs_options_copy(&options, sizeof options, from, "gsync_scaler_options"));
    GS_TRY(gs_loss_scaler_init(&loss, &options));
    GS_TRY(gs_memory_new(&scaler, 1, sizeof *scaler, "loss scaler"));
    scaler->loss = loss;
    scaler->users = 1;
    *out = scaler;
    return GSYNC_OK;
}

gsync_status gsync_scaler_create(gsync_scaler **scaler, const gsync_scaler_options *options) {
    return create(scaler, options);
}

static void release(gsync_scaler *scaler) {
    if (scaler != NULL && atomic_fetch_sub(&scaler->users, 1) == 1) {
        gs_memory_free(scaler);
    }
}

void gsync_scaler_destroy(gsync_scaler **handle) {
    if (handle != NULL) {
        release(*handle);
        *handle = NULL;
    }
}

/* ---- what reducers tell ---- */

void gs_scaler_open_window(gsync_scaler *scaler) {
    scaler->open_windows++;
}

void gs_scaler_close_window(gsync_scaler *scaler, bool has_result, bool found_inf) {
    assert(scaler->open_windows != 0);
    scaler->open_windows--;
    scaler->has_result = scaler->has_result || has_result;
    scaler->found_inf = scaler->found_inf || (has_result && found_inf);
}

void gs_scaler_leave(gsync_scaler *scaler, bool has_window) {
    if (has_window && scaler != NULL) {
        gs_scaler_close_window(scaler, false, false);
    }
    release(scaler);
}

static gsync_status set_scaler(gsync_reducer *reducer, gsync_scaler *scaler) {
    const char *call = "gsync_reducer_set_scaler";
    GS_TRY(gs_reducer_check_between_steps(reducer, call));
    assert(reducer != NULL);
    if (reducer->window_micro_batches != 0) {
        return gs_fail(GSYNC_ERR_STATE, "%s: the window has %u micro-batches already: close it first", call,
                       (unsigned)reducer->window_micro_batches);
    }
    if (scaler != NULL) {
        atomic_fetch_add(&scaler->users, 1);
    }
    release(reducer->scaler);
    reducer->scaler = scaler;
    return GSYNC_OK;
}

gsync_status gsync_reducer_set_scaler(gsync_reducer *reducer, gsync_scaler *scaler) {
    return gs_comm_report(gs_reducer_comm(reducer), set_scaler(reducer, scaler));
}

/* ---- the trainer's calls ---- */

double gsync_scaler_scale(const gsync_scaler *scaler) {
    return scaler != NULL ? scaler->loss.state.scale : 1.0;
}

static gsync_status check_outside_windows(const gsync_scaler *scaler, const char *call) {
    if (scaler == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: the scaler is NULL", call);
    }
    if (scaler->open_windows != 0) {
        return gs_fail(GSYNC_ERR_STATE,
                       "%s: a window is open, and all its micro-batches have to be scaled alike: wait for its "
                       "GSYNC_SYNC step to finish",
                       call);
    }
    return GSYNC_OK;
}

gsync_status gsync_scaler_update(gsync_scaler *scaler) {
    GS_TRY(check_outside_windows(scaler, "gsync_scaler_update"));
    if (!scaler->has_result) {
        return gs_fail(GSYNC_ERR_STATE, "gsync_scaler_update: no synchronised step of a reducer with this scaler was "
                                        "finished since the last update");
    }
    const bool has_diverged = gs_loss_scaler_update(&scaler->loss, scaler->found_inf);
    scaler->has_result = false;
    scaler->found_inf = false;
    if (has_diverged) {
        return gs_fail(GSYNC_ERR_DIVERGED,
                       "gsync_scaler_update: %u steps in a row overflowed, with a loss scale of %g that cannot shrink "
                       "any more: the training has diverged",
                       (unsigned)scaler->loss.state.skips_in_a_row, scaler->loss.state.scale);
    }
    return GSYNC_OK;
}

gsync_status gsync_scaler_get_state(const gsync_scaler *scaler, gsync_scaler_state *state) {
    if (scaler == NULL || state == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_scaler_get_state: the scaler or state is NULL");
    }
    return gs_options_give(state, &scaler->loss.state, sizeof scaler->loss.state, "gsync_scaler_state");
}

gsync_status gsync_scaler_set_state(gsync_scaler *scaler, const gsync_scaler_state *from) {
    gsync_scaler_state state;
    GS_TRY(check_outside_windows(scaler, "gsync_scaler_set_state"));
    if (from == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_scaler_set_state: state is NULL");
    }
    GS_TRY(gs_options_copy(&state, sizeof state, from, "gsync_scaler_state"));
    GS_TRY(gs_loss_scaler_set_state(&scaler->loss, &state));
    /* What steps before it found belongs to another history. */
    scaler->has_result = false;
    scaler->found_inf = false;
    return GSYNC_OK;
}
