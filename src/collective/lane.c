/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/lane.h"

#include "base/clock.h"
#include "collective/lane_internal.h"

#include <string.h>

const gs_patience gs_lane_for_messages = {.look_ns = 20000, .yields = 1, .sleep_ns = 50000};
/* Also without a ring, look at the deadline now and then. */
static const gs_patience for_peers = {.look_ns = 2000, .yields = 20, .sleep_ns = 50000000};

void gs_lane_announce(gs_lane *lane, _Atomic uint32_t *flag, uint32_t value) {
    atomic_store(flag, value);
    gs_group_ring_all(lane->group);
}

static void announce(gs_lane *lane, _Atomic uint32_t *flag) {
    gs_lane_announce(lane, flag, lane->sequence);
}

/* ---- posting ---- */

static void write_header(gs_lane *lane) {
    const gs_lane_operation *operation = &lane->operation;
    gs_lane_header *header = &gs_lane_headers(lane)[gs_group_seat(lane->group)];
    memset(header, 0, sizeof *header);
    header->topic = operation->topic;
    header->kind = operation->kind;
    header->verdict = operation->verdict;
    header->verdict_index = operation->verdict_index;
    header->contributes = operation->contributes ? 1 : 0;
    header->compares_micro_batches = operation->compares_micro_batches ? 1 : 0;
    header->divides_by_micro_batches = operation->divides_by_micro_batches ? 1 : 0;
    header->weight = operation->weight;
    header->loss_scale = operation->loss_scale;
    header->micro_batches = operation->micro_batches;
    header->mail_bytes = operation->mail_bytes;
    header->count = operation->count;
    header->dtype = (int32_t)operation->dtype;
    header->op = (int32_t)operation->op;
    header->divide = (int32_t)operation->divide;
    header->looks = operation->looks ? 1 : 0;
    header->is_private = operation->private_data != NULL ? 1 : 0;
    if (operation->data != NULL) {
        header->data = lane->group->ops->shares_address_space
                           ? (uint64_t)(uintptr_t)operation->data
                           : (uint64_t)((unsigned char *)operation->data - lane->memory);
    }
}

static void write_mail(gs_lane *lane) {
    const gs_lane_operation *operation = &lane->operation;
    unsigned char *box = lane->mail[lane->sequence & 1u] + (size_t)gs_group_seat(lane->group) * lane->mail_stride;
    const uint64_t bytes = operation->mail_bytes;
    memcpy(box, &bytes, sizeof bytes);
    if (bytes != 0) {
        memcpy(box + sizeof bytes, operation->mail, operation->mail_bytes);
    }
}

/*
 * Points that the last operations did not come by follow, or after two thousand million of them, which is hours of
 * barriers, they would seem to lie ahead. All ranks have left those operations, so nobody waits there.
 */
static void catch_up(gs_lane *lane) {
    const uint32_t last = lane->sequence - 1;
    atomic_store_explicit(&gs_lane_own_flags(lane)->finished, last, memory_order_relaxed);
    if (gs_lane_is_first(lane) && lane->group->host_count > 1) {
        atomic_store_explicit(&lane->shared->headers_known, last, memory_order_relaxed);
        atomic_store_explicit(&lane->shared->mail_known, last, memory_order_relaxed);
    }
}

gsync_status gs_lane_post(gs_lane *lane, const gs_lane_operation *operation) {
    lane->outcome = (gs_lane_outcome){.refusing_rank = -1};
    if (lane->broken != GSYNC_OK) {
        return gs_fail(lane->broken, "an earlier failure ended this communication: destroy and create it anew");
    }
    if (lane->stage != GS_LANE_IDLE || operation->mail_bytes > lane->shape.mail_bytes) {
        return gs_fail(GSYNC_ERR_INTERNAL, "a lane operation was posted out of turn or is too large");
    }
    /* Also where all ranks would arrive: otherwise it is a matter of luck who still gets a result. */
    GS_TRY(gs_lane_check_boxes(lane));
    lane->sequence++;
    lane->operation = *operation;
    lane->deadline_ns = gs_clock_ns() + (uint64_t)lane->group->timeout_ms * 1000000u;
    write_header(lane);
    if (operation->kind == GS_LANE_GATHER) {
        write_mail(lane);
    } else if (operation->kind == GS_LANE_REDUCE) {
        gs_lane_flow_start(lane);
    }
    lane->stage = GS_LANE_ARRIVING;
    catch_up(lane);
    announce(lane, &gs_lane_own_flags(lane)->arrived);
    return GSYNC_OK;
}

