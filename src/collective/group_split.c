/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/group.h"
#include "collective/lane.h"

#include <string.h>

typedef struct split_wish {
    int color;
    int key;
} split_wish;

static split_wish wish_of(const gs_group *parent, int rank) {
    split_wish wish;
    size_t bytes;
    memcpy(&wish, gs_lane_mail(parent->control, rank, &bytes), sizeof wish);
    return wish;
}

gsync_status gs_group_split_members(gs_group *parent, int color, int key, int *members, int *count, int *own) {
    const split_wish mine = {color, key};
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER, .topic = {.what = "comm_split"}, .mail = &mine, .mail_bytes = sizeof mine};
    GS_TRY(gs_lane_run(parent->control, &operation, NULL, NULL));
    *count = 0;
    *own = 0;
    for (int rank = 0; rank < parent->world_size; rank++) {
        const split_wish wish = wish_of(parent, rank);
        if (wish.color != color) {
            continue;
        }
        /* Insertion keeps ranks with equal keys in their old order. */
        int place = (*count)++;
        for (; place > 0 && wish_of(parent, members[place - 1]).key > wish.key; place--) {
            members[place] = members[place - 1];
        }
        members[place] = rank;
    }
    while (*own < *count && members[*own] != parent->rank) {
        (*own)++;
    }
    return GSYNC_OK;
}
