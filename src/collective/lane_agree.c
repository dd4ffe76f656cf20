/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/lane_internal.h"

#include <stdio.h>
#include <string.h>

/* What each rank reports. */
typedef struct agree_report {
    int32_t status;
    char token[GS_TOKEN_MAX];
    char text[384];
} agree_report;

static agree_report report_of(const gs_lane *lane, int rank) {
    agree_report report;
    size_t bytes;
    memcpy(&report, gs_lane_mail(lane, rank, &bytes), sizeof report);
    return report;
}

gsync_status gs_lane_agree(gs_lane *lane, const char *what, gsync_status own, const char *token) {
    agree_report report = {.status = own};
    if (own != GSYNC_OK) {
        snprintf(report.text, sizeof report.text, "%.383s", gsync_last_error());
    } else if (token != NULL) {
        snprintf(report.token, sizeof report.token, "%.119s", token);
    }
    gs_lane_operation operation = {.kind = GS_LANE_GATHER, .mail = &report, .mail_bytes = sizeof report};
    snprintf(operation.topic.what, sizeof operation.topic.what, "%.15s", what);
    GS_TRY(gs_lane_run(lane, &operation, NULL, NULL));
    for (int rank = 0; rank < gs_lane_world_size(lane); rank++) {
        const agree_report other = report_of(lane, rank);
        if (other.status != GSYNC_OK) {
            return gs_fail((gsync_status)other.status, "rank %d: %s", rank, other.text);
        }
    }
    return GSYNC_OK;
}

void gs_lane_agreed_token(const gs_lane *lane, int rank, char *token) {
    const agree_report report = report_of(lane, rank);
    memcpy(token, report.token, GS_TOKEN_MAX);
}

static uint64_t word_of(const gs_lane *lane, int rank, size_t index) {
    size_t bytes;
    uint64_t word;
    const unsigned char *mail = gs_lane_mail(lane, rank, &bytes);
    memcpy(&word, mail + index * sizeof word, sizeof word);
    return word;
}

bool gs_lane_find_difference(const gs_lane *lane, size_t count, size_t *word, int *rank) {
    for (size_t i = 0; i < count; i++) {
        for (int r = 1; r < lane->group->world_size; r++) {
            if (word_of(lane, r, i) != word_of(lane, 0, i)) {
                *word = i;
                *rank = r;
                return true;
            }
        }
    }
    return false;
}
