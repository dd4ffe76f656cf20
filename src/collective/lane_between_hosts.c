/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"
#include "collective/lane_internal.h"
#include "collective/shard.h"

/*
 * Between hosts the first ranks exchange directly: every host gets its part of all hosts' sums, adds them in the
 * order of hosts, and sends the result to all. 2 (H - 1) / H of the bytes, as a ring, and one order of summation
 * whatever the part.
 */

static size_t add_transfer(gs_lane *lane, size_t n, int host, void *buffer, size_t bytes, bool is_send) {
    if (bytes != 0) {
        lane->transfers[n] = (gs_net_transfer){.buffer = buffer, .bytes = bytes, .host = host, .is_send = is_send};
        n++;
    }
    return n;
}

static size_t seats_of(const gs_group *group, int host) {
    return (size_t)(group->host_first_seat[host + 1] - group->host_first_seat[host]);
}

gsync_status gs_lane_send_headers(gs_lane *lane) {
    const gs_group *group = lane->group;
    gs_lane_header *headers = gs_lane_headers(lane);
    size_t n = 0;
    for (int host = 0; host < group->host_count; host++) {
        if (host != group->host) {
            headers[group->host_first_seat[host]].kind = 0; /* still missing, should the deadline pass */
            n = add_transfer(lane, n, host, &headers[group->host_first_seat[group->host]],
                             seats_of(group, group->host) * sizeof *headers, true);
            n = add_transfer(lane, n, host, &headers[group->host_first_seat[host]],
                             seats_of(group, host) * sizeof *headers, false);
        }
    }
    return group->ops->net_post(lane->net, lane->transfers, n);
}

/* One message per seat and direction: boxes are as long as the longest mail, most of it unused. */
static size_t add_mail(gs_lane *lane, size_t n, int seats_host, int host, bool is_send) {
    const gs_group *group = lane->group;
    for (int seat = group->host_first_seat[seats_host]; seat < group->host_first_seat[seats_host + 1]; seat++) {
        unsigned char *box = lane->mail[lane->sequence & 1u] + (size_t)seat * lane->mail_stride;
        n = add_transfer(lane, n, host, box, sizeof(uint64_t) + gs_lane_headers(lane)[seat].mail_bytes, is_send);
    }
    return n;
}

gsync_status gs_lane_send_mail(gs_lane *lane) {
    const gs_group *group = lane->group;
    size_t n = 0;
    for (int host = 0; host < group->host_count; host++) {
        if (host != group->host) {
            n = add_mail(lane, n, group->host, host, true);
            n = add_mail(lane, n, host, host, false);
        }
    }
    return group->ops->net_post(lane->net, lane->transfers, n);
}

static size_t wide_size(const gs_lane *lane) {
    return gsync_dtype_size(gs_dtype_wide(lane->operation.dtype));
}

/* The part of the host sum that a host finishes. */
static unsigned char *part_of(const gs_lane *lane, int host, size_t *bytes) {
    size_t first;
    size_t length;
    gs_shard_split(lane->operation.count, lane->group->host_count, host, &first, &length);
    *bytes = length * wide_size(lane);
    return lane->host_sum + first * wide_size(lane);
}

static unsigned char *received_from(const gs_lane *lane, int host) {
    size_t bytes;
    (void)part_of(lane, lane->group->host, &bytes);
    return lane->received + (size_t)host * bytes;
}

gsync_status gs_lane_send_shards(gs_lane *lane) {
    const gs_group *group = lane->group;
    size_t n = 0;
    for (int host = 0; host < group->host_count; host++) {
        if (host != group->host) {
            size_t their_bytes;
            size_t own_bytes;
            unsigned char *theirs = part_of(lane, host, &their_bytes);
            (void)part_of(lane, group->host, &own_bytes);
            n = add_transfer(lane, n, host, theirs, their_bytes, true);
            n = add_transfer(lane, n, host, received_from(lane, host), own_bytes, false);
        }
    }
    return group->ops->net_post(lane->net, lane->transfers, n);
}

void gs_lane_add_shards(gs_lane *lane) {
    const gs_group *group = lane->group;
    size_t bytes;
    unsigned char *own = part_of(lane, group->host, &bytes);
    for (int host = 0; host < group->host_count; host++) {
        lane->sources[host] = host == group->host ? own : received_from(lane, host);
    }
    lane->targets[0] = own;
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
        .count = bytes / wide_size(lane),
    };
    gs_shard_reduce(&job);
}

gsync_status gs_lane_send_sums(gs_lane *lane) {
    const gs_group *group = lane->group;
    size_t n = 0;
    for (int host = 0; host < group->host_count; host++) {
        if (host != group->host) {
            size_t bytes;
            unsigned char *own = part_of(lane, group->host, &bytes);
            n = add_transfer(lane, n, host, own, bytes, true);
            unsigned char *theirs = part_of(lane, host, &bytes);
            n = add_transfer(lane, n, host, theirs, bytes, false);
        }
    }
    return group->ops->net_post(lane->net, lane->transfers, n);
}
