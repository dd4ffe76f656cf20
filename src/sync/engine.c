/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/engine.h"

#include "base/thread.h"

#include <sched.h>
#include <string.h>
#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* A caller in gsync_finish has nothing else to do. Peers on this host ring; it still looks at its deadline now and
 * then. */
static const gs_patience caller_for_peers = {.look_ns = 2000, .yields = 20, .sleep_ns = 20000000};

/* The helper leaves the core to backward. One that gave it up by yielding would get it back a time slice later; one
 * that sleeps gets it when it wakes. */
static const gs_patience helper_for_peers = {.look_ns = 2000, .yields = 0, .sleep_ns = 20000000};
static const uint64_t MESSAGE_NAP_NS = 50000;
static const unsigned NAP_DOUBLINGS = 2;

static bool moves_messages(const gs_engine *engine) {
    return engine->group->host_count > 1 && engine->group->local_rank == 0;
}

/* Under the work lock. Returns whether anything moved; *is_waiting when something is launched and not through. */
static bool move_all(gs_engine *engine, bool *is_waiting) {
    bool did_work = false;
    *is_waiting = false;
    for (gs_pipeline *pipeline = engine->pipelines; pipeline != NULL; pipeline = pipeline->next_pipeline) {
        bool waits;
        did_work = gs_pipeline_progress(pipeline, &waits) || did_work;
        *is_waiting = *is_waiting || waits;
    }
    return did_work;
}

/* Who unlocks a mutex and locks it again is faster than who wakes up for it. */
static void make_way(gs_engine *engine) {
    enum { YIELDS_MAX = 1000 };
    for (int i = 0; i < YIELDS_MAX && atomic_load(&engine->claims) != 0; i++) {
        sched_yield();
    }
}

/* Not trylock: another may be in the middle of a bucket, and whoever comes after it must look again. */
static bool move_in_turn(gs_engine *engine, bool *is_waiting) {
    pthread_mutex_lock(&engine->work);
    const bool did_work = move_all(engine, is_waiting);
    pthread_mutex_unlock(&engine->work);
    make_way(engine);
    return did_work;
}

/* ---- the helper ---- */

/* Sleeps until there is something to do that no caller does. False: stop. */
static bool park(gs_engine *engine, uint32_t handled) {
    pthread_mutex_lock(&engine->gate);
    while (!engine->is_stopping && (atomic_load(&engine->attending) > 0 || atomic_load(&engine->kicks) == handled)) {
        pthread_cond_wait(&engine->wake, &engine->gate);
    }
    const bool goes_on = !engine->is_stopping;
    pthread_mutex_unlock(&engine->gate);
    return goes_on;
}

#if defined(__linux__)
/* The system's struct sched_attr in its first version; not every C library has it. */
typedef struct scheduling {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns; /* the slice, under SCHED_OTHER */
    uint64_t deadline_ns;
    uint64_t period_ns;
} scheduling;
#endif

/*
 * For a thread that works some microseconds at a time beside one that computes. Unless it asks for short slices, Linux
 * from 6.6 on lets the other one use up its own, some milliseconds, before a thread that wakes gets the core. Where the
 * system knows no such wish, nothing changes, nor where the trainer has chosen how its threads are scheduled. Naps last
 * 50 us longer than asked for, unless that is put off as well.
 */
static void work_in_short_slices(void) {
#if defined(__linux__)
    scheduling own = {.size = sizeof own};
    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0U) == 0 && own.policy == SCHED_OTHER) {
        own.runtime_ns = 100000;
        (void)syscall(SYS_sched_setattr, 0, &own, 0U);
    }
#endif
}

typedef struct helper_look {
    gs_engine *engine;
    uint32_t kicks; /* seen before moving */
    bool is_waiting;
    unsigned in_vain; /* waits one after the other that brought nothing */
} helper_look;

static bool look_as_helper(void *argument) {
    helper_look *at = argument;
    at->kicks = atomic_load(&at->engine->kicks);
    const bool did_work = move_in_turn(at->engine, &at->is_waiting);
    at->in_vain = did_work ? 0 : at->in_vain;
    return did_work || !at->is_waiting || atomic_load(&at->engine->is_stopping);
}

/* Several pieces are on their way, so a long transfer does not need the helper often. */
static void wait_as_helper(helper_look *at) {
    gs_patience patience = helper_for_peers;
    if (moves_messages(at->engine)) {
        patience = (gs_patience){.sleep_ns = MESSAGE_NAP_NS << at->in_vain};
    }
    const bool has_found = gs_bell_wait(gs_group_bell(at->engine->group), look_as_helper, at, &patience);
    at->in_vain += !has_found && at->in_vain < NAP_DOUBLINGS ? 1 : 0;
}

static void *helper_main(void *argument) {
    gs_engine *engine = argument;
    helper_look at = {.engine = engine};
    uint32_t handled = 0;
    work_in_short_slices();
    while (park(engine, handled)) {
        wait_as_helper(&at);
        handled = at.is_waiting ? handled : at.kicks;
    }
    return NULL;
}

static void wake_helper(gs_engine *engine) {
    if (engine->is_running) {
        pthread_mutex_lock(&engine->gate);
        pthread_cond_signal(&engine->wake);
        pthread_mutex_unlock(&engine->gate);
    }
}

