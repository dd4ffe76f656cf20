/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host pays in gsync_ready_on and gsync_finish_on, with CUDA calls, kernels and collectives that do nothing.
 * --help says what is measured.
 */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"
#include "measure_words.h"
#include "stream_report.h"

#include <gradsync/gradsync_cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXIT_USAGE = 2,
    RANKS = 2,
    SIZES_MAX = 8,
    PER_BUCKET = 8, /* gradients */
    COUNT = 1024,   /* elements of each */
    WARMUP_STEPS = 5,
    BUCKETS_LIMIT = 100000, /* of what --buckets takes */
};

typedef struct way {
    const char *name;
    size_t stride; /* elements from one gradient to the next */
    gsync_wire wire;
} way;

static const way ways[] = {{"in place", COUNT, GSYNC_WIRE_NATIVE},
                           {"scattered", COUNT + 64, GSYNC_WIRE_NATIVE},
                           {"bfloat16", COUNT + 64, GSYNC_WIRE_BFLOAT16}};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct settings {
    size_t buckets[SIZES_MAX];
    size_t bucket_sizes;
    size_t steps;
    const char *json; /* NULL: none; "-": stdout, and no table */
} settings;

static const char usage[] =
    "usage: stream_cost [--buckets N[,N...]] [--steps N] [--json FILE] [--help]\n"
    "\n"
    "Measures how long gsync_ready_on and gsync_finish_on keep the host: rank 0 of 2, float32 gradients of 4 KiB, 8 "
    "in\n"
    "a bucket, marked on one stream in the order of backward. CUDA's and NCCL's calls are replaced by some that do\n"
    "nothing; a real driver's come on top. The clock's own time, some 25 ns a call, is not taken off. Ways:\n"
    "  in place   gradients lie one behind the other: no kernel\n"
    "  scattered  encode, all-reduce, decode\n"
    "  bfloat16   that wire: encode, all-to-all, sum, all-gather, decode\n"
    "\n"
    "  --buckets    how many (1,8,64)\n"
    "  --steps      measured, after 5 of warm-up (200)\n"
    "  --json FILE  writes the same for programs; - is stdout, without the table\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a call failed, 2 for a wrong option.\n";

/* ---- one rank ---- */

typedef struct rank_state {
    int rank;
    const way *way;
    size_t gradients;
    gsync_comm *comm;
    gsync_reducer *reducer;
    cudaStream_t compute;
    float *memory;
    size_t *bucket_of; /* of each gradient */
    size_t *unmarked;  /* of each bucket, in this step */
} rank_state;

static bool succeeded(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "stream_cost: %s: %s\n", gsync_status_name(status), gsync_last_error());
    }
    return status == GSYNC_OK;
}

static float *gradient(const rank_state *self, size_t index) {
    return self->memory + index * self->way->stride;
}

static bool add_gradients(const rank_state *self) {
    for (size_t i = 0; i < self->gradients; i++) {
        char name[24];
        snprintf(name, sizeof name, "p%zu", i);
        if (!succeeded(gsync_reducer_add(self->reducer, name, gradient(self, i), COUNT, GSYNC_FLOAT32))) {
            return false;
        }
    }
    return true;
}

/* Collective. */
static bool open_rank(rank_state *self) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.order = GSYNC_ORDER_REGISTERED;
    options.bucket_bytes_max = (size_t)PER_BUCKET * COUNT * sizeof(float);
    options.wire = self->way->wire;
    void *memory = NULL;
    if (cudaSetDevice(self->rank) != cudaSuccess ||
        cudaStreamCreateWithFlags(&self->compute, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc(&memory, self->gradients * self->way->stride * sizeof(float)) != cudaSuccess) {
        fprintf(stderr, "stream_cost: not enough memory\n");
        return false;
    }
    self->memory = memory;
    return succeeded(gsync_reducer_create(&self->reducer, self->comm, &options)) && add_gradients(self) &&
           succeeded(gsync_reducer_commit(self->reducer));
}

static void close_rank(rank_state *self) {
    gsync_reducer_destroy(&self->reducer);
    gsync_comm_destroy(&self->comm);
}

/* The other one only has to be there when the communicators are made. */
static void *open_other(void *argument) {
    return open_rank(argument) ? argument : NULL;
}

/* ---- steps of rank 0 ---- */

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void take(cost_times *times, double ns) {
    times->samples[times->count++] = ns;
}

static bool look_up_buckets(rank_state *self, size_t buckets) {
    for (size_t i = 0; i < self->gradients; i++) {
        char name[24];
        snprintf(name, sizeof name, "p%zu", i);
        const long bucket = gsync_bucket_of(self->reducer, name);
        if (bucket < 0 || (size_t)bucket >= buckets) {
            fprintf(stderr, "stream_cost: the plan is not the one that is measured\n");
            return false;
        }
        self->bucket_of[i] = (size_t)bucket;
    }
    return true;
}

static bool mark_all(rank_state *self, cost_row *row) {
    for (size_t b = 0; b < row->buckets; b++) {
        self->unmarked[b] = PER_BUCKET;
    }
    for (size_t i = self->gradients; i-- > 0;) {
        const bool completes = --self->unmarked[self->bucket_of[i]] == 0;
        const double start = now_ns();
        const gsync_status status = gsync_ready_on(self->reducer, gradient(self, i), self->compute);
        take(completes ? &row->completing : &row->plain, now_ns() - start);
        if (!succeeded(status)) {
            return false;
        }
    }
    return true;
}

