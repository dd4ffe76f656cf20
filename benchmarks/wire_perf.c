/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a narrow wire gains or costs here: steps over the same scattered gradients, with each wire in turn. --help says
 * what is measured.
 */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <getopt.h>
#include <gradsync/gradsync.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, TENSORS_MAX = 1000, RANKS_MAX = 256 };

typedef struct perf_options {
    size_t bytes;
    int tensors;
    int rounds;
    int warmups;
    int ranks; /* 0: the launcher's processes */
    bool self_test;
    const char *json; /* NULL: none; "-": stdout, and no table */
} perf_options;

static const char usage[] =
    "usage: wire_perf --ranks N [OPTION...]              N threads of this process are the ranks\n"
    "       mpirun -n N wire_perf [OPTION...]            N processes are\n"
    "\n"
    "Times a step over float32 gradients in private memory, in one bucket, with each wire in turn, round by round:\n"
    "from gsync_begin to the end of gsync_finish on the slowest rank; the median round. Every result is held against\n"
    "a sum in float64 before anything is timed.\n"
    "\n"
    "  --bytes N    of all gradients together; K and M are powers of 1024 (25M)\n"
    "  --tensors N  so many gradients, of uneven sizes (50)\n"
    "  --rounds N   timed (41)\n"
    "  --warmup N   rounds before them (5)\n"
    "  --ranks N    the ranks are N threads; not under mpirun\n"
    "  --json FILE  writes the same for programs; - is stdout, without the table\n"
    "  --self-test  spoils one element, which must be found\n"
    "\n"
    "  native, looked at   native with checks_finite and computes_norm: what looking at results costs\n"
    "  x-native            the native wire's time over this one's\n"
    "  sent                bytes that rank 0 sent to other hosts in one step, as the transport counted them\n"
    "  nmse                squared error over squared norm of the mean, on gaussian gradients\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a call failed or a result was wrong, 2 for a wrong option.\n";

/* ---- ways ---- */

typedef struct way_kind {
    const char *name;
    gsync_wire wire;
    bool looks;
    bool is_stochastic;
    gsync_feedback feedback;
    double nmse_max; /* for up to eight ranks */
} way_kind;

