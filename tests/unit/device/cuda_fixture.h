/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_FIXTURE_H
#define CUDA_FIXTURE_H

/* A simulated GPU for one test, and buckets of gradients in its memory with a copy on the host. */

#include "base/memory.h"
#include "device/device_cuda.h"
#include "device/device_host.h"
#include "seeded.h"
#include "simcuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct gpu {
    gs_cuda *cuda;
    void *stream;
} gpu;

static inline int gpu_setup(void **state) {
    gpu *const made = calloc(1, sizeof *made);
    simcuda_reset();
    *state = made;
    return made == NULL || gs_cuda_open(&made->cuda) != GSYNC_OK ||
           gs_cuda_stream_new(made->cuda, true, &made->stream) != GSYNC_OK;
}

/* Whatever a test did, it touched what it said it would, and nothing is left. */
static inline int gpu_teardown(void **state) {
    gpu *const made = *state;
    gs_cuda_stream_free(made->cuda, made->stream);
    gs_cuda_close(made->cuda);
    free(made);
    simcuda_report report;
    if (simcuda_reports(&report, 1) != 0) {
        print_error("%s\n", report.text);
        return -1;
    }
    simcuda_wait_idle();
    if (simcuda_allocations() != 0 || simcuda_objects() != 0 || simcuda_default_stream_uses() != 0) {
        print_error("%llu blocks and %llu objects are left, the default stream was used %llu times\n",
                    (unsigned long long)simcuda_allocations(), (unsigned long long)simcuda_objects(),
                    (unsigned long long)simcuda_default_stream_uses());
        return -1;
    }
    return 0;
}

static inline void *gpu_new(const gpu *on, size_t bytes) {
    void *memory;
    assert_int_equal(gs_cuda_new(on->cuda, &memory, bytes, "a test's memory"), GSYNC_OK);
    return memory;
}

static inline void gpu_put(const gpu *on, void *to, const void *from, size_t bytes) {
    assert_int_equal(gs_cuda_copy(on->cuda, to, from, bytes, on->stream), GSYNC_OK);
    assert_int_equal(cudaStreamSynchronize(on->stream), cudaSuccess);
}

static inline void gpu_get(const gpu *on, void *to, const void *from, size_t bytes) {
    gpu_put(on, to, from, bytes);
}

static inline void *gpu_copy_of(const gpu *on, const void *from, size_t bytes) {
    void *const memory = gpu_new(on, bytes);
    gpu_put(on, memory, from, bytes);
    return memory;
}

static inline gs_cuda_findings gpu_findings(const gpu *on, const gs_cuda_notebook *notebook) {
    gs_cuda_findings found;
    gpu_get(on, &found, &notebook->found, sizeof found);
    return found;
}

/* ---- buckets ---- */

enum { TERMS_MAX = 12, ELEMENTS_MAX = 40000 };

/* Gradients of one dtype: on the GPU, and the same bytes on the host. */
typedef struct bucket {
    gsync_dtype dtype;
    size_t term_count;
    size_t count; /* elements, with what fills up blocks */
    gs_cuda_term terms[TERMS_MAX];
    gs_tensor tensors[TERMS_MAX];
    void *accumulators[TERMS_MAX]; /* on the host; NULL: none */
    size_t spans[TERMS_MAX];       /* bytes of a tensor with what lies between its rows, and what it is shifted by */
    unsigned char *blocks[TERMS_MAX];
    unsigned char *host_blocks[TERMS_MAX];
    gs_cuda_term *device_terms;
} bucket;

/* Any bits at all, or numbers of ordinary size. */
typedef enum values { ANY_BITS, ORDINARY } values;

static inline void fill_values(void *to, gsync_dtype dtype, size_t count, values kind, seeded *random) {
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = seeded_next(random);
        const float f = (float)(int32_t)(bits >> 40) * 0x1p-20f - 8.0f;
        const double d = (double)f + (double)(bits & 0xffff) * 0x1p-40;
        const uint16_t half = kind == ANY_BITS         ? (uint16_t)bits
                              : dtype == GSYNC_FLOAT16 ? gs_half_from_float(f)
                                                       : gs_bfloat_from_float(f);
        if (dtype == GSYNC_FLOAT64) {
            memcpy((double *)to + i, kind == ANY_BITS ? (const void *)&bits : (const void *)&d, sizeof d);
        } else if (dtype == GSYNC_FLOAT32) {
            memcpy((float *)to + i, kind == ANY_BITS ? (const void *)&bits : (const void *)&f, sizeof f);
        } else {
            ((uint16_t *)to)[i] = half;
        }
    }
}

