/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include <gradsync/gradsync_cuda.h>

/* The calls of a step that know the trainer's streams. */

static gsync_status check_place(const gsync_reducer *reducer, const char *call) {
    if (reducer->stream == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "%s: this reducer's gradients are in host memory: no stream makes them final", call);
    }
    return GSYNC_OK;
}

/* ---- ready ---- */

static gsync_status ready_on(gsync_reducer *reducer, const void *grad, cudaStream_t producer) {
    const char *call = "gsync_ready_on";
    uint32_t index = GS_NO_INDEX;
    GS_TRY(gs_reducer_find_marked(reducer, grad, call, &index));
    GS_TRY(check_place(reducer, call));
    GS_TRY(gs_stream_check_capture(reducer->stream, producer, call));
    if (index == GS_NO_INDEX) {
        return GSYNC_OK;
    }
    /* Also in a micro-batch that the trainer accumulates: the window may end without another mark. */
    const uint32_t bucket = reducer->plan.bucket_of[index];
    GS_TRY(gs_stream_note_producer(reducer->stream, &reducer->launch_lock, bucket, producer));
    void *const stream = producer;
    return gs_reducer_mark(reducer, index, &stream);
}

gsync_status gsync_ready_on(gsync_reducer *reducer, const void *grad, cudaStream_t producer) {
    const gsync_status status = ready_on(reducer, grad, producer);
    return status == GSYNC_OK ? status : gs_comm_report(gs_reducer_comm(reducer), status);
}

/* ---- finish ---- */

static gsync_status check_finish_on(const gsync_reducer *reducer, cudaStream_t consumer) {
    const char *call = "gsync_finish_on";
    if (reducer == NULL || gs_reducer_get_stage(reducer) != GS_REDUCER_ARMED) {
        return GSYNC_OK; /* the common part says it */
    }
    GS_TRY(check_place(reducer, call));
    if (reducer->scaler != NULL && reducer->phase == GSYNC_SYNC) {
        return gs_fail(GSYNC_ERR_STATE,
                       "%s: the loss scaler has to know whether a gradient is inf or NaN before the next step, and the "
                       "host learns of it in gsync_finish only: call that, or take the scaler away",
                       call);
    }
    if (reducer->options.checks_writes) {
        return gs_fail(GSYNC_ERR_STATE,
                       "%s: with checks_writes the host has to know that no gradient was written late before it lets "
                       "results be written, and waits for that in gsync_finish only: call that",
                       call);
    }
    GS_TRY(gs_stream_check_capture(reducer->stream, consumer, call));
    return gs_stream_start_watch(reducer->stream);
}

gsync_status gsync_finish_on(gsync_reducer *reducer, cudaStream_t consumer, gsync_step_info *info) {
    const gsync_status status = check_finish_on(reducer, consumer);
    if (status != GSYNC_OK || reducer == NULL) {
        return status != GSYNC_OK ? gs_comm_report(gs_reducer_comm(reducer), status)
                                  : gs_reducer_finish(reducer, info, "gsync_finish_on");
    }
    reducer->has_consumer = true;
    reducer->consumer = consumer;
    const gsync_status outcome = gs_reducer_finish(reducer, info, "gsync_finish_on");
    reducer->has_consumer = false;
    return outcome;
}
