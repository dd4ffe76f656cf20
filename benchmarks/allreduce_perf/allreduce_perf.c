/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl-tests' all_reduce_perf for this library, on ranks that are threads or the processes of a launcher. --help says
 * what it measures, benchmarks/README.md what to think of it. allreduce_perf_cuda is made of it too.
 */
#include "perf_program.h"
#include "perf_rank.h"
#include "perf_series.h"
#include "perf_values.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2 };

/* What a rank needs, and what it leaves. */
typedef struct rank_run {
    const perf_options *options;
    const perf_peers *peers;
    gsync_comm *comm; /* destroyed by the rank */
    bool has_chosen;  /* whose memory it is */
    bool is_ok;       /* nothing failed, nothing was wrong */
    pthread_t thread;
} rank_run;

/* ---- What one rank does ------------------------------------------------------------------------------------------ */

/* Adds the wrong elements, which are the same on every rank. */
static bool measure(const perf_rank *self, const perf_values *values, perf_row *row, bool spoils, int64_t *wrong) {
    if (!perf_series_run(self, values, spoils, row)) {
        return false;
    }
    for (int way = 0; way < PERF_WAYS; way++) {
        *wrong += row->of[way].is_measured && row->of[way].wrong > 0 ? row->of[way].wrong : 0;
    }
    if (self->report != NULL) {
        perf_report_row(self->report, row);
    }
    return true;
}

static bool measure_dtype(const perf_rank *self, gsync_dtype dtype, bool spoils_first, int64_t *wrong) {
    const perf_options *options = self->options;
    const size_t element_bytes = gsync_dtype_size(dtype);
    perf_values values;
    if (!perf_values_init(&values, dtype, self->rank, self->world)) {
        return perf_rank_fail(self, "a table of values", "not enough memory");
    }
    bool is_ok = true;
    for (int i = 0; i < options->op_count && is_ok; i++) {
        for (size_t size = options->min_bytes; size != 0 && is_ok; size = perf_options_next_size(options, size)) {
            const size_t count = size / element_bytes;
            perf_row row = {.count = count, .bytes = count * element_bytes, .dtype = dtype, .op = options->ops[i]};
            is_ok = measure(self, &values, &row, spoils_first, wrong);
            spoils_first = false;
        }
    }
    perf_values_clear(&values);
    return is_ok;
}

static bool measure_all(const perf_rank *self, int64_t *wrong) {
    const perf_options *options = self->options;
    bool is_ok = true;
    for (int i = 0; i < options->dtype_count && is_ok; i++) {
        is_ok = measure_dtype(self, options->dtypes[i], options->self_test && i == 0, wrong);
    }
    return is_ok;
}

/* Collective: what rank 0 cannot write, the others need not measure. */
static bool open_report(perf_rank *self, perf_report *storage) {
    if (self->rank == 0) {
        perf_facts facts = {.options = self->options,
                            .world = self->world,
                            .transport = gsync_comm_describe(self->comm),
                            .memory = perf_memory_describe(self->memory),
                            .peers = self->peers};
        for (int i = 0; i < self->peers->count; i++) {
            facts.peer_words[i] = self->peers->peer[i]->describe(self->peer_states[i]);
        }
        if (!perf_report_open(storage, &facts)) {
            return perf_rank_fail(self, "the file for the results", strerror(errno));
        }
        self->report = storage;
    }
    return perf_rank_check(self, "opening the report", gsync_barrier(self->comm));
}

/* Every rank finds the same; one says so. */
static bool check_dtypes(const perf_rank *self) {
    for (int i = 0; i < self->options->dtype_count; i++) {
        const gsync_dtype dtype = self->options->dtypes[i];
        if (!perf_values_are_exact(dtype, self->world)) {
            return self->rank == 0 && perf_rank_fail(self, perf_dtype_name(dtype),
                                                     "has too few exact integers to check sums over so many ranks");
        }
    }
    return true;
}

/* Returns how many could be opened: all, or the rank has failed. */
static int open_peers(perf_rank *self) {
    const perf_peer_ranks ranks = {self->comm,         self->rank,   self->world,
                                   self->shares_clock, self->memory, self->options};
    int open = 0;
    while (open < self->peers->count) {
        const perf_peer *peer = self->peers->peer[open];
        if (!perf_rank_check_peer(self, peer, peer->open(&ranks, &self->peer_states[open]))) {
            break;
        }
        open++;
    }
    return open;
}

static bool measure_and_report(perf_rank *self, int64_t *wrong) {
    perf_report report;
    const bool is_ok = open_report(self, &report) && measure_all(self, wrong);
    if (self->report != NULL && !perf_report_close(self->report, is_ok)) {
        return perf_rank_fail(self, "the report", "could not be written");
    }
    return is_ok;
}

static bool measure_with_peers(perf_rank *self) {
    int64_t wrong = 0;
    const int open = open_peers(self);
    const bool is_ok = open == self->peers->count && measure_and_report(self, &wrong);
    for (int i = 0; i < open; i++) {
        self->peers->peer[i]->close(self->peer_states[i]);
    }
    return is_ok && wrong == 0;
}

static bool open_memory(perf_rank *self, bool has_chosen) {
    return (has_chosen || perf_rank_check_memory(self, perf_memory_choose(gsync_local_rank(self->comm)))) &&
           perf_rank_check_memory(self, perf_memory_open(&self->memory));
}

