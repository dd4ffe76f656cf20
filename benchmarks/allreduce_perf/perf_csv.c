/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_csv.h"

#include <inttypes.h>

static void write_figures(const perf_report *report, const perf_row *row, int way, FILE *file) {
    const perf_figures *figures = &row->of[way];
    fprintf(file, "%d,%zu,%zu,%s,%s,%s,", report->facts.world, row->bytes, row->count, perf_dtype_name(row->dtype),
            perf_op_name(row->op), perf_report_way_name(report, way));
    fprintf(file, "%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,", figures->median_us, figures->p99_us, figures->min_us,
            figures->max_us, figures->warmup_first_us, figures->warmup_median_us);
    fprintf(file, "%.6f,%" PRIu64 ",%d,%d,", perf_busbw(row->bytes, figures->median_us, report->facts.world),
            figures->bytes_copied, figures->stalls, report->facts.options->iterations);
    if (figures->wrong >= 0) {
        fprintf(file, "%" PRId64, figures->wrong);
    }
    fputc('\n', file);
}

void perf_csv_write(const perf_report *report, FILE *file) {
    fputs("ranks,size,count,type,redop,way,time_us,p99_us,min_us,max_us,warmup_first_us,warmup_median_us,busbw,"
          "bytes_copied,stalls,iters,wrong\n",
          file);
    for (size_t i = 0; i < report->row_count; i++) {
        for (int way = 0; way < perf_report_way_count(report); way++) {
            if (report->rows[i].of[way].is_measured) {
                write_figures(report, &report->rows[i], way, file);
            }
        }
    }
}
