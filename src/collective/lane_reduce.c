/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/lane_internal.h"
#include "collective/shard.h"

static const gs_lane_header *local_header(const gs_lane *lane, int local_rank) {
    return &gs_lane_headers(lane)[lane->group->host_first_seat[lane->group->host] + local_rank];
}

static size_t element_size(const gs_lane *lane) {
    return gsync_dtype_size(lane->operation.dtype);
}

bool gs_lane_has_private(const gs_lane *lane) {
    for (int i = 0; i < lane->group->local_count; i++) {
        if (local_header(lane, i)->is_private != 0) {
            return true;
        }
    }
    return false;
}

unsigned char *gs_lane_place(const gs_lane *lane, int local_rank, size_t first) {
    const gs_lane_header *header = local_header(lane, local_rank);
    if (header->is_private != 0) {
        const size_t piece = first / lane->flow.elements;
        const size_t at = piece % GS_FLOW_DEPTH * lane->flow.elements + first % lane->flow.elements;
        return lane->rings + (size_t)local_rank * lane->ring_stride + at * element_size(lane);
    }
    unsigned char *data =
        lane->group->ops->shares_address_space ? (unsigned char *)(uintptr_t)header->data : lane->memory + header->data;
    return data + first * element_size(lane);
}

static unsigned char *host_sum_at(const gs_lane *lane, size_t first) {
    return lane->host_sum + first * gsync_dtype_size(gs_dtype_wide(lane->operation.dtype));
}

/* The contributing ranks of this host, in rank order. */
static int gather_sources(gs_lane *lane, size_t first, void *mine) {
    int count = 0;
    for (int i = 0; i < lane->group->local_count; i++) {
        if (local_header(lane, i)->contributes != 0) {
            lane->sources[count++] = i == lane->group->local_rank ? mine : gs_lane_place(lane, i, first);
        }
    }
    return count;
}

static int gather_targets(gs_lane *lane, size_t first, void *mine) {
    for (int i = 0; i < lane->group->local_count; i++) {
        lane->targets[i] = i == lane->group->local_rank ? mine : gs_lane_place(lane, i, first);
    }
    return lane->group->local_count;
}

static gs_shard_job job_of(const gs_lane *lane, size_t count) {
    return (gs_shard_job){
        .sources = lane->sources,
        .targets = lane->targets,
        .source_dtype = lane->operation.dtype,
        .target_dtype = lane->operation.dtype,
        .op = lane->operation.op,
        .divisor = lane->outcome.divisor,
        .count = count,
    };
}

void gs_lane_sum_range(gs_lane *lane, size_t first, size_t count, void *mine) {
    gs_shard_job job = job_of(lane, count);
    job.source_count = gather_sources(lane, first, mine);
    if (lane->group->host_count == 1) {
        job.target_count = gather_targets(lane, first, mine);
        lane->outcome.is_data_touched = lane->outcome.is_data_touched || !gs_shard_changes_nothing(&job);
    } else {
        lane->targets[0] = host_sum_at(lane, first);
        job.target_count = 1;
        job.target_dtype = gs_dtype_wide(job.source_dtype);
        job.divisor = 1.0;
    }
    gs_shard_reduce(&job);
}

void gs_lane_sum_shard(gs_lane *lane) {
    const int self = lane->group->local_rank;
    size_t first;
    size_t count;
    gs_shard_split(lane->operation.count, lane->group->local_count, self, &first, &count);
    gs_lane_sum_range(lane, first, count, gs_lane_place(lane, self, first));
}

void gs_lane_narrow_range(gs_lane *lane, size_t first, size_t count, void *target) {
    gs_shard_job job = job_of(lane, count);
    lane->sources[0] = host_sum_at(lane, first);
    job.source_count = 1;
    job.source_dtype = gs_dtype_wide(job.target_dtype);
    lane->targets[0] = target;
    job.target_count = 1;
    lane->outcome.is_data_touched = true;
    gs_shard_reduce(&job);
}
