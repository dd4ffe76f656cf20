/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reducer costs while it has nothing to do: nothing spins between steps, so a trainer must not notice it.
 * --help says what is measured.
 */
#define _GNU_SOURCE
#include "measure.h"

#include <gradsync/gradsync.h>

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_USAGE = 2,
    ROUNDS_MAX = 200,
    RANKS_MAX = 64,
    STEPS_MAX = 10000,
    GRADIENT_FLOATS = 65536,
    PASSES_PER_SLICE = 4
};

static const char usage[] =
    "usage: [mpirun -n N] idle_cost [--ranks N] [--compute-ms MS] [--steps N] [--rounds N] [--json FILE] [--help]\n"
    "\n"
    "Fixed arithmetic on every rank, which should be as many as cores, in three settings, in turn in every round:\n"
    "\n"
    "  alone     no communicator of the library's exists\n"
    "  idle      a reducer that has done a step, so that all its threads exist, has nothing to do\n"
    "  stepping  the same, and the arithmetic is cut into parts with a step of 256 KiB after each\n"
    "\n"
    "Reports the time on the slowest rank, and, added up over all processes, the processor's time and the context\n"
    "switches of all threads that are not the ranks' own. Under mpirun MPI's threads are among them, in all settings.\n"
    "\n"
    "  --ranks       ranks are threads, so many; without it they are mpirun's processes, or one\n"
    "  --compute-ms  the arithmetic on an idle core (200); measured at the start, then a fixed count\n"
    "  --steps       of the setting stepping, in each round (20)\n"
    "  --rounds      of which medians are taken (11), after one of warm-up\n"
    "  --json FILE   writes the same for programs; - is stdout, without the table\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a call failed or a result was wrong, 2 for a wrong option.\n";

typedef struct idle_options {
    int ranks; /* 0: processes */
    double compute_ms;
    size_t steps;
    size_t rounds;
    const char *json; /* NULL: none */
} idle_options;

typedef enum idle_setting { ALONE, IDLE, STEPPING, SETTINGS } idle_setting;

static const char *const setting_names[SETTINGS] = {"alone", "idle", "stepping"};

typedef enum idle_figure { WALL_MS, OTHER_CPU_US, OTHER_SWITCHES, OTHER_THREADS, FIGURES } idle_figure;

/* The ranks of this process. */
typedef struct idle_team {
    idle_options options;
    pthread_barrier_t barrier;
    gsync_comm *comms[RANKS_MAX];
    pid_t own_threads[RANKS_MAX + 1]; /* the ranks' and main's */
    int own_count;
} idle_team;

typedef struct idle_rank {
    idle_team *team;
    int index; /* in the team */
    gsync_comm *comm;
    gsync_reducer *reducer;
    float *grad;
    float *work;
    size_t slices; /* of the arithmetic in a round */
    bool is_ok;
    double samples[FIGURES][SETTINGS][ROUNDS_MAX];
} idle_rank;

static bool succeeded(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "idle_cost: %s: %s\n", gsync_status_name(status), gsync_last_error());
    }
    return status == GSYNC_OK;
}

/* ---- Other threads of the process ------------------------------------------------------------------------------- */

typedef struct thread_usage {
    double cpu_us;
    double switches;
    double threads;
} thread_usage;

/* Linux' number for a thread's clock, as pthread_getcpuclockid makes it, which wants a pthread_t. To the nanosecond,
 * where /proc counts in hundredths of a second. */
static clockid_t clock_of_thread(pid_t thread) {
    return (clockid_t)((~(unsigned)thread << 3) | 6U);
}

static double count_switches(pid_t thread) {
    char line[256];
    double total = 0;
    snprintf(line, sizeof line, "/proc/self/task/%d/status", (int)thread);
    FILE *file = fopen(line, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, "ctxt_switches:") != NULL) {
            total += strtod(strchr(line, ':') + 1, NULL);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return total;
}

static bool is_own(const idle_team *team, pid_t thread) {
    for (int i = 0; i < team->own_count; i++) {
        if (team->own_threads[i] == thread) {
            return true;
        }
    }
    return false;
}

static thread_usage look_at_others(const idle_team *team) {
    thread_usage usage_now = {0, 0, 0};
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread > 0 && !is_own(team, thread)) {
            usage_now.cpu_us += measure_clock_ms(clock_of_thread(thread)) * 1e3;
            usage_now.switches += count_switches(thread);
            usage_now.threads++;
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return usage_now;
}

