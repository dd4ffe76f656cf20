/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#ifndef CHAR_GPT_TEXT
#define CHAR_GPT_TEXT "examples/02_char_gpt/text/licences.txt"
#endif

enum { GLOBAL_BATCH_DEFAULT = 8 };

typedef enum value_kind {
    VALUE_INT,
    VALUE_INT64,
    VALUE_UINT64,
    VALUE_SIZE,
    VALUE_DOUBLE,
    VALUE_STRING,
    VALUE_CHOICE,
    VALUE_FLAG
} value_kind;

typedef struct choice {
    const char *name;
    int value;
} choice;

static const choice OPTIMIZERS[] = {{"adamw", OPTIMIZER_ADAMW}, {"sgd", OPTIMIZER_SGD}, {NULL, 0}};
static const choice STRATEGIES[] = {
    {"ddp", GSYNC_STRATEGY_DDP}, {"fixed", GSYNC_STRATEGY_FIXED}, {"single", GSYNC_STRATEGY_SINGLE}, {NULL, 0}};

static const choice WIRES[] = {{"native", GSYNC_WIRE_NATIVE},
                               {"float16", GSYNC_WIRE_FLOAT16},
                               {"bfloat16", GSYNC_WIRE_BFLOAT16},
                               {"int8", GSYNC_WIRE_INT8},
                               {"float8", GSYNC_WIRE_FLOAT8},
                               {"topk", GSYNC_WIRE_TOPK},
                               {NULL, 0}};
static const choice FEEDBACKS[] = {
    {"auto", GSYNC_FEEDBACK_AUTO}, {"on", GSYNC_FEEDBACK_ON}, {"off", GSYNC_FEEDBACK_OFF}, {NULL, 0}};

/* One row per option: parsing and --help both read this table, so neither can forget one. */
typedef struct setting {
    const char *name;
    value_kind kind;
    size_t offset; /* into settings */
    double least;  /* of a number */
    double most;
    const choice *choices;
    const char *placeholder;
    const char *help;
} setting;

#define AT(member) offsetof(settings, member)

static const setting TABLE[] = {
    {"steps", VALUE_INT64, AT(steps), 1, 1e12, NULL, "N", "train up to this step (1000)"},
    {"batch", VALUE_INT, AT(batch), 1, 1e6, NULL, "N",
     "sequences per rank and micro-batch. The global batch is then\nranks x accumulate x N, and grows with the ranks"},
    {"accumulate", VALUE_INT, AT(accumulate), 1, 1e6, NULL, "K", "micro-batches per step (1)"},
    {"global-batch", VALUE_INT, AT(global_batch), 1, 1e9, NULL, "N",
     "sequences per step over all ranks (8 without --batch). The\nranks share them out, evenly or not: the same "
     "training"
     "\nwhatever the number of ranks"},
    {"context", VALUE_INT, AT(shape.context), 1, 1e5, NULL, "N", "characters a sequence is long (64)"},
    {"layers", VALUE_INT, AT(shape.layers), 1, 1e3, NULL, "N", "transformer blocks (4)"},
    {"width", VALUE_INT, AT(shape.width), 1, 1e5, NULL, "N", "numbers per character; a multiple of heads (96)"},
    {"heads", VALUE_INT, AT(shape.heads), 1, 1e4, NULL, "N", "attention heads (4)"},
    {"lr", VALUE_DOUBLE, AT(learning_rate), 1e-12, 1e6, NULL, "X", "peak learning rate (adamw 0.003, sgd 0.1)"},
    {"optimizer", VALUE_CHOICE, AT(optimizer), 0, 0, OPTIMIZERS, "adamw|sgd", "(adamw)"},
    {"momentum", VALUE_DOUBLE, AT(momentum), 0, 0.999999, NULL, "X", "of sgd (0.9)"},
    {"clip", VALUE_DOUBLE, AT(clip), 1e-12, 1e12, NULL, "X", "scale the gradients down to this norm (never)"},
    {"seed", VALUE_UINT64, AT(seed), 0, 1.8e19, NULL, "N", "of the initial weights and of the order of the text (1)"},
    {"text", VALUE_STRING, AT(text), 0, 0, NULL, "FILE", "what to learn (seven licences; they came along)"},
    {"validate", VALUE_FLAG, AT(validates), 0, 0, NULL, NULL,
     "do not learn the last tenth of the text, but print the\nloss on it at the end"},
    {"checkpoint", VALUE_STRING, AT(checkpoint), 0, 0, NULL, "FILE", "save everything there at the end"},
    {"checkpoint-every", VALUE_INT64, AT(checkpoint_every), 1, 1e12, NULL, "N", "and after every N steps"},
    {"resume", VALUE_STRING, AT(resume), 0, 0, NULL, "FILE", "go on from a checkpoint, up to --steps"},
    {"curve", VALUE_STRING, AT(curve), 0, 0, NULL, "PREFIX",
     "write the loss to PREFIX.csv, and with gnuplot PREFIX.png"},
    {"log", VALUE_STRING, AT(log), 0, 0, NULL, "FILE",
     "one line per step: step,loss,gradient_norm,\nparameter_hash,bytes_wire,values_saturated,values_flushed"},
    {"bucket-bytes", VALUE_SIZE, AT(bucket_bytes), 1, 1.8e19, NULL, "N", "gradients that travel together (25 MiB)"},
    {"strategy", VALUE_CHOICE, AT(strategy), 0, 0, STRATEGIES, "ddp|fixed|single", "how gradients form buckets (ddp)"},
    {"wire", VALUE_CHOICE, AT(wire), 0, 0, WIRES, "FORMAT",
     "how gradients travel: native (the default), float16,\nbfloat16, int8, float8 or topk; see docs/compression.md"},
    {"density", VALUE_DOUBLE, AT(density), 1e-9, 1, NULL, "X", "topk: the share of elements that travels (0.1)"},
    {"feedback", VALUE_CHOICE, AT(feedback), 0, 0, FEEDBACKS, "auto|on|off",
     "error feedback: what the wire lost is added to the next\nstep's gradient (auto: on for topk). For sgd"},
    {"stochastic", VALUE_FLAG, AT(is_stochastic), 0, 0, NULL, NULL, "int8: round up or down at random"},
    {"ranks-per-host", VALUE_INT, AT(ranks_per_host), 1, 1e6, NULL, "N",
     "treat every N ranks as a host of their own, so that\ngradients travel even on one machine"},
    {"generate", VALUE_INT, AT(generate), 0, 1e7, NULL, "N", "write N characters of new text at the end (0)"},
    {"verify", VALUE_FLAG, AT(verifies), 0, 0, NULL, NULL,
     "check after every step that all ranks have the same parameters"},
    {"quiet", VALUE_FLAG, AT(is_quiet), 0, 0, NULL, NULL, "print the summary only"},
    {"help", VALUE_FLAG, 0, 0, 0, NULL, NULL, "this text"},
};

