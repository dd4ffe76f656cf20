/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap_gpu.h"

#include "../measure.h"
#include "overlap_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASSES_MAX = 1 << 24 };

static const double CALIBRATION_MS = 2.0;

bool gpu_succeeded(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "overlap_cuda: %s: %s\n", gsync_status_name(status), gsync_last_error());
    }
    return status == GSYNC_OK;
}

static bool cuda_succeeded(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "overlap_cuda: %s: %s\n", what, cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

/* ---- Ways ------------------------------------------------------------------------------------------------------- */

/* From the last gradient to the first. */
static bool backward(gpu_trainer *trainer, bool marks) {
    for (size_t left = trainer->gradient_count; left > 0; left--) {
        float *grad = trainer->grads[left - 1];
        if (!cuda_succeeded(overlap_kernels_compute(trainer->stream, trainer->work, trainer->threads, trainer->passes),
                            "compute") ||
            !cuda_succeeded(
                overlap_kernels_write(trainer->stream, grad, trainer->gradient_floats, trainer->round, trainer->rank),
                "write") ||
            (marks && !gpu_succeeded(gsync_ready_on(trainer->reducer, grad, trainer->stream)))) {
            return false;
        }
    }
    return true;
}

static bool queue_compute(gpu_trainer *trainer) {
    return backward(trainer, false);
}

/* Gradients that are not marked are final with what the stream has queued so far. */
static bool queue_communication(gpu_trainer *trainer) {
    return gpu_succeeded(gsync_begin(trainer->reducer, GSYNC_SYNC)) &&
           gpu_succeeded(gsync_finish_on(trainer->reducer, trainer->stream, NULL));
}

static bool queue_one_after_the_other(gpu_trainer *trainer) {
    return backward(trainer, false) && queue_communication(trainer);
}

static bool queue_step(gpu_trainer *trainer) {
    return gpu_succeeded(gsync_begin(trainer->reducer, GSYNC_SYNC)) && backward(trainer, true) &&
           gpu_succeeded(gsync_finish_on(trainer->reducer, trainer->stream, NULL));
}

const gpu_way gpu_ways[WAYS] = {
    [WAY_COMPUTE] = {"compute", queue_compute, false, false},
    [WAY_COMMUNICATE] = {"communication", queue_communication, true, true},
    [WAY_AFTER] = {"one after the other", queue_one_after_the_other, true, false},
    [WAY_STEP] = {"step", queue_step, true, false},
};

/* ---- Running one ------------------------------------------------------------------------------------------------ */

static bool fill(gpu_trainer *trainer) {
    bool is_ok = true;
    for (size_t g = 0; g < trainer->gradient_count && is_ok; g++) {
        is_ok = cuda_succeeded(overlap_kernels_write(trainer->stream, trainer->grads[g], trainer->gradient_floats,
                                                     trainer->round, trainer->rank),
                               "write");
    }
    return is_ok && cuda_succeeded(cudaStreamSynchronize(trainer->stream), "write");
}

static bool is_gradient_right(const gpu_trainer *trainer, size_t index) {
    const float ranks = (float)trainer->world_size;
    for (size_t i = 0; i < trainer->gradient_floats; i++) {
        const float expected = ranks * (float)((i + trainer->round) & 63U) + ranks * (ranks - 1) / 2;
        if (trainer->back[i] != expected) {
            fprintf(stderr, "overlap_cuda: rank %d: element %zu of gradient %zu is %g, not %g\n", trainer->rank, i,
                    index, (double)trainer->back[i], (double)expected);
            return false;
        }
    }
    return true;
}

static bool is_right(gpu_trainer *trainer) {
    const size_t bytes = trainer->gradient_floats * sizeof(float);
    for (size_t g = 0; g < trainer->gradient_count; g++) {
        if (!cuda_succeeded(
                cudaMemcpyAsync(trainer->back, trainer->grads[g], bytes, cudaMemcpyDeviceToHost, trainer->stream),
                "copy") ||
            !cuda_succeeded(cudaStreamSynchronize(trainer->stream), "copy") || !is_gradient_right(trainer, g)) {
            return false;
        }
    }
    return true;
}

/* What is queued between the events, from this rank's point of view. */
static bool measure(gpu_trainer *trainer, const gpu_way *way, double *times) {
    float elapsed = 0;
    const double start = measure_clock_ms(CLOCK_MONOTONIC);
    if (!cuda_succeeded(cudaEventRecord(trainer->started, trainer->stream), "event") || !way->queue(trainer) ||
        !cuda_succeeded(cudaEventRecord(trainer->ended, trainer->stream), "event")) {
        return false;
    }
    times[2] = measure_clock_ms(CLOCK_MONOTONIC) - start;
    if (!cuda_succeeded(cudaEventSynchronize(trainer->ended), way->name)) {
        return false;
    }
    times[1] = measure_clock_ms(CLOCK_MONOTONIC) - start;
    if (!cuda_succeeded(cudaEventElapsedTime(&elapsed, trainer->started, trainer->ended), "time")) {
        return false;
    }
    times[0] = (double)elapsed;
    return true;
}

bool gpu_run_once(gpu_trainer *trainer, const gpu_way *way, gpu_times *times) {
    double took[3];
    trainer->round++;
    if ((way->needs_filling && !fill(trainer)) || !gpu_succeeded(gsync_barrier(trainer->comm)) ||
        !measure(trainer, way, took) || (way->reduces && !is_right(trainer)) ||
        !gpu_succeeded(gsync_allreduce(trainer->comm, took, 3, GSYNC_FLOAT64, GSYNC_MAX))) {
        return false;
    }
    *times = (gpu_times){.gpu = took[0], .wall = took[1], .queue = took[2]};
    return true;
}

/* ---- Making the trainer ----------------------------------------------------------------------------------------- */

static bool time_passes(gpu_trainer *trainer, int passes, float *ms) {
    return cuda_succeeded(cudaEventRecord(trainer->started, trainer->stream), "event") &&
           cuda_succeeded(overlap_kernels_compute(trainer->stream, trainer->work, trainer->threads, passes),
                          "compute") &&
           cuda_succeeded(cudaEventRecord(trainer->ended, trainer->stream), "event") &&
           cuda_succeeded(cudaEventSynchronize(trainer->ended), "compute") &&
           cuda_succeeded(cudaEventElapsedTime(ms, trainer->started, trainer->ended), "time");
}

/* The first rank's speed counts for all: they have the same amount of work. */
static bool calibrate(gpu_trainer *trainer) {
    const double wanted = trainer->options.compute_ms / (double)trainer->gradient_count;
    int32_t passes = 1;
    float ms = 0;
    do {
        passes *= 2;
        if (!time_passes(trainer, passes, &ms)) {
            return false;
        }
    } while ((double)ms < CALIBRATION_MS && passes < PASSES_MAX);
    const double needed = (double)passes * wanted / (ms > 0 ? (double)ms : CALIBRATION_MS);
    passes = needed < 1 ? 1 : needed > PASSES_MAX ? PASSES_MAX : (int32_t)(needed + 0.5);
    if (!gpu_succeeded(gsync_broadcast(trainer->comm, &passes, 1, GSYNC_INT32, 0))) {
        return false;
    }
    trainer->passes = passes;
    return true;
}

/* Where each rank sees its own GPU only, that is number 0; two ranks on one GPU the library refuses. */
static bool use_gpu(int local_rank) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    return cuda_succeeded(count == 0 && error == cudaSuccess ? cudaErrorNoDevice : error, "there is no GPU here") &&
           cuda_succeeded(cudaSetDevice(local_rank % count), "cudaSetDevice");
}

