/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What narrow wires cost: encoding, decoding, and adding a second contribution, against memcpy of as many bytes. --help
 * says what is measured.
 */
#define _GNU_SOURCE
#include "measure.h"
#include "measure_words.h"

#include "base/float_mode.h"
#include "wire/codec.h"

#include <gradsync/gradsync.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { EXIT_USAGE = 2, SIZES_MAX = 8, ROUNDS_MAX = 10000, GUARD_BYTES = 64, GUARD = 0xa5 };
enum { BYTES_PER_SAMPLE = 16 << 20 /* small sizes are repeated, so that a sample is not shorter than that */ };
enum { LARGE_PAGE = 2 << 20 };

typedef struct perf_options {
    size_t sizes[SIZES_MAX]; /* bytes of float32 */
    size_t size_count;
    size_t rounds;
    uint64_t seed;
    bool is_self_test;
    const char *json; /* NULL: none; "-": stdout, and no table */
} perf_options;

/* ---- Codecs ----------------------------------------------------------------------------------------------------- */

typedef struct perf_codec {
    const char *name;
    const gs_codec *codec;
    bool is_stochastic;
    size_t per_block; /* what the wire's format says, counted anew */
    size_t bytes_per_block;
    double relative; /* bound of an element's error: that times its magnitude, plus this times its block's largest */
    double of_absmax;
    double nmse_gate; /* of gaussian elements */
} perf_codec;

static const perf_codec codecs[] = {
    {"float16", &gs_codec_float16, false, 1, 2, 0x1p-11, 0x1p-25, 1e-7},
    {"bfloat16", &gs_codec_bfloat16, false, 1, 2, 0x1p-8, 0, 6e-6},
    {"int8", &gs_codec_int8, false, 256, 260, 0, (1 + 0x1p-14) / 254, 1.2e-4},
    {"int8 stochastic", &gs_codec_int8, true, 256, 260, 0, (1 + 0x1p-14) / 127, 1.7e-4},
    {"float8", &gs_codec_float8, false, 256, 257, 0x1p-4, 0x1p-17, 1.6e-3},
};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

typedef enum perf_work { ENCODE, ENCODE_FINDING, DECODE, COMBINE, WORKS } perf_work;

static const char *const work_names[] = {"encode", "encode, findings", "decode", "combine"};

typedef struct perf_row {
    const perf_codec *codec;
    perf_work work;
    size_t bytes;       /* of float32 */
    size_t bytes_moved; /* read and written */
    double rate;        /* 10^9 bytes moved per second, median */
    double copy_rate;   /* memcpy's */
    double nmse_gaussian;
    double nmse_heavy;
} perf_row;

static const char usage[] =
    "usage: codec_perf [--bytes N[,N...]] [--rounds N] [--seed N] [--json FILE] [--self-test] [--help]\n"
    "\n"
    "Measures the codecs of narrow wires on one thread: encoding float32 elements without and with looking for\n"
    "overflow and inf, decoding, and combining, which adds a decoded contribution to a sum. Speed is bytes read plus\n"
    "bytes written per second, and also the share of what memcpy does with as many bytes read and written, measured\n"
    "in turn; both are medians. Results, the number of bytes on the wire, and the errors of gaussian elements are\n"
    "checked before anything is timed.\n"
    "\n"
    "  --bytes      of the elements; K and M are powers of 1024 (1M,64M)\n"
    "  --rounds     samples (21)\n"
    "  --seed       of the elements (1)\n"
    "  --json FILE  writes the same for programs; - is stdout, without the table\n"
    "  --self-test  spoils one byte on the wire, which must be found\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a result was wrong, 2 for a wrong option.\n";

/* ---- Memory and elements ---------------------------------------------------------------------------------------- */

typedef struct perf_memory {
    size_t count;
    float *x;
    float *back;
    float *sum;
    unsigned char *wire;
    unsigned char *copy_from;
    unsigned char *copy_to;
} perf_memory;

