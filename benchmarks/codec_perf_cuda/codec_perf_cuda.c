/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a bucket's passes cost on a GPU, against a copy within its memory that moves as many bytes. --help says what is
 * measured.
 */
#define _POSIX_C_SOURCE 200809L
#include "codec_gpu.h"
#include "measure.h"
#include "measure_words.h"

#include <cuda_runtime_api.h>
#include <gradsync/gradsync.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, SIZES_MAX = 8, ROUNDS_MAX = 10000 };
enum { BYTES_PER_SAMPLE = 256 << 20 /* small sizes are repeated, so that a sample is not shorter than that */ };

typedef struct perf_options {
    size_t sizes[SIZES_MAX]; /* bytes of float32 */
    size_t size_count;
    size_t rounds;
    size_t calls; /* 0: as many as BYTES_PER_SAMPLE asks for */
    uint64_t seed;
    bool is_self_test;
    const char *json; /* NULL: none; "-": stdout, and no table */
} perf_options;

static const gsync_dtype wires[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16};
static const char *const wire_names[] = {"native", "float16", "bfloat16"};
enum { WIRES = sizeof wires / sizeof *wires };
static const char *const work_names[] = {"encode", "encode, findings", "decode", "decode, norm", "combine"};

typedef struct perf_row {
    size_t wire;
    gpu_work work;
    size_t bytes;
    size_t bytes_moved;
    double ms;        /* of one call, median */
    double rate;      /* 10^9 bytes moved per second */
    double copy_rate; /* cudaMemcpyAsync's */
} perf_row;

static const char usage[] =
    "usage: codec_perf_cuda [--bytes N[,N...]] [--rounds N] [--calls N] [--seed N] [--json FILE] [--self-test] "
    "[--help]\n"
    "\n"
    "Measures the library's kernels on the current GPU, for a bucket of 24 float32 gradients that lie apart:\n"
    "  encode   gathers them into the bucket, of float32 (native), float16 or bfloat16; also while looking for\n"
    "           overflow, inf and NaN\n"
    "  decode   spreads the bucket over the gradients; also while adding up their squares\n"
    "  combine  adds up four parts of a quarter each in float32, divides, and rounds once\n"
    "Speed is bytes read plus bytes written per second, between events on the stream, and also the share of what a\n"
    "copy within the GPU's memory does that reads and writes as many, measured in turn; both are medians. Results are\n"
    "checked first, bit by bit against the host's.\n"
    "\n"
    "  --bytes      of the gradients; K and M are powers of 1024 (1M,25M,64M)\n"
    "  --rounds     samples (21)\n"
    "  --calls      launches in a row in a sample (as many as move 256 MiB)\n"
    "  --seed       of the elements (1)\n"
    "  --json FILE  writes the same for programs; - is stdout, without the table\n"
    "  --self-test  spoils one bit of the bucket, which must be found\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a result was wrong or there is no GPU, 2 for a wrong option.\n";

/* ---- measuring ---- */

static bool measure_row(codec_gpu *gpu, const perf_options *options, perf_row *row) {
    static double works[ROUNDS_MAX];
    static double copies[ROUNDS_MAX];
    const gsync_dtype wire = wires[row->wire];
    const size_t enough = row->bytes < BYTES_PER_SAMPLE ? BYTES_PER_SAMPLE / row->bytes : 1;
    const size_t calls = options->calls != 0 ? options->calls : enough;
    row->bytes_moved = gpu_bytes_moved(gpu, wire, row->work);
    for (size_t i = 0; i < options->rounds; i++) {
        if (!gpu_time(gpu, wire, row->work, calls, &works[i], &copies[i])) {
            return false;
        }
    }
    qsort(works, options->rounds, sizeof *works, measure_by_size);
    qsort(copies, options->rounds, sizeof *copies, measure_by_size);
    row->ms = works[options->rounds / 2];
    row->rate = (double)row->bytes_moved / row->ms * 1e-6;
    row->copy_rate = (double)row->bytes_moved / copies[options->rounds / 2] * 1e-6;
    return true;
}

static bool measure_size(size_t bytes, const perf_options *options, perf_row *rows) {
    codec_gpu gpu;
    bool is_ok = gpu_open(&gpu, bytes, options->seed);
    for (size_t wire = 0; wire < WIRES && is_ok; wire++) {
        is_ok = gpu_check(&gpu, wires[wire], options->is_self_test);
        for (gpu_work work = 0; work < GPU_WORKS && is_ok; work++) {
            perf_row *const row = &rows[wire * GPU_WORKS + work];
            *row = (perf_row){.wire = wire, .work = work, .bytes = bytes};
            is_ok = measure_row(&gpu, options, row);
        }
    }
    gpu_close(&gpu);
    return is_ok;
}

/* ---- report ---- */