enum { SETTING_COUNT = sizeof TABLE / sizeof TABLE[0] };

static void complain(bool is_speaker, const char *format, ...) {
    if (!is_speaker) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "; --help lists the options\n");
}

/* Continuation lines of a help text go under its first line. */
static void print_help_text(const char *help) {
    for (const char *line = help; line != NULL;) {
        const char *end = strchr(line, '\n');
        printf("%.*s\n%s", end == NULL ? (int)strlen(line) : (int)(end - line), line,
               end == NULL ? "" : "                              ");
        line = end == NULL ? NULL : end + 1;
    }
}

static void print_help(void) {
    printf("Trains a small GPT, character by character. Alone or on several ranks, for the same result:\n"
           "    02_char_gpt [OPTION...]\n"
           "    mpirun -n 2 02_char_gpt [OPTION...]\n\n");
    for (int i = 0; i < SETTING_COUNT; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", TABLE[i].name, TABLE[i].placeholder == NULL ? "" : " ",
                 TABLE[i].placeholder == NULL ? "" : TABLE[i].placeholder);
        printf("  %-27s ", left);
        print_help_text(TABLE[i].help);
    }
    printf("\nExit status: 0 when everything went well, 1 when something failed, 2 for a wrong option.\n");
}

static bool parse_choice(const setting *row, const char *word, void *target) {
    for (const choice *c = row->choices; c->name != NULL; c++) {
        if (strcmp(word, c->name) == 0) {
            /* Enumerations without negative values are unsigned here and int elsewhere; both are this wide. */
            memcpy(target, &c->value, sizeof c->value);
            return true;
        }
    }
    return false;
}

static bool parse_integer(const setting *row, const char *word, void *target) {
    char *end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(word, &end, 10);
    if (errno != 0 || end == word || *end != '\0' || strchr(word, '-') != NULL || (double)value < row->least ||
        (double)value > row->most) {
        return false;
    }
    switch (row->kind) {
    case VALUE_INT:
        *(int *)target = (int)value;
        return true;
    case VALUE_INT64:
        *(int64_t *)target = (int64_t)value;
        return true;
    case VALUE_UINT64:
        *(uint64_t *)target = (uint64_t)value;
        return true;
    default:
        *(size_t *)target = (size_t)value;
        return true;
    }
}

