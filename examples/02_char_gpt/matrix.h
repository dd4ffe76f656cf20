/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_MATRIX_H
#define CHAR_GPT_MATRIX_H

/*
 * The three matrix products of a neural network, in plain loops that a compiler turns into vector instructions
 * without -ffast-math: the innermost loop runs over neighbouring elements and has no sum across them.
 */

/* A row-major view; the caller keeps the memory. stride: elements from one row to the next. */
typedef struct matrix {
    float *data;
    int rows;
    int columns;
    int stride;
} matrix;

matrix matrix_of(float *data, int rows, int columns);
matrix matrix_rows(matrix m, int first, int count);
matrix matrix_columns(matrix m, int first, int count);

void matrix_zero(matrix m);

/* to = from, transposed. */
void matrix_transpose(matrix to, matrix from);

/* product += left * right. */
void matrix_multiply_add(matrix product, matrix left, matrix right);

/*
 * product += transpose(left) * right, the gradient of a weight. The sum over the rows is made on the side and added
 * once: the contribution of one sequence is then the same bits whatever else is in its batch, and whether one rank
 * or several share the batch only changes the order in which these few contributions are added.
 */
void matrix_multiply_transposed_add(matrix product, matrix left, matrix right);

#endif
