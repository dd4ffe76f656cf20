/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/messages_mpi.h"

#include "base/clock.h"
#include "base/memory.h"
#include "collective/collective_mpi.h"

#include <mpi.h>
#include <pthread.h>

/*
 * Longer messages than 64 KiB are not sent but put by Open MPI over TCP, in fragments of any length. What the other
 * side has to say then waits behind them in the socket, and two hosts that send to each other take turns.
 */
static const size_t MESSAGE_BYTES_MAX = 60 * 1024;
/* MPI does not look at its sockets in every call. */
enum { TESTS = 8 };

/*
 * One MPI call at a time: callers' threads and the helpers of all communicators make them, and MPI_THREAD_SERIALIZED
 * counts the calls of a process. So there is one lock, as there is one MPI.
 */
static pthread_mutex_t mpi_calls = PTHREAD_MUTEX_INITIALIZER;

#define TRY_MPI(call) GS_TRY(gs_mpi_translate((call), #call))

typedef struct batch {
    MPI_Request *requests;
    size_t capacity;
    size_t count;
} batch;

struct gs_net {
    MPI_Comm hosts;
    int tag; /* of the first stream */
    batch batches[GS_NET_STREAMS * GS_NET_WINDOW];
};

gsync_status gs_messages_open(const void *hosts, uint32_t lane_id, gs_net **out) {
    gs_net *net = NULL;
    GS_TRY(gs_memory_new(&net, 1, sizeof *net, "messages"));
    net->hosts = *(const MPI_Comm *)hosts;
    net->tag = (int)(lane_id % (32768u / GS_NET_STREAMS)) * GS_NET_STREAMS; /* every MPI offers tags up to 32767 */
    *out = net;
    return GSYNC_OK;
}

static gsync_status post_piece(const gs_net *net, int tag, batch *to, const gs_net_transfer *transfer, size_t offset) {
    const size_t left = transfer->bytes - offset;
    const int bytes = (int)(left < MESSAGE_BYTES_MAX ? left : MESSAGE_BYTES_MAX);
    unsigned char *buffer = (unsigned char *)transfer->buffer + offset;
    GS_TRY(gs_memory_grow((void *)&to->requests, &to->capacity, to->count, sizeof *to->requests, "message requests"));
    MPI_Request *request = &to->requests[to->count];
    if (transfer->is_send) {
        TRY_MPI(MPI_Isend(buffer, bytes, MPI_BYTE, transfer->host, tag, net->hosts, request));
    } else {
        TRY_MPI(MPI_Irecv(buffer, bytes, MPI_BYTE, transfer->host, tag, net->hosts, request));
    }
    to->count++;
    return GSYNC_OK;
}

static gsync_status post_all(const gs_net *net, int tag, batch *to, const gs_net_transfer *transfers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (size_t offset = 0; offset < transfers[i].bytes; offset += MESSAGE_BYTES_MAX) {
            GS_TRY(post_piece(net, tag, to, &transfers[i], offset));
        }
    }
    return GSYNC_OK;
}

static batch *batch_at(gs_net *net, gs_net_stream stream, uint32_t slot) {
    return &net->batches[(size_t)stream * GS_NET_WINDOW + slot];
}

static gsync_status check_alive(void) {
    return !gs_mpi_is_running() ? gs_fail(GSYNC_ERR_STATE, "MPI_Finalize was called while ranks still communicate")
                                : GSYNC_OK;
}

gsync_status gs_messages_post(gs_net *net, gs_net_stream stream, uint32_t slot, const gs_net_transfer *transfers,
                              size_t count) {
    GS_TRY(check_alive());
    pthread_mutex_lock(&mpi_calls);
    batch *to = batch_at(net, stream, slot);
    to->count = 0;
    const gsync_status status = post_all(net, net->tag + (int)stream, to, transfers, count);
    pthread_mutex_unlock(&mpi_calls);
    return status;
}

gsync_status gs_messages_test(gs_net *net, gs_net_stream stream, uint32_t slot, bool *is_done) {
    GS_TRY(check_alive());
    batch *of = batch_at(net, stream, slot);
    int flag = of->count == 0;
    int code = MPI_SUCCESS;
    pthread_mutex_lock(&mpi_calls);
    for (int i = 0; i < TESTS && !flag && code == MPI_SUCCESS; i++) {
        code = MPI_Testall((int)of->count, of->requests, &flag, MPI_STATUSES_IGNORE);
    }
    pthread_mutex_unlock(&mpi_calls);
    GS_TRY(gs_mpi_translate(code, "MPI_Testall"));
    *is_done = flag != 0;
    of->count = *is_done ? 0 : of->count;
    return GSYNC_OK;
}

/* True if some request outlives a short wait; sends to a peer that hangs cannot be taken back. */
static bool cancel_batch(batch *of) {
    for (size_t i = 0; i < of->count; i++) {
        if (of->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&of->requests[i]);
        }
    }
    int flag = of->count == 0;
    const uint64_t limit = gs_clock_ns() + 100000000u;
    while (!flag && gs_clock_ns() < limit) {
        if (MPI_Testall((int)of->count, of->requests, &flag, MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
            break;
        }
    }
    return !flag;
}

static bool cancel_all(gs_net *net) {
    bool is_pinned = false;
    for (size_t i = 0; i < (size_t)GS_NET_STREAMS * GS_NET_WINDOW; i++) {
        is_pinned = cancel_batch(&net->batches[i]) || is_pinned;
    }
    return is_pinned;
}

bool gs_messages_close(gs_net *net) {
    bool is_pinned = false;
    if (gs_mpi_is_running()) {
        pthread_mutex_lock(&mpi_calls);
        is_pinned = cancel_all(net);
        pthread_mutex_unlock(&mpi_calls);
    }
    for (size_t i = 0; i < (size_t)GS_NET_STREAMS * GS_NET_WINDOW; i++) {
        gs_memory_free(net->batches[i].requests);
    }
    gs_memory_free(net);
    return is_pinned;
}
