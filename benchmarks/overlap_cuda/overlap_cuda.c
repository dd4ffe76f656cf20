/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of the communication is hidden behind kernels of backward: compute alone, communication alone, both one
 * after the other, and a step, in turn. --help says what is measured.
 */
#include "overlap_gpu.h"

#include "../measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, ROUNDS_MAX = 1000, WARMUP_ROUNDS = 2 };

static const char usage[] =
    "usage: overlap_cuda [--bytes N] [--compute-ms MS | --passes N] [--fill PERCENT] [--buckets N] [--rounds N]\n"
    "                    [--ctas N] [--json FILE] [--share-gpu] [--help]\n"
    "\n"
    "Under mpirun or torchrun, a GPU for each rank. A backward of fixed arithmetic whose gradients become final one "
    "after\n"
    "another, from the last to the first, and their all-reduce, in these ways, which take turns in every round:\n"
    "\n"
    "  compute              backward alone\n"
    "  communication        gsync_begin and gsync_finish_on, nothing else\n"
    "  one after the other  backward, then gsync_begin and gsync_finish_on\n"
    "  step                 gsync_ready_on behind each gradient's kernel, gsync_finish_on behind backward\n"
    "\n"
    "  --bytes       of all gradients, float32 (104857600); K and M are powers of 1024\n"
    "  --compute-ms  how long backward takes (20); measured at the start, then a fixed count of arithmetic, so that "
    "what\n"
    "                takes multiprocessors away shows\n"
    "  --passes      of that arithmetic for each gradient, instead of measuring\n"
    "  --fill        how much of the GPU's threads backward uses (100); what it leaves, communication need not wait "
    "for\n"
    "  --buckets     of equal size, 4 gradients each (8)\n"
    "  --rounds      of which medians are taken (21), after 2 of warm-up\n"
    "  --ctas        multiprocessors that a collective may use (NCCL's choice)\n"
    "  --json FILE   writes the same for programs; - is stdout, without the table\n"
    "  --share-gpu   several ranks may use one GPU; NCCL has to be told too\n"
    "\n"
    "gpu is the time between events on the trainer's stream, wall the host's until that is done, queue the host's "
    "until\n"
    "all is queued; of the slowest rank. Exposed is what a step takes longer than compute, hidden the rest of what\n"
    "communication takes alone. Every result is checked, outside the timed part.\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a call failed or a result was wrong, 2 for a wrong option.\n";

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

typedef struct way_samples {
    double gpu[ROUNDS_MAX];
    double wall[ROUNDS_MAX];
    double queue[ROUNDS_MAX];
} way_samples;

typedef struct way_row {
    gpu_times median;
    double gpu_max;
} way_row;

/* A way never always follows the same other. */
static bool measure(gpu_trainer *trainer, way_samples *samples) {
    for (size_t round = 0; round < WARMUP_ROUNDS + trainer->options.rounds; round++) {
        const size_t sample = round < WARMUP_ROUNDS ? 0 : round - WARMUP_ROUNDS;
        for (size_t turn = 0; turn < WAYS; turn++) {
            const size_t way = (turn * (round % 2 == 0 ? 1 : WAYS - 1) + round) % WAYS;
            gpu_times times;
            if (!gpu_run_once(trainer, &gpu_ways[way], &times)) {
                return false;
            }
            samples[way].gpu[sample] = times.gpu;
            samples[way].wall[sample] = times.wall;
            samples[way].queue[sample] = times.queue;
        }
    }
    return true;
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, measure_by_size);
    return values[count / 2];
}

static void summarize(way_samples *samples, size_t rounds, way_row *rows) {
    for (size_t way = 0; way < WAYS; way++) {
        rows[way].median = (gpu_times){.gpu = median(samples[way].gpu, rounds),
                                       .wall = median(samples[way].wall, rounds),
                                       .queue = median(samples[way].queue, rounds)};
        rows[way].gpu_max = samples[way].gpu[rounds - 1];
    }
}

/* ---- Report ----------------------------------------------------------------------------------------------------- */

/* By one of the two clocks. */
typedef struct overlap {
    const char *clock;
    double compute;
    double communication;
    double step;
    double exposed;
    double hidden;
    double ratio;
} overlap;