/* ---- A rank ----------------------------------------------------------------------------------------------------- */

static bool open_comm(idle_rank *rank) {
    idle_team *team = rank->team;
    if (team->options.ranks == 0) {
        return succeeded(gsync_comm_create(&rank->comm, NULL));
    }
    pthread_barrier_wait(&team->barrier);
    if (rank->index == 0 && !succeeded(gsync_comm_threads(team->comms, team->options.ranks, NULL))) {
        memset((void *)team->comms, 0, sizeof team->comms);
    }
    pthread_barrier_wait(&team->barrier);
    rank->comm = team->comms[rank->index];
    return rank->comm != NULL;
}

static bool open_reducer(idle_rank *rank) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_SUM;
    if (!succeeded(gsync_reducer_create(&rank->reducer, rank->comm, &options)) ||
        !succeeded(gsync_reducer_add(rank->reducer, "gradient", NULL, GRADIENT_FLOATS, GSYNC_FLOAT32)) ||
        !succeeded(gsync_reducer_commit(rank->reducer))) {
        return false;
    }
    rank->grad = gsync_reducer_grad(rank->reducer, "gradient");
    return true;
}

static void close_library(idle_rank *rank) {
    gsync_reducer_destroy(&rank->reducer);
    gsync_comm_destroy(&rank->comm);
}

static bool run_step(idle_rank *rank) {
    for (size_t i = 0; i < GRADIENT_FLOATS; i++) {
        rank->grad[i] = (float)(i & 7U);
    }
    if (!succeeded(gsync_begin(rank->reducer, GSYNC_SYNC)) || !succeeded(gsync_ready(rank->reducer, rank->grad)) ||
        !succeeded(gsync_finish(rank->reducer, NULL))) {
        return false;
    }
    const size_t i = GRADIENT_FLOATS / 2 + 3;
    if (rank->grad[i] != (float)(i & 7U) * (float)gsync_world_size(rank->comm)) {
        fprintf(stderr, "idle_cost: a sum is wrong\n");
        return false;
    }
    return true;
}

static void compute(idle_rank *rank, size_t slices) {
    for (size_t slice = 0; slice < slices; slice++) {
        measure_compute(rank->work, PASSES_PER_SLICE);
    }
}

static bool work(idle_rank *rank, idle_setting setting) {
    const size_t parts = setting == STEPPING ? rank->team->options.steps : 1;
    bool is_ok = true;
    for (size_t part = 0; part < parts && is_ok; part++) {
        compute(rank, rank->slices * (part + 1) / parts - rank->slices * part / parts);
        is_ok = setting != STEPPING || run_step(rank);
    }
    return is_ok;
}

/* Ranks start together. Whatever a step leaves to be done has 10 ms to end; so has, for equal terms, what is left of
 * the communicator that has gone. */
static bool prepare(idle_rank *rank, idle_setting setting) {
    const struct timespec pause = {0, 10000000};
    bool is_ok = open_comm(rank);
    is_ok = is_ok && (setting == ALONE || (open_reducer(rank) && run_step(rank)));
    is_ok = is_ok && succeeded(gsync_barrier(rank->comm));
    if (setting == ALONE) {
        close_library(rank);
    }
    nanosleep(&pause, NULL);
    return is_ok;
}

static bool run_setting(idle_rank *rank, idle_setting setting, size_t round) {
    if (!prepare(rank, setting)) {
        return false;
    }
    const bool counts = rank->index == 0; /* once per process */
    const thread_usage before = look_at_others(rank->team);
    const double start = measure_clock_ms(CLOCK_MONOTONIC);
    const bool is_ok = work(rank, setting);
    rank->samples[WALL_MS][setting][round] = measure_clock_ms(CLOCK_MONOTONIC) - start;
    const thread_usage after = look_at_others(rank->team);
    rank->samples[OTHER_CPU_US][setting][round] = counts ? after.cpu_us - before.cpu_us : 0;
    rank->samples[OTHER_SWITCHES][setting][round] = counts ? after.switches - before.switches : 0;
    rank->samples[OTHER_THREADS][setting][round] = counts ? after.threads : 0;
    if (rank->team->options.ranks > 0) {
        pthread_barrier_wait(&rank->team->barrier); /* threads that end take their figures along */
    }
    close_library(rank);
    return is_ok;
}

