/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_json.h"

#include <inttypes.h>

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
            "\"iters\": %d, \"warmup_iters\": %d, \"check\": %d, \"progress\": \"%s\", \"self_test\": %s},\n",
            options->min_bytes, options->max_bytes, options->step_factor, options->step_bytes, options->iterations,
            options->warmups, options->checks, perf_progress_name(options->progress),
            options->self_test ? "true" : "false");
}

static void write_figures(const char *name, const perf_figures *figures, size_t bytes, int world, FILE *file) {
    if (!figures->is_measured) {
        fprintf(file, ",\n     \"%s\": null", name);
        return;
    }
    fprintf(file, ",\n     \"%s\": {\"time_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f, ", name,
            figures->median_us, figures->p99_us, figures->min_us, figures->max_us);
    fprintf(file, "\"warmup_first_us\": %.3f, \"warmup_median_us\": %.3f, ", figures->warmup_first_us,
            figures->warmup_median_us);
    fprintf(file, "\"algbw\": %.6f, \"busbw\": %.6f, ", perf_algbw(bytes, figures->median_us),
            perf_busbw(bytes, figures->median_us, world));
    fprintf(file, "\"bytes_copied\": %" PRIu64 ", ", figures->bytes_copied);
    if (figures->wrong < 0) {
        fputs("\"wrong\": null}", file);
    } else {
        fprintf(file, "\"wrong\": %" PRId64 "}", figures->wrong);
    }
}

static void write_row(const perf_row *row, int world, FILE *file) {
    fprintf(file, "    {\"size\": %zu, \"count\": %zu, \"type\": \"%s\", \"redop\": \"%s\"", row->bytes, row->count,
            perf_dtype_name(row->dtype), perf_op_name(row->op));
    write_figures("out_of_place", &row->of[PERF_OUT_OF_PLACE], row->bytes, world, file);
    write_figures("in_place", &row->of[PERF_IN_PLACE], row->bytes, world, file);
    write_figures("peer", &row->of[PERF_PEER], row->bytes, world, file);
    fputs("}", file);
}

void perf_json_write(const perf_report *report, FILE *file) {
    fputs("{\n", file);
    write_member(file, "program", "allreduce_perf");
    write_member(file, "library_version", gsync_version());
    fprintf(file, "  \"ranks\": %d,\n", report->world);
    write_member(file, "transport", report->transport);
    write_member(file, "cpu", report->machine.cpu);
    fprintf(file, "  \"cpus_online\": %ld,\n", report->machine.cpus);
    write_member(file, "build_type", report->machine.build_type);
    write_member(file, "compiler", report->machine.compiler);
    write_member(file, "flags", report->machine.flags);
    write_member(file, "peer", report->peer);
    fputs("  \"settings\": [", file);
    list settings = {file, 0};
    perf_machine_settings(write_setting, &settings);
    fputs("],\n", file);
    write_options(report->options, file);
    fputs("  \"rows\": [\n", file);
    for (size_t i = 0; i < report->row_count; i++) {
        write_row(&report->rows[i], report->world, file);
        fputs(i + 1 < report->row_count ? ",\n" : "\n", file);
    }
    fputs("  ],\n", file);
    if (report->options->checks) {
        fprintf(file, "  \"out_of_bounds\": %" PRId64 ",\n  \"ok\": %s,\n", report->wrong,
                report->wrong == 0 ? "true" : "false");
    } else {
        fputs("  \"out_of_bounds\": null,\n  \"ok\": null,\n", file);
    }
    fprintf(file, "  \"avg_busbw\": %.6f\n}\n", perf_report_average_busbw(report));
}
