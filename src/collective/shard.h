/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_SHARD_H
#define GS_COLLECTIVE_SHARD_H

/*
 * The arithmetic of a reduction: elements of several sources are added in the order of the sources, in the wide type
 * of their dtype, divided once, rounded once, and written to every target. Which elements a call covers does not
 * change any bit of the result.
 */

#include "base/dtype.h"
#include "base/kernels.h"

typedef struct gs_shard_job {
    const void *const *sources; /* elements of source_dtype */
    int source_count;           /* 0: the result is zero */
    gsync_dtype source_dtype;
    void *const *targets; /* may be the sources themselves */
    int target_count;
    gsync_dtype target_dtype; /* source_dtype, or its wide type; or the other way round */
    gsync_op op;              /* SUM, MIN or MAX */
    double divisor;           /* 1: nothing is divided; 0: the result is zero. Floating types only */
    size_t first;             /* elements [first, first + count) of every source and target */
    size_t count;
    gs_rounding rounding;  /* SUM of float32: every source before it is added, and the result */
    gs_findings *findings; /* SUM of floating types. NULL: nothing is looked for */
} gs_shard_job;

void gs_shard_reduce(const gs_shard_job *job);

/* Squares and inf or NaN of float32 results as they will be once they are rounded to dtype, in which they may become
 * infinite. nonfinite_element: of x; nonfinite_source stays. */
void gs_shard_look(const float *x, size_t count, gsync_dtype dtype, gs_findings *found);

/* A single rank whose data is reduced where it is. */
bool gs_shard_changes_nothing(const gs_shard_job *job);

/* Splits count elements among `parts`: *first and *length of part `index`. Boundaries lie on cache lines. */
void gs_shard_split(size_t count, int parts, int index, size_t *first, size_t *length);
/* Also on multiples of block, which is 1 or a multiple of 64. */
void gs_shard_split_blocks(size_t count, size_t block, int parts, int index, size_t *first, size_t *length);

#endif
