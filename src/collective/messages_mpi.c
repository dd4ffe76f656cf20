/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/messages_mpi.h"

#include "base/clock.h"
#include "base/memory.h"
#include "collective/collective_mpi.h"

#include <assert.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

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

typedef struct batch {
    MPI_Request *requests;
    size_t capacity;
    size_t count;
} batch;

struct gs_net {
    MPI_Comm hosts;
    int tag;                     /* of the first stream */
    _Atomic uint64_t bytes_sent; /* also read while others send */
    batch batches[GS_NET_STREAMS * GS_NET_WINDOW];
};

static batch *batch_at(gs_net *net, gs_net_stream stream, uint32_t slot) {
    return &net->batches[(size_t)stream * GS_NET_WINDOW + slot];
}

/* Lanes have tags of their own for as many as MPI has tags, which only its world tells, and the control lane's are
 * never another's. */
static gsync_status choose_tag(gs_net *net, uint32_t lane_id) {
    int *upper = NULL;
    int has_upper = 0;
    TRY_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper, &has_upper));
    const uint32_t tags = has_upper ? (uint32_t)*upper : 32767u; /* what every MPI offers */
    const uint32_t lanes = tags / GS_NET_STREAMS;
    net->tag = lane_id == 0 ? 0 : (int)((1 + (lane_id - 1) % (lanes - 1)) * GS_NET_STREAMS);
    return GSYNC_OK;
}

static gsync_status allocate(gs_net *net, const gs_net_load *loads) {
    for (uint32_t i = 0; i < GS_NET_STREAMS * GS_NET_WINDOW; i++) {
        const gs_net_load *load = &loads[i / GS_NET_WINDOW];
        batch *of = &net->batches[i];
        if (i % GS_NET_WINDOW == 0 || i / GS_NET_WINDOW != GS_NET_WHOLE) {
            of->capacity = load->transfers_max * (load->bytes_max / MESSAGE_BYTES_MAX + 1);
            GS_TRY(gs_memory_new(&of->requests, of->capacity, sizeof *of->requests, "message requests"));
        }
    }
    return GSYNC_OK;
}

static void free_all(gs_net *net) {
    for (size_t i = 0; i < sizeof net->batches / sizeof *net->batches; i++) {
        gs_memory_free(net->batches[i].requests);
    }
    gs_memory_free(net);
}

gsync_status gs_messages_open(const void *hosts, uint32_t lane_id, const gs_net_load *loads, gs_net **out) {
    gs_net *net = NULL;
    gsync_status status = GSYNC_OK;
    GS_TRY(gs_memory_new(&net, 1, sizeof *net, "messages"));
    net->hosts = *(const MPI_Comm *)hosts;
    GS_TRY_OR(choose_tag(net, lane_id), fail);
    GS_TRY_OR(allocate(net, loads), fail);
    *out = net;
    return GSYNC_OK;
fail:
    free_all(net);
    return status;
}

static gsync_status post_piece(gs_net *net, int tag, batch *to, const gs_net_transfer *transfer, size_t offset) {
    const size_t left = transfer->bytes - offset;
    const int bytes = (int)(left < MESSAGE_BYTES_MAX ? left : MESSAGE_BYTES_MAX);
    unsigned char *buffer = (unsigned char *)transfer->buffer + offset;
    assert(to->count < to->capacity);
    MPI_Request *request = &to->requests[to->count];
    if (transfer->is_send) {
        TRY_MPI(MPI_Isend(buffer, bytes, MPI_BYTE, transfer->host, tag, net->hosts, request));
        atomic_fetch_add_explicit(&net->bytes_sent, (uint64_t)bytes, memory_order_relaxed);
    } else {
        TRY_MPI(MPI_Irecv(buffer, bytes, MPI_BYTE, transfer->host, tag, net->hosts, request));
    }
    to->count++;
    return GSYNC_OK;
}

static gsync_status post_all(gs_net *net, int tag, batch *to, const gs_net_transfer *transfers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (size_t offset = 0; offset < transfers[i].bytes; offset += MESSAGE_BYTES_MAX) {
            GS_TRY(post_piece(net, tag, to, &transfers[i], offset));
        }
    }
    return GSYNC_OK;
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

uint64_t gs_messages_bytes_sent(const gs_net *net) {
    return atomic_load_explicit(&net->bytes_sent, memory_order_relaxed);
}

static void cancel(batch *of) {
    for (size_t i = 0; i < of->count; i++) {
        if (of->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&of->requests[i]);
        }
    }
}

static bool is_complete(batch *of) {
    int flag = 1;
    if (of->count != 0 && MPI_Testall((int)of->count, of->requests, &flag, MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
        return false;
    }
    of->count = flag ? 0 : of->count;
    return flag != 0;
}

static bool are_complete(gs_net *net) {
    bool result = true;
    for (size_t i = 0; i < sizeof net->batches / sizeof *net->batches; i++) {
        result = is_complete(&net->batches[i]) && result;
    }
    return result;
}

/* True if some request outlives a short wait for all of them; sends to a peer that hangs cannot be taken back. */
static bool cancel_all(gs_net *net) {
    for (size_t i = 0; i < sizeof net->batches / sizeof *net->batches; i++) {
        cancel(&net->batches[i]);
    }
    const uint64_t limit = gs_clock_ns() + 100000000u;
    while (!are_complete(net)) {
        if (gs_clock_ns() >= limit) {
            return true;
        }
    }
    return false;
}

bool gs_messages_close(gs_net *net) {
    bool is_pinned = false;
    if (gs_mpi_is_running()) {
        pthread_mutex_lock(&mpi_calls);
        is_pinned = cancel_all(net);
        pthread_mutex_unlock(&mpi_calls);
    }
    free_all(net);
    return is_pinned;
}