/* ---- progress: each stage either ends in the next one, or has to wait ---- */

bool gs_lane_all_reached(const gs_lane *lane, size_t flag_offset, uint32_t value) {
    for (int i = 0; i < lane->group->local_count; i++) {
        const char *flags = (const char *)&lane->shared->flags[i];
        const _Atomic uint32_t *flag = (const _Atomic uint32_t *)(const void *)(flags + flag_offset);
        if (!gs_lane_has_reached(atomic_load(flag), value)) {
            return false;
        }
    }
    return true;
}
#define ALL_REACHED(lane, flag) gs_lane_all_reached((lane), offsetof(gs_lane_flags, flag), (lane)->sequence)

static bool is_known(const gs_lane *lane, const _Atomic uint32_t *flag) {
    return gs_lane_has_reached(atomic_load(flag), lane->sequence);
}

static gsync_status sum_shard(gs_lane *lane) {
    GS_TRY(gs_lane_enter(lane));
    gs_lane_sum_shard(lane);
    gs_lane_leave(lane);
    announce(lane, &gs_lane_own_flags(lane)->finished);
    lane->stage = GS_LANE_FINISHING;
    return GSYNC_OK;
}

static gsync_status flow(gs_lane *lane, bool *moved) {
    bool is_through;
    GS_TRY(gs_lane_flow_advance(lane, moved, &is_through));
    if (is_through) {
        lane->stage = GS_LANE_IDLE;
        *moved = true;
    }
    return GSYNC_OK;
}

/* All headers are known. */
static gsync_status start_data(gs_lane *lane) {
    const bool is_alone = lane->group->host_count == 1;
    if (lane->operation.kind == GS_LANE_BARRIER || (lane->operation.kind == GS_LANE_GATHER && is_alone)) {
        lane->stage = GS_LANE_IDLE;
        return GSYNC_OK;
    }
    if (lane->operation.kind == GS_LANE_GATHER) {
        lane->stage = gs_lane_is_first(lane) ? GS_LANE_NET_MAIL : GS_LANE_WAIT_MAIL;
        return gs_lane_is_first(lane) ? gs_lane_send_mail(lane) : GSYNC_OK;
    }
    if (!is_alone || gs_lane_has_private(lane)) {
        lane->stage = GS_LANE_FLOWING;
        return GSYNC_OK;
    }
    return sum_shard(lane);
}

static gsync_status judge_and_start(gs_lane *lane) {
    const gsync_status verdict = gs_lane_judge(lane);
    if (verdict != GSYNC_OK) {
        /* All ranks come to this, so the lane stays usable: the next operation starts with new headers. */
        lane->stage = GS_LANE_IDLE;
        return verdict;
    }
    return start_data(lane);
}

/* The stages in which the host's first rank waits for messages. */
static gsync_status advance_net(gs_lane *lane, bool *moved) {
    GS_TRY(lane->group->ops->net_test(lane->net, GS_NET_WHOLE, 0, moved));
    if (!*moved) {
        return GSYNC_OK;
    }
    if (lane->stage == GS_LANE_NET_HEADERS) {
        announce(lane, &lane->shared->headers_known);
        return judge_and_start(lane);
    }
    announce(lane, &lane->shared->mail_known);
    lane->stage = GS_LANE_IDLE;
    return GSYNC_OK;
}

static gsync_status advance(gs_lane *lane, bool *moved) {
    *moved = true;
    switch (lane->stage) {
    case GS_LANE_ARRIVING:
        if (ALL_REACHED(lane, arrived)) {
            if (lane->group->host_count == 1) {
                return judge_and_start(lane);
            }
            lane->stage = gs_lane_is_first(lane) ? GS_LANE_NET_HEADERS : GS_LANE_WAIT_HEADERS;
            return gs_lane_is_first(lane) ? gs_lane_send_headers(lane) : GSYNC_OK;
        }
        break;
    case GS_LANE_FLOWING:
        return flow(lane, moved);
    case GS_LANE_WAIT_HEADERS:
        if (is_known(lane, &lane->shared->headers_known)) {
            return judge_and_start(lane);
        }
        break;
    case GS_LANE_WAIT_MAIL:
        if (is_known(lane, &lane->shared->mail_known)) {
            lane->stage = GS_LANE_IDLE;
            return GSYNC_OK;
        }
        break;
    case GS_LANE_FINISHING:
        if (ALL_REACHED(lane, finished)) {
            lane->stage = GS_LANE_IDLE;
            return GSYNC_OK;
        }
        break;
    default:
        return advance_net(lane, moved);
    }
    *moved = false;
    return GSYNC_OK;
}

