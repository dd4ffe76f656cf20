/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/collective_threads.h"

#include "base/memory.h"
#include "collective/lane.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- segments: a counted heap block; the last rank to release it frees it ---- */

typedef struct heap_block {
    _Alignas(128) _Atomic int users;
    _Alignas(128) unsigned char bytes[];
} heap_block;

static heap_block *block_of(const gs_segment *segment) {
    return (heap_block *)(void *)segment->handle; // NOLINT(performance-no-int-to-ptr)
}

static void use_block(heap_block *block, size_t bytes, gs_segment *segment) {
    atomic_fetch_add(&block->users, 1);
    segment->base = block->bytes;
    segment->bytes = bytes;
    segment->handle = (intptr_t)block;
    snprintf(segment->token, sizeof segment->token, "%" PRIuPTR, (uintptr_t)block);
}

static gsync_status heap_create(void *transport, size_t bytes, gs_segment *segment) {
    (void)transport;
    heap_block *block = NULL;
    GS_TRY(gs_memory_new_aligned(&block, sizeof *block + bytes, "memory shared by the ranks"));
    use_block(block, bytes, segment);
    return GSYNC_OK;
}

static gsync_status heap_attach(const char *token, size_t bytes, gs_segment *segment) {
    const uintptr_t address = (uintptr_t)strtoumax(token, NULL, 10);
    use_block((heap_block *)address, bytes, segment); // NOLINT(performance-no-int-to-ptr)
    return GSYNC_OK;
}

static void heap_settle(gs_segment *segment) {
    (void)segment;
}

static void heap_release(gs_segment *segment) {
    heap_block *block = block_of(segment);
    if (block != NULL && atomic_fetch_sub(&block->users, 1) == 1) {
        gs_memory_free(block);
    }
    segment->handle = 0;
}

static void nothing(void *transport) {
    (void)transport;
}

static gsync_status heap_split(gs_group *parent, gsync_status own, int color, int key, gs_group **part);

static const gs_transport_ops threads_ops = {
    .name = "threads",
    .shares_address_space = true,
    .segment_create = heap_create,
    .segment_attach = heap_attach,
    .segment_settle = heap_settle,
    .segment_release = heap_release,
    .split = heap_split,
    .destroy = nothing,
};

/* ---- groups ---- */

static gsync_status make_group(gs_group **out, int rank, int world_size, const gs_segment *segment, uint32_t timeout_ms,
                               const gs_logger *logger) {
    int *hosts = NULL; /* all zero: one host */
    GS_TRY(gs_memory_new(&hosts, (size_t)world_size, sizeof *hosts, "hosts"));
    const gsync_status status =
        gs_group_create(out, rank, world_size, hosts, &threads_ops, NULL, segment, timeout_ms, logger);
    gs_memory_free(hosts);
    return status;
}

/* Takes over this rank's use of the segment, also when it fails. */
static gsync_status join(gs_group **out, int rank, int world_size, gs_segment *segment, uint32_t timeout_ms,
                         const gs_logger *logger) {
    gs_group *group = NULL;
    gsync_status status = make_group(&group, rank, world_size, segment, timeout_ms, logger);
    if (status != GSYNC_OK) {
        heap_release(segment);
        return status;
    }
    group->allows_helper = true;
    group->helper_note = "ranks are threads";
    status = gs_group_start(group);
    if (status != GSYNC_OK) {
        gs_group_destroy(group);
        return status;
    }
    *out = group;
    return GSYNC_OK;
}

gsync_status gs_threads_create(gs_group **groups, int world_size, uint32_t timeout_ms, const gs_logger *logger) {
    gs_segment creator = {0};
    const size_t bytes = gs_group_segment_bytes(world_size, world_size, 1);
    GS_TRY(heap_create(NULL, bytes, &creator));
    gsync_status status = GSYNC_OK;
    int made = 0;
    for (; made < world_size && status == GSYNC_OK; made++) {
        gs_segment segment = {0};
        use_block(block_of(&creator), bytes, &segment);
        status = join(&groups[made], made, world_size, &segment, timeout_ms, logger);
    }
    if (status != GSYNC_OK) {
        /* The last one failed and cleaned up after itself. */
        for (int i = 0; i < made - 1; i++) {
            gs_group_destroy(groups[i]);
            groups[i] = NULL;
        }
    }
    heap_release(&creator);
    return status;
}

/* Where a rank will be in its part. */
typedef struct split_place {
    int *members; /* ranks of the parent */
    int count;
    int own;
    bool is_member; /* false: the rank asked for no part */
} split_place;

/* What the first member makes, the others attach to. *made is its hold on it, until all have attached. */
static gsync_status join_part(gs_group *parent, const split_place *place, gs_segment *made, gs_group **part) {
    gs_segment segment = {0};
    gsync_status status = GSYNC_OK;
    const size_t bytes = gs_group_segment_bytes(place->count, place->count, 1);
    if (place->is_member && place->own == 0) {
        status = heap_create(NULL, bytes, made);
    }
    status = gs_lane_agree(parent->control, "comm_split", status, made->token);
    if (status != GSYNC_OK || !place->is_member) {
        return status;
    }
    if (place->own == 0) {
        use_block(block_of(made), bytes, &segment);
    } else {
        GS_TRY(gs_lane_attach(parent->control, place->members[0], bytes, &segment));
    }
    return join(part, place->own, place->count, &segment, parent->timeout_ms, &parent->logger);
}

static gsync_status heap_split(gs_group *parent, gsync_status own, int color, int key, gs_group **part) {
    split_place place = {.is_member = color >= 0};
    gs_segment made = {0};
    gs_group *group = NULL;
    gsync_status status = own;
    if (status == GSYNC_OK) {
        status = gs_memory_new(&place.members, (size_t)parent->world_size, sizeof *place.members, "members");
    }
    GS_TRY_OR(gs_lane_agree(parent->control, "comm_split", status, NULL), done);
    GS_TRY_OR(gs_group_split_members(parent, color, key, place.members, &place.count, &place.own), done);
    status = join_part(parent, &place, &made, &group);
    status = gs_lane_agree(parent->control, "comm_split", status, NULL);
    if (status == GSYNC_OK) {
        *part = group;
    } else {
        gs_group_destroy(group);
    }
done:
    heap_release(&made);
    gs_memory_free(place.members);
    return status;
}
