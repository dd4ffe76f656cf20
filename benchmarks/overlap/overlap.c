/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer gains from reducing gradients while it still computes: the same backward with several ways of
 * all-reduce, in turn. --help says what is measured.
 */
#define _POSIX_C_SOURCE 200809L
#include "overlap_trainer.h"

#include "../measure.h"

#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { EXIT_USAGE = 2, ROUNDS_MAX = 1000, WARMUP_ROUNDS = 2 };

static const char usage[] =
    "usage: mpirun -n N overlap [--bytes N] [--compute-ms MS] [--buckets N] [--rounds N] [--json FILE] [--help]\n"
    "\n"
    "A backward of fixed arithmetic whose gradients become final one after another, from the last to the first, and "
    "the\n"
    "all-reduce of its buckets, in these ways, which take turns in every round:\n"
    "\n"
    "  compute             backward alone\n"
    "  MPI alone           MPI_Allreduce of the buckets, nothing else\n"
    "  library alone       gsync_begin and gsync_finish, nothing else\n"
    "  MPI after           backward, then MPI_Allreduce of the buckets\n"
    "  MPI_Iallreduce      started as each bucket is complete, MPI_Testall every 3 ms in backward\n"
    "  MPI in a thread     a thread of the trainer's calls MPI_Allreduce as each bucket is complete\n"
    "  library             gsync_ready as each gradient is final, gsync_finish after backward\n"
    "\n"
    "  --bytes       of all gradients, float32 (26214400); K and M are powers of 1024\n"
    "  --compute-ms  how long backward takes on an idle core (225); measured at the start, then a fixed count of\n"
    "                arithmetic, so that what takes the core away shows\n"
    "  --buckets     of equal size, 4 gradients each (8)\n"
    "  --rounds      of which medians are taken (7), after 2 of warm-up\n"
    "  --json FILE   writes the same for programs; - is stdout, without the table\n"
    "\n"
    "Times are of the slowest rank, the processor's of the busiest process. Every result is checked, outside the "
    "timed\n"
    "part. The floor is compute, and the processor's time that the library's communication took: no way can be\n"
    "faster where a core is no idler than that.\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a call failed or a result was wrong, 2 for a wrong option.\n";

static double now_ms(void) {
    return MPI_Wtime() * 1e3;
}

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

typedef struct way_samples {
    double wall_ms[ROUNDS_MAX];
    double cpu_ms[ROUNDS_MAX];
} way_samples;

typedef struct way_row {
    bool is_measured;
    double wall_ms;
    double wall_max_ms;
    double cpu_ms;
} way_row;

static double cpu_ms(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3;
}

static bool run_once(overlap_trainer *trainer, const overlap_way *way, double *wall, double *cpu) {
    double took[2];
    double slowest[2];
    trainer->round++;
    if (way->needs_filling) {
        overlap_fill(trainer, way->place);
    }
    MPI_Barrier(trainer->comm);
    const double cpu_before = cpu_ms();
    const double start = now_ms();
    const bool is_ok = way->run(trainer);
    took[0] = now_ms() - start;
    took[1] = cpu_ms() - cpu_before;
    if (!is_ok || (way->reduces && !overlap_is_right(trainer, way->place))) {
        return false;
    }
    MPI_Allreduce(took, slowest, 2, MPI_DOUBLE, MPI_MAX, trainer->comm);
    *wall = slowest[0];
    *cpu = slowest[1];
    return true;
}

/* A way never always follows the same other. */
static bool measure(overlap_trainer *trainer, way_samples *samples) {
    for (size_t round = 0; round < WARMUP_ROUNDS + trainer->options.rounds; round++) {
        const size_t sample = round < WARMUP_ROUNDS ? 0 : round - WARMUP_ROUNDS;
        for (size_t turn = 0; turn < WAYS; turn++) {
            const size_t way = (turn * (round % 2 == 0 ? 1 : WAYS - 1) + round) % WAYS;
            if (way == WAY_THREAD && !trainer->has_threads) {
                continue;
            }
            if (!run_once(trainer, &overlap_ways[way], &samples[way].wall_ms[sample], &samples[way].cpu_ms[sample])) {
                return false;
            }
        }
    }
    return true;
}

static void summarize(const overlap_trainer *trainer, way_samples *samples, way_row *rows) {
    const size_t rounds = trainer->options.rounds;
    for (size_t way = 0; way < WAYS; way++) {
        qsort(samples[way].wall_ms, rounds, sizeof(double), measure_by_size);
        qsort(samples[way].cpu_ms, rounds, sizeof(double), measure_by_size);
        rows[way] = (way_row){.is_measured = way != WAY_THREAD || trainer->has_threads,
                              .wall_ms = samples[way].wall_ms[rounds / 2],
                              .wall_max_ms = samples[way].wall_ms[rounds - 1],
                              .cpu_ms = samples[way].cpu_ms[rounds / 2]};
    }
}

/* ---- Report ----------------------------------------------------------------------------------------------------- */

/* The processor's time that a way needs beyond backward's. */
static double communication_cpu(const way_row *rows, size_t way) {
    const bool is_alone = way == WAY_MPI_ALONE || way == WAY_LIBRARY_ALONE;
    const double cpu = rows[way].cpu_ms - (is_alone ? 0 : rows[WAY_COMPUTE].cpu_ms);
    return cpu > 0 ? cpu : 0;
}

