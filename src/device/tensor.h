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

/* The largest part of the tensor that starts at element `first` and is a tensor too. *count: its elements at most, and
 * then its elements. */
static inline gs_tensor gs_tensor_part(const gs_tensor *tensor, size_t first, size_t *count) {
    gs_tensor part = *tensor;
    const size_t width = gs_tensor_is_dense(tensor) ? gs_tensor_count(tensor) : tensor->columns;
    const size_t row = first / width;
    const size_t column = first % width;
    const bool has_whole_rows = column == 0 && *count >= width;
    part.data = (unsigned char *)tensor->data + (row * tensor->row_pitch + column) * gsync_dtype_size(tensor->dtype);
    part.rows = has_whole_rows ? *count / width : 1;
    part.columns = has_whole_rows || width - column < *count ? width - column : *count;
    *count = part.rows * part.columns;
    return part;
}

#endif
