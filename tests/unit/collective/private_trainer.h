/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PRIVATE_TRAINER_H
#define PRIVATE_TRAINER_H

/*
 * Ranks of one thread, each with data that the lane asks for piece by piece: every call is counted, element by element,
 * and lets other ranks go on in the middle of it.
 */

#include "collective/collective_threads.h"
#include "collective/lane_internal.h"
#include "collective/shard.h"
#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

enum { TRAINERS_MAX = 4, COUNT_MAX = 50000 };

struct trainers;

typedef struct trainer {
    struct trainers *all;
    gs_lane *lane;
    gs_lane_private private_data;
    bool is_public;  /* its data is where peers reach it */
    bool is_through; /* with the operation */
    bool is_moving;  /* in the middle of gs_lane_progress */
    float data[COUNT_MAX];
    uint8_t encoded[COUNT_MAX];
    uint8_t decoded[COUNT_MAX];
} trainer;

typedef struct trainers {
    int count;
    gs_group *groups[TRAINERS_MAX];
    trainer *each[TRAINERS_MAX];
    size_t elements;
    size_t run_max;   /* so many elements lie in a row, then as many do not, and so on; 0: none do */
    seeded random;    /* who goes on next */
    gsync_status end; /* what every rank's operation ends with */
} trainers;

static void move_one(trainer *self) {
    bool did_work;
    if (!self->is_moving && !self->is_through) {
        self->is_moving = true;
        const gsync_status status = gs_lane_progress(self->lane, &self->is_through, &did_work);
        self->is_moving = false;
        assert_int_equal(status, self->is_through ? self->all->end : GSYNC_OK);
    }
}

static void let_another_move(trainers *all) {
    if (seeded_below(&all->random, 2) == 0) {
        move_one(all->each[seeded_below(&all->random, (size_t)all->count)]);
    }
}

static void *find(void *owner, size_t first, size_t *count) {
    trainer *self = owner;
    const size_t run_max = self->all->run_max;
    assert_in_range(*count, 1, self->all->elements - first);
    if (run_max == 0 || first / run_max % 2 != 0) {
        return NULL;
    }
    const size_t left = run_max - first % run_max;
    *count = *count < left ? *count : left;
    return &self->data[first];
}

static void encode(void *owner, size_t first, size_t count, void *wire) {
    trainer *self = owner;
    assert_in_range(count, 1, self->all->elements - first);
    let_another_move(self->all);
    memcpy(wire, &self->data[first], count * sizeof(float));
    for (size_t i = first; i < first + count; i++) {
        self->encoded[i]++;
    }
    let_another_move(self->all);
}

static void decode(void *owner, size_t first, size_t count, const void *wire) {
    trainer *self = owner;
    assert_in_range(count, 1, self->all->elements - first);
    let_another_move(self->all);
    memcpy(&self->data[first], wire, count * sizeof(float));
    for (size_t i = first; i < first + count; i++) {
        self->decoded[i]++;
    }
    let_another_move(self->all);
}

static inline void trainers_open(trainers *all, int count) {
    static const gs_logger silent = {.log = NULL};
    memset(all, 0, sizeof *all);
    all->count = count;
    assert_int_equal(gs_threads_create(all->groups, count, 10000, &silent), GSYNC_OK);
    for (int rank = 0; rank < count; rank++) {
        trainer *self = calloc(1, sizeof *self);
        assert_non_null(self);
        all->each[rank] = self;
        self->all = all;
        self->lane = all->groups[rank]->control;
        self->private_data = (gs_lane_private){.owner = self, .find = find, .encode = encode, .decode = decode};
    }
}

static inline void trainers_close(trainers *all) {
    for (int rank = 0; rank < all->count; rank++) {
        gs_group_destroy(all->groups[rank]);
        free(all->each[rank]);
    }
}

/* Whole numbers, whose sums are exact in any order. */
static inline float trainer_value(int rank, size_t element) {
    return (float)((element * 7 + (size_t)rank * 1001) % 4096);
}

static inline void trainers_fill(trainers *all, size_t elements) {
    all->elements = elements;
    for (int rank = 0; rank < all->count; rank++) {
        trainer *self = all->each[rank];
        self->is_through = false;
        memset(self->encoded, 0, sizeof self->encoded);
        memset(self->decoded, 0, sizeof self->decoded);
        for (size_t i = 0; i < COUNT_MAX; i++) {
            self->data[i] = i < elements ? trainer_value(rank, i) : -1.0f;
        }
    }
}

static inline gs_lane_operation trainer_operation(const trainer *self) {
    return (gs_lane_operation){
        .kind = GS_LANE_REDUCE,
        .topic = {.what = "sum"},
        .contributes = true,
        .data = self->is_public ? (void *)self->data : NULL,
        .private_data = self->is_public ? NULL : &self->private_data,
        .count = self->all->elements,
        .dtype = GSYNC_FLOAT32,
        .op = GSYNC_SUM,
    };
}

/* Posting packs, and so may let another go on: nobody does before all have posted. */
static inline void trainer_post(trainer *self, const gs_lane_operation *operation) {
    for (int rank = 0; rank < self->all->count; rank++) {
        self->all->each[rank]->is_moving = true;
    }
    assert_int_equal(gs_lane_post(self->lane, operation), GSYNC_OK);
    for (int rank = 0; rank < self->all->count; rank++) {
        self->all->each[rank]->is_moving = false;
    }
}

/* In random order, until all are through. */
static inline void trainers_move(trainers *all) {
    int through = 0;
    for (int turns = 0; through < all->count; turns++) {
        assert_in_range(turns, 0, 100000); /* nobody gets anywhere */
        move_one(all->each[seeded_below(&all->random, (size_t)all->count)]);
        through = 0;
        for (int rank = 0; rank < all->count; rank++) {
            through += all->each[rank]->is_through ? 1 : 0;
        }
    }
}

static inline void trainers_sum(trainers *all) {
    for (int rank = 0; rank < all->count; rank++) {
        const gs_lane_operation operation = trainer_operation(all->each[rank]);
        trainer_post(all->each[rank], &operation);
    }
    trainers_move(all);
}

/* Does the rank add up this element for all? */
static inline bool trainer_adds(const trainer *self, size_t element) {
    const size_t piece = self->lane->flow.elements;
    const size_t start = element / piece * piece;
    const size_t left = self->all->elements - start;
    size_t first;
    size_t count;
    gs_shard_split(left < piece ? left : piece, self->all->count, self->lane->group->local_rank, &first, &count);
    return element - start >= first && element - start < first + count;
}

#endif
