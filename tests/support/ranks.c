/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"
#include "ranks_private.h"

#include <fnmatch.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

#define EXIT_USAGE 2
#define EXIT_WATCHDOG 3
#define EXIT_SKIPPED 77

/* What the command line and the launcher say; one per process. */
typedef struct ranks_run {
    ranks_transport transport;
    int world;
    int rank; /* of this process; 0 for threads */
    gsync_progress progress;
    uint32_t ranks_per_host;
    uint64_t seed;
    const char *only;
    gsync_log_level log_level; /* 0: no log */
    ranks_board *board;
    unsigned tests_failed;
    unsigned tests_passed;
} ranks_run;

static const ranks_device_ops *device_ops; /* NULL: gradients are where bodies have them */

void ranks_use_device(const ranks_device_ops *ops) {
    device_ops = ops;
}

/* cmocka gives a test one pointer. */
typedef struct ranks_case {
    ranks_run *run;
    const ranks_test *test;
} ranks_case;

/* ---- Watchdog ---------------------------------------------------------------------------------------------------- */

/* Written before alarm and read by its handler only, which may call nothing but write and _exit. */
static char watchdog_text[256];

static void bark(int signal_number) {
    (void)signal_number;
    const ssize_t written = write(STDERR_FILENO, watchdog_text, strlen(watchdog_text));
    (void)written; /* there is nobody left to tell */
    _exit(EXIT_WATCHDOG);
}

static void arm_watchdog(const ranks_run *run, const ranks_test *test) {
    const unsigned seconds = test->watchdog_s != 0 ? test->watchdog_s : RANKS_WATCHDOG_S;
    snprintf(watchdog_text, sizeof(watchdog_text), "[  HANGS ] %s: process of rank %d did not end within %u s\n",
             test->name, run->rank, seconds);
    signal(SIGALRM, bark);
    alarm(seconds);
}

/* ---- One rank of one test ------------------------------------------------------------------------------------------
 */

static void print_log(void *user, gsync_log_level level, const char *message) {
    (void)user;
    fprintf(stderr, "log %d: %s\n", (int)level, message);
}

static gsync_comm_options comm_options_of(const ranks_run *run, const ranks_test *test) {
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = test->timeout_ms != 0 ? test->timeout_ms : RANKS_TIMEOUT_MS;
    options.progress = test->progress != GSYNC_PROGRESS_AUTO ? test->progress : run->progress;
    if (run->transport == RANKS_MPI) {
        options.transport = GSYNC_TRANSPORT_MPI;
        options.ranks_per_host = run->ranks_per_host;
    } else if (run->transport == RANKS_TORCHRUN) {
        options.transport = GSYNC_TRANSPORT_NCCL;
    }
    if (run->log_level != (gsync_log_level)0) {
        options.log = print_log;
        options.log_level = run->log_level;
    }
    return options;
}

static bool make_comm(ranks_context *ctx, const ranks_test *test) {
    if (ctx->transport == RANKS_THREADS || test->needs_no_comm) {
        return true; /* threads got theirs before they started */
    }
    return CHECK_OK(gsync_comm_create(&ctx->comm, &ctx->comm_options));
}

/* Whether the body ended by ranks_refuse. */
static bool run_body(ranks_context *ctx, const ranks_test *test) {
    ctx->hidden->body_thread = pthread_self();
    if (setjmp(ctx->hidden->way_out) != 0) {
        return true;
    }
    if (make_comm(ctx, test)) {
        test->body(ctx);
    }
    return false;
}

static void run_rank(ranks_context *ctx, const ranks_test *test) {
    ranks_set_current(ctx);
    ranks_board_enter(ctx->hidden->board, ctx->rank);
    if (device_ops != NULL) {
        device_ops->begin(ctx);
    }
    const bool is_refused = run_body(ctx, test);
    if (is_refused || ranks_has_failed(ctx)) {
        gsync_comm_abort(ctx->comm, "this rank's test has failed");
    }
    /* Nobody's communicator goes before every body has ended: destroying it is a thing that a test does on purpose. */
    ranks_board_leave(ctx->hidden->board, ctx->rank);
    ranks_models_destroy(ctx);
    gsync_comm_destroy(&ctx->comm);
    if (device_ops != NULL) {
        device_ops->end(ctx);
    }
    CHECK_GUARDS(ctx);
    ranks_memory_free_all(ctx);
    ranks_board_finish(ctx->hidden->board, ctx->rank);
    ranks_set_current(NULL);
}

static ranks_context context_of(const ranks_run *run, const ranks_test *test, int rank, struct ranks_private *hidden) {
    *hidden = (struct ranks_private){.board = run->board};
    return (ranks_context){.rank = rank,
                           .world = run->world,
                           .seed = run->seed,
                           .transport = run->transport,
                           .comm_options = comm_options_of(run, test),
                           .is_on_device = device_ops != NULL,
                           .hidden = hidden};
}

