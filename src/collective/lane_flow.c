/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/lane_internal.h"
#include "collective/shard.h"

#include <assert.h>

/*
 * Private data goes through rings in shared memory, a piece at a time, so that what is packed is still in the cache
 * when it is added up, and what was added up when it is unpacked. A rank packs only what other ranks add up. Its own
 * shard of a piece it reads, and the result it writes, where the trainer has it: of N ranks' S bytes, S / N are never
 * copied.
 *
 * With several hosts a piece's sum goes to where the exchange between hosts finds it, and every rank takes the result
 * from there. It is not overwritten before all ranks have arrived at the next operation, and so have taken it.
 */

typedef struct range {
    size_t first;
    size_t count;
} range;

void gs_lane_piece(const gs_lane *lane, uint32_t piece, size_t *first, size_t *count) {
    *first = (size_t)piece * lane->flow.elements;
    const size_t left = lane->operation.count - *first;
    *count = left < lane->flow.elements ? left : lane->flow.elements;
}

static range piece_range(const gs_lane *lane, uint32_t piece) {
    range whole;
    gs_lane_piece(lane, piece, &whole.first, &whole.count);
    return whole;
}

static bool has_hosts(const gs_lane *lane) {
    return lane->group->host_count > 1;
}

static range own_shard(const gs_lane *lane, uint32_t piece) {
    const range whole = piece_range(lane, piece);
    range own;
    gs_shard_split_blocks(whole.count, gs_lane_block(lane), lane->group->local_count, lane->group->local_rank,
                          &own.first, &own.count);
    own.first += whole.first;
    return own;
}

static unsigned char *own_place(const gs_lane *lane, size_t first) {
    return gs_lane_place(lane, lane->group->local_rank, first);
}

/* Calls back for what lies before this rank's shard of the piece, and for what lies behind it. */
static void visit_others(gs_lane *lane, uint32_t piece, void (*visit)(gs_lane *lane, range part)) {
    const range whole = piece_range(lane, piece);
    const range own = own_shard(lane, piece);
    const size_t end = own.first + own.count;
    visit(lane, (range){whole.first, own.first - whole.first});
    visit(lane, (range){end, whole.first + whole.count - end});
}

/* ---- packing ---- */

static void encode(gs_lane *lane, range part) {
    const gs_lane_private *data = lane->operation.private_data;
    if (part.count == 0) {
        return;
    }
    assert(data != NULL);
    void *place = own_place(lane, part.first);
    data->encode(data->owner, part.first, part.count, place);
    if (gs_lane_rounds_data(lane)) {
        gs_lane_round_range(lane, GS_WIRE_CONTRIBUTION, part.first, part.count, place);
    }
}

static void pack(gs_lane *lane) {
    if (lane->operation.contributes) {
        visit_others(lane, lane->flow.packed, encode);
    }
    lane->flow.packed++;
}

/* Before this rank arrives: its first piece is packed by then, or, where peers can reach the data, all of it. */
void gs_lane_flow_start(gs_lane *lane) {
    gs_lane_flow *flow = &lane->flow;
    const size_t room = lane->shape.ring_bytes / GS_FLOW_PLACES / gsync_dtype_size(lane->operation.dtype);
    const size_t elements = room / gs_lane_block(lane) * gs_lane_block(lane);
    assert(elements != 0);
    const uint32_t count = (uint32_t)((lane->operation.count + elements - 1) / elements);
    *flow = (gs_lane_flow){.base = flow->base, .elements = elements, .count = count, .packed = count};
    if (lane->operation.private_data != NULL && flow->count != 0) {
        flow->packed = 0;
        pack(lane);
    }
    /* Seen with the arrival, which follows. */
    atomic_store_explicit(&gs_lane_own_flags(lane)->packed, flow->base + flow->packed, memory_order_relaxed);
}

/* ---- adding up ---- */

/* What lies in pieces too small to be added up one by one is copied, so many elements at a time. */
static const size_t COPY_ELEMENTS = 4096;

/* The range's first elements that lie in a row in the trainer's memory, or a copy of some of them in the ring. */
static unsigned char *open_run(gs_lane *lane, range *run, bool *is_copy) {
    const gs_lane_private *data = lane->operation.private_data;
    size_t count = run->count;
    const bool is_found = data != NULL && !gs_lane_rounds_data(lane);
    unsigned char *place = data == NULL ? own_place(lane, run->first) : NULL;
    place = is_found ? data->find(data->owner, run->first, &count) : place;
    *is_copy = place == NULL;
    if (place != NULL) {
        run->count = count;
        return place;
    }
    run->count = run->count < COPY_ELEMENTS ? run->count : COPY_ELEMENTS;
    if (lane->operation.contributes) {
        encode(lane, *run);
    }
    return own_place(lane, run->first);
}

static void decode_from(gs_lane *lane, range part, const void *wire) {
    const gs_lane_private *data = lane->operation.private_data;
    assert(data != NULL);
    lane->outcome.is_data_touched = true;
    data->decode(data->owner, part.first, part.count, wire);
}

static void decode(gs_lane *lane, range part) {
    if (part.count != 0) {
        decode_from(lane, part, own_place(lane, part.first));
    }
}

static void add(gs_lane *lane) {
    range left = own_shard(lane, lane->flow.added);
    while (left.count != 0) {
        range run = left;
        bool is_copy;
        unsigned char *mine = open_run(lane, &run, &is_copy);
        gs_lane_sum_range(lane, run.first, run.count, mine);
        if (is_copy && !has_hosts(lane)) {
            decode(lane, run);
        }
        left.first += run.count;
        left.count -= run.count;
    }
    lane->flow.added++;
}