static void name_gpu(char *name, size_t size) {
    struct cudaDeviceProp properties;
    int device = 0;
    const bool is_known =
        cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&properties, device) == cudaSuccess;
    snprintf(name, size, "%.200s", is_known ? properties.name : "unknown");
}

static void print_table(const perf_row *rows, size_t count, const perf_options *options) {
    char name[256];
    name_gpu(name, sizeof name);
    printf("# codec_perf_cuda, gradsync %s, on %s\n", gsync_version(), name);
    printf("# medians of %zu samples; moved: read and written; GB: 10^9 bytes\n", options->rounds);
    printf("%-9s %-16s %10s %10s %10s %8s %8s %8s\n", "wire", "work", "float32", "moved", "time", "GB/s", "copy",
           "share");
    printf("%-9s %-16s %10s %10s %10s %8s %8s %8s\n", "", "", "(KiB)", "(KiB)", "(us)", "", "(GB/s)", "");
    for (size_t i = 0; i < count; i++) {
        const perf_row *const row = &rows[i];
        printf("%-9s %-16s %10zu %10zu %10.2f %8.1f %8.1f %7.0f%%\n", wire_names[row->wire], work_names[row->work],
               row->bytes >> 10, row->bytes_moved >> 10, 1e3 * row->ms, row->rate, row->copy_rate,
               100 * row->rate / row->copy_rate);
    }
}

static bool write_json(const perf_row *rows, size_t count, const perf_options *options) {
    char name[256];
    const bool is_stdout = strcmp(options->json, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(options->json, "w");
    if (file == NULL) {
        perror(options->json);
        return false;
    }
    name_gpu(name, sizeof name);
    fprintf(file, "{\n  \"benchmark\": \"codec_perf_cuda\",\n  \"version\": \"%s\",\n  \"gpu\": \"%s\",\n",
            gsync_version(), name);
    fprintf(file, "  \"rounds\": %zu,\n  \"rows\": [\n", options->rounds);
    for (size_t i = 0; i < count; i++) {
        const perf_row *const row = &rows[i];
        fprintf(file,
                "    {\"wire\": \"%s\", \"work\": \"%s\", \"bytes\": %zu, \"bytes_moved\": %zu, \"us\": %.3f, "
                "\"gb_per_s\": %.3f, \"copy_gb_per_s\": %.3f, \"share\": %.4f}%s\n",
                wire_names[row->wire], work_names[row->work], row->bytes, row->bytes_moved, 1e3 * row->ms, row->rate,
                row->copy_rate, row->rate / row->copy_rate, i + 1 < count ? "," : "");
    }
    fprintf(file, "  ]\n}\n");
    const bool is_written = ferror(file) == 0;
    return (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
}

/* ---- options ---- */

static bool read_option(const char *name, const char *value, perf_options *options) {
    char *end;
    uint64_t number = 0;
    if (strcmp(name, "--json") == 0) {
        options->json = value;
        return true;
    }
    if (strcmp(name, "--bytes") == 0) {
        return measure_read_sizes(value, options->sizes, SIZES_MAX, &options->size_count);
    }
    const bool is_number = measure_read_number(value, &end, ROUNDS_MAX, &number) && *end == '\0';
    if (strcmp(name, "--rounds") == 0) {
        options->rounds = (size_t)number;
    } else if (strcmp(name, "--calls") == 0) {
        options->calls = (size_t)number;
    } else if (strcmp(name, "--seed") == 0) {
        options->seed = number;
    } else {
        return false;
    }
    return is_number;
}

/* Returns EXIT_SUCCESS when there is something to measure. */
static int read_options(int argc, char **argv, perf_options *options) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--self-test") == 0) {
            options->is_self_test = true;
        } else if (i + 1 < argc && read_option(argv[i], argv[i + 1], options)) {
            i++;
        } else {
            fprintf(stderr, "codec_perf_cuda: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    static perf_row rows[SIZES_MAX * WIRES * GPU_WORKS];
    perf_options options = {.sizes = {1 << 20, 25 << 20, 64 << 20}, .size_count = 3, .rounds = 21, .seed = 1};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    const int outcome = read_options(argc, argv, &options);
    if (outcome != EXIT_SUCCESS) {
        return outcome;
    }
    const size_t count = options.size_count * WIRES * GPU_WORKS;
    for (size_t s = 0; s < options.size_count; s++) {
        if (!measure_size(options.sizes[s], &options, rows + s * WIRES * GPU_WORKS)) {
            return EXIT_FAILURE;
        }
    }
    if (options.json == NULL || strcmp(options.json, "-") != 0) {
        print_table(rows, count, &options);
    }
    return options.json == NULL || write_json(rows, count, &options) ? EXIT_SUCCESS : EXIT_FAILURE;
}