/* The fastest rank's best counts for all: they have the same amount of work. */
static bool calibrate(idle_rank *rank) {
    double least = measure_compute_ms(rank->work, PASSES_PER_SLICE);
    const bool is_ok = open_comm(rank) && succeeded(gsync_allreduce(rank->comm, &least, 1, GSYNC_FLOAT64, GSYNC_MIN));
    close_library(rank);
    rank->slices = (size_t)(rank->team->options.compute_ms / least) + 1;
    return is_ok;
}

static bool measure(idle_rank *rank) {
    const size_t rounds = rank->team->options.rounds;
    for (int setting = 0; setting < SETTINGS; setting++) {
        if (!run_setting(rank, (idle_setting)setting, 0)) {
            return false;
        }
    }
    for (size_t round = 0; round < rounds; round++) {
        for (size_t turn = 0; turn < SETTINGS; turn++) {
            if (!run_setting(rank, (idle_setting)((turn + round) % SETTINGS), round)) {
                return false;
            }
        }
    }
    return true;
}

/* Times of the slowest rank, everything else added up. */
static bool combine(idle_rank *rank) {
    bool is_ok = open_comm(rank);
    for (int figure = 0; figure < FIGURES && is_ok; figure++) {
        is_ok = succeeded(gsync_allreduce(rank->comm, rank->samples[figure], (size_t)SETTINGS * ROUNDS_MAX,
                                          GSYNC_FLOAT64, figure == WALL_MS ? GSYNC_MAX : GSYNC_SUM));
    }
    return is_ok;
}

/* ---- Report ----------------------------------------------------------------------------------------------------- */

static void summarize(idle_rank *rank, double medians[SETTINGS][FIGURES]) {
    const size_t rounds = rank->team->options.rounds;
    for (int setting = 0; setting < SETTINGS; setting++) {
        for (int figure = 0; figure < FIGURES; figure++) {
            qsort(rank->samples[figure][setting], rounds, sizeof(double), measure_by_size);
            medians[setting][figure] = rank->samples[figure][setting][rounds / 2];
        }
    }
}

static double percent_more(double medians[SETTINGS][FIGURES], int setting) {
    return (medians[setting][WALL_MS] / medians[ALONE][WALL_MS] - 1) * 100;
}

static void print_table(const idle_rank *rank, double medians[SETTINGS][FIGURES]) {
    const idle_options *options = &rank->team->options;
    printf("# idle_cost, gradsync %s, %d ranks on %ld cores\n# %s\n", gsync_version(), gsync_world_size(rank->comm),
           sysconf(_SC_NPROCESSORS_ONLN), gsync_comm_describe(rank->comm));
    printf("# medians of %zu rounds after one of warm-up; stepping: %zu steps a round\n", options->rounds,
           options->steps);
    printf("%-10s %10s %10s %12s %14s %14s\n", "setting", "wall", "slower", "others' cpu", "others' switch", "others");
    printf("%-10s %10s %10s %12s %14s %14s\n", "", "(ms)", "(%)", "(us)", "(count)", "(threads)");
    for (int setting = 0; setting < SETTINGS; setting++) {
        printf("%-10s %10.2f %10.2f %12.1f %14.0f %14.0f\n", setting_names[setting], medians[setting][WALL_MS],
               percent_more(medians, setting), medians[setting][OTHER_CPU_US], medians[setting][OTHER_SWITCHES],
               medians[setting][OTHER_THREADS]);
    }
}

