/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_PARTS_H
#define PERF_PARTS_H

/* A gradient of many elements, kept as one tensor or as several of uneven sizes: where each part is, and what is in it.
 */

#include "perf_memory.h"
#include "perf_values.h"

#include <stdint.h>

typedef struct perf_part {
    char name[32];
    size_t first; /* element of the whole */
    size_t count;
    void *buffer;
    void *owned; /* NULL: the buffer is somebody else's */
} perf_part;

typedef struct perf_parts {
    perf_part *part;
    size_t count;
    size_t element_bytes;
    perf_memory *memory; /* the rank's */
} perf_parts;

/* At most `tensors` parts, none empty, with no buffers yet. False: no memory. */
bool perf_parts_init(perf_parts *parts, perf_memory *memory, size_t elements, size_t element_bytes, int tensors);

/* Gives each part private memory of its own. False: there is not enough. */
bool perf_parts_allocate(perf_parts *parts);

void perf_parts_clear(perf_parts *parts);

/* As in perf_values.h, over all parts. Texts that are returned say what went wrong, and NULL that nothing did. */
const char *perf_parts_fill(const perf_parts *parts, const perf_values *values, unsigned call);

/* Adds to *wrong. */
const char *perf_parts_count_wrong(const perf_parts *parts, const perf_values *values, unsigned call, gsync_op op,
                                   int64_t *wrong);

/* Flips the lowest bit of the last element: the smallest error there is. */
const char *perf_parts_spoil(const perf_parts *parts);

#endif
