/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_ROW_H
#define PERF_ROW_H

/* One line of the table: what was measured of one size, type and operation. Times are in microseconds. */

#include <gradsync/gradsync.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum perf_way { PERF_OUT_OF_PLACE, PERF_IN_PLACE, PERF_PEER, PERF_WAYS } perf_way;

typedef struct perf_figures {
    bool is_measured;
    int64_t wrong;         /* elements, over all calls and ranks; -1: not checked */
    uint64_t bytes_copied; /* by one call, on the rank that copied most; 0 for a peer, which does not say */
    double median_us;
    double p99_us;
    double min_us;
    double max_us;
    double warmup_first_us;
    double warmup_median_us;
} perf_figures;

typedef struct perf_row {
    size_t count;
    size_t bytes;
    gsync_dtype dtype;
    gsync_op op;
    perf_figures of[PERF_WAYS];
} perf_row;

/* Fills in the times, of warmups calls and then iterations calls. Sorts them. */
void perf_figures_set_times(perf_figures *figures, double *times_us, int warmups, int iterations);

/* 10^9 bytes per second, as nccl-tests define them. */
double perf_algbw(size_t bytes, double time_us);
double perf_busbw(size_t bytes, double time_us, int world);

#endif
