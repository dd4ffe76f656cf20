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

typedef struct part {
    unsigned char *data;
    size_t bytes;
} part;

static size_t wide_size(const gs_lane *lane) {
    return gsync_dtype_size(gs_dtype_wide(lane->operation.dtype));
}

static bool is_short(const gs_lane *lane) {
    return lane->operation.count * wide_size(lane) <= GS_SHORT_BYTES;
}

/* What of the piece a host adds up. */
static part part_of(const gs_lane *lane, uint32_t piece, int host) {
    size_t first;
    size_t count;
    size_t part_first = 0;
    size_t part_count;
    gs_lane_piece(lane, piece, &first, &count);
    part_count = count;
    if (!is_short(lane)) {
        gs_shard_split(count, lane->group->host_count, host, &part_first, &part_count);
    }
    return (part){lane->host_sum + (first + part_first) * wide_size(lane), part_count * wide_size(lane)};
}

static unsigned char *received_from(const gs_lane *lane, uint32_t piece, int host) {
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

static gsync_status send_parts(gs_lane *lane, uint32_t piece) {
    const gs_group *group = lane->group;
    const part own = part_of(lane, piece, group->host);
    size_t n = 0;
    for (int host = 0; host < group->host_count; host++) {
        if (host != group->host) {
            const part theirs = part_of(lane, piece, host);
            n = gs_lane_add_transfer(lane, n, host, theirs.data, theirs.bytes, true);
            n = gs_lane_add_transfer(lane, n, host, received_from(lane, piece, host), own.bytes, false);
        }
    }
    return group->ops->net_post(lane->net, GS_NET_PARTS, piece % GS_NET_WINDOW, lane->transfers, n);
}

static void add_parts(gs_lane *lane, uint32_t piece) {
    const gs_group *group = lane->group;
    const part own = part_of(lane, piece, group->host);
    for (int host = 0; host < group->host_count; host++) {
        lane->sources[host] = host == group->host ? own.data : received_from(lane, piece, host);
    }
    lane->targets[0] = own.data;
    const gsync_dtype wide = gs_dtype_wide(lane->operation.dtype);
    const gs_shard_job job = {
        .sources = lane->sources,
        .source_count = group->host_count,
        .source_dtype = wide,
        .targets = lane->targets,
        .target_count = 1,
        .target_dtype = wide,
        .op = lane->operation.op,
        .divisor = 1.0,
        .first = 0,
        .count = own.bytes / wide_size(lane),
    };
    gs_shard_reduce(&job);
}

static gsync_status send_sums(gs_lane *lane, uint32_t piece) {
    const gs_group *group = lane->group;
    const part own = part_of(lane, piece, group->host);
    size_t n = 0;
    for (int host = 0; host < group->host_count && !is_short(lane); host++) {
        if (host != group->host) {
            const part theirs = part_of(lane, piece, host);
            n = gs_lane_add_transfer(lane, n, host, own.data, own.bytes, true);
            n = gs_lane_add_transfer(lane, n, host, theirs.data, theirs.bytes, false);
        }
    }
    return group->ops->net_post(lane->net, GS_NET_SUMS, piece % GS_NET_WINDOW, lane->transfers, n);
}

/* ---- progress: in each phase pieces follow each other in the same order on all hosts ---- */

static gsync_status test(gs_lane *lane, gs_net_stream stream, uint32_t piece, bool *is_done) {
    return lane->group->ops->net_test(lane->net, stream, piece % GS_NET_WINDOW, is_done);
}

static gsync_status send_next(gs_lane *lane, bool *moved) {
    gs_lane_flow *flow = &lane->flow;
    if (flow->sent < flow->cleared && flow->sent - flow->known < GS_NET_WINDOW) {
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
