/* SPDX-License-Identifier: Apache-2.0 */
#include "stream_report.h"

#include "measure_words.h"

#include <gradsync/gradsync.h>
#include <stdio.h>
#include <string.h>

void report_print(const cost_row *rows, size_t count, size_t steps) {
    char processor[256];
    measure_processor(processor, sizeof processor);
    printf("# stream_cost, gradsync %s, %s, on %s\n", gsync_version(), MEASURE_COMPILER, processor);
    printf("# rank 0 of 2, %zu steps; CUDA, NCCL and kernels that do nothing: what is left is the library's own\n",
           steps);
    printf("%-11s %8s %10s | %17s | %17s | %17s\n", "", "", "", "ready_on (ns)", "completing (ns)", "finish_on (us)");
    printf("%-11s %8s %10s | %8s %8s | %8s %8s | %8s %8s\n", "way", "buckets", "gradients", "median", "99th", "median",
           "99th", "marked", "unmarked");
    for (size_t i = 0; i < count; i++) {
        const cost_row *row = &rows[i];
        printf("%-11s %8zu %10zu | %8.0f %8.0f | %8.0f %8.0f | %8.2f %8.2f\n", row->way, row->buckets, row->gradients,
               row->plain.median, row->plain.p99, row->completing.median, row->completing.p99, row->marked.median / 1e3,
               row->unmarked.median / 1e3);
    }
}

static void write_times(FILE *file, const char *name, const cost_times *times, const char *behind) {
    fprintf(file, "\"%s\": {\"median_ns\": %.1f, \"p99_ns\": %.1f}%s", name, times->median, times->p99, behind);
}

bool report_write_json(const char *path, const cost_row *rows, size_t count, size_t steps) {
    char processor[256];
    const bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(path, "w");
    if (file == NULL) {
        perror(path);
        return false;
    }
    measure_processor(processor, sizeof processor);
    fprintf(file, "{\n  \"benchmark\": \"stream_cost\",\n  \"version\": \"%s\",\n  \"compiler\": \"%s\",\n",
            gsync_version(), MEASURE_COMPILER);
    fprintf(file, "  \"processor\": \"%s\",\n  \"steps\": %zu,\n  \"rows\": [\n", processor, steps);
    for (size_t i = 0; i < count; i++) {
        const cost_row *row = &rows[i];
        fprintf(file, "    {\"way\": \"%s\", \"buckets\": %zu, \"gradients\": %zu, ", row->way, row->buckets,
                row->gradients);
        write_times(file, "ready_on", &row->plain, ", ");
        write_times(file, "ready_on_completing", &row->completing, ", ");
        write_times(file, "finish_on", &row->marked, ", ");
        write_times(file, "finish_on_unmarked", &row->unmarked, i + 1 < count ? "},\n" : "}\n");
    }
    fprintf(file, "  ]\n}\n");
    const bool is_written = ferror(file) == 0;
    return (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
}
