/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mark costs: gsync_ready on the path where no bucket becomes full, for more and more gradients. --help says
 * what is measured.
 */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"
#include "measure_words.h"

#include <gradsync/gradsync.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXIT_USAGE = 2, SIZES_MAX = 16, GRADIENT_STRIDE = 260 /* floats, no power of two */ };

typedef struct cost_options {
    size_t sizes[SIZES_MAX];
    size_t size_count;
    size_t steps;
    size_t warmup_steps;
    uint64_t seed;
    const char *json; /* NULL: none; "-": stdout, and no table */
} cost_options;

/* Nanoseconds per mark, over the measured steps. */
typedef struct cost_row {
    size_t gradients;
    double median_ns;
    double p99_ns;
    double least_ns;
} cost_row;

static const char usage[] =
    "usage: ready_cost [--gradients N[,N...]] [--steps N] [--warmup N] [--seed N] [--json FILE] [--help]\n"
    "\n"
    "Measures gsync_ready for N float32 gradients on one rank, marked in random order, in one bucket (strategy\n"
    "SINGLE), so that no bucket becomes full before the last mark, which is not counted. A sample is the mean over\n"
    "one step's marks; the table has the median, the 99th percentile and the least of the samples. Results of the\n"
    "warm-up steps are checked before anything is timed.\n"
    "\n"
    "  --gradients  how many gradients (100,1000,10000,100000)\n"
    "  --steps      samples (101)\n"
    "  --warmup     steps before them (5)\n"
    "  --seed       of the random orders (1)\n"
    "  --json FILE  writes the same for programs; - is stdout, without the table\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a call failed or a result was wrong, 2 for a wrong option.\n";

/* ---- One model -------------------------------------------------------------------------------------------------- */

typedef struct cost_model {
    size_t count;
    gsync_comm *comm;
    gsync_reducer *reducer;
    float *values;      /* a gradient of one element every GRADIENT_STRIDE floats */
    const void **order; /* their addresses, shuffled */
    uint64_t random_state;
} cost_model;

static bool succeeded(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "ready_cost: %s: %s\n", gsync_status_name(status), gsync_last_error());
    }
    return status == GSYNC_OK;
}

static bool add_gradients(cost_model *model) {
    for (size_t i = 0; i < model->count; i++) {
        char name[24];
        snprintf(name, sizeof name, "p%zu", i);
        model->order[i] = &model->values[i * GRADIENT_STRIDE];
        if (!succeeded(
                gsync_reducer_add(model->reducer, name, &model->values[i * GRADIENT_STRIDE], 1, GSYNC_FLOAT32))) {
            return false;
        }
    }
    return true;
}

static bool open_model(cost_model *model, size_t count, uint64_t seed) {
    gsync_comm_options comm_options = GSYNC_COMM_OPTIONS_INIT;
    gsync_options options = GSYNC_OPTIONS_INIT;
    comm_options.transport = GSYNC_TRANSPORT_SINGLE;
    options.strategy = GSYNC_STRATEGY_SINGLE;
    *model = (cost_model){.count = count, .random_state = seed};
    model->values = calloc(count * GRADIENT_STRIDE, sizeof *model->values);
    model->order = malloc(count * sizeof *model->order);
    if (model->values == NULL || model->order == NULL) {
        fprintf(stderr, "ready_cost: not enough memory\n");
        return false;
    }
    return succeeded(gsync_comm_create(&model->comm, &comm_options)) &&
           succeeded(gsync_reducer_create(&model->reducer, model->comm, &options)) && add_gradients(model) &&
           succeeded(gsync_reducer_commit(model->reducer));
}

static void close_model(cost_model *model) {
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&model->comm);
    free(model->values);
    free((void *)model->order);
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state) {
    uint64_t word = *state += UINT64_C(0x9e3779b97f4a7c15);
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

static void shuffle(cost_model *model) {
    for (size_t i = model->count; i > 1; i--) {
        const size_t k = (size_t)(next_random(&model->random_state) % i);
        const void *other = model->order[k];
        model->order[k] = model->order[i - 1];
        model->order[i - 1] = other;
    }
}

/* ---- One step --------------------------------------------------------------------------------------------------- */

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* All marks but the last, which completes the bucket. */
static bool run_step(cost_model *model, double *ns_per_mark) {
    gsync_status failure = GSYNC_OK;
    shuffle(model);
    if (!succeeded(gsync_begin(model->reducer, GSYNC_SYNC))) {
        return false;
    }
    const double start = now_ns();
    for (size_t i = 0; i + 1 < model->count; i++) {
        const gsync_status status = gsync_ready(model->reducer, model->order[i]);
        failure = status != GSYNC_OK ? status : failure;
    }
    *ns_per_mark = (now_ns() - start) / (double)(model->count - 1);
    return succeeded(failure) && succeeded(gsync_ready(model->reducer, model->order[model->count - 1])) &&
           succeeded(gsync_finish(model->reducer, NULL));
}

/* The mean over one rank is the gradient itself, wherever the step has put it meanwhile. */
static bool warm_up(cost_model *model, size_t steps) {
    double ignored;
    for (size_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < model->count; i++) {
            model->values[i * GRADIENT_STRIDE] = (float)(i + step);
        }
        if (!run_step(model, &ignored)) {
            return false;
        }
        for (size_t i = 0; i < model->count; i++) {
            if (model->values[i * GRADIENT_STRIDE] != (float)(i + step)) {
                fprintf(stderr, "ready_cost: gradient %zu of %zu is wrong\n", i, model->count);
                return false;
            }
        }
    }
    return true;
}

