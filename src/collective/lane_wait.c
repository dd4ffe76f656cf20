/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "collective/lane_internal.h"

#include <sched.h>
#include <stdio.h>

/* The flag that decides whether a rank of this host has done its part of the present stage. */
static uint32_t flag_of(const gs_lane *lane, int local_rank) {
    const gs_lane_flags *flags = &lane->shared->flags[local_rank];
    switch (lane->stage) {
    case GS_LANE_FINISHING:
        return atomic_load(&flags->finished);
    default:
        return atomic_load(&flags->arrived);
    }
}

static bool is_missing(const gs_lane *lane, int local_rank) {
    switch (lane->stage) {
    case GS_LANE_ARRIVING:
    case GS_LANE_FINISHING:
        return !gs_lane_has_reached(flag_of(lane, local_rank), lane->sequence);
    case GS_LANE_FLOWING:
        return gs_lane_flow_waits_for(lane, local_rank);
    case GS_LANE_WAIT_HEADERS:
    case GS_LANE_WAIT_MAIL:
        return local_rank == 0; /* it speaks with the other hosts */
    default:
        return false;
    }
}

/* A rank that has left will not do what we wait for. */
static gsync_status check_closed(const gs_lane *lane) {
    for (int i = 0; i < lane->group->local_count; i++) {
        if (is_missing(lane, i) && atomic_load(&lane->shared->flags[i].is_closed) != 0) {
            char here[64];
            gs_lane_describe(&lane->operation.topic, here, sizeof here);
            return gs_fail(GSYNC_ERR_PEER_LOST, "%s: rank %d has destroyed its side", here,
                           gs_group_local_to_rank(lane->group, i));
        }
    }
    return GSYNC_OK;
}

/* Ranks in words: "1, 4". */
typedef struct rank_list {
    char text[160];
    size_t used;
    int count;
} rank_list;

static void append(rank_list *list, int rank) {
    if (list->used + 40 < sizeof list->text) {
        list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used, "%s%d",
                                       list->used == 0 ? "" : ", ", rank);
    }
    list->count++;
}

static void append_host(const gs_lane *lane, int host, rank_list *list) {
    for (int seat = lane->group->host_first_seat[host]; seat < lane->group->host_first_seat[host + 1]; seat++) {
        append(list, lane->group->rank_of_seat[seat]);
    }
}

/* A host sends when all its ranks have done their part, so which of them is late is known only there. */
static void append_other_hosts(const gs_lane *lane, rank_list *list) {
    const gs_group *group = lane->group;
    for (int host = 0; host < group->host_count; host++) {
        const bool has_sent =
            lane->stage == GS_LANE_NET_HEADERS && gs_lane_headers(lane)[group->host_first_seat[host]].kind != 0;
        if (host != group->host && !has_sent) {
            append_host(lane, host, list);
        }
    }
}

static void list_missing(const gs_lane *lane, rank_list *list) {
    for (int i = 0; i < lane->group->local_count; i++) {
        if (is_missing(lane, i)) {
            append(list, gs_group_local_to_rank(lane->group, i));
        }
    }
    switch (lane->stage) {
    case GS_LANE_ARRIVING:
    case GS_LANE_FINISHING:
        return;
    case GS_LANE_FLOWING:
        if (!gs_lane_flow_waits_for_hosts(lane)) {
            return;
        }
        append_other_hosts(lane, list);
        break;
    default:
        append_other_hosts(lane, list);
    }
    if (list->count > 1) {
        snprintf(list->text + list->used, sizeof list->text - list->used, " (one or more of them)");
    }
}

static gsync_status check_deadline(const gs_lane *lane) {
    if (gs_clock_ns() < lane->deadline_ns) {
        return GSYNC_OK;
    }
    char here[64];
    rank_list missing = {.count = 0};
    gs_lane_describe(&lane->operation.topic, here, sizeof here);
    list_missing(lane, &missing);
    return gs_fail(
        GSYNC_ERR_TIMEOUT, "%s: rank %s %s within %u ms: look for an error or a hang there, or raise timeout_ms", here,
        missing.text,
        lane->stage == GS_LANE_ARRIVING || lane->stage == GS_LANE_NET_HEADERS || lane->stage == GS_LANE_WAIT_HEADERS
            ? "did not arrive"
            : "did not finish",
        lane->group->timeout_ms);
}

gsync_status gs_lane_check_boxes(const gs_lane *lane) {
    if (gs_abort_box_is_set(&lane->group->shared->abort_box)) {
        return gs_abort_box_fail(&lane->group->shared->abort_box);
    }
    if (gs_abort_box_is_set(&lane->shared->abort_box)) {
        return gs_abort_box_fail(&lane->shared->abort_box);
    }
    return GSYNC_OK;
}

gsync_status gs_lane_check(gs_lane *lane) {
    GS_TRY(gs_lane_check_boxes(lane));
    GS_TRY(check_closed(lane));
    return check_deadline(lane);
}

static gsync_status check_nobody_left(const gs_lane *lane) {
    GS_TRY(gs_lane_check_boxes(lane));
    for (int i = 0; i < lane->group->local_count; i++) {
        if (atomic_load(&lane->shared->flags[i].is_closed) != 0) {
            return gs_fail(GSYNC_ERR_PEER_LOST, "rank %d has destroyed its side",
                           gs_group_local_to_rank(lane->group, i));
        }
    }
    return GSYNC_OK;
}

gsync_status gs_lane_look(const gs_lane *lane, bool *has_left) {
    *has_left = false;
    GS_TRY(gs_lane_check_boxes(lane));
    const gsync_status status = check_nobody_left(lane);
    *has_left = status != GSYNC_OK;
    return status;
}

void gs_lane_tell(gs_lane *lane, int word, uint64_t value) {
    atomic_store_explicit(&gs_lane_own_flags(lane)->words[word], value, memory_order_relaxed);
}

bool gs_lane_hear(const gs_lane *lane, int rank, gs_lane_account *account) {
    const gs_group *group = lane->group;
    const int local_rank = group->seat_of_rank[rank] - group->host_first_seat[group->host];
    if (local_rank < 0 || local_rank >= group->local_count) {
        return false;
    }
    const gs_lane_flags *flags = &lane->shared->flags[local_rank];
    account->has_left = atomic_load(&flags->is_closed) != 0; /* first, so that its last words are seen */
    for (int i = 0; i < GS_LANE_WORDS; i++) {
        account->words[i] = atomic_load_explicit(&flags->words[i], memory_order_relaxed);
    }
    return true;
}

gsync_status gs_lane_enter(gs_lane *lane) {
    /* Sequentially consistent against gs_lane_retract: either it sees us busy, or we see why we must not go on. */
    atomic_store(&lane->shared->flags[lane->group->local_rank].is_busy, 1);
    const gsync_status status = check_nobody_left(lane);
    if (status != GSYNC_OK) {
        gs_lane_leave(lane);
    }
    return status;
}

void gs_lane_leave(gs_lane *lane) {
    atomic_store(&lane->shared->flags[lane->group->local_rank].is_busy, 0);
}

void gs_lane_retract(gs_lane *lane) {
    if (!lane->group->ops->shares_address_space) {
        return; /* what was posted lies in the segment, which outlives us for those who have mapped it */
    }
    /* Bounded by the time that summing one shard takes: a thread that is busy never waits for anybody. */
    for (int i = 0; i < lane->group->local_count; i++) {
        while (i != lane->group->local_rank && atomic_load(&lane->shared->flags[i].is_busy) != 0) {
            sched_yield();
        }
    }
}