static inline void bucket_add(const gpu *on, bucket *to, gs_tensor shape, size_t shift, values kind, bool has_sum,
                              seeded *random) {
    const size_t i = to->term_count++;
    const size_t size = gsync_dtype_size(to->dtype);
    const size_t span = shape.rows == 0 ? 0 : (shape.rows - 1) * shape.row_pitch + shape.columns;
    const size_t wide = gsync_dtype_size(gs_dtype_wide(to->dtype));
    shape.dtype = to->dtype;
    to->spans[i] = (span + shift + 1) * size;
    to->host_blocks[i] = malloc(to->spans[i]);
    fill_values(to->host_blocks[i], to->dtype, span + shift + 1, kind, random);
    to->blocks[i] = gpu_copy_of(on, to->host_blocks[i], to->spans[i]);
    shape.data = to->host_blocks[i] + shift * size;
    to->tensors[i] = shape;
    to->terms[i] = (gs_cuda_term){.data = to->blocks[i] + shift * size,
                                  .rows = shape.rows,
                                  .columns = shape.columns,
                                  .row_pitch = shape.row_pitch,
                                  .offset = to->count};
    to->count += gs_tensor_count(&shape);
    if (has_sum && gs_tensor_count(&shape) != 0) {
        to->accumulators[i] = malloc(gs_tensor_count(&shape) * wide);
        fill_values(to->accumulators[i], gs_dtype_wide(to->dtype), gs_tensor_count(&shape), kind, random);
        to->terms[i].accumulator = gpu_copy_of(on, to->accumulators[i], gs_tensor_count(&shape) * wide);
    }
}

static inline void bucket_upload_terms(const gpu *on, bucket *to) {
    to->device_terms = gpu_copy_of(on, to->terms, to->term_count * sizeof *to->terms);
}

/* Some of everything: no elements, one, rows with gaps, memory that is aligned to elements only, gaps in the bucket. */
static inline bucket bucket_random(const gpu *on, gsync_dtype dtype, values kind, bool has_sums, uint64_t seed) {
    seeded random = {seed};
    bucket made = {.dtype = dtype};
    const size_t terms = 1 + seeded_below(&random, TERMS_MAX - 1);
    for (size_t i = 0; i < terms; i++) {
        const size_t columns = seeded_below(&random, 4) == 0 ? seeded_below(&random, 9000) : seeded_below(&random, 40);
        const bool has_rows = seeded_below(&random, 3) == 0;
        gs_tensor shape = {.rows = has_rows ? seeded_below(&random, 5) : 1, .columns = columns, .row_pitch = columns};
        shape.row_pitch += has_rows ? seeded_below(&random, 9) : 0;
        made.count += seeded_below(&random, 3) == 0 ? seeded_below(&random, 20) : 0;
        bucket_add(on, &made, shape, seeded_below(&random, 2) * seeded_below(&random, 8), kind,
                   has_sums && seeded_below(&random, 2) == 0, &random);
    }
    made.count += seeded_below(&random, 20);
    assert_true(made.count < ELEMENTS_MAX * 5);
    bucket_upload_terms(on, &made);
    return made;
}

static inline void bucket_free(const gpu *on, bucket *from) {
    for (size_t i = 0; i < from->term_count; i++) {
        gs_cuda_free(on->cuda, from->blocks[i]);
        gs_cuda_free(on->cuda, (void *)from->terms[i].accumulator);
        free(from->host_blocks[i]);
        free(from->accumulators[i]);
    }
    gs_cuda_free(on->cuda, from->device_terms);
}

static inline gs_cuda_pass pass_of(const bucket *of, gsync_dtype wire) {
    return (gs_cuda_pass){.terms = of->device_terms,
                          .host_terms = of->terms,
                          .term_count = of->term_count,
                          .count = of->count,
                          .dtype = of->dtype,
                          .wire = wire,
                          .factor = 1.0};
}

/* ---- comparing ---- */

static inline void expect_same_elements(const void *got, const void *expected, gsync_dtype dtype, size_t count,
                                        const char *what, uint64_t seed) {
    const size_t size = gsync_dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits[2] = {0};
        memcpy(&bits[0], (const unsigned char *)got + i * size, size);
        memcpy(&bits[1], (const unsigned char *)expected + i * size, size);
        if (bits[0] != bits[1]) {
            fail_msg("%s, seed %llu: %s element %zu of %zu is %#llx, expected %#llx", what, (unsigned long long)seed,
                     gs_dtype_name(dtype), i, count, (unsigned long long)bits[0], (unsigned long long)bits[1]);
        }
    }
}

/* The NaN that arithmetic makes, in place of any. */
static inline void make_one_nan(void *elements, gsync_dtype dtype, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint16_t *const half = (uint16_t *)elements + i;
        if (dtype == GSYNC_FLOAT64) {
            const uint64_t nan = UINT64_C(0x7ff8000000000000);
            double *const d = (double *)elements + i;
            memcpy(d, *d == *d ? (const void *)d : (const void *)&nan, sizeof nan);
        } else if (dtype == GSYNC_FLOAT32) {
            const uint32_t nan = 0x7fc00000u;
            float *const f = (float *)elements + i;
            memcpy(f, *f == *f ? (const void *)f : (const void *)&nan, sizeof nan);
        } else if (dtype == GSYNC_FLOAT16) {
            *half = (*half & 0x7fffu) > 0x7c00u ? 0x7e00u : *half;
        } else {
            *half = (*half & 0x7fffu) > 0x7f80u ? 0x7fc0u : *half;
        }
    }
}

#endif
