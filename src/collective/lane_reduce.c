/* SPDX-License-Identifier: Apache-2.0 */
#include "base/convert.h"
#include "collective/lane_internal.h"
#include "collective/shard.h"

#include <string.h>

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

bool gs_lane_host_contributes(const gs_lane *lane) {
    for (int i = 0; i < lane->group->local_count; i++) {
        if (local_header(lane, i)->contributes != 0) {
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

double gs_lane_divisor(const gs_lane *lane) {
    const double loss_scale = lane->operation.loss_scale;
    return lane->outcome.divisor * (loss_scale != 0.0 ? loss_scale : 1.0);
}

static gs_shard_job job_of(const gs_lane *lane, size_t count) {
    return (gs_shard_job){
        .sources = lane->sources,
        .targets = lane->targets,
        .source_dtype = lane->operation.dtype,
        .target_dtype = lane->operation.dtype,
        .op = lane->operation.op,
        .divisor = 1.0,
        .count = count,
    };
}

/* ---- findings ---- */

static int rank_of_source(const gs_lane *lane, int source) {
    for (int i = 0; i < lane->group->local_count && source >= 0; i++) {
        if (local_header(lane, i)->contributes != 0 && source-- == 0) {
            return gs_group_local_to_rank(lane->group, i);
        }
    }
    return -1;
}

void gs_lane_note(gs_lane *lane, const gs_findings *part, size_t first) {
    gs_findings_add(&lane->outcome.findings, part, first);
}

static gsync_dtype result_dtype(const gs_lane *lane) {
    const gs_lane_operation *operation = &lane->operation;
    return (int)operation->result_dtype != 0 ? operation->result_dtype : operation->dtype;
}

/* Results are float32 here, and will be rounded to 16 bits where they are written. */
static bool is_narrowed_later(const gs_lane *lane) {
    const gsync_dtype result = result_dtype(lane);
    return gs_dtype_is_floating(result) && result != gs_dtype_wide(result);
}

/* Squares are those of what ranks get, and it may have become infinite. */
static void look_at_result(const gs_lane *lane, const float *data, size_t count, gs_findings *found) {
    found->square_sum = 0;
    gs_shard_look(data, count, result_dtype(lane), found);
}

void gs_lane_round_range(gs_lane *lane, gs_wire_stage stage, size_t first, size_t count, float *data) {
    const gs_lane_wire *wire = lane->operation.wire;
    gs_findings found = {0};
    wire->round(wire->owner, stage, first, count, data, &found);
    found.nonfinite_source = stage == GS_WIRE_CONTRIBUTION ? lane->group->rank : -1;
    if (stage == GS_WIRE_RESULT) {
        found.absmax = 0; /* that of contributions is asked for */
        look_at_result(lane, data, count, &found);
    }
    gs_lane_note(lane, &found, first);
}

void gs_lane_note_part(gs_lane *lane, const gs_lane_part *part, gs_findings *found) {
    const gs_lane_operation *operation = &lane->operation;
    if (!operation->looks || part->count == 0) {
        return;
    }
    if (operation->wire != NULL || is_narrowed_later(lane)) {
        look_at_result(lane, (const float *)(void *)part->data, part->count, found);
    }
    if (gs_lane_is_short(lane) && lane->group->host != 0) {
        found->square_sum = 0; /* every host has all of it */
    }
    found->nonfinite_source = -1;
    gs_lane_note(lane, found, part->first);
}

/* ---- this rank's shard of the sum ---- */

static void reduce(gs_lane *lane, gs_shard_job *job, size_t first, bool has_result) {
    gs_findings found = {.nonfinite_source = -1};
    job->findings = lane->operation.looks ? &found : NULL;
    gs_shard_reduce(job);
    job->findings = NULL;
    found.nonfinite_source = found.has_nonfinite ? rank_of_source(lane, found.nonfinite_source) : -1;
    if (has_result && lane->operation.looks && lane->operation.dtype == GSYNC_FLOAT32 && is_narrowed_later(lane)) {
        look_at_result(lane, job->targets[0], job->count, &found);
    }
    found.square_sum = has_result ? found.square_sum : 0.0;
    gs_lane_note(lane, &found, first);
}

static void sum_for_hosts(gs_lane *lane, size_t first, size_t count, void *mine) {
    gs_shard_job job = job_of(lane, count);
    job.source_count = gather_sources(lane, first, mine);
    lane->targets[0] = host_sum_at(lane, first);
    job.target_count = 1;
    job.target_dtype = gs_dtype_wide(job.source_dtype);
    reduce(lane, &job, first, false);
}

/* The result is rounded once, here, and the others get what came out. */
static void sum_and_round(gs_lane *lane, size_t first, size_t count, float *mine) {
    gs_shard_job job = job_of(lane, count);
    job.source_count = gather_sources(lane, first, mine);
    lane->targets[0] = mine;
    job.target_count = 1;
    job.divisor = gs_lane_divisor(lane);
    reduce(lane, &job, first, false);
    gs_lane_round_range(lane, GS_WIRE_RESULT, first, count, mine);
    for (int i = 0; i < gather_targets(lane, first, mine); i++) {
        if (i != lane->group->local_rank) {
            memcpy(lane->targets[i], mine, count * sizeof *mine);
        }
    }
}

static void sum_in_place(gs_lane *lane, size_t first, size_t count, void *mine) {
    gs_shard_job job = job_of(lane, count);
    job.source_count = gather_sources(lane, first, mine);
    job.target_count = gather_targets(lane, first, mine);
    job.divisor = gs_lane_divisor(lane);
    if (lane->operation.wire != NULL) {
        job.rounding = lane->operation.wire->rounding;
        if (job.rounding.to == GS_ROUND_HALF) {
            job.rounding.result_scale = lane->operation.wire->result_scale(lane->operation.wire->owner);
        }
    }
    lane->outcome.is_data_touched = lane->outcome.is_data_touched || !gs_shard_changes_nothing(&job);
    reduce(lane, &job, first, true);
}

void gs_lane_sum_range(gs_lane *lane, size_t first, size_t count, void *mine) {
    if (lane->group->host_count > 1) {
        sum_for_hosts(lane, first, count, mine);
    } else if (gs_lane_rounds_data(lane)) {
        sum_and_round(lane, first, count, mine);
    } else {
        sum_in_place(lane, first, count, mine);
    }
}

void gs_lane_sum_shard(gs_lane *lane) {
    const int self = lane->group->local_rank;
    size_t first;
    size_t count;
    gs_shard_split_blocks(lane->operation.count, gs_lane_block(lane), lane->group->local_count, self, &first, &count);
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
