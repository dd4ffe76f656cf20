/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/messages_nccl.h"

#include "base/memory.h"
#include "collective/internal_nccl.h"

#include <string.h>

typedef enum stage {
    IDLE,
    QUEUEING, /* NCCL has not put it on the stream yet */
    RETURNING /* on the stream, and behind it the copy back */
} stage;

struct gs_net {
    gs_nccl_messages_place place;
    gs_nccl *nccl; /* NULL before it is connected */
    void *stream;
    void *event;
    unsigned char *pinned; /* what is sent lies before what is received; on the device likewise */
    unsigned char *staged;
    size_t bytes_max;
    gs_nccl_message *messages;
    gs_net_transfer *receives;
    size_t transfers_max;
    size_t message_count;
    size_t receive_count;
    size_t sent_end;
    size_t end;
    stage stage;
    gs_net_stream posted_stream;
    uint32_t posted_slot;
    _Atomic uint64_t bytes_sent; /* also read while others send */
};

enum { LINE = 128 };

static size_t round_up(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

/* ---- life ---- */

/* Every rank is a host: to and from each of the others goes one message. */
static size_t room_for(const gs_net *net, const gs_net_load *loads) {
    size_t most = 0;
    for (int i = 0; i < GS_NET_STREAMS; i++) {
        const size_t bytes = net->transfers_max * round_up(loads[i].bytes_max);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static gsync_status allocate(gs_net *net, const gs_net_load *loads) {
    const gs_nccl_device_ops *ops = net->place.ops;
    void *device = net->place.device;
    net->transfers_max = 2 * (size_t)net->place.world_size;
    net->bytes_max = room_for(net, loads);
    GS_TRY(gs_memory_new(&net->messages, net->transfers_max, sizeof *net->messages, "messages over NCCL"));
    GS_TRY(gs_memory_new(&net->receives, net->transfers_max, sizeof *net->receives, "messages over NCCL"));
    GS_TRY(ops->stream_new(device, &net->stream));
    GS_TRY(ops->event_new(device, &net->event));
    GS_TRY(ops->pinned_new(device, (void **)&net->pinned, net->bytes_max));
    return ops->memory_new(device, (void **)&net->staged, net->bytes_max);
}

/* When nothing of it is on the device any more. */
static void free_all(void *argument) {
    gs_net *net = argument;
    const gs_nccl_device_ops *ops = net->place.ops;
    void *device = net->place.device;
    if (net->staged != NULL) {
        ops->memory_free(device, net->staged);
    }
    if (net->pinned != NULL) {
        ops->pinned_free(device, net->pinned);
    }
    if (net->event != NULL) {
        ops->event_free(device, net->event);
    }
    if (net->stream != NULL) {
        ops->stream_free(device, net->stream);
    }
    ops->release(device);
    gs_memory_free(net->messages);
    gs_memory_free(net->receives);
    gs_memory_free(net);
}

gsync_status gs_nccl_messages_open(const gs_nccl_messages_place *place, const gs_net_load *loads, gs_net **out) {
    gs_net *net = NULL;
    GS_TRY(gs_memory_new(&net, 1, sizeof *net, "messages over NCCL"));
    net->place = *place;
    place->ops->hold(place->device);
    const gsync_status status = allocate(net, loads);
    if (status != GSYNC_OK) {
        free_all(net);
        return status;
    }
    *out = net;
    return GSYNC_OK;
}

void gs_nccl_messages_connect(gs_net *net, gs_nccl *nccl) {
    net->nccl = nccl;
}

void gs_nccl_messages_give_up(gs_net *net) {
    gs_nccl_abort(net->nccl);
}

bool gs_nccl_messages_close(gs_net *net) {
    gs_nccl_close_then(net->nccl, free_all, net);
    return false;
}

uint64_t gs_nccl_messages_bytes_sent(const gs_net *net) {
    return atomic_load_explicit(&net->bytes_sent, memory_order_relaxed);
}

/* ---- posting ---- */

static gsync_status add_message(gs_net *net, const gs_net_transfer *transfer, size_t offset) {
    if (net->message_count == net->transfers_max || offset + transfer->bytes > net->bytes_max) {
        return gs_fail(GSYNC_ERR_INTERNAL, "more messages were posted over NCCL than there is room for");
    }
    net->messages[net->message_count++] = (gs_nccl_message){
        .data = net->staged + offset, .bytes = transfer->bytes, .peer = transfer->host, .is_send = transfer->is_send};
    return GSYNC_OK;
}

/* What goes to all alike is copied once. */
static gsync_status add_sends(gs_net *net, const gs_net_transfer *transfers, size_t count) {
    const gs_net_transfer *last = NULL;
    size_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        const gs_net_transfer *transfer = &transfers[i];
        if (!transfer->is_send) {
            continue;
        }
        const bool is_same = last != NULL && last->buffer == transfer->buffer && last->bytes == transfer->bytes;
        offset = is_same ? offset : net->end;
        GS_TRY(add_message(net, transfer, offset));
        if (!is_same) {
            memcpy(net->pinned + offset, transfer->buffer, transfer->bytes);
            net->end += round_up(transfer->bytes);
        }
        atomic_fetch_add_explicit(&net->bytes_sent, transfer->bytes, memory_order_relaxed);
        last = transfer;
    }
    net->sent_end = net->end;
    return GSYNC_OK;
}

static gsync_status add_receives(gs_net *net, const gs_net_transfer *transfers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!transfers[i].is_send) {
            GS_TRY(add_message(net, &transfers[i], net->end));
            net->receives[net->receive_count++] = transfers[i];
            net->end += round_up(transfers[i].bytes);
        }
    }
    return GSYNC_OK;
}

