/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_ROW_H
#define PERF_ROW_H

/* One line of the table: what was measured of one size, type and operation. Times are in microseconds. */

#include <gradsync/gradsync.h>
#include <stdbool.h>
#include <stdint.h>

enum { PERF_PEERS_MAX = 8 };

/* The library's ways, and then one for each peer. */
typedef enum perf_way {
    PERF_OUT_OF_PLACE,
    PERF_IN_PLACE,
    PERF_SCATTERED,
    PERF_PEER_FIRST,
    PERF_WAYS = PERF_PEER_FIRST + PERF_PEERS_MAX
} perf_way;

/* A call that takes this much longer than the median lost its processor to somebody: scheduler ticks are 1 to 10 ms. */
#define PERF_STALL_US 3000.0

typedef struct perf_figures {
    bool is_measured;
    int64_t wrong;         /* elements, over all calls and ranks; -1: not checked */
    int stalls;            /* timed calls slower than the median by more than PERF_STALL_US */
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

/* How many times longer of took than than took; 0 where one was not measured. */
double perf_ratio(const perf_figures *of, const perf_figures *than);

/* 10^9 bytes per second, as nccl-tests define them. */
double perf_algbw(size_t bytes, double time_us);
double perf_busbw(size_t bytes, double time_us, int world);

#endif