static void *new_pages(size_t bytes) {
    void *const pages = aligned_alloc(LARGE_PAGE, (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    if (pages != NULL) {
        madvise(pages, bytes, MADV_HUGEPAGE);
        memset(pages, 1, bytes);
    }
    return pages;
}

static void free_memory(perf_memory *memory) {
    free(memory->x);
    free(memory->back);
    free(memory->sum);
    free(memory->wire);
    free(memory->copy_from);
    free(memory->copy_to);
}

static bool new_memory(perf_memory *memory, size_t bytes) {
    const size_t wire_bytes = bytes / 2 + bytes / 32 + GUARD_BYTES;
    *memory = (perf_memory){.count = bytes / sizeof(float)};
    memory->x = new_pages(bytes);
    memory->back = new_pages(bytes);
    memory->sum = new_pages(bytes);
    memory->wire = new_pages(wire_bytes);
    memory->copy_from = new_pages(2 * bytes);
    memory->copy_to = new_pages(2 * bytes);
    if (memory->x == NULL || memory->back == NULL || memory->sum == NULL || memory->wire == NULL ||
        memory->copy_from == NULL || memory->copy_to == NULL) {
        fprintf(stderr, "codec_perf: not enough memory\n");
        free_memory(memory);
        return false;
    }
    return true;
}

/* splitmix64, as a number in (0, 1] */
static double next_random(uint64_t *state) {
    uint64_t word = *state += UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)(((word ^ (word >> 31)) >> 11) + 1) * 0x1p-53;
}

/* Normally distributed; heavy tails are Student's t with 3 degrees of freedom, scaled like gradients are: small. */
static void draw(float *x, size_t count, bool is_heavy, uint64_t seed) {
    const double turn = 6.283185307179586;
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        double normal[4];
        for (int k = 0; k < (is_heavy ? 4 : 1); k++) {
            normal[k] = sqrt(-2 * log(next_random(&state))) * cos(turn * next_random(&state));
        }
        const double squares = is_heavy ? normal[1] * normal[1] + normal[2] * normal[2] + normal[3] * normal[3] : 3;
        x[i] = (float)(0.01 * normal[0] / sqrt(squares / 3));
    }
}

/* ---- Checks ----------------------------------------------------------------------------------------------------- */

static gs_codec_terms terms_of(const perf_codec *codec) {
    return (gs_codec_terms){.scale = 1.0f, .is_stochastic = codec->is_stochastic, .key = 1};
}

static size_t wire_bytes_of(const perf_codec *codec, size_t count) {
    return count / codec->per_block * codec->bytes_per_block;
}

static bool complain(const perf_codec *codec, const char *what) {
    fprintf(stderr, "codec_perf: %s: %s\n", codec->name, what);
    return false;
}

static double absmax_around(const perf_memory *memory, const perf_codec *codec, size_t element) {
    double most = 1; /* of float16's subnormals */
    for (size_t i = 0; i < codec->per_block && codec->per_block > 1; i++) {
        const double magnitude = fabs((double)memory->x[element / codec->per_block * codec->per_block + i]);
        most = i == 0 || magnitude > most ? magnitude : most;
    }
    return most;
}

/* What came back is within the bounds. Adds up what is needed for the normalised mean square error. */
static bool check_errors(const perf_memory *memory, const perf_codec *codec, double *nmse) {
    double error_sum = 0;
    double square_sum = 0;
    double absmax = 1;
    for (size_t i = 0; i < memory->count; i++) {
        const double x = (double)memory->x[i];
        const double error = fabs((double)memory->back[i] - x);
        absmax = i % codec->per_block == 0 ? absmax_around(memory, codec, i) : absmax;
        if (!(error <= codec->relative * fabs(x) + codec->of_absmax * absmax)) {
            return complain(codec, "an element is wrong");
        }
        error_sum += error * error;
        square_sum += x * x;
    }
    *nmse = error_sum / square_sum;
    return true;
}

static bool check_sum(const perf_memory *memory, const perf_codec *codec) {
    for (size_t i = 0; i < memory->count; i++) {
        const float sum = memory->x[i] + memory->back[i];
        if (memcmp(&memory->sum[i], &sum, sizeof sum) != 0) {
            return complain(codec, "a sum is wrong");
        }
    }
    return true;
}

static bool check(const perf_memory *memory, const perf_codec *codec, bool spoils, double *nmse) {
    const gs_codec_terms terms = terms_of(codec);
    const size_t bytes = wire_bytes_of(codec, memory->count);
    gs_findings findings = {.nonfinite_source = -1};
    if (gs_codec_bytes(codec->codec, memory->count) != bytes) {
        return complain(codec, "the wire has another size than its format");
    }
    memset(memory->wire, GUARD, bytes + GUARD_BYTES);
    codec->codec->encode(memory->wire, memory->x, memory->count, &terms, &findings);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (memory->wire[bytes + i] != GUARD) {
            return complain(codec, "encoding wrote beyond the wire");
        }
    }
    if (findings.has_nonfinite || findings.saturated != 0 || !(findings.absmax > 0)) {
        return complain(codec, "encoding found what was not there");
    }
    memory->wire[bytes / 2 + 1] ^= spoils ? 0x40 : 0;
    codec->codec->decode(memory->back, memory->wire, memory->count, &terms);
    memcpy(memory->sum, memory->x, memory->count * sizeof(float));
    codec->codec->decode_add(memory->sum, memory->wire, memory->count, &terms);
    return check_errors(memory, codec, nmse) && check_sum(memory, codec);
}