gsync_status gs_nccl_messages_post(gs_net *net, gs_net_stream stream, uint32_t slot, const gs_net_transfer *transfers,
                                   size_t count) {
    if (count == 0) {
        return GSYNC_OK;
    }
    if (net->stage != IDLE) {
        return gs_fail(GSYNC_ERR_INTERNAL, "messages over NCCL were posted while others were under way");
    }
    net->message_count = 0;
    net->receive_count = 0;
    net->end = 0;
    GS_TRY(add_sends(net, transfers, count));
    GS_TRY(add_receives(net, transfers, count));
    if (net->sent_end != 0) {
        GS_TRY(net->place.ops->copy(net->place.device, net->staged, net->pinned, net->sent_end, net->stream));
    }
    GS_TRY(gs_nccl_exchange(net->nccl, net->messages, net->message_count, net->stream));
    net->posted_stream = stream;
    net->posted_slot = slot;
    net->stage = QUEUEING;
    return GSYNC_OK;
}

/* ---- testing ---- */

static gsync_status copy_back(gs_net *net) {
    const gs_nccl_device_ops *ops = net->place.ops;
    bool is_going_on = false;
    GS_TRY(gs_nccl_poll(net->nccl, &is_going_on));
    if (is_going_on) {
        return GSYNC_OK;
    }
    if (net->end != net->sent_end) {
        GS_TRY(ops->copy(net->place.device, net->pinned + net->sent_end, net->staged + net->sent_end,
                         net->end - net->sent_end, net->stream));
    }
    GS_TRY(ops->record(net->place.device, net->event, net->stream));
    net->stage = RETURNING;
    return GSYNC_OK;
}

static void deliver(gs_net *net) {
    size_t offset = net->sent_end;
    for (size_t i = 0; i < net->receive_count; i++) {
        memcpy(net->receives[i].buffer, net->pinned + offset, net->receives[i].bytes);
        offset += round_up(net->receives[i].bytes);
    }
    net->stage = IDLE;
}

static gsync_status look_for_end(gs_net *net) {
    bool is_through = false;
    /* Operations that NCCL ended early have ended for the device too. */
    GS_TRY(net->place.ops->is_done(net->place.device, net->event, &is_through));
    GS_TRY(gs_nccl_check(net->nccl));
    if (is_through) {
        deliver(net);
    }
    return GSYNC_OK;
}

gsync_status gs_nccl_messages_test(gs_net *net, gs_net_stream stream, uint32_t slot, bool *is_done) {
    const bool is_posted = net->stage != IDLE && net->posted_stream == stream && net->posted_slot == slot;
    *is_done = !is_posted;
    if (is_posted && net->stage == QUEUEING) {
        GS_TRY(copy_back(net));
    }
    if (is_posted && net->stage == RETURNING) {
        GS_TRY(look_for_end(net));
        *is_done = net->stage == IDLE;
    }
    return GSYNC_OK;
}