static bool parse_double(const setting *row, const char *word, void *target) {
    char *end = NULL;
    const double value = strtod(word, &end);
    if (end == word || *end != '\0' || !(value >= row->least && value <= row->most)) {
        return false;
    }
    *(double *)target = value;
    return true;
}

static bool parse_value(const setting *row, const char *word, settings *s) {
    void *target = (char *)s + row->offset;
    switch (row->kind) {
    case VALUE_FLAG:
        *(bool *)target = true;
        return true;
    case VALUE_STRING:
        *(const char **)target = word;
        return *word != '\0';
    case VALUE_CHOICE:
        return parse_choice(row, word, target);
    case VALUE_DOUBLE:
        return parse_double(row, word, target);
    default:
        return parse_integer(row, word, target);
    }
}

static settings default_settings(void) {
    return (settings){
        .steps = 1000,
        .accumulate = 1,
        .shape = {.context = 64, .layers = 4, .width = 96, .heads = 4},
        .optimizer = OPTIMIZER_ADAMW,
        .momentum = -1.0,
        .seed = 1,
        .text = CHAR_GPT_TEXT,
        .strategy = GSYNC_STRATEGY_DDP,
    };
}

settings_verdict settings_parse(settings *s, int argc, char **argv, bool is_speaker) {
    struct option options[SETTING_COUNT + 1];
    memset(options, 0, sizeof options);
    for (int i = 0; i < SETTING_COUNT; i++) {
        options[i].name = TABLE[i].name;
        options[i].has_arg = TABLE[i].kind == VALUE_FLAG ? no_argument : required_argument;
    }
    *s = default_settings();
    opterr = is_speaker ? 1 : 0;
    int index = 0;
    for (int found; (found = getopt_long(argc, argv, "", options, &index)) != -1;) {
        if (found != 0) {
            complain(is_speaker, "%s: wrong option", argv[0]);
            return SETTINGS_WRONG;
        }
        if (strcmp(TABLE[index].name, "help") == 0) {
            if (is_speaker) {
                print_help();
            }
            return SETTINGS_HELP_GIVEN;
        }
        if (!parse_value(&TABLE[index], optarg, s)) {
            complain(is_speaker, "%s: --%s %s: not a possible value", argv[0], TABLE[index].name, optarg);
            return SETTINGS_WRONG;
        }
    }
    if (optind < argc) {
        complain(is_speaker, "%s: %s: no such argument", argv[0], argv[optind]);
        return SETTINGS_WRONG;
    }
    return SETTINGS_RUN;
}

static bool check_wire(const settings *s, bool is_speaker) {
    if (s->density != 0.0 && s->wire != GSYNC_WIRE_TOPK) {
        complain(is_speaker, "--density is for --wire topk");
        return false;
    }
    if (s->is_stochastic && s->wire != GSYNC_WIRE_INT8) {
        complain(is_speaker, "--stochastic is for --wire int8");
        return false;
    }
    if (s->feedback == GSYNC_FEEDBACK_ON && s->wire == GSYNC_WIRE_NATIVE) {
        complain(is_speaker, "--feedback on needs a --wire that loses something");
        return false;
    }
    return true;
}

bool settings_complete(settings *s, int ranks, bool is_speaker) {
    if (s->shape.width % s->shape.heads != 0) {
        complain(is_speaker, "--width %d is no multiple of --heads %d", s->shape.width, s->shape.heads);
        return false;
    }
    if (s->checkpoint_every > 0 && s->checkpoint == NULL) {
        complain(is_speaker, "--checkpoint-every needs --checkpoint");
        return false;
    }
    const double room = (double)s->batch * (double)s->accumulate * (double)ranks;
    if (room > 1e9 || (s->batch > 0 && (double)s->global_batch > room)) {
        complain(is_speaker, "--global-batch %d does not fit --batch %d x --accumulate %d x %d ranks", s->global_batch,
                 s->batch, s->accumulate, ranks);
        return false;
    }
    if (s->global_batch == 0) {
        s->global_batch = s->batch > 0 ? (int)room : GLOBAL_BATCH_DEFAULT;
    }
    if (s->momentum >= 0.0 && s->optimizer != OPTIMIZER_SGD) {
        complain(is_speaker, "--momentum is for --optimizer sgd");
        return false;
    }
    if (s->momentum < 0.0) {
        s->momentum = 0.9;
    }
    if (s->learning_rate == 0.0) {
        s->learning_rate = s->optimizer == OPTIMIZER_ADAMW ? 0.003 : 0.1;
    }
    return check_wire(s, is_speaker);
}
