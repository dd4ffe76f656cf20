/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "collective/internal_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * How a communicator begins and ends.
 *
 * NCCL keeps who ends a communicator waiting: for other ranks of the host, and, where it frees memory, for all that the
 * device does, also for another communicator whose peer is gone and which only its own abort would end (GS-64, GS-65).
 * So each ends on a thread of its own, which first of all raises NCCL's flag for what is queued: however many there
 * are, and in whatever order, all flags are up before anybody waits.
 */

enum { FLUSH_MS = 1000, CLOSE_MS = 2000 };

/* ---- beginning ---- */

/*
 * NCCL_COMM_ID makes ncclGetUniqueId give everybody the same id, that of the first ranks of a job, and
 * ncclCommInitRank listen there. That is right for one communicator only, so the variable is what it has to be while
 * those are called. They are few and far between, and one at a time.
 */
static pthread_mutex_t environment_calls = PTHREAD_MUTEX_INITIALIZER;

static void set_comm_id(const char *value) {
    if (value != NULL) {
        setenv("NCCL_COMM_ID", value, 1);
    } else {
        unsetenv("NCCL_COMM_ID");
    }
}

void gs_nccl_environment_enter(gs_nccl_environment *environment, const char *address) {
    pthread_mutex_lock(&environment_calls);
    const char *before = getenv("NCCL_COMM_ID");
    environment->had_address = before != NULL;
    snprintf(environment->address, sizeof environment->address, "%s", before != NULL ? before : "");
    environment->is_changed = before != address && (before == NULL || address == NULL || strcmp(before, address) != 0);
    if (environment->is_changed) {
        set_comm_id(address);
    }
}

void gs_nccl_environment_leave(const gs_nccl_environment *environment) {
    if (environment->is_changed) {
        set_comm_id(environment->had_address ? environment->address : NULL);
    }
    pthread_mutex_unlock(&environment_calls);
}

gsync_status gs_nccl_new(gs_nccl **out, int world_size, int rank, uint32_t timeout_ms) {
    gs_nccl *nccl = NULL;
    const gs_nccl_library *library = NULL;
    GS_TRY(gs_nccl_library_find(&library));
    GS_TRY(gs_memory_new(&nccl, 1, sizeof *nccl, "NCCL communicator"));
    nccl->library = library;
    nccl->world_size = world_size;
    nccl->rank = rank;
    nccl->timeout_ms = timeout_ms;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&nccl->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&nccl->calls, NULL);
    pthread_mutex_init(&nccl->gate, NULL);
    *out = nccl;
    return GSYNC_OK;
}

static void free_parts(gs_nccl *nccl) {
    pthread_mutex_destroy(&nccl->gate);
    pthread_mutex_destroy(&nccl->calls);
    pthread_cond_destroy(&nccl->changed);
    gs_memory_free(nccl);
}

ncclConfig_t gs_nccl_config(int cta_max) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;   /* the only communicators that can be aborted at any moment */
    config.splitShare = 0; /* what shares with another is aborted with it */
    if (cta_max > 0) {
        config.maxCTAs = cta_max;
    }
    return config;
}

gsync_status gs_nccl_make_id(const gs_nccl_library *library, const char *address, ncclUniqueId *id) {
    gs_nccl_environment environment;
    gs_nccl_environment_enter(&environment, address);
    const ncclResult_t result = library->get_unique_id(id);
    gs_nccl_environment_leave(&environment);
    return gs_nccl_translate(library, NULL, -1, result, "ncclGetUniqueId");
}

gsync_status gs_nccl_begin(gs_nccl *nccl, const ncclUniqueId *id, const char *address, int cta_max, bool *is_going_on) {
    ncclConfig_t config = gs_nccl_config(cta_max);
    gs_nccl_environment environment;
    gs_nccl_environment_enter(&environment, address);
    const ncclResult_t result =
        nccl->library->comm_init_rank_config(&nccl->comm, nccl->world_size, *id, nccl->rank, &config);
    gs_nccl_environment_leave(&environment);
    *is_going_on = result == ncclInProgress;
    return *is_going_on ? GSYNC_OK
                        : gs_nccl_translate(nccl->library, nccl->comm, nccl->rank, result, "ncclCommInitRankConfig");
}

/* ---- ending ---- */

