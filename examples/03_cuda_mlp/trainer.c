/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Trains a small network on one GPU or on many. What has to do with several ranks is in this file: look for gsync_. The
 * network, its kernels and its optimizer would be the same without.
 */

#include "check.h"
#include "network.h"
#include "settings.h"

#include <gradsync/gradsync_cuda.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct trainer {
    settings settings;
    gsync_comm *comm;
    gsync_scaler *scaler; /* NULL: none */
    gsync_reducer *reducer;
    int rank;
    int ranks;

    cudaStream_t compute;
    network network;
    float *parameters; /* on the host: at the beginning and at the end */
    int step;
    int steps_skipped;
    double first_loss;
    double last_loss;
    FILE *log;
} trainer;

/* ---- One step ---------------------------------------------------------------------------------------------- */

/* What step `step` learns from depends on the seed and on how many samples a step has, not on how many ranks share them
 * out: the rank's share lies behind those of the ranks before it. */
static uint64_t first_sample(const trainer *t, int micro_batch) {
    const uint64_t batch = (uint64_t)t->settings.batch;
    const uint64_t micro_batches = (uint64_t)t->settings.accumulate;
    const uint64_t done = ((uint64_t)t->step * (uint64_t)t->ranks + (uint64_t)t->rank) * micro_batches;
    return (done + (uint64_t)micro_batch) * batch;
}

/* Backward calls this when what makes the gradient final is queued: it may travel while backward goes on. */
static bool on_gradient_final(void *user, float *gradient) {
    const trainer *t = user;
    return check_gsync(gsync_ready_on(t->reducer, gradient, t->compute));
}

/* A loss is told in the first step, the last, and every so many between. */
static bool is_told(const trainer *t) {
    const int number = t->step + 1;
    return t->settings.log != NULL || number == 1 || number == t->settings.steps ||
           number % t->settings.report_every == 0;
}

/*
 * Where the host has to know how the step went, it waits in gsync_finish: with a loss scaler, which moves by what was
 * found, and where something is told. That also keeps the wire FLOAT16 informed of how large gradients are. Otherwise
 * only the stream waits, and the host queues the next step meanwhile.
 */
static bool finish(const trainer *t, bool is_last, gsync_step_info *info) {
    if (is_last && (t->scaler != NULL || is_told(t))) {
        return check_gsync(gsync_finish(t->reducer, info));
    }
    return check_gsync(gsync_finish_on(t->reducer, t->compute, info));
}

/* Gradients are sums over the step's samples of this rank, divided by their number; the library makes the mean over the
 * ranks, which all have as many. */
static bool run_micro_batch(trainer *t, int index, gsync_step_info *info) {
    const bool is_last = index == t->settings.accumulate - 1;
    const bool adds = index > 0;
    const double samples = (double)t->settings.batch * (double)t->settings.accumulate;
    const float scale = (float)(gsync_scaler_scale(t->scaler) / samples);
    return check_gsync(gsync_begin(t->reducer, is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE)) &&
           network_forward(&t->network, t->settings.seed, first_sample(t, index), scale, adds) &&
           network_backward(&t->network, adds, on_gradient_final, t) && finish(t, is_last, info);
}

/* With a loss scaler all ranks skip the same steps. */
static bool update(trainer *t, const gsync_step_info *info) {
    const settings *s = &t->settings;
    if (t->scaler != NULL && info->found_inf) {
        t->steps_skipped++;
    } else if (!network_step(&t->network, (float)s->rate, (float)s->momentum)) {
        return false;
    }
    return t->scaler == NULL || check_gsync(gsync_scaler_update(t->scaler));
}

static bool run_step(trainer *t, gsync_step_info *info) {
    for (int i = 0; i < t->settings.accumulate; i++) {
        if (!run_micro_batch(t, i, info)) {
            return false;
        }
    }
    return update(t, info);
}

/* ---- Telling ----------------------------------------------------------------------------------------------- */

/* Over all ranks, of so many samples on each. */
static bool judge(trainer *t, double samples, double *loss, double *accuracy) {
    double sums[2];
    if (!network_judge(&t->network, &sums[0], &sums[1]) ||
        !check_gsync(gsync_allreduce(t->comm, sums, 2, GSYNC_FLOAT64, GSYNC_SUM))) {
        return false;
    }
    *loss = sums[0] / (samples * t->ranks);
    *accuracy = sums[1] / (samples * t->ranks);
    return true;
}