static overlap overlap_of(const char *clock, double compute, double communication, double step) {
    const double exposed = step - compute;
    const double hidden = communication - exposed;
    return (overlap){clock, compute, communication, step, exposed, hidden, hidden / communication};
}

static void find_overlaps(const way_row *rows, overlap *overlaps) {
    overlaps[0] =
        overlap_of("gpu", rows[WAY_COMPUTE].median.gpu, rows[WAY_COMMUNICATE].median.gpu, rows[WAY_STEP].median.gpu);
    overlaps[1] = overlap_of("wall", rows[WAY_COMPUTE].median.wall, rows[WAY_COMMUNICATE].median.wall,
                             rows[WAY_STEP].median.wall);
}

static void print_table(const gpu_trainer *trainer, const way_row *rows, const overlap *overlaps) {
    const size_t bucket_bytes = trainer->gradient_floats * GPU_GRADIENTS_PER_BUCKET * sizeof(float);
    printf("# overlap_cuda, gradsync %s, %d ranks\n# %s\n# rank 0 has %s\n", gsync_version(), trainer->world_size,
           gsync_comm_describe(trainer->comm), trainer->gpu);
    printf("# %zu bytes in %zu buckets of %zu, %zu rounds after %d of warm-up, all results right\n",
           bucket_bytes * trainer->options.buckets, gsync_bucket_count(trainer->reducer), bucket_bytes,
           trainer->options.rounds, WARMUP_ROUNDS);
    printf("# backward: %zu gradients, for each %zu threads with %d passes\n", trainer->gradient_count,
           trainer->threads, trainer->passes);
    printf("%-20s %10s %10s %10s %10s\n", "way", "gpu", "most", "wall", "queue");
    printf("%-20s %10s %10s %10s %10s\n", "", "(ms)", "(ms)", "(ms)", "(ms)");
    for (size_t way = 0; way < WAYS; way++) {
        printf("%-20s %10.3f %10.3f %10.3f %10.3f\n", gpu_ways[way].name, rows[way].median.gpu, rows[way].gpu_max,
               rows[way].median.wall, rows[way].median.queue);
    }
    printf("\n%-6s %10s %14s %10s %10s %10s %14s\n", "clock", "compute", "communication", "step", "hidden", "exposed",
           "hidden/comm.");
    printf("%-6s %10s %14s %10s %10s %10s %14s\n", "", "(ms)", "(ms)", "(ms)", "(ms)", "(ms)", "");
    for (int i = 0; i < 2; i++) {
        printf("%-6s %10.3f %14.3f %10.3f %10.3f %10.3f %14.3f\n", overlaps[i].clock, overlaps[i].compute,
               overlaps[i].communication, overlaps[i].step, overlaps[i].hidden, overlaps[i].exposed, overlaps[i].ratio);
    }
}

static void print_json(FILE *file, const gpu_trainer *trainer, const way_row *rows, const overlap *overlaps) {
    fprintf(file,
            "{\n  \"benchmark\": \"overlap_cuda\",\n  \"version\": \"%s\",\n  \"ranks\": %d,\n  \"comm\": \"%s\",\n",
            gsync_version(), trainer->world_size, gsync_comm_describe(trainer->comm));
    fprintf(file, "  \"gpu\": \"%s\",\n  \"bytes\": %zu,\n  \"buckets\": %zu,\n  \"rounds\": %zu,\n", trainer->gpu,
            trainer->gradient_count * trainer->gradient_floats * sizeof(float), gsync_bucket_count(trainer->reducer),
            trainer->options.rounds);
    fprintf(file, "  \"threads\": %zu,\n  \"passes\": %d,\n  \"ways\": [", trainer->threads, trainer->passes);
    for (size_t way = 0; way < WAYS; way++) {
        fprintf(
            file,
            "%s\n    {\"way\": \"%s\", \"gpu_ms\": %.4f, \"gpu_max_ms\": %.4f, \"wall_ms\": %.4f, \"queue_ms\": %.4f}",
            way == 0 ? "" : ",", gpu_ways[way].name, rows[way].median.gpu, rows[way].gpu_max, rows[way].median.wall,
            rows[way].median.queue);
    }
    fprintf(file, "\n  ],\n  \"overlap\": [");
    for (int i = 0; i < 2; i++) {
        fprintf(file, "%s\n    {\"clock\": \"%s\", \"hidden_ms\": %.4f, \"exposed_ms\": %.4f, \"hidden_share\": %.4f}",
                i == 0 ? "" : ",", overlaps[i].clock, overlaps[i].hidden, overlaps[i].exposed, overlaps[i].ratio);
    }
    fprintf(file, "\n  ]\n}\n");
}