/* torchrun's ranks meet over NCCL, on the GPU that is current; under mpirun they know their number only then. */
static bool join(gpu_trainer *trainer) {
    const char *local_rank = getenv("LOCAL_RANK");
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.nccl_ctas_max = trainer->options.ctas;
    options.allows_shared_device = trainer->options.shares_gpu;
    if ((local_rank != NULL && !use_gpu(atoi(local_rank))) ||
        !gpu_succeeded(gsync_comm_create(&trainer->comm, &options))) {
        return false;
    }
    trainer->rank = gsync_rank(trainer->comm);
    trainer->world_size = gsync_world_size(trainer->comm);
    return local_rank != NULL || use_gpu(gsync_local_rank(trainer->comm));
}

/* As many threads as the GPU can hold at once, or a part of that. */
static bool choose_threads(gpu_trainer *trainer) {
    struct cudaDeviceProp gpu;
    int device = 0;
    if (!cuda_succeeded(cudaGetDevice(&device), "device") ||
        !cuda_succeeded(cudaGetDeviceProperties(&gpu, device), "device")) {
        return false;
    }
    snprintf(trainer->gpu, sizeof trainer->gpu, "%.200s, %d multiprocessors", gpu.name, gpu.multiProcessorCount);
    const double all = (double)gpu.multiProcessorCount * (double)gpu.maxThreadsPerMultiProcessor;
    trainer->threads = (size_t)(all * trainer->options.fill / 100.0) + 1;
    return true;
}

