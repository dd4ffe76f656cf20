/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_TENSOR_H
#define GS_DEVICE_TENSOR_H

#include "base/dtype.h"

/* The trainer's memory that holds one gradient. Dense: rows == 1, row_pitch == columns. */
typedef struct gs_tensor {
    void *data;
    size_t rows;
    size_t columns;
    size_t row_pitch; /* elements from one row to the next */
    gsync_dtype dtype;
} gs_tensor;

static inline size_t gs_tensor_count(const gs_tensor *tensor) {
    return tensor->rows * tensor->columns;
}

static inline size_t gs_tensor_bytes(const gs_tensor *tensor) {
    return gs_tensor_count(tensor) * gsync_dtype_size(tensor->dtype);
}

static inline bool gs_tensor_is_dense(const gs_tensor *tensor) {
    return tensor->rows <= 1 || tensor->row_pitch == tensor->columns;
}

/* Bytes from the first element to the end of the last: with what lies between the rows. */
static inline size_t gs_tensor_extent_bytes(const gs_tensor *tensor) {
    if (gs_tensor_count(tensor) == 0) {
        return 0;
    }
    return ((tensor->rows - 1) * tensor->row_pitch + tensor->columns) * gsync_dtype_size(tensor->dtype);
}

#endif
