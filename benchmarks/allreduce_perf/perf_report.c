/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_report.h"
#include "perf_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool prints_table(const perf_report *report) {
    return report->options->json == NULL || strcmp(report->options->json, "-") != 0;
}

static void print_setting(void *user, const char *setting) {
    (void)user;
    printf("#    %s\n", setting);
}

static void print_facts(const perf_report *report) {
    const perf_options *o = report->options;
    const perf_machine *m = &report->machine;
    printf("# Collective test starting: allreduce_perf\n");
    printf("# libgradsync %s (header %d.%d.%d)\n", gsync_version(), GSYNC_VERSION_MAJOR, GSYNC_VERSION_MINOR,
           GSYNC_VERSION_PATCH);
    printf("# ranks %d: %s\n", report->world, report->transport);
    printf("# cpu: %s, %ld online\n", m->cpu, m->cpus);
    printf("# build: %s, %s, flags: %s\n", m->build_type, m->compiler, m->flags);
    printf("# minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d validation: %d\n", o->min_bytes,
           o->max_bytes, o->step_factor > 1 ? o->step_factor : o->step_bytes, o->step_factor > 1 ? "factor" : "bytes",
           o->warmups, o->iterations, o->checks);
    if (report->peer != NULL) {
        printf("# peer: %s; not for half and bfloat16, which MPI does not have, and without avg's division\n",
               report->peer);
    }
    printf("# settings in the environment:\n");
    perf_machine_settings(print_setting, NULL);
    printf("#\n");
    printf("# out-of-place: the gradient is in private memory; between processes it is copied into the library's\n"
           "#               bucket and back\n");
    printf("# in-place:     the gradient lives in the library's bucket, and nothing is copied\n");
    printf(
        "# time:         of gsync_begin and gsync_finish, on the slowest rank; the median call. Each rank rewrites\n");
    printf("#               its gradient before each call\n");
    printf("#\n");
}

static void print_head(const char *const *words, bool has_peer) {
    printf("#%11s  %12s  %8s  %6s  %6s", words[0], words[1], words[2], words[3], words[4]);
    for (int i = 0; i < 2; i++) {
        printf("   %9s %7s %7s %6s", words[5], words[6], words[7], words[8]);
    }
    if (has_peer) {
        printf("   %9s %6s %6s %6s", words[5], words[8], words[9], words[10]);
    }
    printf("\n");
}

static void print_heads(bool has_peer) {
    static const char *const names[] = {"size",  "count", "type",   "redop", "root", "time",
                                        "algbw", "busbw", "#wrong", "x-out", "x-in"};
    static const char *const units[] = {"(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", ""};
    printf("#%51s   %21s%11s   %20s%12s%s\n", "", "out-of-place", "", "in-place", "", has_peer ? "   peer" : "");
    print_head(names, has_peer);
    print_head(units, has_peer);
    fflush(stdout);
}

/* As nccl-tests do, fewer digits for longer times. */
static void print_time(double time_us) {
    printf("   %9.*f", time_us < 100.0 ? 2 : (time_us < 10000.0 ? 1 : 0), time_us);
}

static void print_wrong(int64_t wrong) {
    if (wrong < 0) {
        printf(" %6s", "N/A");
    } else {
        printf(" %6" PRId64, wrong);
    }
}

static void print_peer(const perf_row *row) {
    const perf_figures *peer = &row->of[PERF_PEER];
    if (!peer->is_measured) {
        printf("   %9s %6s %6s %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    print_time(peer->median_us);
    print_wrong(peer->wrong);
    printf(" %6.2f %6.2f", peer->median_us / row->of[PERF_OUT_OF_PLACE].median_us,
           peer->median_us / row->of[PERF_IN_PLACE].median_us);
}

static void print_row(const perf_report *report, const perf_row *row) {
    /* An all-reduce has no root; nccl-tests say -1, and so the columns have their places. */
    printf(" %11zu  %12zu  %8s  %6s  %6d", row->bytes, row->count, perf_dtype_name(row->dtype), perf_op_name(row->op),
           -1);
    for (int way = 0; way < PERF_PEER; way++) {
        const perf_figures *figures = &row->of[way];
        print_time(figures->median_us);
        printf(" %7.2f %7.2f", perf_algbw(row->bytes, figures->median_us),
               perf_busbw(row->bytes, figures->median_us, report->world));
        print_wrong(figures->wrong);
    }
    if (report->peer != NULL) {
        print_peer(row);
    }
    printf("\n");
    fflush(stdout);
}

double perf_report_average_busbw(const perf_report *report) {
    return report->busbw_count > 0 ? report->busbw_sum / report->busbw_count : 0.0;
}

static void print_footer(const perf_report *report) {
    if (report->options->checks) {
        printf("# Out of bounds values : %" PRId64 " %s\n", report->wrong, report->wrong == 0 ? "OK" : "FAILED");
    } else {
        printf("# Out of bounds values : not checked\n");
    }
    printf("# Avg bus bandwidth    : %.4f\n", perf_report_average_busbw(report));
    printf("#\n# Collective test concluded: allreduce_perf\n");
}

bool perf_report_open(perf_report *report, const perf_options *options, int world, const char *transport,
                      const char *peer) {
    *report = (perf_report){.options = options, .world = world, .transport = transport, .peer = peer};
    perf_machine_init(&report->machine);
    if (!prints_table(report)) {
        report->json = stdout;
        return true;
    }
    if (options->json != NULL) {
        report->json = fopen(options->json, "w");
        if (report->json == NULL) {
            return false;
        }
    }
    print_facts(report);
    print_heads(peer != NULL);
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
        if (figures->is_measured && way != PERF_PEER) {
            report->busbw_sum += perf_busbw(row->bytes, figures->median_us, report->world);
            report->busbw_count++;
        }
        if (figures->is_measured && figures->wrong > 0) {
            report->wrong += figures->wrong;
        }
    }
    keep(report, row);
    if (prints_table(report)) {
        print_row(report, row);
    }
}

bool perf_report_close(perf_report *report, bool is_complete) {
    if (is_complete && prints_table(report)) {
        print_footer(report);
    }
    if (is_complete && report->json != NULL) {
        perf_json_write(report, report->json);
    }
    if (report->json != NULL && report->json != stdout) {
        report->has_failed |= ferror(report->json) != 0;
        report->has_failed |= fclose(report->json) != 0;
    }
    report->has_failed |= fflush(stdout) != 0 || ferror(stdout) != 0;
    free(report->rows);
    report->rows = NULL;
    return !report->has_failed;
}
