/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEVICE_PAIR_H
#define DEVICE_PAIR_H

/* A reducer with two short gradients on a simulated device, and the steps of a trainer with one stream. */

#include "device_trainer.h"

enum { COUNT = 64 };

static inline void check_status(int line, gsync_status got, gsync_status wanted, const char *words) {
    const bool is_right = got == wanted && (got == GSYNC_OK || strstr(gsync_last_error(), words) != NULL);
    if (!is_right) {
        fprintf(stderr, "line %d: %s: %s\n", line, gsync_status_name(got), gsync_last_error());
    }
    CHECK(is_right);
}

#define CHECK_STATUS(call, wanted, words) check_status(__LINE__, call, wanted, words)

typedef struct pair {
    gsync_reducer *reducer;
    char *memory;
    void *grads[2];
    bool is_second_double;
    cudaStream_t compute;
} pair;

static inline gsync_dtype dtype_of(const pair *p, int g) {
    return g == 1 && p->is_second_double ? GSYNC_FLOAT64 : GSYNC_FLOAT32;
}

static inline void pair_make(pair *p, gsync_comm *comm, const gsync_options *options) {
    OK(cudaMalloc((void **)&p->memory, 2 * COUNT * sizeof(double)));
    OK(cudaStreamCreateWithFlags(&p->compute, cudaStreamNonBlocking));
    CHECK(gsync_reducer_create(&p->reducer, comm, options) == GSYNC_OK);
    for (int g = 0; g < 2; g++) {
        p->grads[g] = p->memory + (size_t)g * COUNT * sizeof(double);
        CHECK(gsync_reducer_add(p->reducer, g == 0 ? "a" : "b", p->grads[g], COUNT, dtype_of(p, g)) == GSYNC_OK);
    }
}

static inline void pair_open(pair *p, gsync_comm *comm, const gsync_options *options) {
    pair_make(p, comm, options);
    CHECK_STATUS(gsync_reducer_commit(p->reducer), GSYNC_OK, "");
}

static inline void pair_close(pair *p) {
    gsync_reducer_destroy(&p->reducer);
    OK(cudaStreamSynchronize(p->compute));
    OK(cudaStreamDestroy(p->compute));
    OK(cudaFree(p->memory));
}

typedef struct fill_job {
    void *to;
    gsync_dtype dtype;
    double value;
} fill_job;

static inline void fill_kernel(void *argument) {
    const fill_job *job = argument;
    for (size_t i = 0; i < COUNT; i++) {
        store(job->to, i, job->dtype, job->value);
    }
}

static inline void fill_on(const pair *p, int g, double value, cudaStream_t stream) {
    const fill_job job = {p->grads[g], dtype_of(p, g), value};
    const simcuda_access access = {p->grads[g], COUNT * gsync_dtype_size(dtype_of(p, g)), 1};
    OK(simcuda_launch(stream, fill_kernel, &job, sizeof job, "fill", &access, 1));
}

static inline void mark(const pair *p, int g, double value) {
    fill_on(p, g, value, p->compute);
    CHECK_STATUS(gsync_ready_on(p->reducer, p->grads[g], p->compute), GSYNC_OK, "");
}

/* Of float32. */
static inline float first_of(const pair *p, int g) {
    static _Thread_local float value;
    OK(cudaMemcpyAsync(&value, p->grads[g], sizeof value, cudaMemcpyDefault, p->compute));
    OK(cudaStreamSynchronize(p->compute));
    return value;
}

/* Marked in the order of registration. */
static inline void step_on_stream(const pair *p, double value) {
    CHECK_STATUS(gsync_begin(p->reducer, GSYNC_SYNC), GSYNC_OK, "");
    mark(p, 0, value);
    mark(p, 1, value);
    CHECK_STATUS(gsync_finish_on(p->reducer, p->compute, NULL), GSYNC_OK, "");
}

static inline void step_on_host(const pair *p, double value) {
    CHECK_STATUS(gsync_begin(p->reducer, GSYNC_SYNC), GSYNC_OK, "");
    mark(p, 0, value);
    mark(p, 1, value);
    CHECK_STATUS(gsync_finish(p->reducer, NULL), GSYNC_OK, "");
}

#endif
