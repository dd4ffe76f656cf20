/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=300 */

/*
 * Every place in the library that records an event or lets a stream wait is needed: without any one of them something
 * is reported. The places are found by running the scenes once; each is then left out of all scenes once more. Who
 * notices is printed: the vector clocks, the values, or (in a build with it) ThreadSanitizer.
 */

#include "device_trainer.h"

#include "device/device_cuda.h"

#include <signal.h>

enum { SITES_MAX = 64, STEPS = 5, RANKS = 2 };

/* ---- places ---- */

typedef struct site {
    uintptr_t offset;
    char call[8];
} site;

typedef struct site_list {
    int count;
    site sites[SITES_MAX];
} site_list;

extern const char __executable_start;

static site_list found;
static pthread_mutex_t found_lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t dropped;         /* the offset of the place that does nothing; 0: none */
static unsigned library_delay_us; /* of the library's streams */
static _Thread_local cudaStream_t library_stream;

static bool note_site(const void *return_address, const char *call) {
    const uintptr_t offset = (uintptr_t)return_address - (uintptr_t)&__executable_start;
    pthread_mutex_lock(&found_lock);
    int i = 0;
    while (i < found.count && found.sites[i].offset != offset) {
        i++;
    }
    if (i == found.count && i < SITES_MAX) {
        found.sites[i].offset = offset;
        snprintf(found.sites[i].call, sizeof found.sites[i].call, "%s", call);
        found.count++;
    }
    pthread_mutex_unlock(&found_lock);
    return offset == dropped;
}

gsync_status __real_gs_cuda_record(gs_cuda *cuda, void *event, void *stream);
gsync_status __wrap_gs_cuda_record(gs_cuda *cuda, void *event, void *stream);
gsync_status __real_gs_cuda_wait(gs_cuda *cuda, void *stream, void *event);
gsync_status __wrap_gs_cuda_wait(gs_cuda *cuda, void *stream, void *event);
gsync_status __real_gs_cuda_stream_new(gs_cuda *cuda, bool has_high_priority, void **stream);
gsync_status __wrap_gs_cuda_stream_new(gs_cuda *cuda, bool has_high_priority, void **stream);

gsync_status __wrap_gs_cuda_record(gs_cuda *cuda, void *event, void *stream) {
    const bool is_dropped = note_site(__builtin_return_address(0), "record");
    return is_dropped ? GSYNC_OK : __real_gs_cuda_record(cuda, event, stream);
}

gsync_status __wrap_gs_cuda_wait(gs_cuda *cuda, void *stream, void *event) {
    const bool is_dropped = note_site(__builtin_return_address(0), "wait");
    return is_dropped ? GSYNC_OK : __real_gs_cuda_wait(cuda, stream, event);
}

gsync_status __wrap_gs_cuda_stream_new(gs_cuda *cuda, bool has_high_priority, void **stream) {
    const gsync_status status = __real_gs_cuda_stream_new(cuda, has_high_priority, stream);
    if (status == GSYNC_OK) {
        library_stream = *stream;
        simcuda_delay(*stream, library_delay_us);
    }
    return status;
}

/* ---- scenes ---- */

typedef struct scene {
    const char *name;
    ending ending;
    int producers;
    bool leaves_one;  /* the last gradient is not marked */
    bool has_unused;  /* one in the middle, another one in every micro-batch and on every rank */
    int accumulates;  /* so many micro-batches are added up in the library; 0: none */
    bool moves;       /* gradients are elsewhere in every step */
    bool hurries;     /* nobody looks at results before the last step */
    bool writes_late; /* and is told so in every step */
    bool leaves;      /* in the middle of the last step, which the device cannot end */
    unsigned delay_us;
} scene;

static const scene scenes[] = {
    {.name = "host waits", .ending = WAITS_ON_HOST, .producers = 2},
    {.name = "stream waits", .ending = WAITS_ON_STREAM, .producers = 2},
    {.name = "unmarked", .ending = WAITS_ON_STREAM, .producers = 2, .leaves_one = true},
    {.name = "many producers", .ending = WAITS_ON_STREAM, .producers = PRODUCERS_MAX},
    {.name = "accumulated, host", .ending = WAITS_ON_HOST, .producers = 2, .accumulates = 2},
    {.name = "accumulated, stream", .ending = WAITS_ON_STREAM, .producers = 2, .leaves_one = true, .accumulates = 2},
    {.name = "unused", .ending = WAITS_ON_STREAM, .producers = 2, .has_unused = true},
    {.name = "unused, accumulated",
     .ending = WAITS_ON_STREAM,
     .producers = 2,
     .has_unused = true,
     .accumulates = 7,
     .hurries = true,
     .delay_us = 500},
    {.name = "late writes", .ending = WAITS_ON_HOST, .producers = PRODUCERS_MAX, .writes_late = true},
    {.name = "leaving", .ending = WAITS_ON_STREAM, .producers = 2, .leaves = true},
    {.name = "moving", .ending = WAITS_ON_STREAM, .producers = 2, .moves = true, .delay_us = 3000},
};

