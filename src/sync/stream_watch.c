/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/thread.h"
#include "sync/stream_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/*
 * After gsync_finish_on no host waits in the library, and a trainer that synchronises with its stream would wait for
 * ever for a rank that never comes. A thread looks after such steps ten times a second while one is under way, and
 * sleeps otherwise. What it finds wrong ends NCCL's communicator, so that the stream comes to its end; the trainer's
 * next call says why, and tells the other ranks.
 */

enum { LOOK_NS = 100000000 };

static bool is_under_way(const gs_stream_watch *watch) {
    for (int i = 0; i < GS_STREAM_TURNS; i++) {
        if (watch->steps[i].event != NULL) {
            return true;
        }
    }
    return false;
}

/* ---- the thread, which holds the gate but for when it sleeps ---- */

static void sleep_a_moment(gs_stream_watch *watch) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&watch->changed, &watch->gate, &until);
}

/* What producers do since is about another micro-batch. */
static void tell_wait(const gs_stream *stream, const gs_stream_watched *step) {
    if (stream->watch.last == step) {
        gs_stream_tell_producers(stream, step->step, step->launched);
    }
}

static gsync_status check_step(gs_stream *stream, const gs_stream_watched *step) {
    const uint64_t timeout_ns = (uint64_t)stream->pipeline->group->timeout_ms * 1000000;
    const uint64_t waited_ns = gs_clock_ns() - step->begin_ns;
    if (waited_ns >= timeout_ns / 2) {
        tell_wait(stream, step);
    }
    stream->watch.delay = gs_stream_find_delay(stream, step->step, step->plan);
    if (!stream->watch.delay.has_lost && waited_ns < timeout_ns) {
        return GSYNC_OK;
    }
    stream->watch.has_delay = true;
    return stream->watch.delay.has_lost ? GSYNC_ERR_PEER_LOST : GSYNC_ERR_TIMEOUT;
}

/* What is through is not looked after any longer. */
static gsync_status look_at_steps(gs_stream *stream) {
    for (int i = 0; i < GS_STREAM_TURNS; i++) {
        gs_stream_watched *step = &stream->watch.steps[i];
        bool is_done = false;
        if (step->event == NULL) {
            continue;
        }
        GS_TRY(gs_cuda_is_done(stream->cuda, step->event, &is_done));
        if (is_done) {
            step->event = NULL;
        } else {
            GS_TRY(check_step(stream, step));
        }
    }
    return GSYNC_OK;
}

static gsync_status look_after_steps(gs_stream *stream) {
    GS_TRY(look_at_steps(stream));
    if (!is_under_way(&stream->watch)) {
        return GSYNC_OK;
    }
    GS_TRY(gs_nccl_check(stream->nccl));
    return gs_stream_check_abort(stream);
}

static void note_failure(gs_stream *stream, gsync_status status) {
    gs_stream_watch *watch = &stream->watch;
    watch->status = status;
    snprintf(watch->text, sizeof watch->text, "%s", gsync_last_error());
    memset(watch->steps, 0, sizeof watch->steps);
    watch->last = NULL;
    atomic_store(&watch->has_failed, 1);
    gs_nccl_abort(stream->nccl);
}

static void *watch_main(void *argument) {
    gs_stream *stream = argument;
    gs_stream_watch *watch = &stream->watch;
    pthread_mutex_lock(&watch->gate);
    while (!watch->is_stopping) {
        if (!is_under_way(watch)) {
            pthread_cond_wait(&watch->changed, &watch->gate);
            continue;
        }
        sleep_a_moment(watch);
        const gsync_status status = watch->is_stopping ? GSYNC_OK : look_after_steps(stream);
        if (status != GSYNC_OK) {
            note_failure(stream, status);
        }
    }
    pthread_mutex_unlock(&watch->gate);
    return NULL;
}

/* ---- life ---- */

void gs_stream_init_watch(gs_stream *stream) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->watch.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&stream->watch.gate, NULL);
}

gsync_status gs_stream_start_watch(gs_stream *stream) {
    gs_stream_watch *watch = &stream->watch;
    if (watch->is_running || stream->nccl == NULL) {
        return GSYNC_OK;
    }
    const int error = gs_thread_start(&watch->thread, watch_main, stream);
    if (error != 0) {
        return gs_fail(GSYNC_ERR_MEMORY, "the thread that looks after steps on a GPU could not be started: %s",
                       strerror(error));
    }
    watch->is_running = true;
    return GSYNC_OK;
}

void gs_stream_end_watch(gs_stream *stream) {
    gs_stream_watch *watch = &stream->watch;
    if (watch->is_running) {
        pthread_mutex_lock(&watch->gate);
        watch->is_stopping = true;
        pthread_cond_signal(&watch->changed);
        pthread_mutex_unlock(&watch->gate);
        pthread_join(watch->thread, NULL);
        watch->is_running = false;
    }
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->gate);
}

/* ---- steps ---- */

void gs_stream_watch_turn(gs_stream *stream, const gs_stream_turn *turn) {
    gs_stream_watch *watch = &stream->watch;
    gs_stream_watched *step = &watch->steps[turn - stream->turns];
    if (!watch->is_running || stream->status != GSYNC_OK) {
        return;
    }
    pthread_mutex_lock(&watch->gate);
    if (atomic_load(&watch->has_failed) != 0) { /* the next call will tell */
        pthread_mutex_unlock(&watch->gate);
        return;
    }
    const bool was_idle = !is_under_way(watch);
    *step = (gs_stream_watched){.event = turn->finished,
                                .begin_ns = gs_clock_ns(),
                                .step = turn->step,
                                .plan = turn->plan,
                                .launched = stream->launched};
    watch->last = step;
    if (was_idle) {
        pthread_cond_signal(&watch->changed);
    }
    pthread_mutex_unlock(&watch->gate);
}

void gs_stream_forget_turn(gs_stream *stream, const gs_stream_turn *turn) {
    gs_stream_watch *watch = &stream->watch;
    if (watch->is_running) {
        pthread_mutex_lock(&watch->gate);
        watch->steps[turn - stream->turns].event = NULL;
        watch->last = NULL; /* another micro-batch begins */
        pthread_mutex_unlock(&watch->gate);
    }
}

gsync_status gs_stream_watch_status(const gs_stream *stream) {
    const gs_stream_watch *watch = &stream->watch;
    if (atomic_load(&watch->has_failed) == 0) {
        return GSYNC_OK;
    }
    /* Written once, before has_failed. */
    return watch->has_delay ? gs_stream_fail_delay(stream, &watch->delay, "gsync_finish_on")
                            : gs_stream_explain(stream, gs_fail(watch->status, "%s", watch->text));
}
