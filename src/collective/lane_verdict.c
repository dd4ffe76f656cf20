/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"
#include "collective/lane_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void gs_lane_describe(const gs_lane_topic *topic, char *text, size_t size) {
    if (topic->step != 0) {
        snprintf(text, size, "%s %" PRIu64 " of step %" PRIu64, topic->what, topic->part, topic->step);
    } else {
        snprintf(text, size, "%s", topic->what);
    }
}

static const gs_lane_header *header_of(const gs_lane *lane, int rank) {
    return &gs_lane_headers(lane)[lane->group->seat_of_rank[rank]];
}

static const char *op_name(const gs_lane_header *header) {
    if (header->op != GSYNC_SUM) {
        return header->op == GSYNC_MIN ? "min" : "max";
    }
    return header->divide == GS_DIVIDE_NOT ? "sum" : (header->divide == GS_DIVIDE_WEIGHT ? "weighted mean" : "mean");
}

static uint64_t elements(const gs_lane_header *header) {
    return header->topic.total != 0 ? header->topic.total : header->count;
}

static bool is_same_call(const gs_lane_header *a, const gs_lane_header *b) {
    return a->kind == b->kind && strncmp(a->topic.what, b->topic.what, sizeof a->topic.what) == 0 &&
           a->topic.step == b->topic.step && a->topic.part == b->topic.part;
}

static bool is_same_work(const gs_lane_header *a, const gs_lane_header *b) {
    return a->dtype == b->dtype && a->count == b->count && a->topic.total == b->topic.total && a->op == b->op &&
           a->divide == b->divide && a->divides_by_micro_batches == b->divides_by_micro_batches &&
           a->loss_scale == b->loss_scale && a->looks == b->looks && a->topic.digest == b->topic.digest;
}

/* Words for the first difference between a rank and rank 0. */
static gsync_status describe_difference(const gs_lane_header *mine, const gs_lane_header *zero, int rank) {
    char here[64];
    char there[64];
    gs_lane_describe(&mine->topic, here, sizeof here);
    gs_lane_describe(&zero->topic, there, sizeof there);
    if (!is_same_call(mine, zero)) {
        return gs_fail(GSYNC_ERR_MISMATCH,
                       "rank %d is at %s while rank 0 is at %s: all ranks must make the same calls in the same order",
                       rank, here, there);
    }
    if (mine->dtype != zero->dtype) {
        return gs_fail(GSYNC_ERR_MISMATCH, "%s: rank %d has %s, rank 0 has %s", here, rank,
                       gs_dtype_name((gsync_dtype)mine->dtype), gs_dtype_name((gsync_dtype)zero->dtype));
    }
    if (mine->count != zero->count || mine->topic.total != zero->topic.total) {
        return gs_fail(GSYNC_ERR_MISMATCH, "%s: rank %d has %" PRIu64 " elements, rank 0 has %" PRIu64, here, rank,
                       elements(mine), elements(zero));
    }
    if (mine->op != zero->op || mine->divide != zero->divide ||
        mine->divides_by_micro_batches != zero->divides_by_micro_batches) {
        return gs_fail(GSYNC_ERR_MISMATCH, "%s: rank %d asks for another operation (%s) than rank 0 (%s)", here, rank,
                       op_name(mine), op_name(zero));
    }
    if (mine->loss_scale != zero->loss_scale) {
        return gs_fail(GSYNC_ERR_MISMATCH,
                       "%s: rank %d has the loss scale %g, rank 0 has %g: update the scaler on all ranks alike", here,
                       rank, mine->loss_scale, zero->loss_scale);
    }
    if (mine->looks != zero->looks) {
        return gs_fail(GSYNC_ERR_MISMATCH,
                       "%s: rank %d %s inf and NaN, rank 0 does %s: set the scaler on all ranks alike", here, rank,
                       mine->looks != 0 ? "looks for" : "does not look for", zero->looks != 0 ? "look" : "not");
    }
    return gs_fail(GSYNC_ERR_MISMATCH, "%s: rank %d and rank 0 disagree on %s", here, rank,
                   mine->topic.step != 0 ? "the plan of the buckets" : "its arguments");
}

/* Ranks that contribute must have closed a window of the same length. */
static gsync_status compare_windows(const gs_lane *lane) {
    const gs_lane_header *first = NULL;
    int first_rank = 0;
    for (int seat = 0; seat < lane->group->world_size; seat++) {
        const gs_lane_header *header = &gs_lane_headers(lane)[seat];
        if (header->contributes == 0 || header->compares_micro_batches == 0) {
            continue;
        }
        if (first == NULL) {
            first = header;
            first_rank = lane->group->rank_of_seat[seat];
        } else if (header->micro_batches != first->micro_batches) {
            return gs_fail(GSYNC_ERR_MISMATCH,
                           "rank %d closed a window of %u micro-batches while rank %d closed one of %u: all ranks must "
                           "begin GSYNC_SYNC after the same number of micro-batches",
                           lane->group->rank_of_seat[seat], header->micro_batches, first_rank, first->micro_batches);
        }
    }
    return GSYNC_OK;
}

static void add_up(gs_lane *lane) {
    gs_lane_outcome *outcome = &lane->outcome;
    uint64_t micro_batches = 0;
    uint32_t window = 0;
    /* In the order of ranks, not of seats: float64 sums of fractional weights then do not depend on placement. */
    for (int rank = 0; rank < lane->group->world_size; rank++) {
        const gs_lane_header *header = header_of(lane, rank);
        if (header->contributes == 0) {
            continue;
        }
        outcome->participants++;
        outcome->weight_total += header->weight;
        micro_batches += header->micro_batches;
        window = header->micro_batches > window ? header->micro_batches : window;
    }
    const gs_lane_operation *operation = &lane->operation;
    switch (operation->divide) {
    case GS_DIVIDE_NOT:
        outcome->divisor = 1.0;
        break;
    case GS_DIVIDE_WORLD:
        outcome->divisor = (double)lane->group->world_size * (operation->divides_by_micro_batches ? window : 1.0);
        break;
    case GS_DIVIDE_PARTICIPANTS:
        outcome->divisor = operation->divides_by_micro_batches ? (double)micro_batches : outcome->participants;
        break;
    case GS_DIVIDE_WEIGHT:
        outcome->divisor = outcome->weight_total;
        break;
    }
}

gsync_status gs_lane_judge(gs_lane *lane) {
    const gs_group *group = lane->group;
    const gs_lane_header *zero = header_of(lane, 0);
    for (int rank = 1; rank < group->world_size; rank++) {
        const gs_lane_header *header = header_of(lane, rank);
        if (!is_same_call(header, zero) || !is_same_work(header, zero)) {
            return describe_difference(header, zero, rank);
        }
    }
    for (int rank = 0; rank < group->world_size; rank++) {
        const gs_lane_header *header = header_of(lane, rank);
        if (header->verdict != GSYNC_OK) {
            lane->outcome.refusing_rank = rank;
            lane->outcome.verdict_index = header->verdict_index;
            return gs_fail((gsync_status)header->verdict, "rank %d refused", rank);
        }
    }
    GS_TRY(compare_windows(lane));
    add_up(lane);
    return GSYNC_OK;
}
