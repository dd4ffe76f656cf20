/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "codec_gpu.h"

#include "base/float_mode.h"
#include "wire/codec.h"

#include <cuda_runtime_api.h>
#include <gradsync/gradsync.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP_BYTES = 256 }; /* between gradients, which begin at multiples of it */

static bool succeeded(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "codec_perf_cuda: %s\n", gsync_last_error());
    }
    return status == GSYNC_OK;
}

static bool did(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "codec_perf_cuda: %s\n", cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

/* ---- memory ---- */

static bool new_memory(codec_gpu *gpu, void *place, size_t bytes, const char *what) {
    void *memory = NULL;
    const bool is_ok = succeeded(gs_cuda_new(gpu->cuda, &memory, bytes, what));
    memcpy(place, &memory, sizeof memory);
    return is_ok;
}

static bool allocate(codec_gpu *gpu, size_t bytes) {
    gpu->x = malloc(bytes);
    gpu->back = malloc(gpu->gradient_bytes);
    if (gpu->x == NULL || gpu->back == NULL) {
        fprintf(stderr, "codec_perf_cuda: not enough memory\n");
        return false;
    }
    return new_memory(gpu, &gpu->gradients, gpu->gradient_bytes, "gradients") &&
           new_memory(gpu, &gpu->terms, sizeof gpu->host_terms, "their table") &&
           new_memory(gpu, &gpu->bucket, bytes, "a bucket") && new_memory(gpu, &gpu->parts, bytes, "parts") &&
           new_memory(gpu, &gpu->shard, bytes, "a shard") &&
           new_memory(gpu, &gpu->divisor, sizeof *gpu->divisor, "a divisor") &&
           new_memory(gpu, &gpu->notebook, sizeof *gpu->notebook, "what is noticed") &&
           new_memory(gpu, &gpu->copy_from, 2 * bytes, "what is copied") &&
           new_memory(gpu, &gpu->copy_to, 2 * bytes, "what is copied");
}

/* Sizes as in a model: most are large, and some are not. Whole words of 16 bytes. */
static void lay_out(codec_gpu *gpu) {
    size_t offset = 0;
    size_t at = 0;
    for (size_t i = 0; i < GPU_TENSORS; i++) {
        const size_t left = gpu->count - offset;
        const size_t fair = left / (GPU_TENSORS - i);
        const size_t wanted = i % 3 == 1 ? fair / 16 : fair + fair / 4;
        const size_t columns = i + 1 == GPU_TENSORS || wanted > left ? left : wanted / 4 * 4 + 4;
        gpu->host_terms[i] = (gs_cuda_term){.rows = 1, .columns = columns, .row_pitch = columns, .offset = offset};
        gpu->host_terms[i].data =
            (void *)(uintptr_t)at; // NOLINT(performance-no-int-to-ptr): where, until there is memory
        offset += columns;
        at += (columns * sizeof(float) + 2 * GAP_BYTES - 1) / GAP_BYTES * GAP_BYTES;
    }
    gpu->gradient_bytes = at;
}

static size_t place_of(const codec_gpu *gpu, size_t tensor) {
    return (size_t)((unsigned char *)gpu->host_terms[tensor].data - gpu->gradients);
}

static bool copy_now(codec_gpu *gpu, void *to, const void *from, size_t bytes) {
    return succeeded(gs_cuda_copy(gpu->cuda, to, from, bytes, gpu->stream)) && did(cudaStreamSynchronize(gpu->stream));
}

static bool upload_gradients(codec_gpu *gpu) {
    for (size_t i = 0; i < GPU_TENSORS; i++) {
        const gs_cuda_term *const term = &gpu->host_terms[i];
        memcpy(gpu->back + place_of(gpu, i), gpu->x + term->offset, term->columns * sizeof(float));
    }
    return copy_now(gpu, gpu->gradients, gpu->back, gpu->gradient_bytes);
}

static bool upload_tables(codec_gpu *gpu) {
    const double divisor = GPU_RANKS;
    for (size_t i = 0; i < GPU_TENSORS; i++) {
        gpu->host_terms[i].data = gpu->gradients + (uintptr_t)gpu->host_terms[i].data;
    }
    return copy_now(gpu, gpu->terms, gpu->host_terms, sizeof gpu->host_terms) &&
           copy_now(gpu, gpu->divisor, &divisor, sizeof divisor);
}

/* splitmix64, as numbers of a size that gradients have */
static void draw(float *x, size_t count, uint64_t seed) {
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        uint64_t word = state += UINT64_C(0x9e3779b97f4a7c15);
        word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
        word ^= word >> 31;
        x[i] = (float)ldexp((double)(word >> 40) - 0x1p23, -(int)(word % 13) - 28);
    }
}