/* What peers still need of this rank may be in NCCL's hands: it is sent before the communicator goes. */
static bool flush(gs_nccl *nccl) {
    const uint64_t limit = gs_clock_ns() + (uint64_t)FLUSH_MS * 1000000u;
    ncclResult_t result = ncclSuccess;
    if (nccl->library->comm_get_async_error(nccl->comm, &result) != ncclSuccess || result != ncclSuccess) {
        return false;
    }
    gs_nccl_deregister(nccl);
    result = nccl->library->comm_finalize(nccl->comm);
    while (result == ncclInProgress && atomic_load(&nccl->is_hurried) == 0 && gs_clock_ns() < limit) {
        gs_nccl_nap();
        if (nccl->library->comm_get_async_error(nccl->comm, &result) != ncclSuccess) {
            return false;
        }
    }
    return result == ncclSuccess;
}

static void end_comm(gs_nccl *nccl) {
    pthread_mutex_lock(&nccl->calls);
    if (nccl->comm != NULL) {
        const bool is_flushed = atomic_load(&nccl->is_hurried) == 0 && flush(nccl);
        const ncclResult_t result = is_flushed ? nccl->library->comm_destroy(nccl->comm) : ncclInternalError;
        if (result != ncclSuccess && result != ncclInProgress) {
            nccl->library->comm_abort(nccl->comm);
        }
        nccl->comm = NULL;
    }
    pthread_mutex_unlock(&nccl->calls);
}

static void call_then(const gs_nccl *nccl) {
    if (nccl->then != NULL) {
        nccl->then(nccl->argument);
    }
}

static void *end_main(void *argument) {
    gs_nccl *nccl = argument;
    end_comm(nccl);
    pthread_mutex_lock(&nccl->gate);
    nccl->has_ended = true;
    const bool is_left = nccl->is_left;
    pthread_cond_broadcast(&nccl->changed);
    pthread_mutex_unlock(&nccl->gate);
    if (is_left) {
        call_then(nccl);
        free_parts(nccl);
    }
    return NULL;
}

/* Idempotent. */
static void start_to_end(gs_nccl *nccl, bool is_hurried) {
    pthread_mutex_lock(&nccl->gate);
    const bool is_first = atomic_exchange(&nccl->is_ending, 1) == 0;
    if (is_hurried) {
        atomic_store(&nccl->is_hurried, 1);
    }
    if (is_first) {
        nccl->has_thread = nccl->comm != NULL && gs_thread_start(&nccl->thread, end_main, nccl) == 0;
    }
    const bool is_ours = is_first && !nccl->has_thread;
    pthread_mutex_unlock(&nccl->gate);
    if (is_ours) {
        /* There was nothing to end, or no thread to do it. */
        atomic_store(&nccl->is_hurried, 1);
        end_comm(nccl);
        pthread_mutex_lock(&nccl->gate);
        nccl->has_ended = true;
        pthread_cond_broadcast(&nccl->changed);
        pthread_mutex_unlock(&nccl->gate);
    }
}

void gs_nccl_abort(gs_nccl *nccl) {
    if (nccl != NULL) {
        start_to_end(nccl, true);
    }
}

static struct timespec close_limit(void) {
    const uint64_t limit = gs_clock_ns() + (uint64_t)CLOSE_MS * 1000000u;
    return (struct timespec){.tv_sec = (time_t)(limit / 1000000000u), .tv_nsec = (long)(limit % 1000000000u)};
}

/* False: it goes on by itself, calls `then` at its end, and frees nccl. */
static bool wait_for_end(gs_nccl *nccl, gs_nccl_then then, void *argument) {
    const struct timespec limit = close_limit();
    pthread_mutex_lock(&nccl->gate);
    while (!nccl->has_ended && pthread_cond_timedwait(&nccl->changed, &nccl->gate, &limit) == 0) {
    }
    const bool has_ended = nccl->has_ended;
    if (!has_ended) {
        nccl->then = then;
        nccl->argument = argument;
        nccl->is_left = true;
        pthread_detach(nccl->thread);
    }
    pthread_mutex_unlock(&nccl->gate);
    return has_ended;
}

static bool close_and_tell(gs_nccl *nccl, gs_nccl_then then, void *argument) {
    start_to_end(nccl, false);
    if (!wait_for_end(nccl, then, argument)) {
        return true;
    }
    if (nccl->has_thread) {
        pthread_join(nccl->thread, NULL);
    }
    nccl->then = then;
    nccl->argument = argument;
    call_then(nccl);
    free_parts(nccl);
    return false;
}

bool gs_nccl_close(gs_nccl *nccl) {
    return nccl != NULL && close_and_tell(nccl, NULL, NULL);
}

void gs_nccl_close_then(gs_nccl *nccl, gs_nccl_then then, void *argument) {
    if (nccl == NULL) {
        then(argument);
        return;
    }
    (void)close_and_tell(nccl, then, argument);
}
