/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_options.h"
#include "perf_program.h"

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
    CTAS_MAX = 64, /* NCCL's */
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
    OPTION_SELF_TEST,
    OPTION_CTAS,
    OPTION_CLOCK,
    OPTION_SHARE_GPU,
    OPTION_REGISTER
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

static bool complain(bool is_speaker, const char *format, ...) {
    if (is_speaker) {
        va_list arguments;
        va_start(arguments, format);
        fprintf(stderr, "%s: ", perf_program_own.name);
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

static bool parse_ctas(const char *word, unsigned *ctas) {
    int value;
    if (!parse_count(word, 1, CTAS_MAX, &value)) {
        return false;
    }
    *ctas = (unsigned)value;
    return true;
}

static bool parse_clock(const char *word, perf_options *options) {
    options->uses_stream_clock = strcmp(word, "gpu") == 0;
    return options->uses_stream_clock || strcmp(word, "host") == 0;
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

static bool take_switch(int option, perf_options *options) {
    options->self_test |= option == OPTION_SELF_TEST;
    options->shares_gpu |= option == OPTION_SHARE_GPU;
    options->registers |= option == OPTION_REGISTER;
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
    case OPTION_CTAS:
        return parse_ctas(word, &options->ctas);
    case OPTION_CLOCK:
        return parse_clock(word, options);
    default:
        return take_switch(option, options);
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

/* Long options, and of which program they are. */
enum { OF_BOTH, OF_HOST, OF_GPU };
static const struct {
    struct option option;
    int of;
} NAMES[] = {{{"minbytes", required_argument, NULL, 'b'}, OF_BOTH},
             {{"maxbytes", required_argument, NULL, 'e'}, OF_BOTH},
             {{"stepfactor", required_argument, NULL, 'f'}, OF_BOTH},
             {{"stepbytes", required_argument, NULL, 'i'}, OF_BOTH},
             {{"iters", required_argument, NULL, 'n'}, OF_BOTH},
             {{"warmup_iters", required_argument, NULL, 'w'}, OF_BOTH},
             {{"check", required_argument, NULL, 'c'}, OF_BOTH},
             {{"datatype", required_argument, NULL, 'd'}, OF_BOTH},
             {{"op", required_argument, NULL, 'o'}, OF_BOTH},
             {{"ranks", required_argument, NULL, OPTION_RANKS}, OF_BOTH},
             {{"tensors", required_argument, NULL, OPTION_TENSORS}, OF_BOTH},
             {{"ways", required_argument, NULL, OPTION_WAYS}, OF_BOTH},
             {{"peer", required_argument, NULL, OPTION_PEER}, OF_BOTH},
             {{"peer-malloc", required_argument, NULL, OPTION_PEER_MALLOC}, OF_HOST},
             {{"progress", required_argument, NULL, OPTION_PROGRESS}, OF_BOTH},
             {{"json", required_argument, NULL, OPTION_JSON}, OF_BOTH},
             {{"csv", required_argument, NULL, OPTION_CSV}, OF_BOTH},
             {{"self-test", no_argument, NULL, OPTION_SELF_TEST}, OF_BOTH},
             {{"ctas", required_argument, NULL, OPTION_CTAS}, OF_GPU},
             {{"clock", required_argument, NULL, OPTION_CLOCK}, OF_GPU},
             {{"share-gpu", no_argument, NULL, OPTION_SHARE_GPU}, OF_GPU},
             {{"register", no_argument, NULL, OPTION_REGISTER}, OF_GPU},
             {{"help", no_argument, NULL, 'h'}, OF_BOTH},
             {{NULL, 0, NULL, 0}, OF_BOTH}};

/* As many at most as NAMES has. */
static void choose_names(struct option *names) {
    const int other = perf_program_own.is_on_gpu ? OF_HOST : OF_GPU;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (NAMES[i].of != other) {
            *names++ = NAMES[i].option;
        }
    }
}

perf_verdict perf_options_parse(perf_options *options, int argc, char **argv, bool is_speaker) {
    struct option names[sizeof NAMES / sizeof *NAMES];
    choose_names(names);
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
                              .tunes_malloc = !perf_program_own.is_on_gpu};
    opterr = is_speaker ? 1 : 0;
    for (int found; (found = getopt_long(argc, argv, "b:e:f:i:n:w:c:d:o:h", names, NULL)) != -1;) {
        if (found == 'h') {
            if (is_speaker) {
                fputs(perf_program_own.help, stdout);
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
