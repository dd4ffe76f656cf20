/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_table.h"
#include "perf_program.h"

#include <inttypes.h>

static void print_setting(void *user, const char *setting) {
    (void)user;
    printf("#    %s\n", setting);
}

static void print_facts(const perf_report *report) {
    const perf_options *o = report->facts.options;
    const perf_machine *m = &report->machine;
    printf("# Collective test starting: %s\n", perf_program_own.name);
    printf("# libgradsync %s (header %d.%d.%d)\n", gsync_version(), GSYNC_VERSION_MAJOR, GSYNC_VERSION_MINOR,
           GSYNC_VERSION_PATCH);
    printf("# ranks %d: %s\n", report->facts.world, report->facts.transport);
    printf("# cpu: %s, %ld online\n", m->cpu, m->cpus);
    if (report->facts.memory != NULL) {
        printf("# gpu: %s\n", report->facts.memory);
    }
    printf("# build: %s, %s, flags: %s\n", m->build_type, m->compiler, m->flags);
    printf("# minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d validation: %d\n", o->min_bytes,
           o->max_bytes, o->step_factor > 1 ? o->step_factor : o->step_bytes, o->step_factor > 1 ? "factor" : "bytes",
           o->warmups, o->iterations, o->checks);
    for (int i = 0; i < report->facts.peers->count; i++) {
        printf("# peer %s: %s\n", report->facts.peers->peer[i]->name, report->facts.peer_words[i]);
    }
    if (report->facts.peers->count > 0 && perf_program_own.is_on_gpu) {
        printf("# peers: without avg's division\n");
    } else if (report->facts.peers->count > 0) {
        printf("# peers: not for half and bfloat16, and without avg's division; malloc is %s for them\n",
               o->tunes_malloc ? "tuned" : "not tuned");
    }
    printf("# settings in the environment:\n");
    perf_machine_settings(print_setting, NULL);
    printf("#\n");
}

static void print_terms(const perf_report *report) {
    const perf_options *o = report->facts.options;
    fputs(perf_program_own.terms, stdout);
    if (o->tensors > 1) {
        printf("# scattered:    it is %d tensors, each in private memory of its own; in-place it is as many, in one\n"
               "#               bucket\n",
               o->tensors);
    }
    printf("# time:         of gsync_begin and %s, on the slowest rank; the median call. Each rank rewrites\n",
           o->uses_stream_clock ? "gsync_finish_on, on the GPU's clock" : "gsync_finish");
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
        /* On a GPU the question is about single digits of percent. */
        printf(" %6.*f", perf_program_own.is_on_gpu ? 3 : 2, perf_ratio(of, than));
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

static void print_least(const char *column, const perf_least *least) {
    if (least->row == NULL) {
        printf("%s N/A", column);
    } else {
        printf("%s %.3f (%zu B, %s)", column, least->ratio, least->row->bytes, perf_op_name(least->row->op));
    }
}

/* What the library costs on top of what it calls. */
static void print_least_ratios(const perf_report *report) {
    const perf_options *options = report->facts.options;
    for (int way = PERF_PEER_FIRST; way < perf_report_way_count(report); way++) {
        for (int i = 0; i < options->dtype_count; i++) {
            const perf_least out = perf_report_least(report, options->dtypes[i], way, PERF_OUT_OF_PLACE);
            const perf_least in = perf_report_least(report, options->dtypes[i], way, PERF_IN_PLACE);
            printf("# Least, from 1 MiB on : %s, %s: ", perf_report_way_name(report, way),
                   perf_dtype_name(options->dtypes[i]));
            print_least("x-out", &out);
            print_least(", x-in", &in);
            printf("\n");
        }
    }
}

void perf_table_close(const perf_report *report) {
    if (report->facts.options->checks) {
        printf("# Out of bounds values : %" PRId64 " %s\n", report->wrong, report->wrong == 0 ? "OK" : "FAILED");
    } else {
        printf("# Out of bounds values : not checked\n");
    }
    printf("# Avg bus bandwidth    : %.4f\n", perf_report_average_busbw(report));
    if (perf_program_own.is_on_gpu) {
        print_least_ratios(report);
    }
    int64_t stalls = 0;
    for (int way = 0; way < PERF_WAYS; way++) {
        stalls += report->stalls[way];
    }
    if (stalls > 0 || report->facts.world > report->machine.cpus) {
        print_stalls(report, report->stalls, "# Stalls               : ");
    }
    printf("#\n# Collective test concluded: %s\n", perf_program_own.name);
}
