/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

/* The command line: nccl-tests' options where they exist there. */

#include "perf_row.h"

enum { PERF_DTYPES_MAX = 4, PERF_OPS_MAX = 2 };

typedef struct perf_options {
    size_t min_bytes;
    size_t max_bytes;
    size_t step_bytes;
    size_t step_factor; /* 0 or 1: sizes grow by step_bytes instead */
    int iterations;
    int warmups; /* at least 1: the first call touches what the later ones use */
    bool checks;
    gsync_dtype dtypes[PERF_DTYPES_MAX];
    int dtype_count;
    gsync_op ops[PERF_OPS_MAX];
    int op_count;
    int thread_ranks; /* 0: the launcher's processes, or one rank */
    gsync_progress progress;
    int tensors;                    /* that the scattered and the in-place gradient consist of */
    bool uses_way[PERF_PEER_FIRST]; /* of the library's */
    const char *peers;              /* names; NULL: none */
    bool tunes_malloc;              /* for the peers */
    const char *json;               /* NULL: none; "-": stdout, and no table */
    const char *csv;                /* the same */
    bool self_test;
    /* On GPUs: */
    unsigned ctas;          /* 0: NCCL's choice */
    bool shares_gpu;        /* several ranks may use one */
    bool registers;         /* memory is made known to NCCL */
    bool uses_stream_clock; /* else the host's */
} perf_options;

typedef enum perf_verdict { PERF_RUN, PERF_HELP_GIVEN, PERF_WRONG } perf_verdict;

/* is_speaker: may print the help, or what is wrong. Strings stay those of argv. */
perf_verdict perf_options_parse(perf_options *options, int argc, char **argv, bool is_speaker);

/* Not when something else goes to stdout. */
bool perf_options_want_table(const perf_options *options);

/* The size after `bytes`, or 0 when that was the last. */
size_t perf_options_next_size(const perf_options *options, size_t bytes);

/* As nccl-tests name them. */
const char *perf_dtype_name(gsync_dtype dtype);
const char *perf_op_name(gsync_op op);
const char *perf_progress_name(gsync_progress progress);

/* "out-of-place", ... */
const char *perf_way_name(perf_way way);

#endif