/* ---- Times ------------------------------------------------------------------------------------------------------ */

static size_t bytes_moved_by(const perf_codec *codec, perf_work work, size_t count) {
    return wire_bytes_of(codec, count) + (work == COMBINE ? 2 : 1) * count * sizeof(float);
}

static void do_work(const perf_memory *memory, const perf_codec *codec, perf_work work) {
    const gs_codec_terms terms = terms_of(codec);
    gs_findings findings = {.nonfinite_source = -1};
    switch (work) {
    case ENCODE:
        codec->codec->encode(memory->wire, memory->x, memory->count, &terms, NULL);
        break;
    case ENCODE_FINDING:
        codec->codec->encode(memory->wire, memory->x, memory->count, &terms, &findings);
        break;
    case DECODE:
        codec->codec->decode(memory->back, memory->wire, memory->count, &terms);
        break;
    default:
        codec->codec->decode_add(memory->sum, memory->wire, memory->count, &terms);
    }
}

static void copy(const perf_memory *memory, size_t bytes) {
    memcpy(memory->copy_to, memory->copy_from, bytes);
    __asm__ volatile("" ::"r"(memory->copy_to) : "memory");
}

/* Milliseconds of one call, of several after one that fills the caches. */
static double time_work(const perf_memory *memory, const perf_row *row, size_t calls) {
    do_work(memory, row->codec, row->work);
    const double start = measure_clock_ms(CLOCK_MONOTONIC);
    for (size_t i = 0; i < calls; i++) {
        do_work(memory, row->codec, row->work);
    }
    return (measure_clock_ms(CLOCK_MONOTONIC) - start) / (double)calls;
}

static double time_copy(const perf_memory *memory, const perf_row *row, size_t calls) {
    copy(memory, row->bytes_moved / 2);
    const double start = measure_clock_ms(CLOCK_MONOTONIC);
    for (size_t i = 0; i < calls; i++) {
        copy(memory, row->bytes_moved / 2);
    }
    return (measure_clock_ms(CLOCK_MONOTONIC) - start) / (double)calls;
}

static void measure_row(const perf_memory *memory, size_t rounds, perf_row *row) {
    static double works[ROUNDS_MAX];
    static double copies[ROUNDS_MAX];
    const size_t calls = row->bytes < BYTES_PER_SAMPLE ? BYTES_PER_SAMPLE / row->bytes : 1;
    row->bytes_moved = bytes_moved_by(row->codec, row->work, memory->count);
    for (size_t i = 0; i < rounds; i++) {
        works[i] = time_work(memory, row, calls);
        copies[i] = time_copy(memory, row, calls);
    }
    qsort(works, rounds, sizeof *works, measure_by_size);
    qsort(copies, rounds, sizeof *copies, measure_by_size);
    row->rate = (double)row->bytes_moved / works[rounds / 2] * 1e-6;
    row->copy_rate = (double)row->bytes_moved / copies[rounds / 2] * 1e-6;
}

static bool measure_codec(const perf_memory *memory, const perf_codec *codec, const perf_options *options,
                          perf_row *rows) {
    double heavy;
    double gaussian;
    draw(memory->x, memory->count, true, options->seed);
    if (!check(memory, codec, false, &heavy)) {
        return false;
    }
    draw(memory->x, memory->count, false, options->seed);
    if (!check(memory, codec, options->is_self_test, &gaussian)) {
        return false;
    }
    if (gaussian > codec->nmse_gate) {
        return complain(codec, "the mean square error is too large");
    }
    for (perf_work work = 0; work < WORKS; work++) {
        rows[work] = (perf_row){.codec = codec,
                                .work = work,
                                .bytes = memory->count * sizeof(float),
                                .nmse_gaussian = gaussian,
                                .nmse_heavy = heavy};
        memset(memory->sum, 0, memory->count * sizeof(float));
        measure_row(memory, options->rounds, &rows[work]);
    }
    return true;
}

/* ---- Report ----------------------------------------------------------------------------------------------------- */

