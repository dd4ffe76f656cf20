/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_options.h"

#include <ctype.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS_MAX = 1024,
    TENSORS_MAX = 65536,
    ITERATIONS_MAX = 1000000,
    BYTES_DEFAULT = 32 << 20,
    STEP_DEFAULT = 1 << 20
};

/* Long options without a letter of their own. */
enum {
    OPTION_RANKS = 256,
    OPTION_PROGRESS,
    OPTION_TENSORS,
    OPTION_WAYS,
    OPTION_PEER,
    OPTION_PEER_MALLOC,
    OPTION_JSON,
    OPTION_CSV,
    OPTION_SELF_TEST
};

typedef struct name_of {
    const char *name;
    int value;
} name_of;

static const name_of DTYPES[] = {
    {"float", GSYNC_FLOAT32}, {"double", GSYNC_FLOAT64}, {"half", GSYNC_FLOAT16}, {"bfloat16", GSYNC_BFLOAT16}};
static const name_of PROGRESSES[] = {
    {"auto", GSYNC_PROGRESS_AUTO}, {"helper", GSYNC_PROGRESS_HELPER}, {"caller", GSYNC_PROGRESS_CALLER}};
static const name_of WAYS[] = {
    {"out-of-place", PERF_OUT_OF_PLACE}, {"in-place", PERF_IN_PLACE}, {"scattered", PERF_SCATTERED}};
static const name_of OPS[] = {{"sum", GSYNC_SUM}, {"avg", GSYNC_MEAN}};

static const char HELP[] =
    "Measures the all-reduce of one gradient, prints nccl-tests' columns, and checks every element of every result.\n"
    "    allreduce_perf --ranks 2 [OPTION...]           2 threads of this process are the ranks\n"
    "    mpirun -n 2 allreduce_perf [OPTION...]         2 processes are\n"
    "\n"
    "  -b, --minbytes SIZE        smallest size (32M; with -e alone: that)\n"
    "  -e, --maxbytes SIZE        largest size (32M; with -b alone: that). SIZE may end in K, M or G: 1024, 1024^2, "
    "^3\n"
    "  -f, --stepfactor N         each size is the last one times N\n"
    "  -i, --stepbytes SIZE       without -f: each size is the last one plus SIZE (1M)\n"
    "  -n, --iters N              timed calls per size (20)\n"
    "  -w, --warmup_iters N       calls before them, not timed; at least 1 (5)\n"
    "  -c, --check 0|1            compare every element after every call, warm-up included (1)\n"
    "  -d, --datatype TYPE        float, double, half, bfloat16 or all (float)\n"
    "  -o, --op OP                sum, avg or all (sum)\n"
    "      --ranks N              the ranks are N threads; not under mpirun\n"
    "      --progress WHO         who moves the buckets: auto, helper (a thread) or caller (auto)\n"
    "      --tensors N            the gradient in N tensors of uneven sizes, in one bucket: in-place in the bucket, "
    "and\n"
    "                             scattered, each in private memory of its own (1: one tensor, and no scattered)\n"
    "      --ways WAY[,WAY...]    out-of-place, in-place, scattered: measure no others of the library's (all)\n"
    "      --peer NAME[,NAME...]  others of the same bytes, round by round in turn with the library:\n"
    "                               limit   the memory traffic of an all-reduce in place, and nothing else\n"
    "                               mpi     MPI_Allreduce. Under mpirun, as gloo\n"
    "                               gloo    all of gloo-ring, gloo-ring-chunked, gloo-halving-doubling, gloo-bcube\n"
    "      --peer-malloc HOW      tuned: the C library keeps memory that peers free; default: as it is (tuned)\n"
    "      --json FILE            the results, with more about each. With - in place of FILE: to stdout, and no table\n"
    "      --csv FILE             the same figures, a line for each size and way\n"
    "      --self-test            spoil one bit of one result: must report 1 wrong and exit with 1\n"
    "  -h, --help                 this text\n"
    "\n"
    "  out-of-place   the gradient is in private memory. Between processes what others add up of it is copied to "
    "where\n"
    "                 they can read it, and back; threads read each other's, and --json says how much was copied\n"
    "  in-place       the gradient lives in the library's bucket (gsync_reducer_grad); nothing is copied\n"
    "  time           microseconds from gsync_begin to the end of gsync_finish on the slowest rank; the median call\n"
    "  algbw          size / time, in 10^9 bytes per second\n"
    "  busbw          algbw x 2(n-1)/n for n ranks\n"
    "  #wrong         elements with a wrong value, over all calls and ranks\n"
    "  scattered      the gradient is many tensors in private memory; x-in: its time over the in-place time\n"
    "  a peer         its time; x-out and x-in are its time over the library's out-of-place and in-place time, so "
    "that\n"
    "                 the limit's x-in is the in-place way's share of what memory allows\n"
    "  stalls         (shown if there are any) timed calls slower than the median by more than 3 ms\n"
    "\n"
    "Exit status: 0 when everything went well, 1 when a value was wrong or something failed, 2 for a wrong option.\n";