static bool finish(rank_state *self, cost_times *times) {
    const double start = now_ns();
    const gsync_status status = gsync_finish_on(self->reducer, self->compute, NULL);
    take(times, now_ns() - start);
    return succeeded(status);
}

static bool run_steps(rank_state *self, cost_row *row, size_t steps) {
    for (size_t step = 0; step < WARMUP_STEPS + steps; step++) {
        if (step == WARMUP_STEPS) {
            row->plain.count = row->completing.count = row->marked.count = row->unmarked.count = 0;
        }
        if (!succeeded(gsync_begin(self->reducer, GSYNC_SYNC)) || !mark_all(self, row) || !finish(self, &row->marked) ||
            !succeeded(gsync_begin(self->reducer, GSYNC_SYNC)) || !finish(self, &row->unmarked)) {
            return false;
        }
    }
    return true;
}

/* ---- one row ---- */

static void sum_up(cost_times *times) {
    qsort(times->samples, times->count, sizeof *times->samples, measure_by_size);
    times->median = times->samples[times->count / 2];
    times->p99 = times->samples[(times->count - 1) * 99 / 100];
}

static bool run_ranks(rank_state *states, cost_row *row, size_t steps) {
    pthread_t other;
    void *is_open = NULL;
    if (pthread_create(&other, NULL, open_other, &states[1]) != 0) {
        fprintf(stderr, "stream_cost: no thread for rank 1\n");
        return false;
    }
    bool is_ok = open_rank(&states[0]);
    pthread_join(other, &is_open);
    is_ok = is_ok && is_open != NULL && look_up_buckets(&states[0], row->buckets) && run_steps(&states[0], row, steps);
    close_rank(&states[0]);
    close_rank(&states[1]);
    return is_ok;
}

static bool measure(const way *how, size_t buckets, size_t steps, cost_row *row) {
    const size_t gradients = buckets * PER_BUCKET;
    const size_t all_steps = steps + WARMUP_STEPS;
    const size_t counts[4] = {all_steps * buckets * (PER_BUCKET - 1), all_steps * buckets, all_steps, all_steps};
    gsync_comm *comms[RANKS] = {NULL, NULL};
    rank_state states[RANKS];
    *row = (cost_row){.way = how->name, .buckets = buckets, .gradients = gradients};
    cost_times *const times[4] = {&row->plain, &row->completing, &row->marked, &row->unmarked};
    double *const samples = malloc((counts[0] + counts[1] + counts[2] + counts[3]) * sizeof *samples);
    size_t *const numbers = malloc((gradients + buckets) * sizeof *numbers);
    bool is_ok = samples != NULL && numbers != NULL && succeeded(gsync_comm_threads(comms, RANKS, NULL));
    for (size_t i = 0, at = 0; i < 4 && is_ok; at += counts[i], i++) {
        times[i]->samples = samples + at;
    }
    for (int rank = 0; rank < RANKS && is_ok; rank++) {
        states[rank] = (rank_state){.rank = rank,
                                    .way = how,
                                    .gradients = gradients,
                                    .comm = comms[rank],
                                    .bucket_of = numbers,
                                    .unmarked = numbers + gradients};
    }
    is_ok = is_ok && run_ranks(states, row, steps);
    for (size_t i = 0; i < 4 && is_ok; i++) {
        sum_up(times[i]);
    }
    free(samples);
    free(numbers);
    return is_ok;
}

/* ---- options ---- */

static bool read_buckets(const char *text, settings *to) {
    char *end;
    uint64_t number;
    for (to->bucket_sizes = 0;; text = end + 1) {
        if (to->bucket_sizes == SIZES_MAX || !measure_read_number(text, &end, BUCKETS_LIMIT, &number)) {
            return false;
        }
        to->buckets[to->bucket_sizes++] = (size_t)number;
        if (*end != ',') {
            return *end == '\0';
        }
    }
}

static bool read_option(const char *name, const char *value, settings *to) {
    char *end;
    if (strcmp(name, "--json") == 0) {
        to->json = value;
        return true;
    }
    if (strcmp(name, "--buckets") == 0) {
        return read_buckets(value, to);
    }
    uint64_t number;
    if (strcmp(name, "--steps") != 0 || !measure_read_number(value, &end, 1000000, &number) || *end != '\0') {
        return false;
    }
    to->steps = (size_t)number;
    return true;
}

int main(int argc, char **argv) {
    settings to = {.buckets = {1, 8, 64}, .bucket_sizes = 3, .steps = 200};
    cost_row rows[SIZES_MAX * WAYS];
    size_t count = 0;
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (i + 1 == argc || !read_option(argv[i], argv[i + 1], &to)) {
            fprintf(stderr, "stream_cost: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    for (size_t w = 0; w < WAYS; w++) {
        for (size_t b = 0; b < to.bucket_sizes; b++) {
            if (!measure(&ways[w], to.buckets[b], to.steps, &rows[count++])) {
                return EXIT_FAILURE;
            }
        }
    }
    if (to.json == NULL || strcmp(to.json, "-") != 0) {
        report_print(rows, count, to.steps);
    }
    return to.json == NULL || report_write_json(to.json, rows, count, to.steps) ? EXIT_SUCCESS : EXIT_FAILURE;
}
