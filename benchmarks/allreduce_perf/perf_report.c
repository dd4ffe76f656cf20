/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_report.h"
#include "perf_csv.h"
#include "perf_json.h"
#include "perf_table.h"

#include <stdlib.h>
#include <string.h>

enum { RATIO_BYTES_MIN = 1 << 20 };

int perf_report_way_count(const perf_report *report) {
    return PERF_PEER_FIRST + report->facts.peers->count;
}

const char *perf_report_way_name(const perf_report *report, int way) {
    return way < PERF_PEER_FIRST ? perf_way_name((perf_way)way)
                                 : report->facts.peers->peer[way - PERF_PEER_FIRST]->name;
}

double perf_report_average_busbw(const perf_report *report) {
    return report->busbw_count > 0 ? report->busbw_sum / report->busbw_count : 0.0;
}

perf_least perf_report_least(const perf_report *report, gsync_dtype dtype, int peer_way, perf_way library_way) {
    perf_least least = {0};
    for (size_t i = 0; i < report->row_count; i++) {
        const perf_row *row = &report->rows[i];
        const double ratio = perf_ratio(&row->of[peer_way], &row->of[library_way]);
        const bool counts = row->dtype == dtype && row->bytes >= RATIO_BYTES_MIN && ratio > 0.0;
        if (counts && (least.row == NULL || ratio < least.ratio)) {
            least = (perf_least){ratio, row};
        }
    }
    return least;
}

/* name: NULL: none. "-": stdout. */
static bool open_file(const char *name, FILE **file) {
    if (name != NULL) {
        *file = strcmp(name, "-") == 0 ? stdout : fopen(name, "w");
    }
    return name == NULL || *file != NULL;
}

/* True: all of it was written. */
static bool close_file(FILE *file) {
    if (file == NULL || file == stdout) {
        return true;
    }
    const bool is_ok = ferror(file) == 0;
    return fclose(file) == 0 && is_ok;
}

bool perf_report_open(perf_report *report, const perf_facts *facts) {
    *report = (perf_report){.facts = *facts};
    perf_machine_init(&report->machine);
    if (!open_file(facts->options->json, &report->json) || !open_file(facts->options->csv, &report->csv)) {
        return false;
    }
    if (perf_options_want_table(facts->options)) {
        perf_table_open(report);
    }
    return true;
}

static void keep(perf_report *report, const perf_row *row) {
    if (report->row_count == report->row_room) {
        const size_t room = report->row_room == 0 ? 64 : 2 * report->row_room;
        perf_row *rows = realloc(report->rows, room * sizeof *rows);
        if (rows == NULL) {
            report->has_failed = true;
            return;
        }
        report->rows = rows;
        report->row_room = room;
    }
    report->rows[report->row_count++] = *row;
}

void perf_report_row(perf_report *report, const perf_row *row) {
    for (int way = 0; way < PERF_WAYS; way++) {
        const perf_figures *figures = &row->of[way];
        if (figures->is_measured && (way == PERF_OUT_OF_PLACE || way == PERF_IN_PLACE)) {
            report->busbw_sum += perf_busbw(row->bytes, figures->median_us, report->facts.world);
            report->busbw_count++;
        }
        if (figures->is_measured && figures->wrong > 0) {
            report->wrong += figures->wrong;
        }
        report->stalls[way] += figures->stalls;
    }
    keep(report, row);
    if (perf_options_want_table(report->facts.options)) {
        perf_table_row(report, row);
    }
}

bool perf_report_close(perf_report *report, bool is_complete) {
    if (is_complete && perf_options_want_table(report->facts.options)) {
        perf_table_close(report);
    }
    if (is_complete && report->json != NULL) {
        perf_json_write(report, report->json);
    }
    if (is_complete && report->csv != NULL) {
        perf_csv_write(report, report->csv);
    }
    report->has_failed |= !close_file(report->json);
    report->has_failed |= !close_file(report->csv);
    report->has_failed |= fflush(stdout) != 0 || ferror(stdout) != 0;
    free(report->rows);
    report->rows = NULL;
    return !report->has_failed;
}
