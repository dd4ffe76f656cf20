/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

/* What rank 0 says: nccl-tests' table on stdout, a line at a time as it is measured, and the files at the end. */

#include "perf_machine.h"
#include "perf_options.h"
#include "perf_peer.h"

#include <stdio.h>

typedef struct perf_facts {
    const perf_options *options;
    int world;
    const char *transport; /* stays the communicator's */
    const char *memory;    /* stays that of the memory; NULL: nothing to say */
    const perf_peers *peers;
    const char *peer_words[PERF_PEERS_MAX]; /* each peer's description */
} perf_facts;

typedef struct perf_report {
    perf_facts facts;
    perf_machine machine;
    FILE *json;
    FILE *csv;
    perf_row *rows;
    size_t row_count;
    size_t row_room;
    int64_t wrong;
    int64_t stalls[PERF_WAYS];
    double busbw_sum;
    int busbw_count;
    bool has_failed; /* a row or a file was lost */
} perf_report;

/* Opens the files and prints the header. False: a file cannot be written; errno says why. */
bool perf_report_open(perf_report *report, const perf_facts *facts);

void perf_report_row(perf_report *report, const perf_row *row);

/* is_complete: all rows have come. Prints the footer and writes the files; without that, only closes. False: something
 * could not be written. */
bool perf_report_close(perf_report *report, bool is_complete);

double perf_report_average_busbw(const perf_report *report);

typedef struct perf_least {
    double ratio;        /* of a peer's time over the library's */
    const perf_row *row; /* NULL: there is none */
} perf_least;

/* Of all rows of the type and at least 1 MiB; below that it is the start of a collective that counts. */
perf_least perf_report_least(const perf_report *report, gsync_dtype dtype, int peer_way, perf_way library_way);

/* How many ways this report can have: the library's and the peers'. */
int perf_report_way_count(const perf_report *report);
const char *perf_report_way_name(const perf_report *report, int way);

#endif
