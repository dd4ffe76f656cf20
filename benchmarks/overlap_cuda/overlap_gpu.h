/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADSYNC_BENCHMARKS_OVERLAP_GPU_H
#define GRADSYNC_BENCHMARKS_OVERLAP_GPU_H

/* A trainer on a GPU that computes nothing useful, and the ways in which its gradients can be reduced. */

#include <gradsync/gradsync_cuda.h>

#include <stdbool.h>
#include <stddef.h>

enum { GPU_BUCKETS_MAX = 256, GPU_GRADIENTS_PER_BUCKET = 4 };

typedef struct gpu_options {
    size_t bytes;
    double compute_ms;
    int passes; /* 0: as many as compute_ms needs */
    double fill;
    size_t buckets;
    size_t rounds;
    unsigned ctas; /* 0: NCCL's choice */
    bool shares_gpu;
    const char *json; /* NULL: none */
} gpu_options;

typedef struct gpu_trainer {
    gpu_options options;
    gsync_comm *comm;
    int rank;
    int world_size;
    char gpu[256]; /* its name */

    gsync_reducer *reducer;
    cudaStream_t stream;
    cudaEvent_t started;
    cudaEvent_t ended;
    size_t gradient_count;
    size_t gradient_floats;
    float *grads[GPU_BUCKETS_MAX * GPU_GRADIENTS_PER_BUCKET]; /* in the library's buckets */
    float *work;
    size_t threads;
    int passes;     /* of a gradient's arithmetic */
    unsigned round; /* values differ from round to round */
    float *back;    /* a gradient on the host */
} gpu_trainer;

/* Collective. On failure it has said why, and the trainer is still to be closed. */
bool gpu_trainer_open(gpu_trainer *trainer, const gpu_options *options);
void gpu_trainer_close(gpu_trainer *trainer);

bool gpu_succeeded(gsync_status status);

/* In the order of the table. */
enum { WAY_COMPUTE, WAY_COMMUNICATE, WAY_AFTER, WAY_STEP, WAYS };

typedef struct gpu_way {
    const char *name;
    bool (*queue)(gpu_trainer *trainer);
    bool reduces;
    bool needs_filling; /* no backward writes the gradients */
} gpu_way;

extern const gpu_way gpu_ways[WAYS];

/* In milliseconds: between events on the stream, on the host's clock until the stream is done, and until all is queued.
 */
typedef struct gpu_times {
    double gpu;
    double wall;
    double queue;
} gpu_times;

/* Collective. Runs a way once, with other values than before, and checks every element. The slowest rank's times. */
bool gpu_run_once(gpu_trainer *trainer, const gpu_way *way, gpu_times *times);

#endif
