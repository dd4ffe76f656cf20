/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "collective/internal_nccl.h"

#include <stdio.h>
#include <string.h>

/*
 * The first communicator of ranks that have no lane yet over which they could tell each other that one of them cannot.
 * A rank that does not come is known by the deadline.
 */

/* ---- of processes that know an address ---- */

static gsync_status wait_alone(gs_nccl *nccl, bool is_going_on, const char *where) {
    const uint64_t deadline = gs_clock_ns() + (uint64_t)nccl->timeout_ms * 1000000u;
    while (is_going_on) {
        if (gs_clock_ns() > deadline) {
            return gs_fail(GSYNC_ERR_TIMEOUT,
                           "rank %d of %d: not all ranks met %s within %u ms: look for an error or a hang there, or "
                           "raise timeout_ms",
                           nccl->rank, nccl->world_size, where, nccl->timeout_ms);
        }
        gs_nccl_nap();
        GS_TRY(gs_nccl_poll(nccl, &is_going_on));
    }
    return GSYNC_OK;
}

static gsync_status connect_at(gs_nccl *nccl, const char *address, int cta_max) {
    ncclUniqueId id;
    char where[280];
    bool is_going_on = false;
    snprintf(where, sizeof where, "at %s", address);
    GS_TRY(gs_nccl_make_id(nccl->library, address, &id));
    GS_TRY(gs_nccl_begin(nccl, &id, address, cta_max, &is_going_on));
    return wait_alone(nccl, is_going_on, where);
}

static gsync_status give(gs_nccl **out, gs_nccl *nccl, gsync_status status) {
    if (status != GSYNC_OK) {
        gs_nccl_abort(nccl);
        (void)gs_nccl_close(nccl);
        return status;
    }
    *out = nccl;
    return GSYNC_OK;
}

gsync_status gs_nccl_connect(const gs_nccl_world *world, int cta_max, uint32_t timeout_ms, gs_nccl **out) {
    gs_nccl *nccl = NULL;
    GS_TRY(gs_nccl_new(&nccl, world->world_size, world->rank, timeout_ms));
    return give(out, nccl, connect_at(nccl, world->address, cta_max));
}

/* ---- of a trainer's communicator ---- */

/*
 * A communicator that blocks keeps whoever splits it until all ranks have come, for ever if need be. So a thread does
 * it, which is left behind at the deadline and then frees what it made.
 */
typedef struct splitting {
    const gs_nccl_library *library;
    ncclComm_t parent;
    int color; /* NCCL_SPLIT_NOCOLOR: this rank cannot, which the others see by their number */
    int rank;
    int cta_max;
    pthread_mutex_t lock;
    pthread_t thread;
    bool is_done; /* under lock, as all that follows */
    bool is_left;
    ncclResult_t result;
    ncclComm_t child;
    char words[256];
} splitting;

static void free_splitting(splitting *of) {
    pthread_mutex_destroy(&of->lock);
    gs_memory_free(of);
}

/* A parent that does not block gives the child when it is through. */
static ncclResult_t wait_for_parent(const splitting *of, ncclResult_t result, ncclComm_t *const volatile child) {
    while (result == ncclInProgress && *child == NULL) {
        gs_nccl_nap();
        const ncclResult_t asked = of->library->comm_get_async_error(of->parent, &result);
        result = asked != ncclSuccess ? asked : result;
    }
    return result == ncclInProgress ? ncclSuccess : result;
}

static void *split_main(void *argument) {
    splitting *of = argument;
    ncclConfig_t config = gs_nccl_config(of->cta_max);
    ncclComm_t child = NULL;
    ncclResult_t result = of->library->comm_split(of->parent, of->color, of->rank, &child, &config);
    result = wait_for_parent(of, result, &child);
    const char *words = result != ncclSuccess ? of->library->get_last_error(of->parent) : NULL;
    pthread_mutex_lock(&of->lock);
    of->child = child;
    of->result = result;
    snprintf(of->words, sizeof of->words, "%.255s", words != NULL ? words : "");
    of->is_done = true;
    const bool is_left = of->is_left;
    pthread_mutex_unlock(&of->lock);
    if (is_left) {
        if (child != NULL) {
            of->library->comm_abort(child);
        }
        free_splitting(of);
    }
    return NULL;
}

static gsync_status start_splitting(splitting *of) {
    const int error = gs_thread_start(&of->thread, split_main, of);
    return error == 0 ? GSYNC_OK
                      : gs_fail(GSYNC_ERR_MEMORY, "the thread that splits an ncclComm_t could not be started: %s",
                                strerror(error));
}

static bool is_done(splitting *of) {
    pthread_mutex_lock(&of->lock);
    const bool result = of->is_done;
    pthread_mutex_unlock(&of->lock);
    return result;
}

/* True: it is left behind, and no longer ours. */
static bool leave_behind(splitting *of) {
    pthread_mutex_lock(&of->lock);
    of->is_left = !of->is_done;
    const bool result = of->is_left;
    if (result) {
        pthread_detach(of->thread);
    }
    pthread_mutex_unlock(&of->lock);
    return result;
}