static bool write_json(const idle_rank *rank, double medians[SETTINGS][FIGURES]) {
    const idle_options *options = &rank->team->options;
    const bool is_stdout = strcmp(options->json, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(options->json, "w");
    if (file == NULL) {
        perror(options->json);
        return false;
    }
    fprintf(file, "{\n  \"benchmark\": \"idle_cost\",\n  \"version\": \"%s\",\n  \"ranks\": %d,\n  \"comm\": \"%s\",\n",
            gsync_version(), gsync_world_size(rank->comm), gsync_comm_describe(rank->comm));
    fprintf(file, "  \"rounds\": %zu,\n  \"steps\": %zu,\n  \"settings\": [\n", options->rounds, options->steps);
    for (int setting = 0; setting < SETTINGS; setting++) {
        fprintf(file,
                "    {\"setting\": \"%s\", \"wall_ms\": %.3f, \"slower_percent\": %.3f, \"other_cpu_us\": %.1f, "
                "\"other_switches\": %.0f, \"other_threads\": %.0f}%s\n",
                setting_names[setting], medians[setting][WALL_MS], percent_more(medians, setting),
                medians[setting][OTHER_CPU_US], medians[setting][OTHER_SWITCHES], medians[setting][OTHER_THREADS],
                setting + 1 < SETTINGS ? "," : "");
    }
    fprintf(file, "  ]\n}\n");
    const bool is_written = ferror(file) == 0;
    return (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
}

static bool report(idle_rank *rank) {
    const char *json = rank->team->options.json;
    double medians[SETTINGS][FIGURES];
    summarize(rank, medians);
    if (json == NULL || strcmp(json, "-") != 0) {
        print_table(rank, medians);
    }
    return json == NULL || write_json(rank, medians);
}

/* ---- Ranks as threads or processes ------------------------------------------------------------------------------ */

static void *run_rank(void *argument) {
    idle_rank *rank = argument;
    idle_team *team = rank->team;
    team->own_threads[rank->index] = (pid_t)syscall(SYS_gettid);
    if (team->options.ranks > 0) {
        pthread_barrier_wait(&team->barrier); /* all are known */
    }
    rank->work = calloc(MEASURE_WORK_FLOATS, sizeof *rank->work);
    rank->is_ok = rank->work != NULL && calibrate(rank) && measure(rank) && combine(rank) &&
                  (gsync_rank(rank->comm) != 0 || report(rank));
    if (!rank->is_ok) {
        exit(EXIT_FAILURE); /* the others may be waiting for this rank */
    }
    close_library(rank);
    free(rank->work);
    return NULL;
}

static void run_threads(idle_team *team, idle_rank *ranks) {
    pthread_t threads[RANKS_MAX];
    team->own_count = team->options.ranks + 1;
    team->own_threads[team->options.ranks] = getpid();
    pthread_barrier_init(&team->barrier, NULL, (unsigned)team->options.ranks);
    for (int i = 0; i < team->options.ranks; i++) {
        if (pthread_create(&threads[i], NULL, run_rank, &ranks[i]) != 0) {
            fprintf(stderr, "idle_cost: no thread for rank %d\n", i);
            exit(EXIT_FAILURE);
        }
    }
    for (int i = 0; i < team->options.ranks; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&team->barrier);
}

static bool run(const idle_options *options) {
    static idle_team team;
    const int count = options->ranks > 0 ? options->ranks : 1;
    idle_rank *ranks = calloc((size_t)count, sizeof *ranks);
    if (ranks == NULL) {
        fprintf(stderr, "idle_cost: not enough memory\n");
        return false;
    }
    team.options = *options;
    for (int i = 0; i < count; i++) {
        ranks[i].team = &team;
        ranks[i].index = i;
    }
    if (options->ranks > 0) {
        run_threads(&team, ranks);
    } else {
        team.own_count = 1;
        (void)run_rank(&ranks[0]);
    }
    free(ranks);
    return true;
}

/* ---- Options ---------------------------------------------------------------------------------------------------- */

static bool read_number(const char *text, double least, double most, double *number) {
    char *end;
    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= least && *number <= most;
}

static bool read_option(const char *name, const char *value, idle_options *options) {
    double number;
    if (strcmp(name, "--json") == 0) {
        options->json = value;
    } else if (strcmp(name, "--ranks") == 0 && read_number(value, 1, RANKS_MAX, &number)) {
        options->ranks = (int)number;
    } else if (strcmp(name, "--compute-ms") == 0 && read_number(value, 0.001, 60000, &number)) {
        options->compute_ms = number;
    } else if (strcmp(name, "--steps") == 0 && read_number(value, 1, STEPS_MAX, &number)) {
        options->steps = (size_t)number;
    } else if (strcmp(name, "--rounds") == 0 && read_number(value, 1, ROUNDS_MAX, &number)) {
        options->rounds = (size_t)number;
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv) {
    idle_options options = {.compute_ms = 200, .steps = 20, .rounds = 11};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (i + 1 == argc || !read_option(argv[i], argv[i + 1], &options)) {
            fprintf(stderr, "idle_cost: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    return run(&options) ? EXIT_SUCCESS : EXIT_FAILURE;
}
