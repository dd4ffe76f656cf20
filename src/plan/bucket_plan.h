/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_PLAN_BUCKET_PLAN_H
#define GS_PLAN_BUCKET_PLAN_H

/*
 * Which gradients travel together, and in which order the buckets leave. Pure: the same input gives the same plan on
 * every rank; only init allocates.
 */

#include <gradsync/gradsync.h>
#include <stdbool.h>

#define GS_NO_BUCKET UINT32_MAX

/* How many ways of travelling one reducer can have. The first ones are as the gradient is: nobody makes it shorter. */
enum { GS_PLAN_WIRES_MAX = 9, GS_PLAN_WIRE_FAST = 1, GS_PLAN_NARROW_FIRST = 2 };

typedef struct gs_plan_gradient {
    size_t count; /* elements */
    gsync_dtype dtype;
    uint32_t uses; /* marks that make it final; at least 1 */
    bool is_trainable;
    uint32_t wire;  /* below GS_PLAN_WIRES_MAX */
    uint32_t block; /* elements that travel together: it begins and ends at multiples of it. 0: any */
} gs_plan_gradient;

typedef struct gs_plan_rule {
    gsync_strategy strategy;
    size_t bytes_max;       /* at least 1; SIZE_MAX: no cap */
    size_t bytes_first_max; /* DDP: the cap of the first bucket of each dtype; at least 1 */
} gs_plan_rule;

typedef struct gs_bucket {
    uint32_t first; /* into members */
    uint32_t gradient_count;
    size_t element_count; /* with what fills up blocks. SIZE_MAX if it would not fit: such a bucket cannot be allocated
                             either */
    gsync_dtype dtype;
    uint32_t wire;
} gs_bucket;

typedef struct gs_bucket_plan {
    size_t gradient_count;
    size_t bucket_count;
    gs_bucket *buckets;     /* in launch order */
    uint32_t *members;      /* gradient indices, bucket after bucket; inside one in order of registration, so that
                               neighbours of a flat gradient buffer stay neighbours */
    uint32_t *bucket_of;    /* per gradient; GS_NO_BUCKET when it is frozen or empty */
    size_t *element_offset; /* per gradient, inside its bucket */
    uint64_t digest;   /* of everything above but the numbers of wires, which each rank gives; never 0 after build */
    uint32_t *scratch; /* 3 x gradient_count: closing positions, sort space, new bucket numbers */
    gs_bucket *scratch_buckets;
} gs_bucket_plan;

/* Allocates for plans over gradient_count gradients; the plan has no buckets yet. On failure it is cleared. */
gsync_status gs_bucket_plan_init(gs_bucket_plan *plan, size_t gradient_count);
void gs_bucket_plan_clear(gs_bucket_plan *plan);

/*
 * Plans anew. order lists every gradient index once, in the (expected or observed) order of becoming ready.
 *
 *  - A bucket holds one dtype and one wire; "its dtype" below means both. Frozen gradients and those of count 0 are in
 * none.
 *  - A gradient larger than the cap that is in force closes the open bucket of its dtype and travels alone. Any close
 *    moves that dtype on to bytes_max, but the cap that counts is the one in force when the gradient arrived.
 *  - DDP: the gradient is added, then the bucket closes if its bytes have reached the cap; the first bucket of each
 *    dtype has bytes_first_max, all later ones bytes_max. (PyTorch compute_bucket_assignment_by_size, which has no rule
 *    for larger gradients.)
 *  - FIXED: the bucket closes before a gradient that would make it exceed bytes_max. SINGLE: never.
 *  - Buckets are ordered by the position of their last gradient, full ones and left-over ones alike.
 */
void gs_bucket_plan_build(gs_bucket_plan *plan, const gs_plan_gradient *gradients, const uint32_t *order,
                          const gs_plan_rule *rule);

/* Keeps what each bucket holds and orders the buckets anew by the position of their last gradient in order. */
void gs_bucket_plan_reorder(gs_bucket_plan *plan, const uint32_t *order);

/*
 * Completes an observed ready order: observed_count indices that were seen become the head of order; those never
 * seen follow in reverse registration. Returns false, with order untouched, if an index is out of range or twice.
 * order may be the same array as observed.
 */
bool gs_bucket_plan_complete_order(const gs_bucket_plan *plan, const uint32_t *observed, size_t observed_count,
                                   uint32_t *order);

#endif