/* ---- life ---- */

void gs_engine_init(gs_engine *engine, gs_group *group, bool has_helper) {
    memset(engine, 0, sizeof *engine);
    engine->group = group;
    engine->maker = pthread_self();
    engine->has_helper = has_helper;
    pthread_mutex_init(&engine->work, NULL);
    pthread_mutex_init(&engine->gate, NULL);
    pthread_cond_init(&engine->wake, NULL);
}

gsync_status gs_engine_start(gs_engine *engine) {
    if (!engine->has_helper || engine->is_running) {
        return GSYNC_OK;
    }
    const int error = gs_thread_start(&engine->thread, helper_main, engine);
    if (error != 0) {
        return gs_fail(GSYNC_ERR_MEMORY, "the helper thread could not be started: %s", strerror(error));
    }
    engine->is_running = true;
    return GSYNC_OK;
}

void gs_engine_lock(gs_engine *engine) {
    atomic_fetch_add(&engine->claims, 1);
    pthread_mutex_lock(&engine->work);
    atomic_fetch_sub(&engine->claims, 1);
}

void gs_engine_unlock(gs_engine *engine) {
    pthread_mutex_unlock(&engine->work);
}

void gs_engine_stop(gs_engine *engine) {
    if (engine->is_running) {
        pthread_mutex_lock(&engine->gate);
        engine->is_stopping = true;
        pthread_cond_signal(&engine->wake);
        pthread_mutex_unlock(&engine->gate);
        gs_bell_ring(gs_group_bell(engine->group));
        pthread_join(engine->thread, NULL);
        engine->is_running = false;
    }
}

void gs_engine_clear(gs_engine *engine) {
    gs_engine_stop(engine);
    pthread_cond_destroy(&engine->wake);
    pthread_mutex_destroy(&engine->gate);
    pthread_mutex_destroy(&engine->work);
}

void gs_engine_add(gs_engine *engine, gs_pipeline *pipeline) {
    gs_engine_lock(engine);
    pipeline->next_pipeline = engine->pipelines;
    engine->pipelines = pipeline;
    gs_engine_unlock(engine);
}

void gs_engine_remove(gs_engine *engine, gs_pipeline *pipeline) {
    gs_engine_lock(engine);
    gs_pipeline **link = &engine->pipelines;
    while (*link != NULL && *link != pipeline) {
        link = &(*link)->next_pipeline;
    }
    if (*link != NULL) {
        *link = pipeline->next_pipeline;
    }
    gs_engine_unlock(engine);
}

/* ---- callers ---- */

/* Marks may come from any thread, also where MPI allows calls by one only: then they leave the work to it. */
static bool may_move(const gs_engine *engine) {
    return !engine->group->is_funneled || pthread_equal(pthread_self(), engine->maker);
}

void gs_engine_kick(gs_engine *engine) {
    atomic_fetch_add(&engine->kicks, 1);
    if (!engine->has_helper) {
        if (may_move(engine)) {
            gs_engine_idle(engine);
        }
        return;
    }
    /* Whoever makes progress may be asleep, waiting for peers with the buckets of another reducer. */
    gs_bell_ring(gs_group_bell(engine->group));
    if (atomic_load(&engine->attending) == 0) {
        wake_helper(engine);
    }
}

void gs_engine_idle(void *argument) {
    gs_engine *engine = argument;
    if (pthread_mutex_trylock(&engine->work) == 0) {
        bool is_waiting;
        (void)move_all(engine, &is_waiting);
        pthread_mutex_unlock(&engine->work);
    }
}

void gs_engine_attend(gs_engine *engine) {
    atomic_fetch_add(&engine->attending, 1);
}

/* The helper is woken only for buckets of other reducers that are under way, or that were launched meanwhile: each
 * wake-up for nothing would take the core from the trainer. */
static void stop_attending(gs_engine *engine, bool is_waiting, uint32_t kicks_seen) {
    if (atomic_fetch_sub(&engine->attending, 1) == 1 && (is_waiting || atomic_load(&engine->kicks) != kicks_seen)) {
        wake_helper(engine);
    }
}

typedef struct caller_look {
    gs_engine *engine;
    gs_pipeline *pipeline;
    uint32_t kicks; /* seen before moving */
    bool is_waiting;
    bool has_ended;
    gsync_status status;
} caller_look;

static bool look_as_caller(void *argument) {
    caller_look *at = argument;
    at->kicks = atomic_load(&at->engine->kicks);
    const bool did_work = move_in_turn(at->engine, &at->is_waiting);
    at->has_ended = gs_pipeline_has_ended(at->pipeline, &at->status);
    return did_work || at->has_ended;
}

gsync_status gs_engine_wait(gs_engine *engine, gs_pipeline *pipeline) {
    caller_look at = {.engine = engine, .pipeline = pipeline};
    const gs_patience *patience = moves_messages(engine) ? &gs_lane_for_messages : &caller_for_peers;
    while (!at.has_ended) {
        (void)gs_bell_wait(gs_group_bell(engine->group), look_as_caller, &at, patience);
    }
    stop_attending(engine, at.is_waiting, at.kicks);
    return at.status;
}