static bool complain(bool is_speaker, const char *format, ...) {
    if (is_speaker) {
        va_list arguments;
        va_start(arguments, format);
        fputs("allreduce_perf: ", stderr);
        vfprintf(stderr, format, arguments);
        fputs("; --help lists the options\n", stderr);
        va_end(arguments);
    }
    return false;
}

static const char *name_in(const name_of *table, size_t count, int value) {
    for (size_t i = 0; i < count; i++) {
        if (table[i].value == value) {
            return table[i].name;
        }
    }
    return "?";
}

const char *perf_dtype_name(gsync_dtype dtype) {
    return name_in(DTYPES, sizeof DTYPES / sizeof *DTYPES, (int)dtype);
}

const char *perf_op_name(gsync_op op) {
    return name_in(OPS, sizeof OPS / sizeof *OPS, (int)op);
}

const char *perf_way_name(perf_way way) {
    return name_in(WAYS, sizeof WAYS / sizeof *WAYS, (int)way);
}

const char *perf_progress_name(gsync_progress progress) {
    return name_in(PROGRESSES, sizeof PROGRESSES / sizeof *PROGRESSES, (int)progress);
}

/* "64", "1K", "2.5m": nccl-tests take fractions too. */
static bool parse_size(const char *word, size_t *bytes) {
    static const char suffixes[] = "kmg";
    if (!isdigit((unsigned char)*word)) {
        return false;
    }
    char *end = NULL;
    double value = strtod(word, &end);
    if (*end != '\0') {
        const char *suffix = strchr(suffixes, tolower((unsigned char)*end));
        if (suffix == NULL || end[1] != '\0') {
            return false;
        }
        value *= (double)((size_t)1 << (10 * (suffix - suffixes + 1)));
    }
    if (!(value >= 1.0 && value <= 1e15)) {
        return false;
    }
    *bytes = (size_t)value;
    return true;
}

static bool parse_count(const char *word, long least, long most, int *count) {
    char *end = NULL;
    const long value = strtol(word, &end, 10);
    if (end == word || *end != '\0' || value < least || value > most) {
        return false;
    }
    *count = (int)value;
    return true;
}

static bool parse_dtypes(const char *word, perf_options *options) {
    options->dtype_count = 0;
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++) {
        if (strcmp(word, DTYPES[i].name) == 0 || strcmp(word, "all") == 0) {
            options->dtypes[options->dtype_count++] = (gsync_dtype)DTYPES[i].value;
        }
    }
    return options->dtype_count > 0;
}

static bool parse_ops(const char *word, perf_options *options) {
    options->op_count = 0;
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        if (strcmp(word, OPS[i].name) == 0 || strcmp(word, "all") == 0) {
            options->ops[options->op_count++] = (gsync_op)OPS[i].value;
        }
    }
    return options->op_count > 0;
}

static bool parse_progress(const char *word, perf_options *options) {
    for (size_t i = 0; i < sizeof PROGRESSES / sizeof *PROGRESSES; i++) {
        if (strcmp(word, PROGRESSES[i].name) == 0) {
            options->progress = (gsync_progress)PROGRESSES[i].value;
            return true;
        }
    }
    return false;
}

/* "in-place,scattered" */
static bool parse_ways(const char *word, perf_options *options) {
    memset(options->uses_way, 0, sizeof options->uses_way);
    while (word != NULL) {
        const size_t length = strcspn(word, ",");
        size_t i = 0;
        while (i < sizeof WAYS / sizeof *WAYS &&
               !(strlen(WAYS[i].name) == length && strncmp(WAYS[i].name, word, length) == 0)) {
            i++;
        }
        if (i == sizeof WAYS / sizeof *WAYS) {
            return false;
        }
        options->uses_way[WAYS[i].value] = true;
        word = word[length] == ',' ? word + length + 1 : NULL;
    }
    return true;
}

static bool parse_malloc(const char *word, perf_options *options) {
    options->tunes_malloc = strcmp(word, "tuned") == 0;
    return options->tunes_malloc || strcmp(word, "default") == 0;
}

static bool take_file(const char *word, const char **file) {
    *file = word;
    return *word != '\0';
}

static bool take_flag(const char *word, bool *flag) {
    int value;
    if (!parse_count(word, 0, 1, &value)) {
        return false;
    }
    *flag = value != 0;
    return true;
}

static bool take_factor(const char *word, size_t *factor) {
    int value;
    if (!parse_count(word, 1, 1 << 20, &value)) {
        return false;
    }
    *factor = (size_t)value;
    return true;
}