static bool run_rank(const rank_run *run) {
    perf_rank self = {.options = run->options, .peers = run->peers, .comm = run->comm, .rank = gsync_rank(run->comm)};
    const bool is_ok = open_memory(&self, run->has_chosen) && perf_rank_init(&self) && check_dtypes(&self) &&
                       measure_with_peers(&self);
    perf_memory_close(&self.memory);
    return is_ok;
}

static void *run_and_leave(void *argument) {
    rank_run *run = argument;
    run->is_ok = run_rank(run);
    gsync_comm_destroy(&run->comm);
    return NULL;
}

/* ---- Starting the ranks ------------------------------------------------------------------------------------------ */

static gsync_comm_options comm_options(const perf_options *options) {
    gsync_comm_options chosen = GSYNC_COMM_OPTIONS_INIT;
    chosen.progress = options->progress;
    chosen.nccl_ctas_max = options->ctas;
    chosen.allows_shared_device = options->shares_gpu;
    chosen.nccl_registers_memory = options->registers;
    return chosen;
}

static bool run_threads(const perf_options *options, const perf_peers *peers) {
    const gsync_comm_options chosen = comm_options(options);
    const int ranks = options->thread_ranks;
    rank_run *runs = calloc((size_t)ranks, sizeof *runs);
    gsync_comm **comms = calloc((size_t)ranks, sizeof(gsync_comm *));
    bool is_ok = runs != NULL && comms != NULL;
    if (!is_ok || gsync_comm_threads(comms, ranks, &chosen) != GSYNC_OK) {
        fprintf(stderr, "%s: %s\n", perf_program_own.name, is_ok ? gsync_last_error() : "not enough memory");
        free(runs);
        free(comms);
        return false;
    }
    int started = 0;
    for (; started < ranks; started++) {
        runs[started] = (rank_run){.options = options, .peers = peers, .comm = comms[started]};
        if (pthread_create(&runs[started].thread, NULL, run_and_leave, &runs[started]) != 0) {
            fprintf(stderr, "%s: no thread for rank %d\n", perf_program_own.name, started);
            gsync_comm_abort(comms[started], "not all ranks could be started");
            break;
        }
    }
    is_ok = started == ranks;
    for (int rank = 0; rank < ranks; rank++) {
        if (rank < started) {
            pthread_join(runs[rank].thread, NULL);
            is_ok = is_ok && runs[rank].is_ok;
        } else {
            gsync_comm_destroy(&comms[rank]);
        }
    }
    free(runs);
    free(comms);
    return is_ok;
}

/* Ranks that meet on their GPUs have to know which before; others know their number on the host only after. */
static bool choose_early(bool *has_chosen) {
    const char *local_rank = perf_program_own.is_on_gpu ? getenv("LOCAL_RANK") : NULL;
    const char *problem = local_rank != NULL ? perf_memory_choose((int)strtol(local_rank, NULL, 10)) : NULL;
    *has_chosen = local_rank != NULL;
    if (problem != NULL) {
        fprintf(stderr, "%s: the gradients' memory: %s\n", perf_program_own.name, problem);
    }
    return problem == NULL;
}

static bool run_process(const perf_options *options, const perf_peers *peers) {
    const gsync_comm_options chosen = comm_options(options);
    rank_run run = {.options = options, .peers = peers};
    if (!choose_early(&run.has_chosen)) {
        return false;
    }
    if (peers->count > 0 && options->tunes_malloc) {
        perf_peers_tune_malloc();
    }
    if (gsync_comm_create(&run.comm, &chosen) != GSYNC_OK) {
        fprintf(stderr, "%s: %s\n", perf_program_own.name, gsync_last_error());
        return false;
    }
    run_and_leave(&run);
    return run.is_ok;
}

/* This process's rank in the launcher's words, so that a wrong option is said once; -1 without a launcher. */
static int launcher_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank != NULL) {
            return (int)strtol(rank, NULL, 10);
        }
    }
    if (perf_program_own.is_on_gpu && getenv("WORLD_SIZE") != NULL && getenv("RANK") != NULL) {
        return (int)strtol(getenv("RANK"), NULL, 10); /* torchrun's */
    }
    return -1;
}

/* Of options that look right alone. NULL: none. Finds the peers. */
static const char *find_problem(const perf_options *options, perf_peers *peers, bool has_launcher) {
    if (!perf_peers_find(options->peers, peers)) {
        return perf_program_own.peers_wanted;
    }
    for (int i = 0; i < peers->count; i++) {
        if (options->thread_ranks != 0 && !peers->peer[i]->takes_threads) {
            return "--peer: all but limit need the processes of mpirun, and not --ranks";
        }
    }
    if (options->thread_ranks != 0 && has_launcher) {
        return perf_program_own.is_on_gpu ? "--ranks is for ranks that are threads, and not under mpirun or torchrun"
                                          : "--ranks is for ranks that are threads, and not under mpirun";
    }
    return NULL;
}

int main(int argc, char **argv) {
    const int rank = launcher_rank();
    const bool is_speaker = rank <= 0;
    perf_options options;
    const perf_verdict verdict = perf_options_parse(&options, argc, argv, is_speaker);
    if (verdict != PERF_RUN) {
        return verdict == PERF_HELP_GIVEN ? EXIT_SUCCESS : EXIT_USAGE;
    }
    perf_peers peers;
    const char *problem = find_problem(&options, &peers, rank >= 0);
    if (problem != NULL) {
        if (is_speaker) {
            fprintf(stderr, "%s: %s\n", perf_program_own.name, problem);
        }
        return EXIT_USAGE;
    }
    const bool is_ok = options.thread_ranks != 0 ? run_threads(&options, &peers) : run_process(&options, &peers);
    return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
