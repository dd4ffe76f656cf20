/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "sync/stream_internal.h"

#include <sched.h>
#include <stdio.h>

/*
 * How a host waits for a device that may never come to an end: it looks at the event, at NCCL, at what the other ranks
 * have given up, and at the clock. The first who notices ends its own NCCL communicator and tells the others.
 */

/* A rank may leave when its own part of a step is over, and what it sent is still on its way. */
static const uint64_t GRACE_NS = 1000000000;

/* A rank that has waited for half of its timeout looks so often at what its device waits for. */
static const uint64_t TELL_NS = 100000000;

/* How long a reducer's memory is kept for what may still use it. */
static const uint64_t DRAIN_NS = 1000000000;

/* A step ends within a millisecond or two of the last bucket, and a sleep takes 70 us more than it is asked to. So
 * nobody sleeps at first; afterwards that is a few per cent at most. */
static const gs_patience at_first = {.look_ns = 50000, .yields = 1000, .sleep_ns = 20000};
static const gs_patience afterwards = {.look_ns = 50000, .yields = 20, .sleep_ns = 20000};

typedef struct device_look {
    gs_stream *stream;
    void *event;
    gs_idle_function idle;
    void *argument;
    uint64_t deadline_ns;
    uint64_t tell_ns; /* from when on the others are told what keeps this rank's device waiting */
    uint64_t left_ns; /* when another rank was first seen to have left */
    gsync_status status;
    bool is_done;
} device_look;

static gsync_status check_deadline(device_look *at, uint64_t now) {
    if (now >= at->tell_ns) {
        gs_stream_tell_wait(at->stream);
        at->tell_ns = now + TELL_NS;
    }
    return now < at->deadline_ns ? GSYNC_OK : gs_stream_fail_late(at->stream);
}

/* Where this rank itself has waited in vain for another's order, and told the others so, that is what it says. */
static gsync_status first_status(const gs_stream *stream, gsync_status status) {
    bool is_open;
    const gsync_status early = gs_pipeline_early_status(stream->pipeline, &is_open);
    if (early != GSYNC_OK) {
        return gs_stream_explain(stream, early);
    }
    return is_open ? GSYNC_OK : gs_stream_explain(stream, status); /* it ends soon, and the deadline holds */
}

static gsync_status check_ranks(device_look *at, uint64_t now) {
    bool has_left;
    const gs_lane *lane = at->stream->pipeline->lane;
    if (lane == NULL) {
        return GSYNC_OK;
    }
    const gsync_status status = gs_lane_look(lane, &has_left);
    if (status == GSYNC_OK || !has_left) {
        return status == GSYNC_OK ? GSYNC_OK : first_status(at->stream, status);
    }
    at->left_ns = at->left_ns == 0 ? now : at->left_ns;
    if (now - at->left_ns > GRACE_NS) {
        return status;
    }
    return gs_stream_check_lost(at->stream);
}

gsync_status gs_stream_check_abort(const gs_stream *stream) {
    bool has_left = false;
    const gs_lane *lane = stream->pipeline->lane;
    const gsync_status status = lane != NULL ? gs_lane_look(lane, &has_left) : GSYNC_OK;
    return has_left ? GSYNC_OK : status;
}

static gsync_status check_nccl(const gs_stream *stream) {
    GS_TRY(gs_stream_watch_status(stream));
    return stream->nccl != NULL ? gs_nccl_check(stream->nccl) : GSYNC_OK;
}

/* Collectives that NCCL gave up have ended as well: what they left is no result. So NCCL is asked after the event. */
static gsync_status look_around(device_look *at) {
    const uint64_t now = gs_clock_ns();
    GS_TRY(gs_cuda_is_done(at->stream->cuda, at->event, &at->is_done));
    GS_TRY(check_nccl(at->stream));
    if (at->is_done) {
        return GSYNC_OK;
    }
    GS_TRY(check_ranks(at, now));
    return check_deadline(at, now);
}

static bool look(void *argument) {
    device_look *at = argument;
    at->status = look_around(at);
    if (!at->is_done && at->status == GSYNC_OK && at->idle != NULL) {
        at->idle(at->argument);
    }
    return at->is_done || at->status != GSYNC_OK;
}

/* The first buckets of a failed step hold results. */
static void count_reduced(gs_stream *stream) {
    size_t count = 0;
    bool is_done = true;
    while (count < stream->launched &&
           gs_cuda_is_done(stream->cuda, stream->buckets[count].done, &is_done) == GSYNC_OK && is_done) {
        count++;
    }
    atomic_store(&stream->pipeline->reduced, count);
}