bool gpu_open(codec_gpu *gpu, size_t bytes, uint64_t seed) {
    *gpu = (codec_gpu){.count = bytes / sizeof(float)};
    lay_out(gpu);
    if (!succeeded(gs_cuda_open(&gpu->cuda)) || !succeeded(gs_cuda_stream_new(gpu->cuda, true, &gpu->stream))) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        cudaEvent_t event = NULL;
        if (!did(cudaEventCreate(&event))) {
            return false;
        }
        gpu->events[i] = event;
    }
    if (!allocate(gpu, bytes)) {
        return false;
    }
    draw(gpu->x, gpu->count, seed);
    return upload_tables(gpu);
}

void gpu_close(codec_gpu *gpu) {
    if (gpu->cuda != NULL) {
        void *const all[] = {gpu->gradients, gpu->terms,    gpu->bucket,    gpu->parts,  gpu->shard,
                             gpu->divisor,   gpu->notebook, gpu->copy_from, gpu->copy_to};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            gs_cuda_free(gpu->cuda, all[i]);
        }
        for (int i = 0; i < 2; i++) {
            if (gpu->events[i] != NULL) {
                (void)cudaEventDestroy(gpu->events[i]);
            }
        }
        gs_cuda_stream_free(gpu->cuda, gpu->stream);
        gs_cuda_close(gpu->cuda);
    }
    free(gpu->x);
    free(gpu->back);
}

/* ---- passes ---- */

static float scale_of(gsync_dtype wire) {
    return wire == GSYNC_FLOAT32 ? 0.0f : 1.0f;
}

static size_t shard_count(const codec_gpu *gpu) {
    return gpu->count / GPU_RANKS;
}

static gsync_status do_work(codec_gpu *gpu, gsync_dtype wire, gpu_work work) {
    const bool looks = work == GPU_ENCODE_FINDING || work == GPU_DECODE_NORM;
    const gs_cuda_pass pass = {.terms = gpu->terms,
                               .host_terms = gpu->host_terms,
                               .term_count = GPU_TENSORS,
                               .count = gpu->count,
                               .dtype = GSYNC_FLOAT32,
                               .wire = wire,
                               .factor = 1,
                               .scale = scale_of(wire),
                               .notebook = looks ? gpu->notebook : NULL};
    const gs_cuda_combination combination = {.parts = gpu->parts,
                                             .ranks = GPU_RANKS,
                                             .stride = shard_count(gpu),
                                             .shard = gpu->shard,
                                             .count = shard_count(gpu),
                                             .wire = wire,
                                             .divisor = gpu->divisor,
                                             .scale = scale_of(wire)};
    switch (work) {
    case GPU_ENCODE:
    case GPU_ENCODE_FINDING:
        return gs_cuda_encode(gpu->cuda, &pass, gpu->bucket, gpu->stream);
    case GPU_COMBINE:
        return gs_cuda_combine(gpu->cuda, &combination, gpu->stream);
    default:
        return gs_cuda_decode(gpu->cuda, &pass, gpu->bucket, gpu->stream);
    }
}

/* ---- checks ---- */

static bool complain(const char *what) {
    fprintf(stderr, "codec_perf_cuda: %s\n", what);
    return false;
}

static void host_encode(gsync_dtype wire, void *to, const float *x, size_t count) {
    const gs_codec_terms terms = {.scale = 1};
    if (wire == GSYNC_FLOAT32) {
        memcpy(to, x, count * sizeof *x);
        return;
    }
    (wire == GSYNC_FLOAT16 ? &gs_codec_float16 : &gs_codec_bfloat16)->encode(to, x, count, &terms, NULL);
}

static void host_decode(gsync_dtype wire, float *x, const void *from, size_t count) {
    const gs_codec_terms terms = {.scale = 1};
    if (wire == GSYNC_FLOAT32) {
        memcpy(x, from, count * sizeof *x);
        return;
    }
    (wire == GSYNC_FLOAT16 ? &gs_codec_float16 : &gs_codec_bfloat16)->decode(x, from, count, &terms);
}

static bool check_encode(codec_gpu *gpu, gsync_dtype wire, void *expected, bool spoils) {
    const size_t bytes = gpu->count * gsync_dtype_size(wire);
    host_encode(wire, expected, gpu->x, gpu->count);
    if (!succeeded(do_work(gpu, wire, GPU_ENCODE)) || !copy_now(gpu, gpu->back, gpu->bucket, bytes)) {
        return false;
    }
    gpu->back[bytes / 2] ^= spoils ? 0x40 : 0;
    return memcmp(gpu->back, expected, bytes) == 0 || complain("encode: an element is wrong");
}

