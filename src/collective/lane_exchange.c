/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"
#include "collective/lane_internal.h"
#include "collective/shard.h"

/*
 * Between hosts the first ranks exchange directly, piece by piece: every host gets its part of all hosts' sums, adds
 * them in the order of hosts, and sends the result to all. 2 (H - 1) / H of the bytes, as a ring, in two phases
 * instead of 2 (H - 1), and one order of summation whatever the part.
 *
 * A short operation has one phase: every host gets all of all hosts' sums, and adds them up itself. The order, and so
 * the bits, are the same.
 *
 * While pieces are on their way the ranks of the host add up the next, and take those that have come back.
 */

static size_t wide_size(const gs_lane *lane) {
    return gsync_dtype_size(gs_dtype_wide(lane->operation.dtype));
}

static bool is_narrow(const gs_lane *lane) {
    return lane->operation.wire != NULL;
}

bool gs_lane_is_short(const gs_lane *lane) {
    return lane->operation.count * wide_size(lane) <= GS_SHORT_BYTES;
}

bool gs_lane_is_added_by_all(const gs_lane *lane, size_t count) {
    return lane->group->host_count > 1 && count * sizeof(float) <= GS_SHORT_BYTES;
}

gs_lane_part gs_lane_part_of(const gs_lane *lane, uint32_t piece, int host) {
    size_t first;
    size_t count;
    gs_lane_part part = {.first = 0};
    gs_lane_piece(lane, piece, &first, &count);
    part.count = count;
    if (!gs_lane_is_short(lane)) {
        gs_shard_split_blocks(count, gs_lane_block(lane), lane->group->host_count, host, &part.first, &part.count);
    }
    part.first += first;
    part.data = lane->host_sum + part.first * wide_size(lane);
    return part;
}

unsigned char *gs_lane_received_from(const gs_lane *lane, uint32_t piece, int host) {
    const size_t slot = (size_t)(piece % GS_NET_WINDOW) * (size_t)lane->group->host_count + (size_t)host;
    return lane->received + slot * lane->received_stride;
}

size_t gs_lane_add_transfer(gs_lane *lane, size_t n, int host, void *buffer, size_t bytes, bool is_send) {
    if (bytes != 0) {
        lane->transfers[n] = (gs_net_transfer){.buffer = buffer, .bytes = bytes, .host = host, .is_send = is_send};
        n++;
    }
    return n;
}

/* ---- what goes out and comes in, as it lies in host_sum or as the wire has it ---- */

static size_t add_send(gs_lane *lane, size_t n, uint32_t piece, int host, const gs_lane_part *part) {
    void *data = is_narrow(lane) ? gs_lane_encoded(lane, piece, part) : part->data;
    return gs_lane_add_transfer(lane, n, host, data, gs_lane_wire_bytes(lane, part->count), true);
}

static size_t add_receive(gs_lane *lane, size_t n, int host, void *to, const gs_lane_part *part) {
    return gs_lane_add_transfer(lane, n, host, to, gs_lane_wire_bytes(lane, part->count), false);
}

static gsync_status send_parts(gs_lane *lane, uint32_t piece) {
    const gs_group *group = lane->group;
    const gs_lane_part own = gs_lane_part_of(lane, piece, group->host);
    size_t n = 0;
    if (is_narrow(lane)) {
        gs_lane_encode_parts(lane, piece);
    }
    for (int host = 0; host < group->host_count; host++) {
        if (host != group->host) {
            const gs_lane_part theirs = gs_lane_part_of(lane, piece, host);
            n = add_send(lane, n, piece, host, &theirs);
            n = add_receive(lane, n, host, gs_lane_received_from(lane, piece, host), &own);
        }
    }
    return group->ops->net_post(lane->net, GS_NET_PARTS, piece % GS_NET_WINDOW, lane->transfers, n);
}

static void list_sources(gs_lane *lane, uint32_t piece, const gs_lane_part *own) {
    for (int host = 0; host < lane->group->host_count; host++) {
        if (host == lane->group->host) {
            lane->sources[host] = own->data;
        } else {
            lane->sources[host] =
                is_narrow(lane) ? gs_lane_decode_part(lane, piece, host) : gs_lane_received_from(lane, piece, host);
        }
    }
}

