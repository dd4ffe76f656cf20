/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CODEC_GPU_H
#define CODEC_GPU_H

/* A bucket of scattered gradients in a GPU's memory, and the passes over it. */

#include "base/dtype.h"
#include "device/device_cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GPU_TENSORS = 24, GPU_RANKS = 4 /* whose parts are added up */ };

typedef enum gpu_work { GPU_ENCODE, GPU_ENCODE_FINDING, GPU_DECODE, GPU_DECODE_NORM, GPU_COMBINE, GPU_WORKS } gpu_work;

/* All on the device but x, back and host_terms. */
typedef struct codec_gpu {
    gs_cuda *cuda;
    void *stream;
    void *events[2]; /* cudaEvent_t, with times */
    size_t count;    /* elements of float32 */
    float *x;        /* on the host: what the gradients are */
    unsigned char *back;
    unsigned char *gradients; /* apart from each other */
    size_t gradient_bytes;
    gs_cuda_term host_terms[GPU_TENSORS];
    gs_cuda_term *terms;
    unsigned char *bucket;
    unsigned char *parts;
    unsigned char *shard;
    double *divisor; /* GPU_RANKS */
    gs_cuda_notebook *notebook;
    unsigned char *copy_from;
    unsigned char *copy_to;
} codec_gpu;

/* Of the device that is current. On failure it has said why, and is still to be closed. */
bool gpu_open(codec_gpu *gpu, size_t bytes, uint64_t seed);
void gpu_close(codec_gpu *gpu);

/* What every pass gives, bit by bit, against the host's codecs; with spoils one bit is turned first. */
bool gpu_check(codec_gpu *gpu, gsync_dtype wire, bool spoils);

/* Read and written. */
size_t gpu_bytes_moved(const codec_gpu *gpu, gsync_dtype wire, gpu_work work);
/* Milliseconds of one call, of so many in a row; and of a copy that moves as many bytes. */
bool gpu_time(codec_gpu *gpu, gsync_dtype wire, gpu_work work, size_t calls, double *ms, double *copy_ms);

#endif
