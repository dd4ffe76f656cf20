/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"
#include "collective/lane_internal.h"

#include <assert.h>
#include <string.h>

/* ---- layout: what lies where in a lane's memory, the same on every rank of the host ---- */

enum { LINE = 128 };

typedef struct lane_layout {
    size_t headers[2];
    size_t mail[2];
    size_t mail_stride;
    size_t slots;
    size_t slot_stride;
    size_t rings;
    size_t ring_stride;
    size_t host_sum;
    size_t total;
} lane_layout;

static size_t round_up(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

static lane_layout lay_out(const gs_lane_shape *shape, int local_count, int world_size, int host_count) {
    lane_layout layout;
    size_t at = round_up(sizeof(gs_lane_shared) + (size_t)local_count * sizeof(gs_lane_flags));
    layout.mail_stride = round_up(sizeof(uint64_t) + shape->mail_bytes);
    layout.slot_stride = round_up(shape->slot_bytes);
    for (int parity = 0; parity < 2; parity++) {
        layout.headers[parity] = at;
        at = round_up(at + (size_t)world_size * sizeof(gs_lane_header));
        layout.mail[parity] = at;
        at += (size_t)world_size * layout.mail_stride;
    }
    layout.slots = at;
    at += (size_t)local_count * layout.slot_stride;
    layout.rings = at;
    layout.ring_stride = round_up(shape->ring_bytes);
    at += (size_t)local_count * layout.ring_stride;
    layout.host_sum = at;
    at += host_count > 1 ? round_up(shape->reduce_bytes_max) : 0;
    layout.total = at;
    return layout;
}

size_t gs_lane_ring_bytes(size_t bytes_max) {
    /* All pieces of a rank's ring, and what is packed into them, fit into the second-level cache. */
    const size_t piece_max = 128 * 1024;
    return GS_FLOW_PLACES * (bytes_max < piece_max ? round_up(bytes_max + 1) : piece_max);
}

size_t gs_lane_memory_bytes(const gs_lane_shape *shape, int local_count, int world_size, int host_count) {
    return lay_out(shape, local_count, world_size, host_count).total;
}

static void place(gs_lane *lane, const lane_layout *layout) {
    unsigned char *memory = lane->memory;
    lane->shared = (gs_lane_shared *)(void *)memory;
    for (int parity = 0; parity < 2; parity++) {
        lane->headers[parity] = (gs_lane_header *)(void *)(memory + layout->headers[parity]);
        lane->mail[parity] = memory + layout->mail[parity];
    }
    lane->mail_stride = layout->mail_stride;
    lane->slots = memory + layout->slots;
    lane->slot_stride = layout->slot_stride;
    lane->rings = memory + layout->rings;
    lane->ring_stride = layout->ring_stride;
    lane->host_sum = memory + layout->host_sum;
}

/* ---- private parts ---- */

static void close_and_free(gs_lane *lane) {
    gs_group *group = lane->group;
    /* A message that MPI will not give back keeps the memory that it reads or writes; better lost than torn. */
    const bool is_pinned = lane->net != NULL && group->ops->net_close(lane->net);
    if (!is_pinned) {
        gs_memory_free(lane->received);
        gs_memory_free(lane->encoded);
    }
    gs_memory_free(lane->decoded);
    if (lane->owns_segment && !is_pinned) {
        group->ops->segment_release(&lane->segment);
    }
    group->is_pinned = group->is_pinned || (is_pinned && !lane->owns_segment);
    gs_memory_free(lane->transfers);
    gs_memory_free((void *)lane->sources);
    gs_memory_free((void *)lane->targets);
    gs_memory_free(lane);
}

/* A part for each host in each slot that an operation can use: a small one has few pieces. */
static size_t received_bytes(const gs_lane *lane) {
    const size_t room = lane->shape.ring_bytes / GS_FLOW_PLACES;
    const size_t block = lane->shape.block_bytes != 0 ? lane->shape.block_bytes : 1;
    const size_t pieces = lane->shape.wire_bytes_max / (room / block * block) + 1;
    const size_t slots = pieces < GS_NET_WINDOW ? pieces : GS_NET_WINDOW;
    return slots * (size_t)lane->group->host_count * lane->received_stride;
}

static gsync_status allocate_network(gs_lane *lane, uint32_t lane_id) {
    const gs_group *group = lane->group;
    const size_t transfers_max = 2u * (size_t)group->world_size * (size_t)group->host_count;
    /* This host's part of a piece, or all of a short operation, in the wide type. */
    const size_t piece = lane->shape.ring_bytes / GS_FLOW_PLACES * lane->shape.widening_max;
    lane->received_stride = round_up(piece / (size_t)group->host_count + GS_SHORT_BYTES);
    GS_TRY(gs_memory_new_aligned(&lane->received, received_bytes(lane), "parts received from other hosts"));
    if (lane->shape.block_bytes != 0) {
        const size_t decoded = (size_t)group->host_count * lane->received_stride;
        GS_TRY(gs_memory_new_aligned(&lane->encoded, received_bytes(lane), "parts for other hosts"));
        GS_TRY(gs_memory_new_aligned(&lane->decoded, decoded, "parts of other hosts"));
    }
    GS_TRY(gs_memory_new(&lane->transfers, transfers_max, sizeof *lane->transfers, "messages between hosts"));
    const size_t headers = (size_t)group->world_size * sizeof(gs_lane_header);
    const size_t mail = round_up(sizeof(uint64_t) + lane->shape.mail_bytes);
    const gs_net_load whole = {transfers_max, headers > mail ? headers : mail};
    const gs_net_load parts = {2u * (size_t)group->host_count, lane->received_stride};
    const gs_net_load loads[GS_NET_STREAMS] = {[GS_NET_WHOLE] = whole, [GS_NET_PARTS] = parts, [GS_NET_SUMS] = parts};
    return group->ops->net_open(group->transport, lane_id, loads, &lane->net);
}

static gsync_status allocate_private(gs_group *group, const gs_lane_shape *shape, gs_lane **out) {
    const size_t most = (size_t)(group->local_count > group->host_count ? group->local_count : group->host_count);
    gs_lane *lane = NULL;
    gsync_status status = GSYNC_OK;
    GS_TRY(gs_memory_new(&lane, 1, sizeof *lane, "lane"));
    lane->group = group;
    lane->shape = *shape;
    GS_TRY_OR(gs_memory_new(&lane->sources, most, sizeof *lane->sources, "lane sources"), fail);
    GS_TRY_OR(gs_memory_new(&lane->targets, most, sizeof *lane->targets, "lane targets"), fail);
    if (group->host_count > 1 && group->local_rank == 0) {
        GS_TRY_OR(allocate_network(lane, group->lane_count), fail);
    }
    *out = lane;
    return GSYNC_OK;
fail:
    close_and_free(lane);
    return status;
}

gsync_status gs_lane_open_in(gs_group *group, const gs_lane_shape *shape, void *memory, gs_lane **out) {
    gs_lane *lane;
    GS_TRY(allocate_private(group, shape, &lane));
    group->lane_count++;
    const lane_layout layout = lay_out(shape, group->local_count, group->world_size, group->host_count);
    lane->memory = memory;
    place(lane, &layout);
    *out = lane;
    return GSYNC_OK;
}

/* ---- opening together ---- */

gsync_status gs_lane_attach(gs_lane *lane, int rank, size_t bytes, gs_segment *segment) {
    const gs_group *group = lane->group;
    char token[GS_TOKEN_MAX];
    gs_lane_agreed_token(lane, rank, token);
    /* As for data of others: if they give up while we attach, they wait for us before they free the memory. */
    GS_TRY(gs_lane_enter(lane));
    const gsync_status status = group->ops->segment_attach(token, bytes, segment);
    gs_lane_leave(lane);
    return status;
}

static gsync_status create_segment(gs_group *group, gs_lane *lane, const lane_layout *layout) {
    GS_TRY(group->ops->segment_create(group->transport, layout->total, &lane->segment));
    lane->owns_segment = true;
    return GSYNC_OK;
}

static gsync_status attach_segment(gs_group *group, gs_lane *lane, const lane_layout *layout) {
    if (group->local_rank == 0) {
        return GSYNC_OK;
    }
    GS_TRY(gs_lane_attach(group->control, gs_group_local_to_rank(group, 0), layout->total, &lane->segment));
    lane->owns_segment = true;
    return GSYNC_OK;
}

gsync_status gs_lane_open(gs_group *group, const gs_lane_shape *shape, gs_lane **out) {
    const lane_layout layout = lay_out(shape, group->local_count, group->world_size, group->host_count);
    gs_lane *lane = NULL;
    gsync_status status = allocate_private(group, shape, &lane);
    group->lane_count++; /* also after a failure: the number must stay the same on all ranks */
    if (status == GSYNC_OK && group->local_rank == 0) {
        status = create_segment(group, lane, &layout);
    }
    GS_TRY_OR(gs_lane_agree(group->control, "bucket memory", status, lane != NULL ? lane->segment.token : NULL), fail);
    assert(lane != NULL);
    status = attach_segment(group, lane, &layout);
    GS_TRY_OR(gs_lane_agree(group->control, "bucket mapping", status, NULL), fail);
    if (group->local_rank == 0) {
        group->ops->segment_settle(&lane->segment);
    }
    if (lane->net != NULL && group->ops->net_connect != NULL) {
        GS_TRY_OR(group->ops->net_connect(group, lane->net), fail);
    }
    assert(lane->segment.base != NULL);
    lane->memory = lane->segment.base;
    place(lane, &layout);
    *out = lane;
    return GSYNC_OK;
fail:
    if (lane != NULL) {
        close_and_free(lane);
    }
    return status;
}

void gs_lane_retire(gs_lane *lane) {
    atomic_store(&lane->shared->flags[lane->group->local_rank].is_closed, 1);
    gs_group_ring_all(lane->group);
    gs_lane_retract(lane);
    if (lane->broken == GSYNC_OK) {
        lane->broken = GSYNC_ERR_STATE;
    }
}

void gs_lane_close(gs_lane *lane) {
    if (lane == NULL) {
        return;
    }
    gs_lane_retire(lane);
    close_and_free(lane);
}

/* ---- looking inside ---- */

unsigned char *gs_lane_slots(gs_lane *lane) {
    return lane->slots + (size_t)lane->group->local_rank * lane->slot_stride;
}

int gs_lane_world_size(const gs_lane *lane) {
    return lane->group->world_size;
}

uint64_t gs_lane_bytes_sent(const gs_lane *lane) {
    return lane != NULL && lane->net != NULL ? lane->group->ops->net_bytes_sent(lane->net) : 0;
}

size_t gs_lane_mail_max(const gs_lane *lane) {
    return lane->shape.mail_bytes;
}

const void *gs_lane_mail(const gs_lane *lane, int rank, size_t *bytes) {
    const gs_group *group = lane->group;
    const unsigned char *box = lane->mail[lane->sequence & 1u] + (size_t)group->seat_of_rank[rank] * lane->mail_stride;
    uint64_t length;
    memcpy(&length, box, sizeof length);
    *bytes = (size_t)length;
    return box + sizeof length;
}
