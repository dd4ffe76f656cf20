/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

/* What rank 0 says: nccl-tests' table on stdout, a line at a time as it is measured, and the JSON at the end. */

#include "perf_machine.h"
#include "perf_options.h"
#include "perf_row.h"

#include <stdio.h>

typedef struct perf_report {
    const perf_options *options;
    perf_machine machine;
    int world;
    const char *transport; /* stays the communicator's */
    const char *peer;      /* in words; NULL: none */
    FILE *json;
    perf_row *rows;
    size_t row_count;
    size_t row_room;
    int64_t wrong;
    double busbw_sum;
    int busbw_count;
    bool has_failed; /* a row or a file was lost */
} perf_report;

/* Opens the JSON file and prints the header. False: the file cannot be written; errno says why. */
bool perf_report_open(perf_report *report, const perf_options *options, int world, const char *transport,
                      const char *peer);

void perf_report_row(perf_report *report, const perf_row *row);

/* is_complete: all rows have come. Prints the footer and writes the JSON; without that, only closes. False: something
 * could not be written. */
bool perf_report_close(perf_report *report, bool is_complete);

double perf_report_average_busbw(const perf_report *report);

#endif
