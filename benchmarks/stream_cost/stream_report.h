/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STREAM_REPORT_H
#define STREAM_REPORT_H

#include <stdbool.h>
#include <stddef.h>

/* Nanoseconds that calls of one kind took. */
typedef struct cost_times {
    double *samples;
    size_t count;
    double median;
    double p99;
} cost_times;

typedef struct cost_row {
    const char *way;
    size_t buckets;
    size_t gradients;
    cost_times plain;      /* gsync_ready_on that completes no bucket */
    cost_times completing; /* and one that does */
    cost_times marked;     /* gsync_finish_on when all buckets were launched before */
    cost_times unmarked;   /* and when it launches all of them */
} cost_row;

void report_print(const cost_row *rows, size_t count, size_t steps);
/* "-": stdout. False, and words on stderr, where it cannot be written. */
bool report_write_json(const char *path, const cost_row *rows, size_t count, size_t steps);

#endif
