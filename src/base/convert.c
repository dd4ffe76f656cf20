/* SPDX-License-Identifier: Apache-2.0 */
#include "base/convert.h"

#include "base/kernels.h"

#define LOAD(member, type, expression)                                                                                 \
    do {                                                                                                               \
        const type *x = (const type *)from;                                                                            \
        for (size_t k = 0; k < count; k++) {                                                                           \
            wide->member[k] = (expression);                                                                            \
        }                                                                                                              \
    } while (0)

void gs_widen(gs_wide_block *restrict wide, const void *restrict from, gsync_dtype dtype, size_t count) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        LOAD(f, float, x[k]);
        break;
    case GSYNC_FLOAT64:
        LOAD(d, double, x[k]);
        break;
    case GSYNC_FLOAT16:
        gs_kernels_best()->widen_half(wide->f, from, count);
        break;
    case GSYNC_BFLOAT16:
        gs_kernels_best()->widen_bfloat(wide->f, from, count);
        break;
    case GSYNC_INT32:
        LOAD(i, int32_t, x[k]);
        break;
    case GSYNC_INT64:
        LOAD(i, int64_t, x[k]);
        break;
    case GSYNC_UINT8:
        LOAD(i, uint8_t, x[k]);
        break;
    }
}

void gs_wide_convert(gs_wide_block *wide, gsync_dtype from, gsync_dtype to, size_t count) {
    gs_wide_block copy;
    if (from == to) {
        return;
    }
    memcpy(&copy, wide, sizeof copy);
    for (size_t k = 0; k < count; k++) {
        if (to == GSYNC_FLOAT32) {
            wide->f[k] = (float)copy.d[k];
        } else {
            wide->d[k] = copy.f[k];
        }
    }
}

/* NOLINTBEGIN(bugprone-macro-parentheses): a type cannot be parenthesised */
#define STORE(type, expression)                                                                                        \
    do {                                                                                                               \
        type *y = (type *)to;                                                                                          \
        for (size_t k = 0; k < count; k++) {                                                                           \
            y[k] = (expression);                                                                                       \
        }                                                                                                              \
    } while (0)
/* NOLINTEND(bugprone-macro-parentheses) */

void gs_narrow(void *restrict to, const gs_wide_block *restrict wide, gsync_dtype dtype, size_t count) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        STORE(float, wide->f[k]);
        break;
    case GSYNC_FLOAT64:
        STORE(double, wide->d[k]);
        break;
    case GSYNC_FLOAT16:
        gs_kernels_best()->narrow_half(to, wide->f, count);
        break;
    case GSYNC_BFLOAT16:
        gs_kernels_best()->narrow_bfloat(to, wide->f, count);
        break;
    case GSYNC_INT32:
        STORE(int32_t, (int32_t)wide->i[k]);
        break;
    case GSYNC_INT64:
        STORE(int64_t, wide->i[k]);
        break;
    case GSYNC_UINT8:
        STORE(uint8_t, (uint8_t)wide->i[k]);
        break;
    }
}
