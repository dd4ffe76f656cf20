/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_CSV_H
#define PERF_CSV_H

#include "perf_report.h"

/* A line of names, then one for each row of the table and each way measured. The file's error flag says whether it went
 * well. */
void perf_csv_write(const perf_report *report, FILE *file);

#endif