/* ---- taking the result ---- */

/* What has to be decoded is narrowed into the place in the ring that no piece is in. */
static size_t narrow_run(gs_lane *lane, range left) {
    const gs_lane_private *data = lane->operation.private_data;
    range run = left;
    void *target = data != NULL ? data->find(data->owner, run.first, &run.count) : own_place(lane, run.first);
    if (target != NULL) {
        gs_lane_narrow_range(lane, run.first, run.count, target);
        return run.count;
    }
    const size_t piece_bytes = lane->flow.elements * gsync_dtype_size(lane->operation.dtype);
    target = lane->rings + (size_t)lane->group->local_rank * lane->ring_stride + GS_FLOW_DEPTH * piece_bytes;
    gs_lane_narrow_range(lane, left.first, left.count, target);
    decode_from(lane, left, target);
    return left.count;
}

static void take_from_hosts(gs_lane *lane) {
    range left = piece_range(lane, lane->flow.taken);
    while (left.count != 0) {
        const size_t done = narrow_run(lane, left);
        left.first += done;
        left.count -= done;
    }
}

static void take(gs_lane *lane) {
    if (has_hosts(lane)) {
        take_from_hosts(lane);
    } else if (lane->operation.private_data != NULL) {
        visit_others(lane, lane->flow.taken, decode);
    }
    lane->flow.taken++;
}

/* ---- progress ---- */

static bool has_all(const gs_lane *lane, size_t flag_offset, uint32_t pieces) {
    return pieces < lane->flow.count && gs_lane_all_reached(lane, flag_offset, lane->flow.base + pieces + 1);
}

/* A place in the ring is free once everybody has added up what was there, and it was unpacked. */
static bool can_pack(const gs_lane *lane) {
    const gs_lane_flow *flow = &lane->flow;
    const uint32_t freed = has_hosts(lane) ? flow->cleared : flow->taken;
    return flow->packed < flow->count && flow->packed - freed < GS_FLOW_DEPTH;
}

static bool can_add(const gs_lane *lane) {
    return has_all(lane, offsetof(gs_lane_flags, packed), lane->flow.added);
}

static bool can_take(const gs_lane *lane) {
    const gs_lane_flow *flow = &lane->flow;
    if (has_hosts(lane)) {
        return flow->taken < flow->count &&
               gs_lane_has_reached(atomic_load(&lane->shared->pieces_known), flow->base + flow->taken + 1);
    }
    return flow->taken < flow->cleared;
}

static bool clear(gs_lane *lane) {
    const uint32_t before = lane->flow.cleared;
    while (has_all(lane, offsetof(gs_lane_flags, added), lane->flow.cleared)) {
        lane->flow.cleared++;
    }
    return lane->flow.cleared != before;
}

/* Adding comes first: others wait for it. */
static gsync_status advance_here(gs_lane *lane, bool *moved) {
    gs_lane_flow *flow = &lane->flow;
    gs_lane_flags *flags = gs_lane_own_flags(lane);
    *moved = true;
    if (can_add(lane)) {
        GS_TRY(gs_lane_enter(lane));
        add(lane);
        gs_lane_leave(lane);
        gs_lane_announce(lane, &flags->added, flow->base + flow->added);
    } else if (can_pack(lane)) {
        pack(lane);
        gs_lane_announce(lane, &flags->packed, flow->base + flow->packed);
    } else if (can_take(lane)) {
        take(lane);
    } else {
        *moved = false;
    }
    return GSYNC_OK;
}

gsync_status gs_lane_flow_advance(gs_lane *lane, bool *moved, bool *is_through) {
    gs_lane_flow *flow = &lane->flow;
    const bool has_cleared = clear(lane);
    bool has_exchanged = false;
    if (has_hosts(lane) && gs_lane_is_first(lane)) {
        GS_TRY(gs_lane_exchange_advance(lane, &has_exchanged));
    }
    GS_TRY(advance_here(lane, moved));
    *moved = *moved || has_cleared || has_exchanged;
    *is_through = flow->taken == flow->count;
    flow->base += *is_through ? flow->count : 0;
    return GSYNC_OK;
}

/* ---- who is late ---- */

bool gs_lane_flow_waits_for_hosts(const gs_lane *lane) {
    return has_hosts(lane) && lane->flow.taken < lane->flow.cleared;
}

/*
 * A rank that stands still soon stops the others: their rings fill up, and what they then have not packed is not their
 * doing. So those are late who have not added what this rank has added, and if there are none, those who have not
 * packed what it would add next.
 */
bool gs_lane_flow_waits_for(const gs_lane *lane, int local_rank) {
    const gs_lane_flow *flow = &lane->flow;
    const gs_lane_flags *flags = &lane->shared->flags[local_rank];
    if (gs_lane_flow_waits_for_hosts(lane) && local_rank == 0) {
        return !gs_lane_is_first(lane); /* it speaks with the other hosts */
    }
    if (local_rank == lane->group->local_rank) {
        return false;
    }
    if (flow->added > flow->cleared) {
        return !gs_lane_has_reached(atomic_load(&flags->added), flow->base + flow->cleared + 1);
    }
    return flow->added < flow->count && !gs_lane_has_reached(atomic_load(&flags->packed), flow->base + flow->added + 1);
}