/* False: `word` is no value for this option. */
static bool take(int option, const char *word, perf_options *options) {
    switch (option) {
    case 'b':
        return parse_size(word, &options->min_bytes);
    case 'e':
        return parse_size(word, &options->max_bytes);
    case 'i':
        return parse_size(word, &options->step_bytes);
    case 'f':
        return take_factor(word, &options->step_factor);
    case 'n':
        return parse_count(word, 1, ITERATIONS_MAX, &options->iterations);
    case 'w':
        return parse_count(word, 1, ITERATIONS_MAX, &options->warmups);
    case 'c':
        return take_flag(word, &options->checks);
    case 'd':
        return parse_dtypes(word, options);
    case 'o':
        return parse_ops(word, options);
    case OPTION_RANKS:
        return parse_count(word, 1, RANKS_MAX, &options->thread_ranks);
    case OPTION_PROGRESS:
        return parse_progress(word, options);
    case OPTION_TENSORS:
        return parse_count(word, 1, TENSORS_MAX, &options->tensors);
    case OPTION_WAYS:
        return parse_ways(word, options);
    case OPTION_PEER:
        options->peers = word;
        return *word != '\0';
    case OPTION_PEER_MALLOC:
        return parse_malloc(word, options);
    case OPTION_JSON:
        return take_file(word, &options->json);
    case OPTION_CSV:
        return take_file(word, &options->csv);
    default:
        options->self_test = true;
        return true;
    }
}

static bool is_stdout(const char *file) {
    return file != NULL && strcmp(file, "-") == 0;
}

bool perf_options_want_table(const perf_options *options) {
    return !is_stdout(options->json) && !is_stdout(options->csv);
}

/* What no single option can see. */
static bool complete(perf_options *options, bool is_speaker) {
    if (options->min_bytes == 0) {
        options->min_bytes = options->max_bytes != 0 ? options->max_bytes : (size_t)BYTES_DEFAULT;
    }
    if (options->max_bytes == 0) {
        options->max_bytes = options->min_bytes;
    }
    if (options->max_bytes < options->min_bytes) {
        return complain(is_speaker, "--maxbytes is less than --minbytes");
    }
    for (int i = 0; i < options->dtype_count; i++) {
        if (options->min_bytes < gsync_dtype_size(options->dtypes[i])) {
            return complain(is_speaker, "--minbytes %zu holds no %s", options->min_bytes,
                            perf_dtype_name(options->dtypes[i]));
        }
    }
    if (options->self_test && !options->checks) {
        return complain(is_speaker, "--self-test is about the check, which --check 0 turns off");
    }
    if (is_stdout(options->json) && is_stdout(options->csv)) {
        return complain(is_speaker, "--json - and --csv - both want stdout");
    }
    /* With one tensor it would be the out-of-place way once more. */
    options->uses_way[PERF_SCATTERED] = options->uses_way[PERF_SCATTERED] && options->tensors > 1;
    return true;
}

size_t perf_options_next_size(const perf_options *options, size_t bytes) {
    if (options->step_factor > 1) {
        return bytes <= options->max_bytes / options->step_factor ? bytes * options->step_factor : 0;
    }
    return options->step_bytes <= options->max_bytes - bytes ? bytes + options->step_bytes : 0;
}

perf_verdict perf_options_parse(perf_options *options, int argc, char **argv, bool is_speaker) {
    static const struct option names[] = {{"minbytes", required_argument, NULL, 'b'},
                                          {"maxbytes", required_argument, NULL, 'e'},
                                          {"stepfactor", required_argument, NULL, 'f'},
                                          {"stepbytes", required_argument, NULL, 'i'},
                                          {"iters", required_argument, NULL, 'n'},
                                          {"warmup_iters", required_argument, NULL, 'w'},
                                          {"check", required_argument, NULL, 'c'},
                                          {"datatype", required_argument, NULL, 'd'},
                                          {"op", required_argument, NULL, 'o'},
                                          {"ranks", required_argument, NULL, OPTION_RANKS},
                                          {"tensors", required_argument, NULL, OPTION_TENSORS},
                                          {"ways", required_argument, NULL, OPTION_WAYS},
                                          {"peer", required_argument, NULL, OPTION_PEER},
                                          {"peer-malloc", required_argument, NULL, OPTION_PEER_MALLOC},
                                          {"progress", required_argument, NULL, OPTION_PROGRESS},
                                          {"json", required_argument, NULL, OPTION_JSON},
                                          {"csv", required_argument, NULL, OPTION_CSV},
                                          {"self-test", no_argument, NULL, OPTION_SELF_TEST},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *options = (perf_options){.step_bytes = STEP_DEFAULT,
                              .iterations = 20,
                              .warmups = 5,
                              .checks = true,
                              .dtypes = {GSYNC_FLOAT32},
                              .dtype_count = 1,
                              .ops = {GSYNC_SUM},
                              .op_count = 1,
                              .tensors = 1,
                              .uses_way = {true, true, true},
                              .tunes_malloc = true};
    opterr = is_speaker ? 1 : 0;
    for (int found; (found = getopt_long(argc, argv, "b:e:f:i:n:w:c:d:o:h", names, NULL)) != -1;) {
        if (found == 'h') {
            if (is_speaker) {
                fputs(HELP, stdout);
            }
            return PERF_HELP_GIVEN;
        }
        if (found == '?') {
            complain(is_speaker, "wrong option");
            return PERF_WRONG;
        }
        if (!take(found, optarg, options)) {
            complain(is_speaker, "\"%s\" is not a possible value", optarg);
            return PERF_WRONG;
        }
    }
    if (optind < argc) {
        complain(is_speaker, "%s: no such argument", argv[optind]);
        return PERF_WRONG;
    }
    return complete(options, is_speaker) ? PERF_RUN : PERF_WRONG;
}
