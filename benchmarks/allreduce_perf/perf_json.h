/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_JSON_H
#define PERF_JSON_H

#include "perf_report.h"

/* Writes the whole report as one object. The file's error flag says whether it went well. */
void perf_json_write(const perf_report *report, FILE *file);

#endif
