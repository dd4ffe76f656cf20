/* SPDX-License-Identifier: Apache-2.0 */
#include "base/convert.h"
#include "collective/lane_internal.h"

/*
 * Pieces between hosts on a narrow wire. A host's sum is rounded once on its way to the host that adds it up, also the
 * part that this host adds up itself, and the result once on its way back: two roundings, and the same bits on all.
 */

size_t gs_lane_wire_bytes(const gs_lane *lane, size_t count) {
    const gs_lane_wire *wire = lane->operation.wire;
    if (wire == NULL) {
        return count * gsync_dtype_size(gs_dtype_wide(lane->operation.dtype));
    }
    return count / wire->block * wire->block_bytes;
}

unsigned char *gs_lane_encoded(const gs_lane *lane, uint32_t piece, const gs_lane_part *part) {
    const size_t stride = (size_t)lane->group->host_count * lane->received_stride;
    size_t first;
    size_t count;
    gs_lane_piece(lane, piece, &first, &count);
    return lane->encoded + piece % GS_NET_WINDOW * stride + gs_lane_wire_bytes(lane, part->first - first);
}

static void encode(gs_lane *lane, gs_wire_stage stage, uint32_t piece, const gs_lane_part *part) {
    const gs_lane_wire *wire = lane->operation.wire;
    gs_findings found = {.nonfinite_source = -1};
    if (part->count != 0) {
        wire->encode(wire->owner, stage, part->first, part->count, (float *)(void *)part->data,
                     gs_lane_encoded(lane, piece, part), &found);
        found.nonfinite_source = -1;
        found.absmax = stage == GS_WIRE_CONTRIBUTION ? found.absmax : 0;
        gs_lane_note(lane, &found, part->first);
    }
}

void gs_lane_encode_parts(gs_lane *lane, uint32_t piece) {
    for (int host = 0; host < lane->group->host_count; host++) {
        /* Of a short operation all hosts have the same part, which is encoded once. */
        if (host == 0 || !gs_lane_is_short(lane)) {
            const gs_lane_part part = gs_lane_part_of(lane, piece, host);
            encode(lane, GS_WIRE_CONTRIBUTION, piece, &part);
        }
    }
}

const void *gs_lane_decode_part(gs_lane *lane, uint32_t piece, int from) {
    const gs_lane_wire *wire = lane->operation.wire;
    const gs_lane_part own = gs_lane_part_of(lane, piece, lane->group->host);
    void *to = (unsigned char *)lane->decoded + (size_t)from * lane->received_stride;
    if (own.count != 0) {
        wire->decode(wire->owner, GS_WIRE_CONTRIBUTION, own.first, own.count, gs_lane_received_from(lane, piece, from),
                     to);
    }
    return to;
}

void gs_lane_encode_result(gs_lane *lane, uint32_t piece) {
    const gs_lane_part own = gs_lane_part_of(lane, piece, lane->group->host);
    gs_findings found = {.nonfinite_source = -1};
    encode(lane, GS_WIRE_RESULT, piece, &own);
    gs_lane_note_part(lane, &own, &found);
}

void gs_lane_decode_results(gs_lane *lane, uint32_t piece) {
    const gs_lane_wire *wire = lane->operation.wire;
    for (int host = 0; host < lane->group->host_count; host++) {
        const gs_lane_part theirs = gs_lane_part_of(lane, piece, host);
        if (host != lane->group->host && theirs.count != 0) {
            wire->decode(wire->owner, GS_WIRE_RESULT, theirs.first, theirs.count,
                         gs_lane_received_from(lane, piece, host), (float *)(void *)theirs.data);
        }
    }
}
