/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/group.h"

#include "base/memory.h"
#include "collective/lane.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* The communicator's own calls travel in pieces of this size: a piece of every rank fits into the cache. */
static const gs_lane_shape control_shape = {.mail_bytes = 64 * 1024,
                                            .slot_bytes = 256 * 1024,
                                            .ring_bytes = 4 * 32 * 1024,
                                            .wire_bytes_max = 256 * 1024,
                                            .reduce_bytes_max = 4 * 256 * 1024,
                                            .widening_max = sizeof(int64_t)};

static size_t shared_bytes(int local_count) {
    const size_t bytes = sizeof(gs_group_shared) + (size_t)local_count * sizeof(gs_bell);
    return (bytes + 127) / 128 * 128;
}

size_t gs_group_segment_bytes(int local_count, int world_size, int host_count) {
    return shared_bytes(local_count) + gs_lane_memory_bytes(&control_shape, local_count, world_size, host_count);
}

static void seat_ranks(gs_group *group, const int *hosts) {
    int seat = 0;
    group->host = hosts[group->rank];
    for (int host = 0; host < group->host_count; host++) {
        group->host_first_seat[host] = seat;
        for (int rank = 0; rank < group->world_size; rank++) {
            if (hosts[rank] == host) {
                group->rank_of_seat[seat] = rank;
                group->seat_of_rank[rank] = seat;
                group->local_rank = rank == group->rank ? seat - group->host_first_seat[host] : group->local_rank;
                seat++;
            }
        }
    }
    group->host_first_seat[group->host_count] = seat;
    group->local_count = group->host_first_seat[group->host + 1] - group->host_first_seat[group->host];
}

static int count_hosts(const int *hosts, int world_size) {
    int most = 0;
    for (int rank = 0; rank < world_size; rank++) {
        most = hosts[rank] > most ? hosts[rank] : most;
    }
    return most + 1;
}

static void free_parts(gs_group *group) {
    gs_memory_free(group->host_first_seat);
    gs_memory_free(group->rank_of_seat);
    gs_memory_free(group->seat_of_rank);
    gs_memory_free(group);
}

gsync_status gs_group_create(gs_group **out, int rank, int world_size, const int *hosts, const gs_transport_ops *ops,
                             void *transport, const gs_segment *segment, uint32_t timeout_ms, const gs_logger *logger) {
    gsync_status status = GSYNC_OK;
    gs_group *group = NULL;
    GS_TRY_OR(gs_memory_new(&group, 1, sizeof *group, "group"), fail);
    group->rank = rank;
    group->world_size = world_size;
    group->host_count = count_hosts(hosts, world_size);
    GS_TRY_OR(gs_memory_new(&group->host_first_seat, (size_t)group->host_count + 1, sizeof(int), "hosts"), fail);
    GS_TRY_OR(gs_memory_new(&group->rank_of_seat, (size_t)world_size, sizeof(int), "seats"), fail);
    GS_TRY_OR(gs_memory_new(&group->seat_of_rank, (size_t)world_size, sizeof(int), "seats"), fail);
    seat_ranks(group, hosts);
    group->machine = (gs_machine){.rank = group->local_rank, .count = group->host_count};
    group->timeout_ms = timeout_ms;
    group->logger = *logger;
    group->ops = ops;
    group->transport = transport;
    group->segment = *segment;
    group->shared = segment->base;
    *out = group;
    return GSYNC_OK;
fail:
    if (group != NULL) {
        free_parts(group);
    }
    return status;
}

gsync_status gs_group_start(gs_group *group) {
    unsigned char *memory = (unsigned char *)group->segment.base + shared_bytes(group->local_count);
    return gs_lane_open_in(group, &control_shape, memory, &group->control);
}

void gs_group_destroy(gs_group *group) {
    if (group == NULL) {
        return;
    }
    gs_lane_close(group->control);
    if (!group->is_pinned) {
        group->ops->segment_release(&group->segment);
    }
    group->ops->destroy(group->transport);
    free_parts(group);
}

void gs_group_ring_all(gs_group *group) {
    for (int i = 0; i < group->local_count; i++) {
        gs_bell_ring(&group->shared->bells[i]);
    }
}

/* ---- abort box ---- */

void gs_abort_box_set(gs_abort_box *box, int rank, gsync_status status, const char *text) {
    uint32_t open = 0;
    if (atomic_compare_exchange_strong(&box->state, &open, 1)) {
        box->rank = rank;
        box->status = (int32_t)status;
        snprintf(box->text, sizeof box->text, "%s", text);
        atomic_store(&box->state, 2);
    }
}

bool gs_abort_box_is_set(const gs_abort_box *box) {
    /* Also while it is being written: whoever sees that must not start anything, see gs_lane_enter. */
    return atomic_load(&box->state) != 0;
}

gsync_status gs_abort_box_fail(const gs_abort_box *box) {
    /* The writer is a few instructions away from the end, unless its process was killed right there. */
    for (int i = 0; i < 100000 && atomic_load(&box->state) != 2; i++) {
        sched_yield();
    }
    if (atomic_load(&box->state) != 2) {
        return gs_fail(GSYNC_ERR_ABORTED, "aborted by a rank that died while saying why");
    }
    if (box->status == GSYNC_ERR_PEER_LOST) {
        /* Whoever noticed first, a rank that has left is lost to all. */
        return gs_fail(GSYNC_ERR_PEER_LOST, "noticed by rank %d: %s", box->rank, box->text);
    }
    return gs_fail(GSYNC_ERR_ABORTED, "aborted by rank %d: %s", box->rank, box->text);
}