/* Takes over `of`. */
static gsync_status wait_for_child(splitting *of, uint32_t timeout_ms, ncclComm_t *child) {
    const uint64_t deadline = gs_clock_ns() + (uint64_t)timeout_ms * 1000000u;
    while (!is_done(of) && gs_clock_ns() < deadline) {
        gs_nccl_nap();
    }
    const int rank = of->rank;
    if (leave_behind(of)) {
        return gs_fail(GSYNC_ERR_TIMEOUT,
                       "rank %d: not all ranks of the ncclComm_t called gsync_comm_from_nccl within %u ms: look for an "
                       "error or a hang there, or raise timeout_ms",
                       rank, timeout_ms);
    }
    pthread_join(of->thread, NULL);
    gsync_status status = GSYNC_OK;
    *child = of->child;
    if (of->result != ncclSuccess) {
        status = gs_fail(of->result == ncclRemoteError ? GSYNC_ERR_PEER_LOST : GSYNC_ERR_TRANSPORT,
                         "rank %d: ncclCommSplit failed: %s%s%s", rank, of->library->get_error_string(of->result),
                         of->words[0] != '\0' ? ": " : "", of->words);
    }
    free_splitting(of);
    return status;
}

static gsync_status split_off(const gs_nccl_library *library, ncclComm_t parent, int rank, bool takes_part,
                              const gs_nccl_settings *settings, int cta_max, ncclComm_t *child) {
    splitting *of = NULL;
    GS_TRY(gs_memory_new(&of, 1, sizeof *of, "split of an ncclComm_t"));
    of->library = library;
    of->parent = parent;
    of->color = takes_part ? 0 : NCCL_SPLIT_NOCOLOR;
    of->rank = rank;
    of->cta_max = cta_max;
    pthread_mutex_init(&of->lock, NULL);
    const gsync_status status = start_splitting(of);
    if (status != GSYNC_OK) {
        free_splitting(of);
        return status;
    }
    return wait_for_child(of, settings->timeout_ms, child);
}

/* ---- */

typedef struct parent_facts {
    int world_size;
    int rank;
    int device;
} parent_facts;

static gsync_status ask_parent(const gs_nccl_library *library, ncclComm_t comm, parent_facts *facts) {
    if (library->comm_split == NULL) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED, "gsync_comm_from_nccl needs ncclCommSplit, which came with NCCL 2.18: %s",
                       library->description);
    }
    if (library->comm_count(comm, &facts->world_size) != ncclSuccess ||
        library->comm_user_rank(comm, &facts->rank) != ncclSuccess ||
        library->comm_cu_device(comm, &facts->device) != ncclSuccess) {
        const char *words = library->get_last_error(NULL);
        return gs_fail(GSYNC_ERR_ARGUMENT, "the ncclComm_t is none that can be used yet, or any more%s%.300s",
                       words != NULL && words[0] != '\0' ? ": " : "", words != NULL ? words : "");
    }
    return GSYNC_OK;
}

static gsync_status check_device(const parent_facts *facts, const gs_nccl_settings *settings) {
    if (facts->device != settings->ordinal) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "rank %d: the ncclComm_t is for device %d, but device %d is current: call cudaSetDevice first",
                       facts->rank, facts->device, settings->ordinal);
    }
    return GSYNC_OK;
}

/* nccl NULL: this rank only lets the others know that it cannot. */
static gsync_status take_part(const gs_nccl_library *library, ncclComm_t parent, const parent_facts *facts,
                              const gs_nccl_settings *settings, int cta_max, gs_nccl *nccl) {
    ncclComm_t child = NULL;
    int count = 0;
    GS_TRY(split_off(library, parent, facts->rank, nccl != NULL, settings, cta_max, &child));
    if (nccl == NULL || child == NULL) {
        return GSYNC_OK;
    }
    nccl->comm = child;
    GS_TRY(wait_alone(nccl, true, "to split the ncclComm_t"));
    GS_TRY(gs_nccl_translate(library, child, facts->rank, library->comm_count(child, &count), "ncclCommCount"));
    if (count != facts->world_size) {
        return gs_fail(GSYNC_ERR_ABORTED,
                       "rank %d: %d of the %d ranks could not create their communicator; their own errors tell why",
                       facts->rank, facts->world_size - count, facts->world_size);
    }
    return GSYNC_OK;
}

gsync_status gs_nccl_adopt(void *comm, gsync_status own, const gs_nccl_settings *settings, int cta_max, gs_nccl **out) {
    const gs_nccl_library *library = NULL;
    gs_nccl *nccl = NULL;
    parent_facts facts = {.rank = -1};
    char reason[512];
    snprintf(reason, sizeof reason, "%.511s", own != GSYNC_OK ? gsync_last_error() : "");
    GS_TRY(gs_nccl_library_find(&library));
    GS_TRY(ask_parent(library, comm, &facts));
    gsync_status status = own != GSYNC_OK ? gs_fail(own, "%s", reason) : check_device(&facts, settings);
    if (status == GSYNC_OK) {
        status = gs_nccl_new(&nccl, facts.world_size, facts.rank, settings->timeout_ms);
    }
    if (status != GSYNC_OK) {
        snprintf(reason, sizeof reason, "%.511s", gsync_last_error());
        (void)take_part(library, comm, &facts, settings, cta_max, NULL);
        return gs_fail(status, "%s", reason);
    }
    return give(out, nccl, take_part(library, comm, &facts, settings, cta_max, nccl));
}
