/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_TABLE_H
#define PERF_TABLE_H

/* nccl-tests' table on stdout. What is no row of it starts with #. */

#include "perf_report.h"

void perf_table_open(const perf_report *report);
void perf_table_row(const perf_report *report, const perf_row *row);
void perf_table_close(const perf_report *report);

#endif