static void add_parts(gs_lane *lane, uint32_t piece) {
    const gs_group *group = lane->group;
    const gs_lane_part own = gs_lane_part_of(lane, piece, group->host);
    list_sources(lane, piece, &own);
    lane->targets[0] = own.data;
    const gsync_dtype wide = gs_dtype_wide(lane->operation.dtype);
    gs_findings found = {.nonfinite_source = -1};
    const gs_shard_job job = {
        .sources = lane->sources,
        .source_count = group->host_count,
        .source_dtype = wide,
        .targets = lane->targets,
        .target_count = 1,
        .target_dtype = wide,
        .op = lane->operation.op,
        .divisor = gs_lane_divisor(lane),
        .count = own.count,
        .findings = lane->operation.looks && !is_narrow(lane) ? &found : NULL,
    };
    gs_shard_reduce(&job);
    if (is_narrow(lane)) {
        gs_lane_encode_result(lane, piece);
    } else {
        gs_lane_note_part(lane, &own, &found);
    }
}

static gsync_status send_sums(gs_lane *lane, uint32_t piece) {
    const gs_group *group = lane->group;
    const gs_lane_part own = gs_lane_part_of(lane, piece, group->host);
    size_t n = 0;
    for (int host = 0; host < group->host_count && !gs_lane_is_short(lane); host++) {
        if (host != group->host) {
            const gs_lane_part theirs = gs_lane_part_of(lane, piece, host);
            void *to = is_narrow(lane) ? gs_lane_received_from(lane, piece, host) : theirs.data;
            n = add_send(lane, n, piece, host, &own);
            n = add_receive(lane, n, host, to, &theirs);
        }
    }
    return group->ops->net_post(lane->net, GS_NET_SUMS, piece % GS_NET_WINDOW, lane->transfers, n);
}

/* ---- progress: in each phase pieces follow each other in the same order on all hosts ---- */

static gsync_status test(gs_lane *lane, gs_net_stream stream, uint32_t piece, bool *is_done) {
    return lane->group->ops->net_test(lane->net, stream, piece % GS_NET_WINDOW, is_done);
}

static uint32_t window_of(const gs_lane *lane) {
    const uint32_t window = lane->group->ops->net_window;
    return window != 0 ? window : GS_NET_WINDOW;
}

static gsync_status send_next(gs_lane *lane, bool *moved) {
    gs_lane_flow *flow = &lane->flow;
    if (flow->sent < flow->cleared && flow->sent - flow->known < window_of(lane)) {
        GS_TRY(send_parts(lane, flow->sent));
        flow->sent++;
        *moved = true;
    }
    return GSYNC_OK;
}

static gsync_status add_next(gs_lane *lane, bool *moved) {
    gs_lane_flow *flow = &lane->flow;
    bool is_done = false;
    if (flow->united < flow->sent) {
        GS_TRY(test(lane, GS_NET_PARTS, flow->united, &is_done));
    }
    if (is_done) {
        add_parts(lane, flow->united);
        GS_TRY(send_sums(lane, flow->united));
        flow->united++;
        *moved = true;
    }
    return GSYNC_OK;
}

static gsync_status publish_next(gs_lane *lane, bool *moved) {
    gs_lane_flow *flow = &lane->flow;
    bool is_done = false;
    if (flow->known < flow->united) {
        GS_TRY(test(lane, GS_NET_SUMS, flow->known, &is_done));
    }
    if (is_done) {
        if (is_narrow(lane) && !gs_lane_is_short(lane)) {
            gs_lane_decode_results(lane, flow->known);
        }
        flow->known++;
        gs_lane_announce(lane, &lane->shared->pieces_known, flow->base + flow->known);
        *moved = true;
    }
    return GSYNC_OK;
}

gsync_status gs_lane_exchange_advance(gs_lane *lane, bool *moved) {
    *moved = false;
    GS_TRY(send_next(lane, moved));
    GS_TRY(add_next(lane, moved));
    return publish_next(lane, moved);
}
