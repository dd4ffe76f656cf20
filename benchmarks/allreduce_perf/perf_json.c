/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_json.h"
#include "perf_program.h"

#include <inttypes.h>
#include <string.h>

/* Grows when a member vanishes or changes its meaning. Since 2: peers in place of peer. */
enum { JSON_VERSION = 2 };

static void write_string(FILE *file, const char *text) {
    fputc('"', file);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            fprintf(file, "\\%c", *at);
        } else if (*at < 0x20) {
            fprintf(file, "\\u%04x", *at);
        } else {
            fputc(*at, file);
        }
    }
    fputc('"', file);
}

static void write_member(FILE *file, const char *name, const char *text) {
    fprintf(file, "  \"%s\": ", name);
    if (text == NULL) {
        fputs("null", file);
    } else {
        write_string(file, text);
    }
    fputs(",\n", file);
}

typedef struct list {
    FILE *file;
    int count;
} list;

static void write_setting(void *user, const char *setting) {
    list *l = user;
    fputs(l->count++ > 0 ? ", " : "", l->file);
    write_string(l->file, setting);
}

static void write_options(const perf_options *options, FILE *file) {
    fprintf(file,
            "  \"options\": {\"minbytes\": %zu, \"maxbytes\": %zu, \"stepfactor\": %zu, \"stepbytes\": %zu, "
            "\"iters\": %d, \"warmup_iters\": %d, \"check\": %d, \"progress\": \"%s\", \"tensors\": %d, "
            "\"peer_malloc\": \"%s\", \"self_test\": %s",
            options->min_bytes, options->max_bytes, options->step_factor, options->step_bytes, options->iterations,
            options->warmups, options->checks, perf_progress_name(options->progress), options->tensors,
            options->tunes_malloc ? "tuned" : "default", options->self_test ? "true" : "false");
    if (perf_program_own.is_on_gpu) {
        fprintf(file, ", \"ctas\": %u, \"share_gpu\": %s, \"register\": %s, \"clock\": \"%s\"", options->ctas,
                options->shares_gpu ? "true" : "false", options->registers ? "true" : "false",
                options->uses_stream_clock ? "gpu" : "host");
    }
    fputs("},\n", file);
}

static void write_figures(const perf_report *report, const perf_row *row, int way, FILE *file) {
    const perf_figures *figures = &row->of[way];
    const double time_us = figures->median_us;
    if (!figures->is_measured) {
        fputs("null", file);
        return;
    }
    fprintf(file, "{\"time_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f, ", time_us,
            figures->p99_us, figures->min_us, figures->max_us);
    fprintf(file, "\"warmup_first_us\": %.3f, \"warmup_median_us\": %.3f, ", figures->warmup_first_us,
            figures->warmup_median_us);
    fprintf(file, "\"algbw\": %.6f, \"busbw\": %.6f, ", perf_algbw(row->bytes, time_us),
            perf_busbw(row->bytes, time_us, report->facts.world));
    fprintf(file, "\"bytes_copied\": %" PRIu64 ", \"stalls\": %d, ", figures->bytes_copied, figures->stalls);
    if (figures->wrong < 0) {
        fputs("\"wrong\": null}", file);
    } else {
        fprintf(file, "\"wrong\": %" PRId64 "}", figures->wrong);
    }
}

/* How close the in-place way comes to the limit, 1 being all of it. */
static void write_limit_share(const perf_report *report, const perf_row *row, FILE *file) {
    double share = 0.0;
    for (int i = 0; i < report->facts.peers->count; i++) {
        if (strcmp(report->facts.peers->peer[i]->name, "limit") == 0) {
            share = perf_ratio(&row->of[PERF_PEER_FIRST + i], &row->of[PERF_IN_PLACE]);
        }
    }
    if (share > 0.0) {
        fprintf(file, ",\n     \"limit_share\": %.6f", share);
    } else {
        fputs(",\n     \"limit_share\": null", file);
    }
}