static const way_kind kinds[] = {
    {"native", GSYNC_WIRE_NATIVE, false, false, GSYNC_FEEDBACK_AUTO, 1e-13},
    {"native, looked at", GSYNC_WIRE_NATIVE, true, false, GSYNC_FEEDBACK_AUTO, 1e-13},
    {"float16", GSYNC_WIRE_FLOAT16, false, false, GSYNC_FEEDBACK_OFF, 1.2e-7},
    {"bfloat16", GSYNC_WIRE_BFLOAT16, false, false, GSYNC_FEEDBACK_OFF, 8e-6},
    {"int8", GSYNC_WIRE_INT8, false, false, GSYNC_FEEDBACK_OFF, 2e-4},
    {"int8, stochastic", GSYNC_WIRE_INT8, false, true, GSYNC_FEEDBACK_OFF, 3e-4},
    {"int8, feedback", GSYNC_WIRE_INT8, false, false, GSYNC_FEEDBACK_ON, 6e-4},
    {"float8", GSYNC_WIRE_FLOAT8, false, false, GSYNC_FEEDBACK_OFF, 2.5e-3},
    {"top-k 10 %, feedback", GSYNC_WIRE_TOPK, false, false, GSYNC_FEEDBACK_ON, 4.0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct way {
    const way_kind *kind;
    gsync_reducer *reducer;
    float *memory;
    float *tensor[TENSORS_MAX];
    double *times_us;
    double nmse;
    uint64_t sent;
} way;

typedef struct bench {
    const perf_options *options;
    gsync_comm *comm;
    int rank;
    int world;
    size_t count[TENSORS_MAX];
    size_t elements;
    float *values; /* this rank's gradients */
    float *mean;   /* of all ranks', from float64 */
    way ways[KINDS];
} bench;

static bool fail(const bench *b, const char *what, const char *why) {
    fprintf(stderr, "wire_perf: rank %d: %s: %s\n", b->rank, what, why);
    if (b->comm != NULL) {
        gsync_comm_abort(b->comm, what);
    }
    return false;
}

static bool check(const bench *b, const char *what, gsync_status status) {
    return status == GSYNC_OK || fail(b, what, gsync_last_error());
}

/* ---- values ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Nearly gaussian, the sum of eight uniform numbers, and the same for everybody who asks. */
static float value_of(int rank, size_t index) {
    const uint64_t random = mix(((uint64_t)(unsigned)rank << 40) + index + 0x9e3779b97f4a7c15u);
    int sum = 0;
    for (int byte = 0; byte < 8; byte++) {
        sum += (int)((random >> (8 * byte)) & 0xff);
    }
    return (float)(sum - 1020) * 1e-5f;
}

static void fill_values(bench *b) {
    for (size_t i = 0; i < b->elements; i++) {
        double sum = 0;
        for (int rank = 0; rank < b->world; rank++) {
            sum += (double)value_of(rank, i);
        }
        b->values[i] = value_of(b->rank, i);
        b->mean[i] = (float)(sum / b->world);
    }
}

/* As in a model: matrices, and small vectors between them. */
static void set_sizes(bench *b) {
    static const size_t weights[] = {64, 1, 16, 1, 36, 4, 1};
    enum { WEIGHTS = sizeof weights / sizeof *weights };
    const size_t tensors = (size_t)b->options->tensors;
    size_t total = 0;
    size_t left = b->options->bytes / sizeof(float);
    b->elements = left;
    for (size_t i = 0; i < tensors; i++) {
        total += weights[i % WEIGHTS];
    }
    for (size_t i = 0; i < tensors; i++) {
        const size_t share = b->elements / total * weights[i % WEIGHTS];
        b->count[i] = i + 1 == tensors ? left : share;
        left -= b->count[i];
    }
}

/* ---- one way ---- */

static bool add_tensors(const bench *b, way *w) {
    size_t first = 0;
    for (int i = 0; i < b->options->tensors; i++) {
        char name[24];
        snprintf(name, sizeof name, "gradient%d", i);
        w->tensor[i] = w->memory + first + (size_t)i * 64; /* never one behind the other */
        first += b->count[i];
        if (!check(b, "gsync_reducer_add",
                   gsync_reducer_add(w->reducer, name, w->tensor[i], b->count[i], GSYNC_FLOAT32))) {
            return false;
        }
    }
    return true;
}

static bool open_way(const bench *b, way *w) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_SINGLE;
    options.checks_finite = w->kind->looks;
    options.computes_norm = w->kind->looks;
    wire.elements_min = 1;
    wire.is_stochastic = w->kind->is_stochastic;
    wire.feedback = w->kind->feedback;
    w->memory = malloc((b->elements + (size_t)b->options->tensors * 64) * sizeof(float));
    w->times_us = calloc((size_t)b->options->rounds, sizeof *w->times_us);
    if (w->memory == NULL || w->times_us == NULL) {
        return fail(b, w->kind->name, "not enough memory");
    }
    return check(b, "gsync_reducer_create", gsync_reducer_create(&w->reducer, b->comm, &options)) &&
           add_tensors(b, w) &&
           check(b, "gsync_reducer_set_wire", gsync_reducer_set_wire(w->reducer, NULL, w->kind->wire, &wire)) &&
           check(b, "gsync_reducer_commit", gsync_reducer_commit(w->reducer));
}

static void close_way(way *w) {
    gsync_reducer_destroy(&w->reducer);
    free(w->memory);
    free(w->times_us);
}

static void fill_way(const bench *b, const way *w) {
    size_t first = 0;
    for (int i = 0; i < b->options->tensors; i++) {
        memcpy(w->tensor[i], b->values + first, b->count[i] * sizeof(float));
        first += b->count[i];
    }
}

static bool step(const bench *b, way *w, double *time_us) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    fill_way(b, w);
    if (!check(b, "gsync_barrier", gsync_barrier(b->comm))) {
        return false;
    }
    const double start = measure_clock_ms(CLOCK_MONOTONIC);
    gsync_status status = gsync_begin(w->reducer, GSYNC_SYNC);
    if (status == GSYNC_OK) {
        status = gsync_finish(w->reducer, &info);
    }
    *time_us = (measure_clock_ms(CLOCK_MONOTONIC) - start) * 1e3;
    w->sent = info.bytes_wire;
    return check(b, w->kind->name, status);
}

static double nmse_of(const bench *b, const way *w) {
    double error = 0;
    double norm = 0;
    size_t first = 0;
    for (int i = 0; i < b->options->tensors; i++) {
        for (size_t k = 0; k < b->count[i]; k++) {
            const double wanted = (double)b->mean[first + k];
            const double off = (double)w->tensor[i][k] - wanted;
            error += off * off;
            norm += wanted * wanted;
        }
        first += b->count[i];
    }
    return norm > 0 ? error / norm : 0;
}