gsync_status gs_stream_wait_event(gs_stream *stream, void *event, gs_idle_function idle, void *argument) {
    gs_group *group = stream->pipeline->group;
    const uint64_t timeout_ns = (uint64_t)group->timeout_ms * 1000000;
    const uint64_t now = gs_clock_ns();
    device_look at = {.stream = stream,
                      .event = event,
                      .idle = idle,
                      .argument = argument,
                      .deadline_ns = now + timeout_ns,
                      .tell_ns = now + timeout_ns / 2};
    (void)gs_bell_wait(gs_group_bell(group), look, &at, &at_first);
    while (!at.is_done && at.status == GSYNC_OK) {
        (void)gs_bell_wait(gs_group_bell(group), look, &at, &afterwards);
    }
    if (at.status != GSYNC_OK) {
        count_reduced(stream); /* first: what is aborted comes to an end too, without a result */
        gs_stream_fail(stream, at.status);
    }
    return gs_stream_status(stream);
}

bool gs_stream_drain(gs_stream *stream) {
    const uint64_t end = gs_clock_ns() + DRAIN_NS;
    bool is_done = stream->queue == NULL || stream->followed == NULL;
    if (!is_done && gs_cuda_record(stream->cuda, stream->followed, stream->queue) != GSYNC_OK) {
        return true; /* the device is lost, and nothing runs on it */
    }
    while (!is_done && gs_clock_ns() < end) {
        if (gs_cuda_is_done(stream->cuda, stream->followed, &is_done) != GSYNC_OK) {
            return true;
        }
        sched_yield();
    }
    return is_done;
}

/* ---- failures ---- */

void gs_stream_fail(gs_stream *stream, gsync_status failure) {
    /* Who looked after an earlier step may have ended NCCL, and knows why. */
    const gsync_status earlier = gs_stream_watch_status(stream);
    const gsync_status status = earlier != GSYNC_OK ? earlier : failure;
    /* GSYNC_ERR_MEMORY would promise that the next step works, and NCCL's communicator is at its end. */
    stream->status = status == GSYNC_ERR_MEMORY ? GSYNC_ERR_TRANSPORT : status;
    snprintf(stream->failure_text, sizeof stream->failure_text, "%s", gsync_last_error());
    gs_nccl_abort(stream->nccl);
    if (stream->pipeline->lane != NULL) {
        /* Who waited in vain knows of no rank that gave up: to the others, some rank is lost. */
        const gsync_status told = status == GSYNC_ERR_TIMEOUT ? GSYNC_ERR_PEER_LOST : stream->status;
        gs_lane_give_up(stream->pipeline->lane, told, stream->failure_text);
    }
}

gsync_status gs_stream_status(const gs_stream *stream) {
    return stream->status == GSYNC_OK ? GSYNC_OK : gs_fail(stream->status, "%s", stream->failure_text);
}

gsync_status gs_stream_wait(gs_stream *stream, gs_idle_function idle, void *argument, bool *is_refused) {
    *is_refused = false;
    GS_TRY(gs_stream_status(stream));
    gs_stream_turn *turn = stream->turn;
    const gsync_status status = gs_stream_wait_event(stream, turn->finished, idle, argument);
    if (status != GSYNC_OK) {
        return gs_stream_status(stream);
    }
    turn->is_open = false;
    turn->is_busy = false;
    gs_stream_tell_phase(stream, GS_STREAM_BETWEEN, turn->step);
    atomic_store(&stream->pipeline->reduced, stream->launched);
    GS_TRY(gs_stream_judge(stream, turn, &stream->pipeline->outcome));
    if (stream->has_found) {
        gs_stream_take_findings(stream, turn);
    }
    gs_stream_take_used(stream, turn);
    *is_refused = gs_stream_is_refused(stream, turn);
    return *is_refused ? GSYNC_OK : gs_stream_read_times(stream);
}

gsync_status gs_stream_wait_for_sums(gs_stream *stream, gs_idle_function idle, void *argument) {
    GS_TRY(gs_stream_status(stream));
    void *last = stream->buckets[stream->launched - 1].done;
    return gs_stream_wait_event(stream, last, idle, argument);
}

static gsync_status fail_if(gs_stream *stream, gsync_status status) {
    if (status != GSYNC_OK) {
        gs_stream_fail(stream, status);
    }
    return gs_stream_status(stream);
}

static gsync_status review_turn(gs_stream *stream, gs_stream_turn *turn) {
    gs_lane_outcome outcome;
    GS_TRY(fail_if(stream, check_nccl(stream)));
    turn->is_open = false;
    GS_TRY(gs_stream_judge(stream, turn, &outcome));
    return gs_stream_is_refused(stream, turn) ? gs_stream_fail_refused(stream, turn) : GSYNC_OK;
}

gsync_status gs_stream_review(gs_stream *stream) {
    GS_TRY(fail_if(stream, check_nccl(stream)));
    gsync_status first = GSYNC_OK;
    const uint64_t taken = stream->turns_taken;
    for (uint64_t i = taken > GS_STREAM_TURNS ? taken - GS_STREAM_TURNS : 0; i < taken; i++) {
        gs_stream_turn *turn = &stream->turns[i % GS_STREAM_TURNS];
        bool is_done = false;
        if (turn->is_open) {
            GS_TRY(fail_if(stream, gs_cuda_is_done(stream->cuda, turn->finished, &is_done)));
        }
        if (is_done) {
            const gsync_status status = review_turn(stream, turn);
            first = first == GSYNC_OK ? status : first;
        }
    }
    return first;
}
