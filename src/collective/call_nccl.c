/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "collective/internal_nccl.h"

#include <string.h>
#include <time.h>

/* ---- NCCL's codes in ours ---- */

static gsync_status status_of(ncclResult_t result, const char *words) {
    if (result == ncclRemoteError) {
        return GSYNC_ERR_PEER_LOST;
    }
    /* NCCL has no code for it. */
    return strstr(words, "out of memory") != NULL ? GSYNC_ERR_MEMORY : GSYNC_ERR_TRANSPORT;
}

gsync_status gs_nccl_translate(const gs_nccl_library *library, ncclComm_t comm, int rank, ncclResult_t result,
                               const char *call) {
    if (result == ncclSuccess) {
        return GSYNC_OK;
    }
    const char *last = library->get_last_error(comm);
    const char *words = last != NULL ? last : "";
    const gsync_status status = status_of(result, words);
    return gs_fail(status, "rank %d: %s failed: %s%s%.500s", rank, call, library->get_error_string(result),
                   words[0] != '\0' ? ": " : "", words);
}

/* ---- one call at a time ---- */

void gs_nccl_nap(void) {
    const struct timespec nap = {0, 20000};
    nanosleep(&nap, NULL);
}

static gsync_status refuse(const gs_nccl *nccl) {
    return gs_fail(GSYNC_ERR_ABORTED, "rank %d: the NCCL communicator was aborted", nccl->rank);
}

gsync_status gs_nccl_enter(gs_nccl *nccl) {
    pthread_mutex_lock(&nccl->calls);
    if (atomic_load(&nccl->is_ending) != 0) {
        pthread_mutex_unlock(&nccl->calls);
        return refuse(nccl);
    }
    return GSYNC_OK;
}

void gs_nccl_leave(gs_nccl *nccl) {
    pthread_mutex_unlock(&nccl->calls);
}

static ncclResult_t state_of(const gs_nccl *nccl) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = nccl->library->comm_get_async_error(nccl->comm, &state);
    return result != ncclSuccess ? result : state;
}

/*
 * The communicator does not block: a call may return before its work is on the stream, and an event recorded then would
 * miss it. Usually that takes some microseconds; when ranks first speak to each other, until all of them do.
 */
gsync_status gs_nccl_settle(gs_nccl *nccl, ncclResult_t result, const char *call) {
    enum { LOOKS = 100 };
    const uint64_t deadline = gs_clock_ns() + (uint64_t)nccl->timeout_ms * 1000000u;
    for (int looks = 0; result == ncclInProgress; looks++) {
        if (atomic_load(&nccl->is_ending) != 0) {
            return refuse(nccl);
        }
        if (gs_clock_ns() > deadline) {
            return gs_fail(GSYNC_ERR_TIMEOUT,
                           "rank %d: %s did not begin within %u ms: look for a rank with an error or a hang, or raise "
                           "timeout_ms",
                           nccl->rank, call, nccl->timeout_ms);
        }
        if (looks >= LOOKS) {
            gs_nccl_nap();
        }
        result = state_of(nccl);
    }
    return gs_nccl_translate(nccl->library, nccl->comm, nccl->rank, result, call);
}

gsync_status gs_nccl_poll(gs_nccl *nccl, bool *is_going_on) {
    GS_TRY(gs_nccl_enter(nccl));
    const ncclResult_t state = state_of(nccl);
    *is_going_on = state == ncclInProgress;
    const gsync_status status =
        *is_going_on ? GSYNC_OK
                     : gs_nccl_translate(nccl->library, nccl->comm, nccl->rank, state, "an operation over NCCL");
    gs_nccl_leave(nccl);
    return status;
}

gsync_status gs_nccl_check(gs_nccl *nccl) {
    if (atomic_load(&nccl->is_ending) != 0) {
        return refuse(nccl);
    }
    /* Whoever is in a call finds out as well. */
    if (pthread_mutex_trylock(&nccl->calls) != 0) {
        return GSYNC_OK;
    }
    gsync_status status = GSYNC_OK;
    if (atomic_load(&nccl->is_ending) == 0) {
        const ncclResult_t state = state_of(nccl);
        status = state == ncclInProgress
                     ? GSYNC_OK
                     : gs_nccl_translate(nccl->library, nccl->comm, nccl->rank, state, "an operation over NCCL");
    }
    pthread_mutex_unlock(&nccl->calls);
    return status;
}