static bool is_verdict(const gs_lane *lane, gsync_status status) {
    return lane->stage == GS_LANE_IDLE && status != GSYNC_OK;
}

/* Tells the ranks of this host why, and takes back what was posted. */
static void break_off(gs_lane *lane, gsync_status status) {
    lane->broken = status;
    lane->stage = GS_LANE_IDLE;
    gs_lane_give_up(lane, status, gsync_last_error());
    if (lane->net != NULL && lane->group->ops->net_give_up != NULL) {
        lane->group->ops->net_give_up(lane->net);
    }
    gs_lane_retract(lane);
    /* Peers write into what they can reach. They start when all have arrived, and none starts after we gave up. */
    const bool has_peers = lane->group->local_count > 1 && lane->group->host_count == 1;
    if (lane->operation.kind == GS_LANE_REDUCE && lane->operation.private_data == NULL && has_peers &&
        ALL_REACHED(lane, arrived)) {
        lane->outcome.is_data_touched = true;
    }
}

/* With a transfer under way there is always something to move; but others want the lock under which the lane is moved.
 */
enum { MOVES_MAX = 16 };

/* As far as it goes, but not too far. *is_done: the operation has ended, with the status that is returned. */
static gsync_status advance_all(gs_lane *lane, bool *is_done, bool *did_work) {
    bool moved = true;
    for (int moves = 0; moved && moves < MOVES_MAX; moves++) {
        const gsync_status status = advance(lane, &moved);
        *did_work = *did_work || moved;
        *is_done = status != GSYNC_OK || lane->stage == GS_LANE_IDLE;
        if (status != GSYNC_OK && !is_verdict(lane, status)) {
            break_off(lane, status);
        }
        if (*is_done) {
            return status;
        }
    }
    return GSYNC_OK;
}

gsync_status gs_lane_progress(gs_lane *lane, bool *is_done, bool *did_work) {
    *is_done = false;
    *did_work = false;
    for (;;) {
        gsync_status status = advance_all(lane, is_done, did_work);
        if (*is_done) {
            return status;
        }
        const gsync_status reason = gs_lane_check(lane);
        if (reason == GSYNC_OK) {
            return GSYNC_OK;
        }
        /* Who has left may have done all that we wait for, just after we looked and before it left. */
        bool has_moved = false;
        status = advance_all(lane, is_done, &has_moved);
        if (*is_done) {
            return status;
        }
        if (!has_moved) {
            *is_done = true;
            break_off(lane, reason);
            return reason;
        }
    }
}

typedef struct run {
    gs_lane *lane;
    gs_idle_function idle;
    void *argument;
    bool is_done;
    gsync_status status;
} run;

static bool look(void *argument) {
    run *of = argument;
    bool did_work;
    of->status = gs_lane_progress(of->lane, &of->is_done, &did_work);
    if (!of->is_done && of->idle != NULL) {
        of->idle(of->argument);
    }
    return of->is_done || did_work;
}

gsync_status gs_lane_run(gs_lane *lane, const gs_lane_operation *operation, gs_idle_function idle, void *argument) {
    GS_TRY(gs_lane_post(lane, operation));
    run of = {.lane = lane, .idle = idle, .argument = argument};
    const gs_patience *patience = lane->net != NULL || idle != NULL ? &gs_lane_for_messages : &for_peers;
    while (!of.is_done) {
        (void)gs_bell_wait(gs_group_bell(lane->group), look, &of, patience);
    }
    return of.status;
}

const gs_lane_outcome *gs_lane_last_outcome(const gs_lane *lane) {
    return &lane->outcome;
}

bool gs_lane_is_broken(const gs_lane *lane) {
    return lane->broken != GSYNC_OK;
}

void gs_lane_give_up(gs_lane *lane, gsync_status status, const char *reason) {
    gs_abort_box_set(&lane->shared->abort_box, lane->group->rank, status, reason);
    gs_group_ring_all(lane->group);
}
