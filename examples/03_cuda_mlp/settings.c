/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum value_kind {
    VALUE_INT,
    VALUE_SIZE,
    VALUE_UINT64,
    VALUE_DOUBLE,
    VALUE_WIRE,
    VALUE_STRING,
    VALUE_FLAG
} value_kind;

typedef struct setting {
    const char *name;
    value_kind kind;
    size_t offset;
    double least;
    double most;
    const char *placeholder;
    const char *help;
} setting;

#define AT(member) offsetof(settings, member)

static const setting TABLE[] = {
    {"steps", VALUE_INT, AT(steps), 1, 1e9, "N", "of the optimizer (1000)"},
    {"batch", VALUE_INT, AT(batch), 1, 1e6, "N",
     "samples per rank and micro-batch (256). A step learns from\nranks x accumulate x N of them"},
    {"accumulate", VALUE_INT, AT(accumulate), 1, 1e6, "K", "micro-batches per step (1)"},
    {"layers", VALUE_INT, AT(layers), 1, 62, "N", "hidden layers (3)"},
    {"width", VALUE_INT, AT(width), 1, 32768, "N", "of each of them (256)"},
    {"classes", VALUE_INT, AT(classes), 2, 64, "N", "arms of the spiral (3)"},
    {"lr", VALUE_DOUBLE, AT(rate), 1e-12, 1e6, "X", "learning rate (0.05)"},
    {"momentum", VALUE_DOUBLE, AT(momentum), 0, 0.999999, "X", "(0.9)"},
    {"wire", VALUE_WIRE, AT(wire), 0, 0, "FORMAT", "how gradients travel: native (the default), float16 or\nbfloat16"},
    {"loss-scale", VALUE_DOUBLE, AT(loss_scale), 1, 8.5e37, "X",
     "to start with; a power of two. It shrinks when gradients\noverflow, and grows again (no loss scale)"},
    {"bucket-bytes", VALUE_SIZE, AT(bucket_bytes), 1, 1e18, "N", "gradients that travel together (25 MiB)"},
    {"seed", VALUE_UINT64, AT(seed), 0, 9e18, "N", "of the initial weights and of the samples (1)"},
    {"report-every", VALUE_INT, AT(report_every), 1, 1e9, "N", "steps, on a terminal (100)"},
    {"evaluate", VALUE_INT, AT(evaluation), 1, 1e9, "N", "samples at the end that were not learned from (8192)"},
    {"log", VALUE_STRING, AT(log), 0, 0, "FILE", "one line per step: step,loss,accuracy,loss_scale,skipped"},
    {"share-gpu", VALUE_FLAG, AT(shares_gpu), 0, 0, NULL,
     "several ranks may use one GPU, for tests; NCCL has to be\ntold too, see gsync_comm_options.allows_shared_device"},
    {"help", VALUE_FLAG, 0, 0, 0, NULL, "this text"},
};

enum { SETTING_COUNT = sizeof TABLE / sizeof TABLE[0] };

/* ---- Help -------------------------------------------------------------------------------------------------- */

/* Continuation lines of a help text go under its first line. */
static void print_help_text(const char *help) {
    for (const char *line = help; line != NULL;) {
        const char *end = strchr(line, '\n');
        printf("%.*s\n%s", end == NULL ? (int)strlen(line) : (int)(end - line), line,
               end == NULL ? "" : "                        ");
        line = end == NULL ? NULL : end + 1;
    }
}

static void print_help(void) {
    printf("Trains a multi-layer perceptron to tell the arms of a spiral apart. Each rank has a GPU of its own:\n"
           "    03_cuda_mlp [OPTION...]\n"
           "    mpirun -n 2 03_cuda_mlp [OPTION...]\n"
           "    torchrun --no-python --nproc-per-node 2 03_cuda_mlp [OPTION...]\n\n");
    for (int i = 0; i < SETTING_COUNT; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", TABLE[i].name, TABLE[i].placeholder == NULL ? "" : " ",
                 TABLE[i].placeholder == NULL ? "" : TABLE[i].placeholder);
        printf("  %-21s ", left);
        print_help_text(TABLE[i].help);
    }
    printf("\nExit status: 0 when everything went well, 1 when something failed, 2 for a wrong option.\n");
}

/* ---- Values ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    gsync_wire wire;
} WIRES[] = {
    {"native", GSYNC_WIRE_NATIVE},
    {"float16", GSYNC_WIRE_FLOAT16},
    {"bfloat16", GSYNC_WIRE_BFLOAT16},
};

enum { WIRE_COUNT = sizeof WIRES / sizeof WIRES[0] };

const char *settings_wire_name(gsync_wire wire) {
    int i = 0;
    while (i + 1 < WIRE_COUNT && WIRES[i].wire != wire) {
        i++;
    }
    return WIRES[i].name;
}

static bool parse_wire(const char *word, gsync_wire *wire) {
    for (int i = 0; i < WIRE_COUNT; i++) {
        if (strcmp(word, WIRES[i].name) == 0) {
            *wire = WIRES[i].wire;
            return true;
        }
    }
    return false;
}

/* Whole numbers up to 2^53 are exact. */
static bool parse_number(const setting *row, const char *word, void *target) {
    char *end = NULL;
    const double value = strtod(word, &end);
    if (end == word || *end != '\0' || !(value >= row->least && value <= row->most)) {
        return false;
    }
    if (row->kind == VALUE_DOUBLE) {
        *(double *)target = value;
        return true;
    }
    if (value != (double)(uint64_t)value) {
        return false;
    }
    if (row->kind == VALUE_INT) {
        *(int *)target = (int)value;
    } else if (row->kind == VALUE_SIZE) {
        *(size_t *)target = (size_t)value;
    } else {
        *(uint64_t *)target = (uint64_t)value;
    }
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
    case VALUE_WIRE:
        return parse_wire(word, target);
    default:
        return parse_number(row, word, target);
    }
}

settings_verdict settings_parse(settings *s, int argc, char **argv) {
    struct option options[SETTING_COUNT + 1];
    memset(options, 0, sizeof options);
    for (int i = 0; i < SETTING_COUNT; i++) {
        options[i].name = TABLE[i].name;
        options[i].has_arg = TABLE[i].kind == VALUE_FLAG ? no_argument : required_argument;
    }
    *s = (settings){.steps = 1000,
                    .batch = 256,
                    .accumulate = 1,
                    .layers = 3,
                    .width = 256,
                    .classes = 3,
                    .rate = 0.05,
                    .momentum = 0.9,
                    .seed = 1,
                    .report_every = 100,
                    .evaluation = 8192};
    int index = 0;
    for (int found; (found = getopt_long(argc, argv, "", options, &index)) != -1;) {
        if (found != 0) {
            fprintf(stderr, "%s: --help lists the options\n", argv[0]);
            return SETTINGS_WRONG;
        }
        if (strcmp(TABLE[index].name, "help") == 0) {
            print_help();
            return SETTINGS_HELP_GIVEN;
        }
        if (!parse_value(&TABLE[index], optarg, s)) {
            fprintf(stderr, "%s: --%s %s: not a possible value; --help lists the options\n", argv[0], TABLE[index].name,
                    optarg);
            return SETTINGS_WRONG;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "%s: %s: no such argument; --help lists the options\n", argv[0], argv[optind]);
        return SETTINGS_WRONG;
    }
    return SETTINGS_RUN;
}
