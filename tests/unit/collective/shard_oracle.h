/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHARD_ORACLE_H
#define SHARD_ORACLE_H

/*
 * The arithmetic of a reduction in float64, element by element. A float32 operation on float32 values is the float64
 * one rounded to float32, bit for bit, because 53 >= 2 * 24 + 2; halves are rounded by a search (half_oracle.h).
 */

#include "../base/half_oracle.h"

#include <gradsync/gradsync.h>
#include <string.h>

static inline double shard_load(gsync_dtype dtype, const void *from, size_t index) {
    const unsigned char *at = (const unsigned char *)from + index * gsync_dtype_size(dtype);
    double d;
    float f;
    uint16_t h;
    switch (dtype) {
    case GSYNC_FLOAT64:
        memcpy(&d, at, sizeof d);
        return d;
    case GSYNC_FLOAT32:
        memcpy(&f, at, sizeof f);
        return (double)f;
    case GSYNC_FLOAT16:
        memcpy(&h, at, sizeof h);
        return half_value((half_format){5, 10}, h);
    default:
        memcpy(&h, at, sizeof h);
        return half_value((half_format){8, 7}, h);
    }
}

static inline void shard_store(gsync_dtype dtype, void *to, size_t index, double value) {
    unsigned char *at = (unsigned char *)to + index * gsync_dtype_size(dtype);
    const float f = (float)value;
    if (dtype == GSYNC_FLOAT64) {
        memcpy(at, &value, sizeof value);
    } else if (dtype == GSYNC_FLOAT32) {
        memcpy(at, &f, sizeof f);
    } else {
        const half_format format = dtype == GSYNC_FLOAT16 ? (half_format){5, 10} : (half_format){8, 7};
        const uint16_t nan = (uint16_t)(half_infinity(format) + 1);
        const uint16_t h = isnan(value) ? nan : half_nearest(format, value);
        memcpy(at, &h, sizeof h);
    }
}

/* A sum in the precision of the dtype's sums. */
static inline double shard_rounded(gsync_dtype dtype, double value) {
    return dtype == GSYNC_FLOAT64 ? value : (double)(float)value;
}

static inline double shard_combine(gsync_dtype dtype, gsync_op op, double a, double b) {
    if (op == GSYNC_SUM) {
        return shard_rounded(dtype, a + b);
    }
    if (isnan(a) || isnan(b)) {
        return (double)NAN;
    }
    /* The earlier one of two equals, which are zeros of different sign or the same bits. */
    return op == GSYNC_MIN ? (b < a ? b : a) : (b > a ? b : a);
}

#endif