static void print_table(const perf_row *rows, size_t count, const perf_options *options) {
    printf("# codec_perf, gradsync %s, %s, kernels %s, one thread\n", gsync_version(), MEASURE_COMPILER,
           gs_kernels_best()->name);
    printf("# medians of %zu samples; moved: read and written; GB: 10^9 bytes\n", options->rounds);
    printf("%-16s %-16s %10s %10s %8s %8s %8s %9s %9s\n", "codec", "work", "float32", "moved", "GB/s", "memcpy",
           "share", "NMSE", "NMSE");
    printf("%-16s %-16s %10s %10s %8s %8s %8s %9s %9s\n", "", "", "(KiB)", "(KiB)", "", "(GB/s)", "", "gaussian",
           "heavy");
    for (size_t i = 0; i < count; i++) {
        const perf_row *const row = &rows[i];
        printf("%-16s %-16s %10zu %10zu %8.1f %8.1f %7.0f%% %9.1e %9.1e\n", row->codec->name, work_names[row->work],
               row->bytes >> 10, row->bytes_moved >> 10, row->rate, row->copy_rate, 100 * row->rate / row->copy_rate,
               row->nmse_gaussian, row->nmse_heavy);
    }
}

static bool write_json(const perf_row *rows, size_t count, const perf_options *options) {
    const bool is_stdout = strcmp(options->json, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(options->json, "w");
    if (file == NULL) {
        perror(options->json);
        return false;
    }
    fprintf(file, "{\n  \"benchmark\": \"codec_perf\",\n  \"version\": \"%s\",\n  \"compiler\": \"%s\",\n",
            gsync_version(), MEASURE_COMPILER);
    fprintf(file, "  \"kernels\": \"%s\",\n  \"rounds\": %zu,\n  \"rows\": [\n", gs_kernels_best()->name,
            options->rounds);
    for (size_t i = 0; i < count; i++) {
        const perf_row *const row = &rows[i];
        fprintf(file,
                "    {\"codec\": \"%s\", \"work\": \"%s\", \"bytes\": %zu, \"wire_bytes\": %zu, \"bytes_moved\": %zu, "
                "\"gb_per_s\": %.3f, \"memcpy_gb_per_s\": %.3f, \"share\": %.4f, \"nmse_gaussian\": %.3e, "
                "\"nmse_heavy\": %.3e}%s\n",
                row->codec->name, work_names[row->work], row->bytes,
                wire_bytes_of(row->codec, row->bytes / sizeof(float)), row->bytes_moved, row->rate, row->copy_rate,
                row->rate / row->copy_rate, row->nmse_gaussian, row->nmse_heavy, i + 1 < count ? "," : "");
    }
    fprintf(file, "  ]\n}\n");
    const bool is_written = ferror(file) == 0;
    return (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
}

/* ---- Options ---------------------------------------------------------------------------------------------------- */

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
    const bool is_rounds = strcmp(name, "--rounds") == 0;
    if (!is_rounds && strcmp(name, "--seed") != 0) {
        return false;
    }
    const bool is_number =
        measure_read_number(value, &end, is_rounds ? ROUNDS_MAX : INT64_MAX, &number) && *end == '\0';
    options->rounds = is_rounds ? (size_t)number : options->rounds;
    options->seed = is_rounds ? options->seed : number;
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
            fprintf(stderr, "codec_perf: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    return EXIT_SUCCESS;
}

static bool measure_all(const perf_options *options, perf_row *rows) {
    bool is_ok = true;
    for (size_t s = 0; s < options->size_count && is_ok; s++) {
        perf_memory memory;
        gs_float_mode mode;
        is_ok = new_memory(&memory, options->sizes[s]);
        gs_float_mode_enter(&mode);
        for (size_t c = 0; c < CODECS && is_ok; c++) {
            is_ok = measure_codec(&memory, &codecs[c], options, rows + (s * CODECS + c) * WORKS);
        }
        gs_float_mode_leave(&mode);
        free_memory(&memory);
    }
    return is_ok;
}

int main(int argc, char **argv) {
    static perf_row rows[SIZES_MAX * CODECS * WORKS];
    perf_options options = {.sizes = {1 << 20, 64 << 20}, .size_count = 2, .rounds = 21, .seed = 1};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    const int status = read_options(argc, argv, &options);
    if (status != EXIT_SUCCESS) {
        return status;
    }
    const size_t row_count = options.size_count * CODECS * WORKS;
    bool is_ok = measure_all(&options, rows);
    if (is_ok && (options.json == NULL || strcmp(options.json, "-") != 0)) {
        print_table(rows, row_count, &options);
    }
    if (is_ok && options.json != NULL) {
        is_ok = write_json(rows, row_count, &options);
    }
    return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
