/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_TOPK_CUDA_H
#define GS_DEVICE_TOPK_CUDA_H

/*
 * The wire TOPK on a GPU: of every gradient of a bucket exactly its share of elements is chosen, as gs_topk_select
 * does it, and what all ranks chose is added up. Both are a few kernels for all gradients of the bucket together; no
 * host looks in between, and nothing is allocated.
 */

#include "base/dtype.h"
#include "device/device_cuda.h"

enum { GS_CUDA_TOPK_TILE = 4096 }; /* elements that a block of threads takes at once, of one gradient */

/* An element that travels. */
typedef struct gs_cuda_entry {
    uint32_t index; /* of the gradient's elements */
    float value;
} gs_cuda_entry;

/* What is to be chosen of one gradient, in device memory. */
typedef struct gs_cuda_choice {
    uint64_t offset; /* of its first element in the bucket */
    uint64_t first_entry;
    uint32_t count;
    uint32_t kept; /* at least 1, unless count is 0 */
    uint32_t first_tile;
    uint32_t number; /* of the gradient: what is owed of it follows from that */
} gs_cuda_choice;

/* Of a bucket of float32 elements. */
typedef struct gs_cuda_topk {
    const gs_cuda_choice *choices; /* in the order of their tiles, which leave none out */
    size_t choice_count;
    uint32_t tile_count;
    size_t entry_count; /* of one rank: what the choices keep */
    size_t element_count;
    void *scratch; /* of gs_cuda_topk_scratch_bytes for choices_max; zero at first, and touched by nobody else */
    size_t choices_max;
    float *bucket;

    /* Error feedback of what a rank chooses. The table by the gradients' numbers; NULL: there is none. */
    const gs_cuda_residual *residuals;
    size_t residual_count;
    const gs_cuda_residual *host_residuals; /* the same on the host, of which `sides` are read, ... */
    const gs_cuda_choice *host_choices;     /* ... and like these during the call only */
    float unit;                             /* a power of two: the bucket's elements are so many times what is owed */
} gs_cuda_topk;

static inline GS_ANYWHERE uint32_t gs_cuda_topk_tiles(size_t count) {
    return (uint32_t)((count + GS_CUDA_TOPK_TILE - 1) / GS_CUDA_TOPK_TILE);
}

/* For buckets of no more choices and tiles than these, one after the other on a stream. */
size_t gs_cuda_topk_scratch_bytes(size_t choices_max, size_t tiles_max);

/*
 * entries = of each choice, one behind the other, the `kept` elements of largest magnitude, the first among equals,
 * every NaN before everything else, and -0 like 0; indices ascend. With error feedback what is owed is added to the
 * bucket before, and what is not chosen is owed from now on: the residuals' other sides are written. Else the bucket
 * stays as it is.
 */
gsync_status gs_cuda_topk_select(gs_cuda *cuda, const gs_cuda_topk *of, gs_cuda_entry *entries, void *stream);

/*
 * bucket = the sum of all ranks' entries, added up in the order of ranks, and 0 elsewhere. entries: of every rank in
 * turn. Who contributes nothing is left out, whatever its entries are. Where an index is none of its gradient's, the
 * last element of the gradient becomes NaN; nothing beyond the bucket is written.
 */
gsync_status gs_cuda_topk_sum(gs_cuda *cuda, const gs_cuda_topk *of, const gs_cuda_entry *entries,
                              const gs_cuda_share *shares, int ranks, void *stream);

#endif