static bool allocate(gpu_trainer *trainer) {
    const size_t bytes = trainer->gradient_floats * sizeof(float);
    return cuda_succeeded(cudaStreamCreateWithFlags(&trainer->stream, cudaStreamNonBlocking), "stream") &&
           cuda_succeeded(cudaEventCreate(&trainer->started), "event") &&
           cuda_succeeded(cudaEventCreate(&trainer->ended), "event") &&
           cuda_succeeded(cudaMalloc((void **)&trainer->work, trainer->threads * sizeof(float)), "memory") &&
           cuda_succeeded(cudaMallocHost((void **)&trainer->back, bytes), "memory") &&
           cuda_succeeded(cudaMemsetAsync(trainer->work, 0, trainer->threads * sizeof(float), trainer->stream),
                          "memory");
}

static bool open_reducer(gpu_trainer *trainer) {
    char name[32];
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = trainer->gradient_floats * GPU_GRADIENTS_PER_BUCKET * sizeof(float);
    options.op = GSYNC_SUM;
    options.memory = GSYNC_MEMORY_DEVICE;
    bool is_ok = gpu_succeeded(gsync_reducer_create(&trainer->reducer, trainer->comm, &options));
    for (size_t g = 0; g < trainer->gradient_count && is_ok; g++) {
        snprintf(name, sizeof name, "g%zu", g);
        is_ok = gpu_succeeded(gsync_reducer_add(trainer->reducer, name, NULL, trainer->gradient_floats, GSYNC_FLOAT32));
    }
    is_ok = is_ok && gpu_succeeded(gsync_reducer_commit(trainer->reducer));
    for (size_t g = 0; g < trainer->gradient_count && is_ok; g++) {
        snprintf(name, sizeof name, "g%zu", g);
        trainer->grads[g] = gsync_reducer_grad(trainer->reducer, name);
    }
    return is_ok;
}

bool gpu_trainer_open(gpu_trainer *trainer, const gpu_options *options) {
    memset(trainer, 0, sizeof *trainer);
    trainer->options = *options;
    trainer->passes = options->passes;
    trainer->gradient_count = options->buckets * GPU_GRADIENTS_PER_BUCKET;
    /* Whole lines of 256 bytes: no bucket is larger than its share. */
    trainer->gradient_floats = (options->bytes / sizeof(float) / trainer->gradient_count + 63) / 64 * 64;
    return join(trainer) && choose_threads(trainer) && allocate(trainer) && open_reducer(trainer) &&
           (trainer->passes != 0 || calibrate(trainer));
}

void gpu_trainer_close(gpu_trainer *trainer) {
    gsync_reducer_destroy(&trainer->reducer);
    if (trainer->stream != NULL) {
        (void)cudaStreamSynchronize(trainer->stream);
        (void)cudaStreamDestroy(trainer->stream);
    }
    if (trainer->started != NULL) {
        (void)cudaEventDestroy(trainer->started);
    }
    if (trainer->ended != NULL) {
        (void)cudaEventDestroy(trainer->ended);
    }
    (void)cudaFree(trainer->work);
    (void)cudaFreeHost(trainer->back);
    gsync_comm_destroy(&trainer->comm);
}
