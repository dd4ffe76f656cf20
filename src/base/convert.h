/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_CONVERT_H
#define GS_BASE_CONVERT_H

/*
 * Elements of any dtype to and from the wide type in which they are added (gs_dtype_wide), a block at a time: the
 * block stays in the first-level cache, so a pass over memory costs what the memory costs.
 */

#include "base/dtype.h"

enum { GS_BLOCK = 1024 };

typedef union gs_wide_block {
    float f[GS_BLOCK];
    double d[GS_BLOCK];
    int64_t i[GS_BLOCK];
} gs_wide_block;

/* count <= GS_BLOCK. Widening is exact; narrowing rounds to nearest even. */
void gs_widen(gs_wide_block *wide, const void *from, gsync_dtype dtype, size_t count);
/* A block of one wide floating type becomes one of the other: float64 is rounded to float32, to inf beyond its range.
 */
void gs_wide_convert(gs_wide_block *wide, gsync_dtype from, gsync_dtype to, size_t count);
void gs_narrow(void *to, const gs_wide_block *wide, gsync_dtype dtype, size_t count);

#endif