/* Not the first step, in which some wires are still native. */
static bool verify(const bench *b, way *w) {
    double time_us;
    if (!step(b, w, &time_us) || !step(b, w, &time_us)) {
        return false;
    }
    if (b->options->self_test && w->kind == &kinds[KINDS - 2] && b->rank == b->world - 1) {
        w->tensor[0][0] += 1.0f;
    }
    w->nmse = nmse_of(b, w);
    if (!(w->nmse <= w->kind->nmse_max)) {
        return fail(b, w->kind->name, "the result is wrong");
    }
    return true;
}

/* ---- all of them ---- */

static bool measure(bench *b) {
    double ignored;
    for (int round = -b->options->warmups; round < b->options->rounds; round++) {
        for (int i = 0; i < KINDS; i++) {
            way *w = &b->ways[(i + round + KINDS * b->options->warmups) % KINDS];
            if (!step(b, w, round < 0 ? &ignored : &w->times_us[round])) {
                return false;
            }
        }
    }
    for (int i = 0; i < KINDS; i++) {
        if (!check(
                b, "gathering times",
                gsync_allreduce(b->comm, b->ways[i].times_us, (size_t)b->options->rounds, GSYNC_FLOAT64, GSYNC_MAX))) {
            return false;
        }
        qsort(b->ways[i].times_us, (size_t)b->options->rounds, sizeof(double), measure_by_size);
    }
    return true;
}

static double median(const bench *b, const way *w) {
    return w->times_us[b->options->rounds / 2];
}

static void print_table(const bench *b) {
    printf("# wire_perf, gradsync %s: %zu bytes in %d tensors, %d rounds\n# %s\n", gsync_version(), b->options->bytes,
           b->options->tensors, b->options->rounds, gsync_comm_describe(b->comm));
    printf("%-22s %12s %12s %9s %12s %10s\n", "wire", "time (us)", "p99 (us)", "x-native", "sent (B)", "nmse");
    for (int i = 0; i < KINDS; i++) {
        const way *w = &b->ways[i];
        printf("%-22s %12.1f %12.1f %9.3f %12" PRIu64 " %10.2e\n", w->kind->name, median(b, w),
               w->times_us[b->options->rounds * 99 / 100], median(b, &b->ways[0]) / median(b, w), w->sent, w->nmse);
    }
}

static bool write_json(const bench *b, FILE *file) {
    fprintf(file,
            "{\"version\": \"%s\", \"transport\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"tensors\": %d, \"rounds\": "
            "%d, \"wires\": [",
            gsync_version(), gsync_comm_describe(b->comm), b->world, b->options->bytes, b->options->tensors,
            b->options->rounds);
    for (int i = 0; i < KINDS; i++) {
        const way *w = &b->ways[i];
        fprintf(file,
                "%s\n  {\"wire\": \"%s\", \"time_us\": %.3f, \"x_native\": %.4f, \"sent_bytes\": %" PRIu64
                ", \"nmse\": %.4e}",
                i == 0 ? "" : ",", w->kind->name, median(b, w), median(b, &b->ways[0]) / median(b, w), w->sent,
                w->nmse);
    }
    fprintf(file, "\n]}\n");
    return fflush(file) == 0 && ferror(file) == 0;
}

static bool report(const bench *b) {
    const char *path = b->options->json;
    const bool is_stdout = path != NULL && strcmp(path, "-") == 0;
    if (b->rank != 0) {
        return true;
    }
    if (!is_stdout) {
        print_table(b);
    }
    if (path == NULL) {
        return true;
    }
    FILE *file = is_stdout ? stdout : fopen(path, "w");
    bool is_ok = file != NULL && write_json(b, file);
    is_ok = (is_stdout || file == NULL || fclose(file) == 0) && is_ok;
    return is_ok || fail(b, path, "could not be written");
}

static bool open_bench(bench *b) {
    b->rank = gsync_rank(b->comm);
    b->world = gsync_world_size(b->comm);
    set_sizes(b);
    b->values = malloc(b->elements * sizeof(float));
    b->mean = malloc(b->elements * sizeof(float));
    if (b->values == NULL || b->mean == NULL) {
        return fail(b, "values", "not enough memory");
    }
    fill_values(b);
    return true;
}