/* Collective. Lines appear on a terminal only; --log is for programs. */
static bool tell(trainer *t, const gsync_step_info *info) {
    const int number = t->step + 1;
    double loss = 0.0;
    double accuracy = 0.0;
    if (!judge(t, (double)t->settings.batch * (double)t->settings.accumulate, &loss, &accuracy)) {
        return false;
    }
    t->first_loss = number == 1 ? loss : t->first_loss;
    t->last_loss = loss;
    if (t->rank == 0 && isatty(STDOUT_FILENO) == 1 && (number == 1 || number % t->settings.report_every == 0)) {
        printf("step %6d  loss %.4f  accuracy %5.1f %%\n", number, loss, 100.0 * accuracy);
        fflush(stdout);
    }
    if (t->log != NULL) {
        fprintf(t->log, "%d,%.9g,%.6f,%g,%d\n", number, loss, accuracy, info->loss_scale, info->found_inf);
    }
    return true;
}

static void introduce(const trainer *t) {
    const settings *s = &t->settings;
    const size_t buckets = gsync_bucket_count(t->reducer);
    struct cudaDeviceProp gpu;
    int device = 0;
    if (t->rank != 0 || cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&gpu, device) != cudaSuccess) {
        return;
    }
    printf("gpu:     rank 0 has number %d, %s\n", device, gpu.name);
    printf("ranks:   %s\n", gsync_comm_describe(t->comm));
    printf("network: %d hidden layers of %d, %zu parameters in %d tensors\n", s->layers, s->width,
           t->network.parameter_count, t->network.tensor_count);
    printf("step:    %d samples in each of %d micro-batch%s on %d rank%s; gradients travel over NCCL in %zu bucket%s, "
           "%s\n",
           s->batch, s->accumulate, s->accumulate == 1 ? "" : "es", t->ranks, t->ranks == 1 ? "" : "s", buckets,
           buckets == 1 ? "" : "s", settings_wire_name(s->wire));
    fflush(stdout);
}

/* ---- The run ----------------------------------------------------------------------------------------------- */

static double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool train(trainer *t) {
    const double start = clock_s();
    for (t->step = 0; t->step < t->settings.steps; t->step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        if (!run_step(t, &info) || (is_told(t) && !tell(t, &info))) {
            return false;
        }
    }
    if (t->rank == 0) {
        printf("loss %.4f in the first step, %.4f in the last of %d; %d skipped; %.1f s\n", t->first_loss, t->last_loss,
               t->settings.steps, t->steps_skipped, clock_s() - start);
    }
    return true;
}

/* Collective. On samples far behind those that were learned from. */
static bool evaluate(trainer *t) {
    const uint64_t batch = (uint64_t)t->settings.batch;
    const uint64_t wanted = (uint64_t)t->settings.evaluation;
    const uint64_t batches = (wanted + batch * (uint64_t)t->ranks - 1) / (batch * (uint64_t)t->ranks);
    const uint64_t first = (UINT64_C(1) << 62) + (uint64_t)t->rank * batches * batch;
    double loss = 0.0;
    double accuracy = 0.0;
    for (uint64_t i = 0; i < batches; i++) {
        if (!network_forward(&t->network, t->settings.seed, first + i * batch, 0.0f, i > 0)) {
            return false;
        }
    }
    if (!judge(t, (double)(batches * batch), &loss, &accuracy)) {
        return false;
    }
    if (t->rank == 0) {
        printf("on %llu samples that it did not learn from: loss %.4f, accuracy %.1f %%\n",
               (unsigned long long)(batches * batch * (uint64_t)t->ranks), loss, 100.0 * accuracy);
    }
    return true;
}

/* Collective. All ranks made the same steps from the same parameters. */
static bool compare_replicas(trainer *t) {
    const char *name = "the parameters";
    const void *parameters = t->parameters;
    const size_t bytes = t->network.parameter_count * sizeof *t->parameters;
    return network_get_parameters(&t->network, t->parameters) &&
           check_gsync(gsync_check_replicas(t->comm, &name, &parameters, &bytes, 1));
}

/* ---- Setting up -------------------------------------------------------------------------------------------- */

/* Makes the rank's GPU current. Where each rank sees its own only, that is number 0; two ranks on one GPU the library
 * refuses. */
static bool use_gpu(int local_rank) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        return check_fail("there is no GPU here (%s). Each rank needs one; 02_char_gpt does without",
                          cudaGetErrorString(error));
    }
    return check_cuda(cudaSetDevice(local_rank % count), "cudaSetDevice");
}

/* torchrun says which rank of its host this is. Without MPI that has to be known before ranks meet, since they meet
 * over NCCL, on the GPU that is current. */