/* ---- All ranks of this process
 * --------------------------------------------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    ranks_context ctx;
    struct ranks_private hidden;
    const ranks_test *test;
} rank_thread;

static void *run_rank_thread(void *argument) {
    rank_thread *self = argument;
    run_rank(&self->ctx, self->test);
    return NULL;
}

/* Returns NULL, or what went wrong before any rank could note it. */
static const char *run_threads(const ranks_run *run, const ranks_test *test) {
    gsync_comm *comms[RANKS_WORLD_MAX] = {NULL};
    const gsync_comm_options options = comm_options_of(run, test);
    if (!test->needs_no_comm && gsync_comm_threads(comms, run->world, &options) != GSYNC_OK) {
        return gsync_last_error();
    }
    rank_thread *threads = ranks_allocate((size_t)run->world * sizeof(*threads));
    for (int rank = 0; rank < run->world; rank++) {
        rank_thread *self = &threads[rank];
        self->test = test;
        self->ctx = context_of(run, test, rank, &self->hidden);
        self->ctx.comm = comms[rank];
        if (pthread_create(&self->thread, NULL, run_rank_thread, self) != 0) {
            fprintf(stderr, "ranks: no thread for rank %d\n", rank);
            exit(EXIT_FAILURE); /* the ranks that run already would wait for this one */
        }
    }
    for (int rank = 0; rank < run->world; rank++) {
        pthread_join(threads[rank].thread, NULL);
    }
    free(threads);
    return NULL;
}

static const char *run_process(const ranks_run *run, const ranks_test *test) {
    struct ranks_private hidden;
    ranks_context ctx = context_of(run, test, run->rank, &hidden);
    run_rank(&ctx, test);
    return NULL;
}

/* Why the test cannot run here, or NULL. The same on every rank. */
static const char *obstacle_of(const ranks_run *run, const ranks_test *test) {
    if (run->world < test->world_min) {
        return "needs more ranks";
    }
    if (test->world_max != 0 && run->world > test->world_max) {
        return "needs fewer ranks";
    }
    if (test->needs_threads && run->transport != RANKS_THREADS) {
        return "is about ranks that are threads";
    }
    if (test->needs_mpi && run->transport != RANKS_MPI) {
        return "is about ranks that are processes of mpirun";
    }
    return device_ops != NULL ? test->host_only : NULL;
}

typedef struct ranks_result {
    const char *skip_reason; /* NULL: it ran */
    const char *text;        /* a failure outside the ranks, or NULL */
    unsigned failures;
} ranks_result;

static ranks_result execute(ranks_run *run, const ranks_test *test) {
    ranks_result result = {obstacle_of(run, test), NULL, 0};
    if (result.skip_reason != NULL) {
        return result;
    }
    arm_watchdog(run, test);
    result.text = run->transport == RANKS_THREADS ? run_threads(run, test) : run_process(run, test);
    alarm(0);
    if (result.text == NULL) {
        for (int rank = 0; rank < run->world; rank++) {
            result.failures += ranks_board_failures(run->board, run->rank, rank);
        }
        result.skip_reason = ranks_board_skip_reason(run->board, run->rank);
    }
    if (result.failures > 0 || result.text != NULL) {
        result.skip_reason = NULL; /* a rank that failed outweighs one that skipped */
        run->tests_failed++;
    } else if (result.skip_reason == NULL) {
        run->tests_passed++;
    }
    return result;
}

/* ---- Reporting -----------------------------------------------------------------------------------------------------
 */

static void print_lines(const char *notes) {
    while (*notes != '\0') {
        const size_t length = strcspn(notes, "\n");
        print_error("%.*s\n", (int)length, notes);
        notes += length + (notes[length] != '\0');
    }
}

/* cmocka's assertions jump out of the calling function: only the main thread may use them, after the ranks ended. */
static void cmocka_test(void **state) {
    const ranks_case *self = *state;
    ranks_run *run = self->run;
    const ranks_result result = execute(run, self->test);
    if (result.skip_reason != NULL) {
        print_message("%s: skipped: %s\n", self->test->name, result.skip_reason);
        skip();
    }
    if (result.text != NULL) {
        print_error("the communicators: %s\n", result.text);
        fail();
    }
    if (result.failures > 0) {
        for (int rank = 0; rank < run->world; rank++) {
            print_lines(ranks_board_notes(run->board, run->rank, rank));
        }
        print_error("%u checks failed; --seed %llu\n", result.failures, (unsigned long long)run->seed);
        fail();
    }
}

static bool is_chosen(const ranks_run *run, const ranks_test *test) {
    return run->only == NULL || fnmatch(run->only, test->name, 0) == 0;
}

static void run_with_cmocka(ranks_run *run, const char *group, const ranks_test *tests, size_t test_count) {
    struct CMUnitTest *units = ranks_allocate(test_count * sizeof(*units));
    ranks_case *cases = ranks_allocate(test_count * sizeof(*cases));
    size_t count = 0;
    for (size_t i = 0; i < test_count; i++) {
        if (is_chosen(run, &tests[i])) {
            cases[count] = (ranks_case){run, &tests[i]};
            units[count] =
                (struct CMUnitTest){.name = tests[i].name, .test_func = cmocka_test, .initial_state = &cases[count]};
            count++;
        }
    }
    _cmocka_run_group_tests(group, units, count, NULL, NULL);
    free(units);
    free(cases);
}

