/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_table.h"

#include <inttypes.h>

static void print_setting(void *user, const char *setting) {
    (void)user;
    printf("#    %s\n", setting);
}

static void print_facts(const perf_report *report) {
    const perf_options *o = report->facts.options;
    const perf_machine *m = &report->machine;
    printf("# Collective test starting: allreduce_perf\n");
    printf("# libgradsync %s (header %d.%d.%d)\n", gsync_version(), GSYNC_VERSION_MAJOR, GSYNC_VERSION_MINOR,
           GSYNC_VERSION_PATCH);
    printf("# ranks %d: %s\n", report->facts.world, report->facts.transport);
    printf("# cpu: %s, %ld online\n", m->cpu, m->cpus);
    printf("# build: %s, %s, flags: %s\n", m->build_type, m->compiler, m->flags);
    printf("# minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d validation: %d\n", o->min_bytes,
           o->max_bytes, o->step_factor > 1 ? o->step_factor : o->step_bytes, o->step_factor > 1 ? "factor" : "bytes",
           o->warmups, o->iterations, o->checks);
    for (int i = 0; i < report->facts.peers->count; i++) {
        printf("# peer %s: %s\n", report->facts.peers->peer[i]->name, report->facts.peer_words[i]);
    }
    if (report->facts.peers->count > 0) {
        printf("# peers: not for half and bfloat16, and without avg's division; malloc is %s for them\n",
               o->tunes_malloc ? "tuned" : "not tuned");
    }
    printf("# settings in the environment:\n");
    perf_machine_settings(print_setting, NULL);
    printf("#\n");
}

