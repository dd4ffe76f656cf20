/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/lane_internal.h"
#include "collective/shard.h"

/* Where the data of a rank of this host lies, for us. */
static void *data_of(const gs_lane *lane, const gs_lane_header *header) {
    if (lane->group->ops->shares_address_space) {
        return (void *)(uintptr_t)header->data;
    }
    return lane->memory + header->data;
}

static const gs_lane_header *local_header(const gs_lane *lane, int local_rank) {
    return &gs_lane_headers(lane)[lane->group->host_first_seat[lane->group->host] + local_rank];
}

/* The contributing ranks of this host, in rank order. */
static int gather_sources(gs_lane *lane) {
    int count = 0;
    for (int i = 0; i < lane->group->local_count; i++) {
        const gs_lane_header *header = local_header(lane, i);
        if (header->contributes != 0) {
            lane->sources[count++] = data_of(lane, header);
        }
    }
    return count;
}

static void gather_targets(gs_lane *lane) {
    for (int i = 0; i < lane->group->local_count; i++) {
        lane->targets[i] = data_of(lane, local_header(lane, i));
    }
}

static gs_shard_job own_shard(const gs_lane *lane) {
    const gs_lane_operation *operation = &lane->operation;
    gs_shard_job job = {
        .sources = lane->sources,
        .targets = lane->targets,
        .source_dtype = operation->dtype,
        .target_dtype = operation->dtype,
        .op = operation->op,
        .divisor = lane->outcome.divisor,
    };
    gs_shard_split(operation->count, lane->group->local_count, lane->group->local_rank, &job.first, &job.count);
    return job;
}

void gs_lane_sum_into_slots(gs_lane *lane) {
    gs_shard_job job = own_shard(lane);
    job.source_count = gather_sources(lane);
    gather_targets(lane);
    job.target_count = lane->group->local_count;
    gs_shard_reduce(&job);
}

void gs_lane_sum_into_host(gs_lane *lane) {
    gs_shard_job job = own_shard(lane);
    job.source_count = gather_sources(lane);
    lane->targets[0] = lane->host_sum;
    job.target_count = 1;
    job.target_dtype = gs_dtype_wide(job.source_dtype);
    job.divisor = 1.0;
    gs_shard_reduce(&job);
}

void gs_lane_store_host_sum(gs_lane *lane) {
    gs_shard_job job = own_shard(lane);
    lane->sources[0] = lane->host_sum;
    job.source_count = 1;
    job.source_dtype = gs_dtype_wide(job.target_dtype);
    gather_targets(lane);
    job.target_count = lane->group->local_count;
    gs_shard_reduce(&job);
}
