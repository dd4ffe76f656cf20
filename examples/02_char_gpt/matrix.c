/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix.h"

#include <stddef.h>
#include <string.h>

/* Columns worked on at a time: with up to about a hundred rows they stay in a 32 KiB first-level cache. */
enum { TILE = 64 };

matrix matrix_of(float *data, int rows, int columns) {
    return (matrix){data, rows, columns, columns};
}

static float *row_of(matrix m, int row) {
    return m.data + (size_t)row * (size_t)m.stride;
}

matrix matrix_rows(matrix m, int first, int count) {
    return (matrix){row_of(m, first), count, m.columns, m.stride};
}

matrix matrix_columns(matrix m, int first, int count) {
    return (matrix){m.data + first, m.rows, count, m.stride};
}

void matrix_zero(matrix m) {
    for (int r = 0; r < m.rows; r++) {
        memset(row_of(m, r), 0, (size_t)m.columns * sizeof(float));
    }
}

void matrix_transpose(matrix to, matrix from) {
    for (int r = 0; r < from.rows; r++) {
        const float *source = row_of(from, r);
        for (int c = 0; c < from.columns; c++) {
            row_of(to, c)[r] = source[c];
        }
    }
}

/*
 * sum[j] += the combination of `count` rows with coefficients that lie `step` apart. Four rows at a time: sum is then
 * loaded and stored once for eight operations, and the processor is kept busy with arithmetic instead of memory.
 */
static void add_combination(float *restrict sum, int width, const float *coefficient, int step, matrix rows) {
    const size_t stride = (size_t)rows.stride;
    const float *row = rows.data;
    int left = rows.rows;
    for (; left >= 4; left -= 4, row += 4 * stride, coefficient += 4 * (ptrdiff_t)step) {
        const float a = coefficient[0];
        const float b = coefficient[step];
        const float c = coefficient[2 * (ptrdiff_t)step];
        const float d = coefficient[3 * (ptrdiff_t)step];
        const float *restrict p = row;
        const float *restrict q = row + stride;
        const float *restrict s = row + 2 * stride;
        const float *restrict t = row + 3 * stride;
        for (int j = 0; j < width; j++) {
            sum[j] += (a * p[j] + b * q[j]) + (c * s[j] + d * t[j]);
        }
    }
    for (; left > 0; left--, row += stride, coefficient += step) {
        const float a = coefficient[0];
        for (int j = 0; j < width; j++) {
            sum[j] += a * row[j];
        }
    }
}

static int tile_width(int columns, int first) {
    return columns - first < TILE ? columns - first : TILE;
}

void matrix_multiply_add(matrix product, matrix left, matrix right) {
    for (int first = 0; first < product.columns; first += TILE) {
        const int width = tile_width(product.columns, first);
        const matrix tile = matrix_columns(right, first, width);
        for (int r = 0; r < product.rows; r++) {
            add_combination(row_of(product, r) + first, width, row_of(left, r), 1, tile);
        }
    }
}

void matrix_multiply_transposed_add(matrix product, matrix left, matrix right) {
    float sum[TILE];
    for (int first = 0; first < product.columns; first += TILE) {
        const int width = tile_width(product.columns, first);
        const matrix tile = matrix_columns(right, first, width);
        for (int r = 0; r < product.rows; r++) {
            memset(sum, 0, sizeof sum);
            add_combination(sum, width, left.data + r, left.stride, tile);
            float *target = row_of(product, r) + first;
            for (int j = 0; j < width; j++) {
                target[j] += sum[j];
            }
        }
    }
}
