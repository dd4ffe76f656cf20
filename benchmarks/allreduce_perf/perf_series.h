/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_SERIES_H
#define PERF_SERIES_H

/* Measures one size, type and operation, in every way and in turn: a slow second hits all ways alike. */

#include "perf_rank.h"
#include "perf_row.h"
#include "perf_values.h"

/*
 * Collective. row: count, bytes, dtype and op are read, the figures written, the same on every rank. spoils: one
 * element of the last result, out of place if that is measured, is changed on the last rank before it is compared.
 */
bool perf_series_run(const perf_rank *self, const perf_values *values, bool spoils, perf_row *row);

#endif
