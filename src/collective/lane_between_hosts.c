/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/lane_internal.h"

/* Headers and mail, which the first ranks of the hosts give each other whole. */

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
            n = gs_lane_add_transfer(lane, n, host, &headers[group->host_first_seat[group->host]],
                                     seats_of(group, group->host) * sizeof *headers, true);
            n = gs_lane_add_transfer(lane, n, host, &headers[group->host_first_seat[host]],
                                     seats_of(group, host) * sizeof *headers, false);
        }
    }
    return group->ops->net_post(lane->net, GS_NET_WHOLE, 0, lane->transfers, n);
}

/* One message per seat and direction: boxes are as long as the longest mail, most of it unused. */
static size_t add_mail(gs_lane *lane, size_t n, int seats_host, int host, bool is_send) {
    const gs_group *group = lane->group;
    for (int seat = group->host_first_seat[seats_host]; seat < group->host_first_seat[seats_host + 1]; seat++) {
        unsigned char *box = lane->mail[lane->sequence & 1u] + (size_t)seat * lane->mail_stride;
        n = gs_lane_add_transfer(lane, n, host, box, sizeof(uint64_t) + gs_lane_headers(lane)[seat].mail_bytes,
                                 is_send);
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
    return group->ops->net_post(lane->net, GS_NET_WHOLE, 0, lane->transfers, n);
}