static void write_row(const perf_report *report, const perf_row *row, FILE *file) {
    static const char *const names[PERF_PEER_FIRST] = {"out_of_place", "in_place", "scattered"};
    fprintf(file, "    {\"size\": %zu, \"count\": %zu, \"type\": \"%s\", \"redop\": \"%s\"", row->bytes, row->count,
            perf_dtype_name(row->dtype), perf_op_name(row->op));
    for (int way = 0; way < PERF_PEER_FIRST; way++) {
        fprintf(file, ",\n     \"%s\": ", names[way]);
        write_figures(report, row, way, file);
    }
    write_limit_share(report, row, file);
    fputs(",\n     \"peers\": {", file);
    for (int way = PERF_PEER_FIRST; way < perf_report_way_count(report); way++) {
        fprintf(file, "%s\"%s\": ", way == PERF_PEER_FIRST ? "" : ",\n       ", perf_report_way_name(report, way));
        write_figures(report, row, way, file);
    }
    fputs("}}", file);
}

static void write_peers(const perf_report *report, FILE *file) {
    fputs("  \"peers\": {", file);
    for (int i = 0; i < report->facts.peers->count; i++) {
        fprintf(file, "%s\"%s\": ", i == 0 ? "" : ", ", report->facts.peers->peer[i]->name);
        write_string(file, report->facts.peer_words[i]);
    }
    fputs("},\n", file);
}

static void write_least(const perf_report *report, gsync_dtype dtype, int peer_way, perf_way way, FILE *file) {
    const perf_least least = perf_report_least(report, dtype, peer_way, way);
    if (least.row == NULL) {
        fputs("null", file);
    } else {
        fprintf(file, "%.6f", least.ratio);
    }
}

static void write_peer_least(const perf_report *report, int peer_way, FILE *file) {
    const perf_options *options = report->facts.options;
    for (int i = 0; i < options->dtype_count; i++) {
        fprintf(file, "%s\"%s\": {\"out_of_place\": ", i == 0 ? "" : ", ", perf_dtype_name(options->dtypes[i]));
        write_least(report, options->dtypes[i], peer_way, PERF_OUT_OF_PLACE, file);
        fputs(", \"in_place\": ", file);
        write_least(report, options->dtypes[i], peer_way, PERF_IN_PLACE, file);
        fputs("}", file);
    }
}

static void write_least_ratios(const perf_report *report, FILE *file) {
    fputs("  \"least_ratios\": {", file);
    for (int way = PERF_PEER_FIRST; way < perf_report_way_count(report); way++) {
        fprintf(file, "%s\"%s\": {", way == PERF_PEER_FIRST ? "" : ", ", perf_report_way_name(report, way));
        write_peer_least(report, way, file);
        fputs("}", file);
    }
    fputs("},\n", file);
}

void perf_json_write(const perf_report *report, FILE *file) {
    fputs("{\n", file);
    write_member(file, "program", perf_program_own.name);
    fprintf(file, "  \"json_version\": %d,\n", JSON_VERSION);
    write_member(file, "library_version", gsync_version());
    fprintf(file, "  \"ranks\": %d,\n", report->facts.world);
    write_member(file, "transport", report->facts.transport);
    write_member(file, "cpu", report->machine.cpu);
    fprintf(file, "  \"cpus_online\": %ld,\n", report->machine.cpus);
    if (perf_program_own.is_on_gpu) {
        write_member(file, "gpu", report->facts.memory);
    }
    write_member(file, "build_type", report->machine.build_type);
    write_member(file, "compiler", report->machine.compiler);
    write_member(file, "flags", report->machine.flags);
    write_peers(report, file);
    fputs("  \"settings\": [", file);
    list settings = {file, 0};
    perf_machine_settings(write_setting, &settings);
    fputs("],\n", file);
    write_options(report->facts.options, file);
    fputs("  \"rows\": [\n", file);
    for (size_t i = 0; i < report->row_count; i++) {
        write_row(report, &report->rows[i], file);
        fputs(i + 1 < report->row_count ? ",\n" : "\n", file);
    }
    fputs("  ],\n", file);
    if (report->facts.options->checks) {
        fprintf(file, "  \"out_of_bounds\": %" PRId64 ",\n  \"ok\": %s,\n", report->wrong,
                report->wrong == 0 ? "true" : "false");
    } else {
        fputs("  \"out_of_bounds\": null,\n  \"ok\": null,\n", file);
    }
    if (perf_program_own.is_on_gpu) {
        write_least_ratios(report, file);
    }
    fprintf(file, "  \"avg_busbw\": %.6f\n}\n", perf_report_average_busbw(report));
}
