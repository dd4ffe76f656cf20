/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEASURE_H
#define MEASURE_H

/* What several of the small benchmarks need: a fixed amount of arithmetic, a clock, and an order for medians. */

#include <stddef.h>
#include <time.h>

enum { MEASURE_WORK_FLOATS = 65536 /* 256 KiB: stays in a core's own cache */ };

/* For qsort of doubles. */
static inline int measure_by_size(const void *a, const void *b) {
    const double left = *(const double *)a;
    const double right = *(const double *)b;
    return (left > right) - (left < right);
}

static inline double measure_clock_ms(clockid_t clock) {
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* work: MEASURE_WORK_FLOATS */
static inline void measure_compute(float *work, int passes) {
    for (int pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < MEASURE_WORK_FLOATS; i++) {
            work[i] = work[i] * 0.999F + 0.001F;
        }
    }
}

/* How long so many passes take at best. A core needs some time to come to speed. */
static inline double measure_compute_ms(float *work, int passes) {
    const double calibration_ms = 100.0;
    const double end = measure_clock_ms(CLOCK_MONOTONIC) + calibration_ms;
    double least = calibration_ms;
    for (double start = measure_clock_ms(CLOCK_MONOTONIC); start < end;) {
        measure_compute(work, passes);
        const double stop = measure_clock_ms(CLOCK_MONOTONIC);
        least = stop - start < least ? stop - start : least;
        start = stop;
    }
    return least;
}

#endif
