/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_VALUES_H
#define PERF_VALUES_H

/*
 * What goes into an all-reduce, and what must come out, bit for bit.
 *
 * Values are small positive integers: every partial sum is exact in the element's type, so that the order of the
 * summation does not show. Their sum over the ranks is a multiple of the number of ranks, so that the mean is an
 * integer too. They differ from rank to rank, from element to element, and from call to call: what a call leaves out,
 * puts in the wrong place, or has left over from the call before is a wrong value.
 */

#include <gradsync/gradsync.h>
#include <stdbool.h>

typedef struct perf_values {
    size_t element_bytes;
    unsigned char *input; /* this rank's; like the others one period of the values, twice */
    unsigned char *sum;
    unsigned char *mean;
} perf_values;

/* Whether all sums of this many ranks are exact in dtype. */
bool perf_values_are_exact(gsync_dtype dtype, int world);

/* False: no memory. Needs perf_values_are_exact. */
bool perf_values_init(perf_values *values, gsync_dtype dtype, int rank, int world);
void perf_values_clear(perf_values *values);

/* Writes count elements of this rank's, from element first on, of the given call into buffer. */
void perf_values_fill(const perf_values *values, unsigned call, size_t first, void *buffer, size_t count);

/* How many of the count elements in buffer are not those of the sum, or the mean, of the given call from first on. */
size_t perf_values_wrong(const perf_values *values, unsigned call, gsync_op op, size_t first, const void *buffer,
                         size_t count);

#endif