static bool join(trainer *t) {
    const char *local_rank = getenv("LOCAL_RANK");
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.allows_shared_device = t->settings.shares_gpu;
    if ((local_rank != NULL && !use_gpu(atoi(local_rank))) || !check_gsync(gsync_comm_create(&t->comm, &options))) {
        return false;
    }
    t->rank = gsync_rank(t->comm);
    t->ranks = gsync_world_size(t->comm);
    check_set_rank(t->rank);
    return local_rank != NULL || use_gpu(gsync_local_rank(t->comm));
}

static bool build_network(trainer *t) {
    const settings *s = &t->settings;
    const network_shape shape = {.hidden = s->layers, .width = s->width, .classes = s->classes, .rows = s->batch};
    if (!check_cuda(cudaStreamCreateWithFlags(&t->compute, cudaStreamNonBlocking), "a stream") ||
        !network_create(&t->network, &shape, t->compute)) {
        return false;
    }
    t->parameters = malloc(t->network.parameter_count * sizeof *t->parameters);
    return t->parameters != NULL || check_fail("not enough memory for the parameters");
}

static bool open_scaler(trainer *t) {
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    options.scale = t->settings.loss_scale;
    options.scale_max = options.scale > 16777216.0 ? options.scale : 0.0;
    return options.scale == 0.0 || (check_gsync(gsync_scaler_create(&t->scaler, &options)) &&
                                    check_gsync(gsync_reducer_set_scaler(t->reducer, t->scaler)));
}

static bool register_gradients(trainer *t) {
    network *n = &t->network;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.wire = t->settings.wire;
    options.bucket_bytes_max = t->settings.bucket_bytes;
    if (!check_gsync(gsync_reducer_create(&t->reducer, t->comm, &options))) {
        return false;
    }
    for (int i = 0; i < n->tensor_count; i++) {
        const network_tensor *tensor = &n->tensors[i];
        if (!check_gsync(gsync_reducer_add(t->reducer, tensor->name, n->gradients + tensor->offset, tensor->count,
                                           GSYNC_FLOAT32))) {
            return false;
        }
    }
    return check_gsync(gsync_reducer_commit(t->reducer)) && open_scaler(t);
}

/* Rank 0 draws the parameters, and every rank starts from its copy of them. */
static bool share_parameters(trainer *t) {
    if (t->rank == 0) {
        network_draw_parameters(&t->network, t->settings.seed, t->parameters);
    }
    return check_gsync(gsync_broadcast(t->comm, t->parameters, t->network.parameter_count, GSYNC_FLOAT32, 0)) &&
           network_set_parameters(&t->network, t->parameters);
}

static bool open_log(trainer *t) {
    if (t->rank != 0 || t->settings.log == NULL) {
        return true;
    }
    t->log = fopen(t->settings.log, "w");
    if (t->log == NULL) {
        return check_fail("cannot create the log %s: %s", t->settings.log, strerror(errno));
    }
    fprintf(t->log, "step,loss,accuracy,loss_scale,skipped\n");
    return true;
}

static bool close_log(trainer *t) {
    FILE *log = t->log;
    t->log = NULL;
    return log == NULL || fclose(log) == 0 || check_fail("cannot write the log %s", t->settings.log);
}

static bool run(trainer *t) {
    if (!join(t) || !build_network(t) || !register_gradients(t) || !share_parameters(t) || !open_log(t)) {
        return false;
    }
    introduce(t);
    return train(t) && evaluate(t) && compare_replicas(t) && close_log(t);
}

/* The reducer first: it uses the gradients. */
static void tear_down(trainer *t) {
    (void)close_log(t);
    gsync_reducer_destroy(&t->reducer);
    gsync_scaler_destroy(&t->scaler);
    network_destroy(&t->network);
    if (t->compute != NULL) {
        (void)cudaStreamDestroy(t->compute);
    }
    free(t->parameters);
    gsync_comm_destroy(&t->comm);
}

int main(int argc, char **argv) {
    trainer t = {.rank = -1};
    const settings_verdict verdict = settings_parse(&t.settings, argc, argv);
    if (verdict != SETTINGS_RUN) {
        return verdict == SETTINGS_WRONG ? 2 : 0;
    }
    const bool is_ok = run(&t);
    if (!is_ok && t.comm != NULL) {
        /* The other ranks may be waiting for this one; they should not have to wait for their deadline. */
        gsync_comm_abort(t.comm, "this rank's trainer failed; it has said why");
    }
    tear_down(&t);
    return is_ok ? 0 : 1;
}
