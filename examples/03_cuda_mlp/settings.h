/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_MLP_SETTINGS_H
#define CUDA_MLP_SETTINGS_H

/* The command line. */

#include <gradsync/gradsync.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct settings {
    int steps;
    int batch;
    int accumulate;
    int layers;
    int width;
    int classes;
    double rate;
    double momentum;
    gsync_wire wire;
    double loss_scale; /* 0: none */
    size_t bucket_bytes;
    uint64_t seed;
    int report_every;
    int evaluation; /* samples */
    const char *log;
    bool shares_gpu;
} settings;

typedef enum settings_verdict { SETTINGS_RUN, SETTINGS_HELP_GIVEN, SETTINGS_WRONG } settings_verdict;

/* Prints the help, or what is wrong. */
settings_verdict settings_parse(settings *s, int argc, char **argv);

/* As --wire takes it. */
const char *settings_wire_name(gsync_wire wire);

#endif