static bool measure(size_t gradients, const cost_options *options, double *samples, cost_row *row) {
    cost_model model;
    bool is_ok = open_model(&model, gradients, options->seed) && warm_up(&model, options->warmup_steps);
    for (size_t step = 0; step < options->steps && is_ok; step++) {
        is_ok = run_step(&model, &samples[step]);
    }
    close_model(&model);
    if (is_ok) {
        qsort(samples, options->steps, sizeof *samples, measure_by_size);
        *row = (cost_row){.gradients = gradients,
                          .median_ns = samples[options->steps / 2],
                          .p99_ns = samples[(options->steps - 1) * 99 / 100],
                          .least_ns = samples[0]};
    }
    return is_ok;
}

/* ---- Report ----------------------------------------------------------------------------------------------------- */

static void print_table(const cost_row *rows, const cost_options *options) {
    char processor[256];
    measure_processor(processor, sizeof processor);
    printf("# ready_cost, gradsync %s, %s, on %s\n", gsync_version(), MEASURE_COMPILER, processor);
    printf("# %zu steps after %zu of warm-up, random order, one bucket\n", options->steps, options->warmup_steps);
    printf("%12s %14s %14s %14s\n", "gradients", "median", "99th", "least");
    printf("%12s %14s %14s %14s\n", "", "(ns/mark)", "(ns/mark)", "(ns/mark)");
    for (size_t i = 0; i < options->size_count; i++) {
        printf("%12zu %14.1f %14.1f %14.1f\n", rows[i].gradients, rows[i].median_ns, rows[i].p99_ns, rows[i].least_ns);
    }
}

static bool write_json(const cost_row *rows, const cost_options *options) {
    char processor[256];
    const bool is_stdout = strcmp(options->json, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(options->json, "w");
    if (file == NULL) {
        perror(options->json);
        return false;
    }
    measure_processor(processor, sizeof processor);
    fprintf(file, "{\n  \"benchmark\": \"ready_cost\",\n  \"version\": \"%s\",\n  \"compiler\": \"%s\",\n",
            gsync_version(), MEASURE_COMPILER);
    fprintf(file, "  \"processor\": \"%s\",\n  \"steps\": %zu,\n  \"warmup_steps\": %zu,\n  \"rows\": [\n", processor,
            options->steps, options->warmup_steps);
    for (size_t i = 0; i < options->size_count; i++) {
        fprintf(file, "    {\"gradients\": %zu, \"median_ns\": %.2f, \"p99_ns\": %.2f, \"least_ns\": %.2f}%s\n",
                rows[i].gradients, rows[i].median_ns, rows[i].p99_ns, rows[i].least_ns,
                i + 1 < options->size_count ? "," : "");
    }
    fprintf(file, "  ]\n}\n");
    const bool is_written = ferror(file) == 0;
    return (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
}

/* ---- Options ---------------------------------------------------------------------------------------------------- */

static bool read_number(const char *text, char **end, uint64_t least, uint64_t *number) {
    *number = strtoull(text, end, 10);
    return *end != text && text[0] != '-' && *number >= least && *number <= 100000000;
}

static bool read_sizes(const char *text, cost_options *options) {
    options->size_count = 0;
    for (;;) {
        char *end;
        uint64_t number;
        if (options->size_count == SIZES_MAX || !read_number(text, &end, 2, &number)) {
            return false;
        }
        options->sizes[options->size_count++] = (size_t)number;
        if (*end != ',') {
            return *end == '\0';
        }
        text = end + 1;
    }
}

static bool read_option(const char *name, const char *value, cost_options *options) {
    char *end;
    uint64_t number = 0;
    if (strcmp(name, "--json") == 0) {
        options->json = value;
        return true;
    }
    if (strcmp(name, "--gradients") == 0) {
        return read_sizes(value, options);
    }
    const bool is_number = read_number(value, &end, strcmp(name, "--steps") == 0, &number) && *end == '\0';
    if (strcmp(name, "--steps") == 0) {
        options->steps = (size_t)number;
    } else if (strcmp(name, "--warmup") == 0) {
        options->warmup_steps = (size_t)number;
    } else if (strcmp(name, "--seed") == 0) {
        options->seed = number;
    } else {
        return false;
    }
    return is_number;
}

int main(int argc, char **argv) {
    cost_options options = {
        .sizes = {100, 1000, 10000, 100000}, .size_count = 4, .steps = 101, .warmup_steps = 5, .seed = 1};
    cost_row rows[SIZES_MAX];
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (i + 1 == argc || !read_option(argv[i], argv[i + 1], &options)) {
            fprintf(stderr, "ready_cost: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    double *samples = malloc(options.steps * sizeof *samples);
    bool is_ok = samples != NULL;
    for (size_t i = 0; i < options.size_count && is_ok; i++) {
        is_ok = measure(options.sizes[i], &options, samples, &rows[i]);
    }
    free(samples);
    if (is_ok && (options.json == NULL || strcmp(options.json, "-") != 0)) {
        print_table(rows, &options);
    }
    if (is_ok && options.json != NULL) {
        is_ok = write_json(rows, &options);
    }
    return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