/* Ranks other than 0 do the same tests in the same order and leave the talking to rank 0. */
static void run_silently(ranks_run *run, const ranks_test *tests, size_t test_count) {
    for (size_t i = 0; i < test_count; i++) {
        if (is_chosen(run, &tests[i])) {
            execute(run, &tests[i]);
        }
    }
}

/* ---- Command line
 * ----------------------------------------------------------------------------------------------------- */

static void find_launcher(ranks_run *run) {
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, {"PMI_SIZE", "PMI_RANK"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *size = getenv(names[i][0]);
        const char *rank = getenv(names[i][1]);
        if (size != NULL && rank != NULL) {
            run->transport = RANKS_MPI;
            run->world = atoi(size);
            run->rank = atoi(rank);
            return;
        }
    }
    if (device_ops != NULL && getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL && getenv("MASTER_PORT") != NULL) {
        run->transport = RANKS_TORCHRUN;
        run->world = atoi(getenv("WORLD_SIZE"));
        run->rank = atoi(getenv("RANK"));
    }
}

static bool set_progress(ranks_run *run, const char *value) {
    static const char *const names[] = {"auto", "helper", "caller"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(value, names[i]) == 0) {
            run->progress = (gsync_progress)i;
            return true;
        }
    }
    return false;
}

static bool set_option(ranks_run *run, const char *name, const char *value) {
    if (strcmp(name, "--ranks") == 0) {
        if (run->transport == RANKS_MPI || run->transport == RANKS_TORCHRUN) {
            return false; /* mpirun has said how many */
        }
        run->transport = RANKS_THREADS;
        run->world = atoi(value);
        return true;
    }
    if (strcmp(name, "--progress") == 0) {
        return set_progress(run, value);
    }
    if (strcmp(name, "--ranks-per-host") == 0) {
        run->ranks_per_host = (uint32_t)atoi(value);
        return true;
    }
    if (strcmp(name, "--seed") == 0) {
        run->seed = strtoull(value, NULL, 0);
        return true;
    }
    if (strcmp(name, "--only") == 0) {
        run->only = value;
        return true;
    }
    if (strcmp(name, "--log") == 0) {
        run->log_level = (gsync_log_level)atoi(value);
        return true;
    }
    return false;
}

static bool read_arguments(ranks_run *run, int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc || !set_option(run, argv[i], argv[i + 1])) {
            fprintf(stderr,
                    "%s: cannot use \"%s\"\n"
                    "usage: %s [--ranks n] [--progress auto|helper|caller] [--ranks-per-host k] [--seed n]\n"
                    "       [--only pattern] [--log 1..5]     (n threads; under mpirun without --ranks)\n",
                    argv[0], argv[i], argv[0]);
            return false;
        }
    }
    if (run->world < 1 || run->world > RANKS_WORLD_MAX || run->rank < 0 || run->rank >= run->world) {
        fprintf(stderr, "%s: 1 to %d ranks\n", argv[0], RANKS_WORLD_MAX);
        return false;
    }
    return true;
}

static ranks_board *open_board(const ranks_run *run) {
    if (run->transport != RANKS_MPI && run->transport != RANKS_TORCHRUN) {
        return ranks_board_private(run->world);
    }
    char name[64];
    if (run->transport == RANKS_TORCHRUN) {
        snprintf(name, sizeof(name), "/gsync-ranks-%ld-port-%.16s", (long)getuid(), getenv("MASTER_PORT"));
    } else {
        /* All ranks of a job on one host have mpirun as their parent, and no other job has the same. */
        snprintf(name, sizeof(name), "/gsync-ranks-%ld-%ld", (long)getuid(), (long)getppid());
    }
    return ranks_board_shared(name, run->world, run->rank);
}

int ranks_main(int argc, char **argv, const char *group, const ranks_test *tests, size_t test_count) {
    ranks_run run = {.transport = RANKS_SINGLE, .world = 1, .seed = 20240229};
    find_launcher(&run);
    if (!read_arguments(&run, argc, argv)) {
        return EXIT_USAGE;
    }
    run.board = open_board(&run);
    if (run.board == NULL) {
        perror("ranks: the ranks do not meet (they have to be on one host)");
        return EXIT_FAILURE;
    }
    if (run.rank == 0) {
        const char *slash = strrchr(group, '/');
        run_with_cmocka(&run, slash != NULL ? slash + 1 : group, tests, test_count);
    } else {
        run_silently(&run, tests, test_count);
    }
    ranks_board_close(run.board);
    if (run.tests_failed > 0) {
        return EXIT_FAILURE;
    }
    return run.tests_passed > 0 ? EXIT_SUCCESS : EXIT_SKIPPED;
}
