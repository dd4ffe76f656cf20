/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_CURVE_H
#define CHAR_GPT_CURVE_H

/* The loss over the steps, as a table and, where gnuplot is installed, as a picture. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct curve_point {
    int64_t step;
    double loss;
    double gradient_norm;
} curve_point;

typedef struct curve {
    curve_point *points;
    size_t count;
    size_t capacity;
} curve;

/* False when the memory does not suffice; the curve stays as it was. */
bool curve_add(curve *c, curve_point point);

/*
 * Writes PREFIX.csv and, when there are points, PREFIX.png. Having no gnuplot is fine: *has_picture then becomes false.
 * Returns false, with a complaint on stderr, when a file cannot be written.
 */
bool curve_write(const curve *c, const char *prefix, const char *title, bool *has_picture);

void curve_destroy(curve *c);

#endif