static bool run(const perf_options *options, gsync_comm *comm) {
    bench *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return false;
    }
    b->options = options;
    b->comm = comm;
    bool is_ok = open_bench(b);
    for (int i = 0; i < KINDS && is_ok; i++) {
        b->ways[i].kind = &kinds[i];
        is_ok = open_way(b, &b->ways[i]) && verify(b, &b->ways[i]);
    }
    is_ok = is_ok && measure(b) && report(b);
    for (int i = 0; i < KINDS; i++) {
        close_way(&b->ways[i]);
    }
    free(b->values);
    free(b->mean);
    free(b);
    return is_ok;
}

/* ---- ranks ---- */

typedef struct rank_run {
    const perf_options *options;
    gsync_comm *comm;
    pthread_t thread;
    bool is_ok;
} rank_run;

static void *run_rank(void *argument) {
    rank_run *r = argument;
    r->is_ok = run(r->options, r->comm);
    gsync_comm_destroy(&r->comm);
    return NULL;
}

static bool run_threads(const perf_options *options) {
    static rank_run ranks[RANKS_MAX];
    gsync_comm *comms[RANKS_MAX];
    if (gsync_comm_threads(comms, options->ranks, NULL) != GSYNC_OK) {
        fprintf(stderr, "wire_perf: %s\n", gsync_last_error());
        return false;
    }
    bool is_ok = true;
    int started = 0;
    for (; started < options->ranks; started++) {
        ranks[started] = (rank_run){.options = options, .comm = comms[started]};
        if (pthread_create(&ranks[started].thread, NULL, run_rank, &ranks[started]) != 0) {
            gsync_comm_abort(comms[started], "not all ranks could be started");
            break;
        }
    }
    for (int i = started; i < options->ranks; i++) {
        gsync_comm_destroy(&comms[i]);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(ranks[i].thread, NULL);
        is_ok = is_ok && ranks[i].is_ok;
    }
    return is_ok && started == options->ranks;
}

static bool run_process(const perf_options *options) {
    rank_run self = {.options = options};
    if (gsync_comm_create(&self.comm, NULL) != GSYNC_OK) {
        fprintf(stderr, "wire_perf: %s\n", gsync_last_error());
        return false;
    }
    run_rank(&self);
    return self.is_ok;
}

/* ---- options ---- */

static bool read_number(const char *text, long least, long most, size_t *to) {
    char *end = NULL;
    const long long value = strtoll(text, &end, 10);
    long long unit = 1;
    if (*end == 'K' || *end == 'M') {
        unit = *end == 'K' ? 1024 : 1024 * 1024;
        end++;
    }
    if (end == text || *end != '\0' || value < least || value > most / unit) {
        fprintf(stderr, "wire_perf: '%s' is not a number from %ld to %ld\n", text, least, most);
        return false;
    }
    *to = (size_t)(value * unit);
    return true;
}

static bool read_int(long least, long most, int *to) {
    size_t number = 0;
    const bool is_number = read_number(optarg, least, most, &number);
    *to = (int)number;
    return is_number;
}

static bool read_option(perf_options *options, int option) {
    switch (option) {
    case 'b':
        return read_number(optarg, 1, 1L << 40, &options->bytes);
    case 't':
        return read_int(1, TENSORS_MAX, &options->tensors);
    case 'n':
        return read_int(1, 100000, &options->rounds);
    case 'w':
        return read_int(0, 100000, &options->warmups);
    case 'r':
        return read_int(1, RANKS_MAX, &options->ranks);
    case 'j':
        options->json = optarg;
        return true;
    case 's':
        options->self_test = true;
        return true;
    default:
        return false;
    }
}

int main(int argc, char **argv) {
    static const struct option longs[] = {{"bytes", required_argument, NULL, 'b'},
                                          {"tensors", required_argument, NULL, 't'},
                                          {"rounds", required_argument, NULL, 'n'},
                                          {"warmup", required_argument, NULL, 'w'},
                                          {"ranks", required_argument, NULL, 'r'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"self-test", no_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    perf_options options = {.bytes = 25 * 1024 * 1024, .tensors = 50, .rounds = 41, .warmups = 5};
    int option;
    while ((option = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (!read_option(&options, option)) {
            fputs("Try wire_perf --help.\n", stderr);
            return EXIT_USAGE;
        }
    }
    if (optind < argc || options.bytes / sizeof(float) < (size_t)options.tensors * 256) {
        fprintf(stderr, "wire_perf: %s\nTry wire_perf --help.\n",
                optind < argc ? argv[optind] : "--bytes: fewer than 256 elements for a tensor");
        return EXIT_USAGE;
    }
    const bool is_ok = options.ranks > 0 ? run_threads(&options) : run_process(&options);
    return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