typedef struct stage {
    const scene *scene;
    gsync_comm *comms[RANKS_MAX];
} stage;

static const model mutated_model = {
    .count = 7, .columns = {40, 60, 80, 50, 70, 90, 30}, .dtype = GSYNC_FLOAT32, .is_exact = true, .seed = 77};

static void backward(trainer *t, const scene *s, cudaEvent_t consumed) {
    OK(cudaEventRecord(consumed, t->compute[0]));
    for (int p = 1; p < t->producers; p++) {
        OK(cudaStreamWaitEvent(t->compute[p], consumed, 0));
    }
    t->micro_batch++;
    for (int g = t->model->count; g-- > 0;) {
        cudaStream_t stream = t->compute[g % t->producers];
        if (s->has_unused && g == 1 + (int)((t->micro_batch + (uint64_t)t->rank) % 5)) {
            continue;
        }
        backward_one(t, g, stream, false);
        if (g != 0 || !s->leaves_one) {
            CHECK(gsync_ready_on(t->device, t->on_device[g], stream) == GSYNC_OK);
            CHECK(gsync_ready(t->host, t->on_host[g]) == GSYNC_OK);
        }
    }
    if (s->leaves_one && s->ending == WAITS_ON_HOST) {
        OK(cudaStreamSynchronize(t->compute[0]));
    }
}

/* Every gradient goes to another third of the memory. */
static void move(trainer *t, void *other, int step) {
    void *places[GRADIENTS_MAX];
    for (int g = 0; g < t->model->count; g++) {
        char *third =
            step % 3 == 2 ? t->memory : (char *)other + (size_t)(step % 3) * place_of(t->model, t->model->count);
        t->on_device[g] = third + place_of(t->model, g);
        places[g] = t->on_device[g];
    }
    CHECK(gsync_reducer_rebind_list(t->device, places, (size_t)t->model->count) == GSYNC_OK);
}

/* Returns soon, though the library's stream stands still: what it may still use is not freed. */
static void leave(trainer *t, const scene *s, cudaEvent_t consumed) {
    simcuda_hold(library_stream);
    backward(t, s, consumed);
    gsync_reducer_destroy(&t->device);
    simcuda_release(library_stream);
}

/* The step is over for the device, but for results, when a gradient is written again. */
static void finish_late(trainer *t) {
    OK(cudaDeviceSynchronize());
    backward_job job = job_of(t, 3, t->on_device[3], false);
    const simcuda_access access = {job.to, bytes_of(t->model, 3), 1};
    job.key++;
    OK(simcuda_launch(t->compute[3 % t->producers], backward_kernel, &job, sizeof job, "late backward", &access, 1));
    CHECK(gsync_finish(t->device, NULL) == GSYNC_ERR_CHANGED);
    CHECK(gsync_finish(t->host, NULL) == GSYNC_OK);
}

static void train(trainer *t, const scene *s, void *other) {
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i == 0 || i < s->accumulates; i++) {
            const gsync_phase phase = i + 1 < s->accumulates ? GSYNC_ACCUMULATE : GSYNC_SYNC;
            CHECK(gsync_begin(t->device, phase) == GSYNC_OK);
            CHECK(gsync_begin(t->host, phase) == GSYNC_OK);
            if (s->leaves && step == STEPS - 1) {
                leave(t, s, consumed);
                break;
            }
            backward(t, s, consumed);
            if (s->writes_late) {
                finish_late(t);
            } else {
                (void)trainer_finish(t, s->ending, NULL);
            }
        }
        if (s->writes_late) {
            continue;
        }
        if (step == STEPS - 1 ? !s->leaves : !s->moves && !s->hurries) {
            (void)trainer_compare(t);
        }
        if (s->moves) {
            move(t, other, step);
        }
    }
    OK(cudaEventDestroy(consumed));
}

