/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_SETTINGS_H
#define CHAR_GPT_SETTINGS_H

/* The command line. Run with --help for what each setting means. */

#include "optimizer.h"

#include <gradsync/gradsync.h>

#include <stdio.h>

typedef struct settings {
    int64_t steps;
    int batch; /* 0: what global_batch comes to */
    int accumulate;
    int global_batch;  /* 0: batch * accumulate * ranks, or 8 without a batch */
    model_shape shape; /* the vocabulary comes from the text */
    optimizer_kind optimizer;
    double learning_rate; /* 0: the optimizer's default */
    double momentum;      /* of SGD; less than 0: the default */
    double clip;          /* 0: never */
    uint64_t seed;
    const char *text;
    bool validates; /* holds back a part of the text */
    const char *checkpoint;
    int64_t checkpoint_every; /* 0: only at the end */
    const char *resume;
    const char *curve;
    const char *log;
    size_t bucket_bytes;
    gsync_strategy strategy;
    gsync_wire wire;
    double density; /* 0: the library's default */
    gsync_feedback feedback;
    bool is_stochastic;
    int ranks_per_host; /* 0: as the machine is */
    int generate;
    bool verifies;
    bool is_quiet;
} settings;

typedef enum settings_verdict { SETTINGS_RUN, SETTINGS_HELP_GIVEN, SETTINGS_WRONG } settings_verdict;

/* Every rank parses the same words; only the one with `is_speaker` prints help and complaints. */
settings_verdict settings_parse(settings *s, int argc, char **argv, bool is_speaker);

/* Fills in what depends on the number of ranks. False, with a complaint, when the settings contradict each other. */
bool settings_complete(settings *s, int ranks, bool is_speaker);

#endif
