/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_SYNC_ENGINE_H
#define GS_SYNC_ENGINE_H

/*
 * Who makes buckets move. One engine per communicator; it knows the pipelines of its reducers. With a helper thread
 * buckets move during backward; a caller inside gsync_finish takes the work over, so that no thread switch lies in
 * its way, and the helper stands back. Without, they move inside gsync_ready and gsync_finish. Those who have nothing
 * to do look for some microseconds and then sleep.
 */

#include "sync/pipeline.h"

#include <pthread.h>

typedef struct gs_engine {
    gs_group *group;
    pthread_t maker; /* of the communicator: the main thread, where MPI knows no other */
    bool has_helper;
    bool is_running; /* the helper's thread */
    pthread_t thread;
    pthread_mutex_t work; /* held while pipelines are moved or listed */
    pthread_mutex_t gate; /* the helper is parked here */
    pthread_cond_t wake;
    _Atomic bool is_stopping; /* changed under gate */
    _Atomic int attending;    /* callers who make progress themselves */
    _Atomic int claims;       /* of those who want the work lock for something else */
    _Atomic uint32_t kicks;
    gs_pipeline *pipelines; /* under work */
} gs_engine;

void gs_engine_init(gs_engine *engine, gs_group *group, bool has_helper);

/* Ends the helper's thread for good. No caller may be attending. */
void gs_engine_stop(gs_engine *engine);
void gs_engine_clear(gs_engine *engine);

/* Starts the helper's thread unless it runs or there is to be none. One caller at a time. */
gsync_status gs_engine_start(gs_engine *engine);

void gs_engine_add(gs_engine *engine, gs_pipeline *pipeline);
/* When it returns nobody is working on the pipeline. */
void gs_engine_remove(gs_engine *engine, gs_pipeline *pipeline);

/* What a pipeline is told between steps is told under this lock: the helper may be looking at it. */
void gs_engine_lock(gs_engine *engine);
void gs_engine_unlock(gs_engine *engine);

/* Buckets were launched. Any thread; does not wait for anybody who waits for peers. */
void gs_engine_kick(gs_engine *engine);

/* This caller is about to launch what is left and to wait: the helper need not be woken for it. */
void gs_engine_attend(gs_engine *engine);

/* After gs_engine_attend: until the pipeline's step has ended; returns its status. */
gsync_status gs_engine_wait(gs_engine *engine, gs_pipeline *pipeline);

/* Moves what can be moved, if nobody else is at it: gs_idle_function for waits outside the engine. */
void gs_engine_idle(void *engine);
/* What such a wait is to call: nothing where a helper moves buckets anyway. */
static inline gs_idle_function gs_engine_idle_function(const gs_engine *engine) {
    return engine->has_helper ? NULL : gs_engine_idle;
}

#endif