static void print_terms(const perf_report *report) {
    const perf_options *o = report->facts.options;
    printf("# out-of-place: the gradient is in private memory; between processes what others add up of it is copied\n"
           "#               to where they can read it, a piece at a time, and back\n");
    printf("# in-place:     the gradient lives in the library's bucket, and nothing is copied\n");
    if (o->tensors > 1) {
        printf("# scattered:    it is %d tensors, each in private memory of its own; in-place it is as many, in one\n"
               "#               bucket\n",
               o->tensors);
    }
    printf(
        "# time:         of gsync_begin and gsync_finish, on the slowest rank; the median call. Each rank rewrites\n");
    printf("#               its gradient before each call\n");
    printf("#\n");
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

/* Whose columns they are. */
static void print_groups(const perf_report *report) {
    printf("#%51s   %21s%11s   %20s%12s", "", "out-of-place", "", "in-place", "");
    if (report->facts.options->uses_way[PERF_SCATTERED]) {
        printf("   %23s", "scattered");
    }
    for (int i = 0; i < report->facts.peers->count; i++) {
        printf("   %30s", report->facts.peers->peer[i]->name);
    }
    printf("\n");
}

static void print_head(const perf_report *report, const char *const *words) {
    printf("#%11s  %12s  %8s  %6s  %6s", words[0], words[1], words[2], words[3], words[4]);
    for (int i = 0; i < 2; i++) {
        printf("   %9s %7s %7s %6s", words[5], words[6], words[7], words[8]);
    }
    if (report->facts.options->uses_way[PERF_SCATTERED]) {
        printf("   %9s %6s %6s", words[5], words[8], words[10]);
    }
    for (int i = 0; i < report->facts.peers->count; i++) {
        printf("   %9s %6s %6s %6s", words[5], words[8], words[9], words[10]);
    }
    printf("\n");
}

void perf_table_open(const perf_report *report) {
    static const char *const names[] = {"size",  "count", "type",   "redop", "root", "time",
                                        "algbw", "busbw", "#wrong", "x-out", "x-in"};
    static const char *const units[] = {"(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", ""};
    print_facts(report);
    print_terms(report);
    print_groups(report);
    print_head(report, names);
    print_head(report, units);
    fflush(stdout);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* As nccl-tests do, fewer digits for longer times. */
static void print_time(const perf_figures *figures) {
    const double time_us = figures->median_us;
    if (!figures->is_measured) {
        printf("   %9s", "N/A");
    } else {
        printf("   %9.*f", time_us < 100.0 ? 2 : (time_us < 10000.0 ? 1 : 0), time_us);
    }
}

static void print_bandwidths(const perf_report *report, const perf_row *row, const perf_figures *figures) {
    if (!figures->is_measured) {
        printf(" %7s %7s", "N/A", "N/A");
    } else {
        printf(" %7.2f %7.2f", perf_algbw(row->bytes, figures->median_us),
               perf_busbw(row->bytes, figures->median_us, report->facts.world));
    }
}

static void print_wrong(const perf_figures *figures) {
    if (!figures->is_measured || figures->wrong < 0) {
        printf(" %6s", "N/A");
    } else {
        printf(" %6" PRId64, figures->wrong);
    }
}

static void print_ratio(const perf_figures *of, const perf_figures *than) {
    if (!of->is_measured || !than->is_measured) {
        printf(" %6s", "N/A");
    } else {
        printf(" %6.2f", perf_ratio(of, than));
    }
}

/* A line of its own, since there are seldom any. */
static void print_stalls(const perf_report *report, const int64_t *stalls, const char *start) {
    printf("%s", start);
    const char *between = "";
    for (int way = 0; way < perf_report_way_count(report); way++) {
        if (stalls[way] > 0) {
            printf("%s%s %" PRId64, between, perf_report_way_name(report, way), stalls[way]);
            between = ", ";
        }
    }
    printf("%s (of calls slower than the median by more than 3 ms)\n", *between == '\0' ? "none" : "");
}

static void print_row_stalls(const perf_report *report, const perf_row *row) {
    int64_t stalls[PERF_WAYS];
    int64_t sum = 0;
    for (int way = 0; way < PERF_WAYS; way++) {
        stalls[way] = row->of[way].stalls;
        sum += stalls[way];
    }
    if (sum > 0) {
        print_stalls(report, stalls, "#    stalls: ");
    }
}

void perf_table_row(const perf_report *report, const perf_row *row) {
    const perf_figures *out = &row->of[PERF_OUT_OF_PLACE];
    const perf_figures *in = &row->of[PERF_IN_PLACE];
    /* An all-reduce has no root; nccl-tests say -1, and so the columns have their places. */
    printf(" %11zu  %12zu  %8s  %6s  %6d", row->bytes, row->count, perf_dtype_name(row->dtype), perf_op_name(row->op),
           -1);
    for (int way = PERF_OUT_OF_PLACE; way <= PERF_IN_PLACE; way++) {
        print_time(&row->of[way]);
        print_bandwidths(report, row, &row->of[way]);
        print_wrong(&row->of[way]);
    }
    if (report->facts.options->uses_way[PERF_SCATTERED]) {
        print_time(&row->of[PERF_SCATTERED]);
        print_wrong(&row->of[PERF_SCATTERED]);
        print_ratio(&row->of[PERF_SCATTERED], in);
    }
    for (int way = PERF_PEER_FIRST; way < perf_report_way_count(report); way++) {
        print_time(&row->of[way]);
        print_wrong(&row->of[way]);
        print_ratio(&row->of[way], out);
        print_ratio(&row->of[way], in);
    }
    printf("\n");
    print_row_stalls(report, row);
    fflush(stdout);
}

void perf_table_close(const perf_report *report) {
    if (report->facts.options->checks) {
        printf("# Out of bounds values : %" PRId64 " %s\n", report->wrong, report->wrong == 0 ? "OK" : "FAILED");
    } else {
        printf("# Out of bounds values : not checked\n");
    }
    printf("# Avg bus bandwidth    : %.4f\n", perf_report_average_busbw(report));
    int64_t stalls = 0;
    for (int way = 0; way < PERF_WAYS; way++) {
        stalls += report->stalls[way];
    }
    if (stalls > 0 || report->facts.world > report->machine.cpus) {
        print_stalls(report, report->stalls, "# Stalls               : ");
    }
    printf("#\n# Collective test concluded: allreduce_perf\n");
}
