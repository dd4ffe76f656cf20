/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_row.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(const double *sorted, int count) {
    return count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0;
}

/* The smallest sample that 99 % of the samples do not exceed: with fewer than 100 samples, the largest. */
static double percentile_99(const double *sorted, int count) {
    return sorted[(int)ceil(0.99 * (double)count) - 1];
}

static int count_stalls(const double *sorted, int count, double median_us) {
    int stalls = 0;
    while (stalls < count && sorted[count - 1 - stalls] > median_us + PERF_STALL_US) {
        stalls++;
    }
    return stalls;
}

void perf_figures_set_times(perf_figures *figures, double *times_us, int warmups, int iterations) {
    figures->warmup_first_us = times_us[0];
    qsort(times_us, (size_t)warmups, sizeof *times_us, compare);
    figures->warmup_median_us = median(times_us, warmups);
    double *samples = times_us + warmups;
    qsort(samples, (size_t)iterations, sizeof *samples, compare);
    figures->median_us = median(samples, iterations);
    figures->p99_us = percentile_99(samples, iterations);
    figures->min_us = samples[0];
    figures->max_us = samples[iterations - 1];
    figures->stalls = count_stalls(samples, iterations, figures->median_us);
}

double perf_ratio(const perf_figures *of, const perf_figures *than) {
    const bool is_known = of->is_measured && than->is_measured && than->median_us > 0.0;
    return is_known ? of->median_us / than->median_us : 0.0;
}

double perf_algbw(size_t bytes, double time_us) {
    return time_us > 0.0 ? (double)bytes / (time_us * 1e3) : 0.0;
}

double perf_busbw(size_t bytes, double time_us, int world) {
    return perf_algbw(bytes, time_us) * 2.0 * (double)(world - 1) / (double)world;
}