static void run_rank(int rank, int ranks, void *context) {
    stage *s = context;
    trainer t;
    void *other;
    gsync_options options = GSYNC_OPTIONS_INIT;
    (void)ranks;
    options.bucket_bytes_max = 700;
    options.bucket_bytes_first_max = 2000;
    options.order = GSYNC_ORDER_REGISTERED;
    options.finds_unused = s->scene->has_unused;
    options.checks_writes = s->scene->writes_late;
    options.accumulation = s->scene->accumulates != 0 ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
    OK(cudaMalloc(&other, 2 * place_of(&mutated_model, mutated_model.count)));
    if (trainer_open(&t, &mutated_model, s->comms[rank], &options, s->scene->producers)) {
        train(&t, s->scene, other);
    }
    trainer_close(&t);
    OK(cudaFree(other));
    gsync_comm_destroy(&s->comms[rank]);
}

/* ---- runs ---- */

enum { BY_CLOCKS = 1, BY_VALUES = 2 };

/* Which detectors noticed something in any scene. */
static int run_scenes(const char **where) {
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        stage s = {.scene = &scenes[i]};
        rank_thread threads[RANKS];
        simcuda_reset();
        library_delay_us = scenes[i].delay_us;
        if (gsync_comm_threads(s.comms, RANKS, NULL) != GSYNC_OK) {
            return BY_VALUES;
        }
        for (int rank = 0; rank < RANKS; rank++) {
            threads[rank] = (rank_thread){.rank = rank, .ranks = RANKS, .function = run_rank, .context = &s};
            pthread_create(&threads[rank].thread, NULL, rank_thread_main, &threads[rank]);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            pthread_join(threads[rank].thread, NULL);
        }
        const bool has_reports = simcuda_reports(NULL, 0) != 0;
        const bool has_failures = atomic_exchange(&rank_failures, 0) != 0;
        if (has_reports || has_failures) {
            *where = scenes[i].name;
            return (has_reports ? BY_CLOCKS : 0) | (has_failures ? BY_VALUES : 0);
        }
    }
    return 0;
}

typedef struct outcome {
    int detectors;
    char where[32];
    site_list found;
} outcome;

/* In a process of its own: what was left out may leave anything behind. False: it ended otherwise, as one in which
 * ThreadSanitizer finds something does. */
static bool run_without(uintptr_t offset, outcome *out, int *exit_status) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const char *where = "";
        outcome own = {0};
        dropped = offset;
        alarm(30);
        if (offset != 0 && freopen("/dev/null", "w", stderr) == NULL) {
            _exit(3);
        }
        own.detectors = run_scenes(&where);
        snprintf(own.where, sizeof own.where, "%s", where);
        own.found = found;
        const bool is_told = write(ends[1], &own, sizeof own) == (ssize_t)sizeof own;
        _exit(is_told ? 0 : 3);
    }
    close(ends[1]);
    const bool is_told = read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out;
    close(ends[0]);
    assert_int_equal(waitpid(child, exit_status, 0), child);
    return is_told && WIFEXITED(*exit_status) && WEXITSTATUS(*exit_status) == 0;
}

static void print_place(const site *at, const char *detector, const char *where) {
    char command[128];
    char line[256] = "?";
    char name[64] = "";
    const ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
    if (length > 0 && (size_t)length < sizeof command - 1) {
        char full[320];
        command[length] = '\0';
        snprintf(full, sizeof full, "addr2line -s -f -e '%s' 0x%lx 2>/dev/null", command,
                 (unsigned long)at->offset - 1);
        FILE *pipe = popen(full, "r");
        if (pipe != NULL) {
            if (fscanf(pipe, "%63s %255s", name, line) != 2) {
                line[0] = '\0';
            }
            pclose(pipe);
        }
    }
    printf("  %-6s %-28s %-28s %s, in scene \"%s\"\n", at->call, name, line, detector, where);
}

static void every_record_and_every_wait_is_needed(void **state) {
    (void)state;
    outcome whole;
    int exit_status;
    int unnoticed = 0;
    assert_true(run_without(0, &whole, &exit_status));
    assert_int_equal(whole.detectors, 0);
    assert_true(whole.found.count >= 8);
    for (int i = 0; i < whole.found.count; i++) {
        const site *at = &whole.found.sites[i];
        outcome without = {0};
        const bool has_ended = run_without(at->offset, &without, &exit_status);
        const char *detector = "NOBODY";
        if (!has_ended) {
            detector = WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 66       ? "ThreadSanitizer"
                       : WIFSIGNALED(exit_status) && WTERMSIG(exit_status) == SIGALRM ? "it hangs"
                                                                                      : "a crash";
        } else if ((without.detectors & BY_CLOCKS) != 0) {
            detector = "vector clocks";
        } else if (without.detectors != 0) {
            detector = "values";
        }
        unnoticed += has_ended && without.detectors == 0;
        print_place(at, detector, without.where);
    }
    assert_int_equal(unnoticed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_record_and_every_wait_is_needed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
