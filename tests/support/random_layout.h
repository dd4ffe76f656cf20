/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RANDOM_LAYOUT_H
#define RANDOM_LAYOUT_H

/*
 * A model drawn from a seed: what gradients there are, where each rank keeps them, and how they are reduced. Every rank
 * draws the same layout. What the reduction must give is written down once more, as one thread with everybody's data
 * would compute it; that code shares nothing with the library.
 */

#include "ranks.h"

enum {
    LAYOUT_TENSORS_MAX = 60,
    LAYOUT_WORLD_MAX = 8,
    LAYOUT_MICRO_BATCHES_MAX = 3,
    LAYOUT_SHIFT_MAX = 9, /* elements that a private gradient starts behind a 64-byte boundary */
    LAYOUT_GAP_MAX = 5    /* elements between its rows */
};

typedef enum layout_place {
    LAYOUT_PRIVATE,  /* memory of its own, often at an odd element */
    LAYOUT_PITCHED,  /* likewise, in rows with gaps */
    LAYOUT_LIBRARY,  /* in the library's bucket */
    LAYOUT_FLAT,     /* all gradients of the rank behind one another, in the order of registration */
    LAYOUT_FLAT_BACK /* likewise, from the last to the first */
} layout_place;

typedef struct layout_tensor {
    size_t rows;
    size_t columns;
    gsync_dtype dtype;
    layout_place place[LAYOUT_WORLD_MAX]; /* by rank; if one gradient is flat, all of the rank are */
    size_t shift[LAYOUT_WORLD_MAX];
    size_t gap[LAYOUT_WORLD_MAX];
} layout_tensor;

typedef struct layout {
    uint64_t seed;
    int world;
    uint32_t ranks_per_host; /* 0: one host */
    gsync_options options;
    size_t tensor_count;
    layout_tensor tensors[LAYOUT_TENSORS_MAX];
    uint32_t steps;
    uint32_t micro_batches; /* of each step */
    uint32_t members;       /* bit r: rank r has data */
    double weights[LAYOUT_WORLD_MAX][LAYOUT_MICRO_BATCHES_MAX];
} layout;

void layout_draw(layout *drawn, uint64_t seed, int world, uint32_t ranks_per_host);

static inline size_t layout_count(const layout_tensor *tensor) {
    return tensor->rows * tensor->columns;
}

static inline bool layout_has_data(const layout *drawn, int rank) {
    return (drawn->members >> rank & 1u) != 0;
}

/* For printing what failed; `size` characters at most. */
void layout_describe(const layout *drawn, char *text, size_t size);

/* What a rank's gradient holds in a micro-batch: dense. */
void layout_fill(const layout *drawn, uint32_t step, uint32_t micro_batch, size_t tensor, int rank, void *values);

/* What it must hold after the step: dense. scratch has room for layout_scratch_bytes. */
void layout_expect(const layout *drawn, uint32_t step, size_t tensor, void *expected, void *scratch);
size_t layout_scratch_bytes(const layout *drawn, size_t tensor);

#endif