static bool write_json(const gpu_trainer *trainer, const way_row *rows, const overlap *overlaps) {
    const bool is_stdout = strcmp(trainer->options.json, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(trainer->options.json, "w");
    if (file == NULL) {
        perror(trainer->options.json);
        return false;
    }
    print_json(file, trainer, rows, overlaps);
    const bool is_written = ferror(file) == 0;
    return (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
}

static bool report(const gpu_trainer *trainer, way_samples *samples) {
    const char *json = trainer->options.json;
    way_row rows[WAYS];
    overlap overlaps[2];
    summarize(samples, trainer->options.rounds, rows);
    find_overlaps(rows, overlaps);
    if (json == NULL || strcmp(json, "-") != 0) {
        print_table(trainer, rows, overlaps);
    }
    return json == NULL || write_json(trainer, rows, overlaps);
}

/* ---- Options ---------------------------------------------------------------------------------------------------- */

static bool read_number(const char *text, double least, double most, double *number) {
    char *end;
    *number = strtod(text, &end);
    if (end != text && (*end == 'K' || *end == 'M')) {
        *number *= *end == 'K' ? 1024 : 1048576;
        end++;
    }
    return end != text && *end == '\0' && *number >= least && *number <= most;
}

static bool read_option(const char *name, const char *value, gpu_options *options) {
    double number;
    if (strcmp(name, "--json") == 0) {
        options->json = value;
        return true;
    }
    if (strcmp(name, "--bytes") == 0 && read_number(value, 4096, 17179869184.0, &number)) {
        options->bytes = (size_t)number;
    } else if (strcmp(name, "--compute-ms") == 0 && read_number(value, 0.001, 60000, &number)) {
        options->compute_ms = number;
    } else if (strcmp(name, "--passes") == 0 && read_number(value, 1, 1 << 24, &number)) {
        options->passes = (int)number;
    } else if (strcmp(name, "--fill") == 0 && read_number(value, 0, 100, &number)) {
        options->fill = number;
    } else if (strcmp(name, "--buckets") == 0 && read_number(value, 1, GPU_BUCKETS_MAX, &number)) {
        options->buckets = (size_t)number;
    } else if (strcmp(name, "--rounds") == 0 && read_number(value, 1, ROUNDS_MAX, &number)) {
        options->rounds = (size_t)number;
    } else if (strcmp(name, "--ctas") == 0 && read_number(value, 1, 64, &number)) {
        options->ctas = (unsigned)number;
    } else {
        return false;
    }
    return true;
}

static bool run(const gpu_options *options) {
    static gpu_trainer trainer;
    static way_samples samples[WAYS];
    const bool is_ok = gpu_trainer_open(&trainer, options) && measure(&trainer, samples) &&
                       (trainer.rank != 0 || report(&trainer, samples));
    if (!is_ok && trainer.comm != NULL) {
        gsync_comm_abort(trainer.comm, "overlap_cuda failed on this rank"); /* the others may be waiting for it */
    }
    gpu_trainer_close(&trainer);
    return is_ok;
}

int main(int argc, char **argv) {
    gpu_options options = {.bytes = 104857600, .compute_ms = 20, .fill = 100, .buckets = 8, .rounds = 21};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (strcmp(argv[i], "--share-gpu") == 0) {
            options.shares_gpu = true;
            i--;
            continue;
        }
        if (i + 1 == argc || !read_option(argv[i], argv[i + 1], &options)) {
            fprintf(stderr, "overlap_cuda: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    return run(&options) ? EXIT_SUCCESS : EXIT_FAILURE;
}