static double floor_ms(const way_row *rows) {
    return rows[WAY_COMPUTE].wall_ms + communication_cpu(rows, WAY_LIBRARY);
}

static void print_table(const overlap_trainer *trainer, const way_row *rows) {
    printf("# overlap, gradsync %s, %d ranks\n# %s\n", gsync_version(), trainer->world_size,
           gsync_comm_describe(trainer->gsync));
    printf("# %zu bytes in %zu buckets of %zu, %zu rounds after %d of warm-up, all results right\n",
           trainer->gradient_count * trainer->gradient_floats * sizeof(float), gsync_bucket_count(trainer->reducer),
           trainer->bucket_floats * sizeof(float), trainer->options.rounds, WARMUP_ROUNDS);
    printf("# floor %.2f ms: compute, and the processor's time of the library's communication\n", floor_ms(rows));
    printf("%-18s %10s %10s %10s %14s %12s\n", "way", "wall", "most", "cpu", "comm. cpu", "wall/floor");
    printf("%-18s %10s %10s %10s %14s %12s\n", "", "(ms)", "(ms)", "(ms)", "(ms)", "");
    for (size_t way = 0; way < WAYS; way++) {
        if (!rows[way].is_measured) {
            printf("%-18s %10s\n", overlap_ways[way].name, "N/A");
            continue;
        }
        printf("%-18s %10.2f %10.2f %10.2f %14.2f %12.3f\n", overlap_ways[way].name, rows[way].wall_ms,
               rows[way].wall_max_ms, rows[way].cpu_ms, communication_cpu(rows, way),
               rows[way].wall_ms / floor_ms(rows));
    }
}

static bool write_json(const overlap_trainer *trainer, const way_row *rows) {
    const bool is_stdout = strcmp(trainer->options.json, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(trainer->options.json, "w");
    if (file == NULL) {
        perror(trainer->options.json);
        return false;
    }
    fprintf(file, "{\n  \"benchmark\": \"overlap\",\n  \"version\": \"%s\",\n  \"ranks\": %d,\n  \"comm\": \"%s\",\n",
            gsync_version(), trainer->world_size, gsync_comm_describe(trainer->gsync));
    fprintf(file, "  \"bytes\": %zu,\n  \"buckets\": %zu,\n  \"rounds\": %zu,\n  \"floor_ms\": %.3f,\n  \"ways\": [",
            trainer->gradient_count * trainer->gradient_floats * sizeof(float), gsync_bucket_count(trainer->reducer),
            trainer->options.rounds, floor_ms(rows));
    const char *separator = "";
    for (size_t way = 0; way < WAYS; way++) {
        if (rows[way].is_measured) {
            fprintf(file,
                    "%s\n    {\"way\": \"%s\", \"wall_ms\": %.3f, \"wall_max_ms\": %.3f, \"cpu_ms\": %.3f, "
                    "\"communication_cpu_ms\": %.3f}",
                    separator, overlap_ways[way].name, rows[way].wall_ms, rows[way].wall_max_ms, rows[way].cpu_ms,
                    communication_cpu(rows, way));
            separator = ",";
        }
    }
    fprintf(file, "\n  ]\n}\n");
    const bool is_written = ferror(file) == 0;
    return (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
}

static bool report(const overlap_trainer *trainer, const way_row *rows) {
    const char *json = trainer->options.json;
    if (json == NULL || strcmp(json, "-") != 0) {
        print_table(trainer, rows);
    }
    return json == NULL || write_json(trainer, rows);
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

static bool read_option(const char *name, const char *value, overlap_options *options) {
    double number;
    if (strcmp(name, "--json") == 0) {
        options->json = value;
        return true;
    }
    if (strcmp(name, "--bytes") == 0 && read_number(value, 4096, 4294967296.0, &number)) {
        options->bytes = (size_t)number;
    } else if (strcmp(name, "--compute-ms") == 0 && read_number(value, 0.001, 60000, &number)) {
        options->compute_ms = number;
    } else if (strcmp(name, "--buckets") == 0 && read_number(value, 1, BUCKETS_MAX, &number)) {
        options->buckets = (size_t)number;
    } else if (strcmp(name, "--rounds") == 0 && read_number(value, 1, ROUNDS_MAX, &number)) {
        options->rounds = (size_t)number;
    } else {
        return false;
    }
    return true;
}

static bool run(const overlap_options *options) {
    static overlap_trainer trainer;
    static way_samples samples[WAYS];
    way_row rows[WAYS];
    bool is_ok = overlap_trainer_open(&trainer, options) && measure(&trainer, samples);
    if (is_ok && trainer.rank == 0) {
        summarize(&trainer, samples, rows);
        is_ok = report(&trainer, rows);
    }
    if (!is_ok) {
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE); /* the others may be waiting for this rank */
    }
    overlap_trainer_close(&trainer);
    return is_ok;
}

int main(int argc, char **argv) {
    overlap_options options = {.bytes = 26214400, .compute_ms = 225, .buckets = 8, .rounds = 7};
    int level;
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (i + 1 == argc || !read_option(argv[i], argv[i + 1], &options)) {
            fprintf(stderr, "overlap: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    const bool is_ok = run(&options);
    MPI_Finalize();
    return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