/* The bucket goes back to where it came from, after the gradients have been forgotten. */
static bool check_decode(codec_gpu *gpu, gsync_dtype wire, const void *encoded, float *expected) {
    host_decode(wire, expected, encoded, gpu->count);
    if (!succeeded(gs_cuda_zero_now(gpu->cuda, gpu->gradients, gpu->gradient_bytes)) ||
        !succeeded(do_work(gpu, wire, GPU_DECODE)) || !copy_now(gpu, gpu->back, gpu->gradients, gpu->gradient_bytes)) {
        return false;
    }
    for (size_t i = 0; i < GPU_TENSORS; i++) {
        const gs_cuda_term *const term = &gpu->host_terms[i];
        if (memcmp(gpu->back + place_of(gpu, i), expected + term->offset, term->columns * sizeof(float)) != 0) {
            return complain("decode: an element is wrong");
        }
    }
    return true;
}

/* Parts are the bucket's quarters. */
static bool check_combine(codec_gpu *gpu, gsync_dtype wire, const float *decoded, float *sums, void *expected) {
    const size_t count = shard_count(gpu);
    const size_t size = gsync_dtype_size(wire);
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (size_t rank = 0; rank < GPU_RANKS; rank++) {
            sum += decoded[rank * count + i];
        }
        sums[i] = sum / GPU_RANKS;
    }
    host_encode(wire, expected, sums, count);
    if (!copy_now(gpu, gpu->parts, gpu->bucket, GPU_RANKS * count * size) ||
        !succeeded(do_work(gpu, wire, GPU_COMBINE)) || !copy_now(gpu, gpu->back, gpu->shard, count * size)) {
        return false;
    }
    return memcmp(gpu->back, expected, count * size) == 0 || complain("combine: an element is wrong");
}

bool gpu_check(codec_gpu *gpu, gsync_dtype wire, bool spoils) {
    gs_float_mode mode;
    float *const encoded = malloc(gpu->count * sizeof(float));
    float *const decoded = malloc(gpu->count * sizeof(float));
    float *const sums = malloc(gpu->count * sizeof(float));
    bool is_right = encoded != NULL && decoded != NULL && sums != NULL;
    gs_float_mode_enter(&mode);
    is_right = is_right && upload_gradients(gpu) && check_encode(gpu, wire, encoded, spoils) &&
               check_decode(gpu, wire, encoded, decoded) && check_combine(gpu, wire, decoded, sums, encoded);
    gs_float_mode_leave(&mode);
    free(encoded);
    free(decoded);
    free(sums);
    return is_right;
}

/* ---- times ---- */

size_t gpu_bytes_moved(const codec_gpu *gpu, gsync_dtype wire, gpu_work work) {
    const size_t size = gsync_dtype_size(wire);
    return work == GPU_COMBINE ? (GPU_RANKS + 1) * shard_count(gpu) * size : gpu->count * (sizeof(float) + size);
}

static bool begin_sample(codec_gpu *gpu) {
    return did(cudaEventRecord(gpu->events[0], gpu->stream));
}

static bool end_sample(codec_gpu *gpu, size_t calls, double *ms) {
    float total = 0;
    if (!did(cudaEventRecord(gpu->events[1], gpu->stream)) || !did(cudaEventSynchronize(gpu->events[1])) ||
        !did(cudaEventElapsedTime(&total, gpu->events[0], gpu->events[1]))) {
        return false;
    }
    *ms = (double)total / (double)calls;
    return true;
}

bool gpu_time(codec_gpu *gpu, gsync_dtype wire, gpu_work work, size_t calls, double *ms, double *copy_ms) {
    const size_t bytes = gpu_bytes_moved(gpu, wire, work) / 2;
    bool is_ok = succeeded(do_work(gpu, wire, work)) && begin_sample(gpu);
    for (size_t i = 0; i < calls && is_ok; i++) {
        is_ok = succeeded(do_work(gpu, wire, work));
    }
    is_ok = is_ok && end_sample(gpu, calls, ms) &&
            succeeded(gs_cuda_copy(gpu->cuda, gpu->copy_to, gpu->copy_from, bytes, gpu->stream)) && begin_sample(gpu);
    for (size_t i = 0; i < calls && is_ok; i++) {
        is_ok = succeeded(gs_cuda_copy(gpu->cuda, gpu->copy_to, gpu->copy_from, bytes, gpu->stream));
    }
    return is_ok && end_sample(gpu, calls, copy_ms);
}
