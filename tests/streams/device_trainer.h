/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEVICE_TRAINER_H
#define DEVICE_TRAINER_H

/*
 * A small trainer whose gradients are on a simulated device, and its twin with the same gradients on the host. Backward
 * is one kernel for each gradient, which writes numbers that follow from the seed, the rank, the micro-batch and the
 * element. What the twin gets is what the trainer has to get, bit by bit.
 */

#include "rank_threads.h"
#include "simcuda.h"

#include <gradsync/gradsync_cuda.h>
#include <stdbool.h>
#include <string.h>

enum { GRADIENTS_MAX = 12, PRODUCERS_MAX = 6 };

typedef struct model {
    int count;
    size_t rows[GRADIENTS_MAX]; /* 0: one row of so many columns */
    size_t columns[GRADIENTS_MAX];
    size_t pitch[GRADIENTS_MAX]; /* 0: dense */
    gsync_dtype dtype;
    bool is_flat;      /* one behind the other in one allocation */
    bool has_views;    /* in the library's memory */
    bool is_exact;     /* small integers: sums and means by powers of two are exact in any order */
    bool is_forward;   /* gradients become ready in the order of registration, which no plan expects */
    bool is_few;       /* up to four ranks are enough */
    bool has_unused;   /* by some ranks in some micro-batches, and by all ranks */
    bool starts_apart; /* gradients hold something else on every rank before the first step */
    double loss_scale; /* 0: 1; gradients are multiplied by it, as by a loss */
    gsync_wire wire;   /* of all gradients but short ones, where there are options */
    gsync_wire_options wire_options;
    uint64_t seed;
} model;

typedef enum ending { WAITS_ON_HOST, WAITS_ON_STREAM } ending;

typedef struct trainer {
    const model *model;
    int rank;
    int ranks;
    gsync_reducer *device;
    gsync_reducer *host;
    cudaStream_t compute[PRODUCERS_MAX];
    int producers;
    void *memory; /* all gradients of the device */
    void *on_device[GRADIENTS_MAX];
    void *on_host[GRADIENTS_MAX];
    void *back; /* pinned: results on their way to the host */
    uint64_t micro_batch;
} trainer;

static inline size_t rows_of(const model *m, int g) {
    return m->rows[g] != 0 ? m->rows[g] : 1;
}

static inline size_t pitch_of(const model *m, int g) {
    return m->pitch[g] != 0 ? m->pitch[g] : m->columns[g];
}

static inline size_t bytes_of(const model *m, int g) {
    return ((rows_of(m, g) - 1) * pitch_of(m, g) + m->columns[g]) * gsync_dtype_size(m->dtype);
}

static inline size_t place_of(const model *m, int g) {
    size_t at = 0;
    for (int i = 0; i < g; i++) {
        at += m->is_flat ? bytes_of(m, i) : (bytes_of(m, i) + 255) / 256 * 256;
    }
    return at;
}

/* ---- numbers ---- */

static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline double number(const model *m, uint64_t key, size_t element) {
    const uint64_t random = mix(key ^ mix(element));
    const double loss_scale = m->loss_scale != 0 ? m->loss_scale : 1.0;
    if (m->is_exact) {
        return (double)((int)(random % 65) - 32);
    }
    return ((double)(random % 2000003) - 1000001.0) / 65536.0 * loss_scale;
}

/* Bits of a float32 that is representable in both 16-bit types have zeros at the end: cut off, not rounded. */
static inline void store(void *to, size_t index, gsync_dtype dtype, double value) {
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (dtype == GSYNC_FLOAT64) {
        ((double *)to)[index] = value;
    } else if (dtype == GSYNC_FLOAT32) {
        ((float *)to)[index] = single;
    } else if (dtype == GSYNC_BFLOAT16) {
        ((uint16_t *)to)[index] = (uint16_t)(bits >> 16);
    } else {
        const uint32_t exponent = (bits >> 23) & 0xff;
        const uint16_t half = exponent < 113 ? 0 : (uint16_t)(((exponent - 112) << 10) | ((bits >> 13) & 0x3ff));
        ((uint16_t *)to)[index] = (uint16_t)(half | ((bits >> 16) & 0x8000));
    }
}

static inline bool uses(const model *m, int rank, uint64_t micro_batch, int g) {
    const uint64_t random = mix(m->seed ^ mix(micro_batch * 64 + (uint64_t)g));
    if (!m->has_unused || random % 4 == 0) {
        return true; /* on all ranks, and else on none or on some */
    }
    return random % 4 != 1 && mix(random + (uint64_t)rank) % 2 == 0;
}

typedef struct backward_job {
    const model *model;
    int gradient;
    uint64_t key;
    void *to;
    bool adds; /* to what is there, as a trainer that accumulates: float32 only */
} backward_job;

static inline void backward_kernel(void *argument) {
    const backward_job *job = argument;
    const model *m = job->model;
    for (size_t r = 0; r < rows_of(m, job->gradient); r++) {
        for (size_t c = 0; c < m->columns[job->gradient]; c++) {
            const size_t at = r * pitch_of(m, job->gradient) + c;
            const double value = number(m, job->key, r * m->columns[job->gradient] + c);
            if (job->adds) {
                ((float *)job->to)[at] += (float)value;
            } else {
                store(job->to, at, m->dtype, value);
            }
        }
    }
}

static inline backward_job job_of(const trainer *t, int g, void *to, bool adds) {
    const uint64_t key = mix(t->model->seed + (uint64_t)t->rank * 1000 + t->micro_batch * 100000 + (uint64_t)g);
    return (backward_job){.model = t->model, .gradient = g, .key = key, .to = to, .adds = adds};
}

static inline void backward_one(const trainer *t, int g, cudaStream_t stream, bool adds) {
    backward_job job = job_of(t, g, t->on_device[g], adds);
    const size_t rows = rows_of(t->model, g);
    const size_t width = t->model->columns[g] * gsync_dtype_size(t->model->dtype);
    simcuda_access accesses[64];
    size_t count = 0;
    for (size_t r = 0; r < rows; r++) {
        const char *row = (const char *)job.to + r * pitch_of(t->model, g) * gsync_dtype_size(t->model->dtype);
        accesses[count++] = (simcuda_access){row, width, 1};
        if (adds) {
            accesses[count++] = (simcuda_access){row, width, 0};
        }
    }
    OK(simcuda_launch(stream, backward_kernel, &job, sizeof job, "backward", accesses, count));
    backward_job twin = job_of(t, g, t->on_host[g], adds);
    backward_kernel(&twin);
}

/* ---- life ---- */

static inline void add_gradients(trainer *t, gsync_reducer *reducer, bool is_on_device) {
    char name[32];
    for (int g = 0; g < t->model->count; g++) {
        void *place =
            is_on_device ? (t->model->has_views ? NULL : (char *)t->memory + place_of(t->model, g)) : t->on_host[g];
        snprintf(name, sizeof name, "gradient %d", g);
        CHECK(gsync_reducer_add_matrix(reducer, name, place, rows_of(t->model, g), t->model->columns[g],
                                       pitch_of(t->model, g), t->model->dtype) == GSYNC_OK);
        if (is_on_device) {
            t->on_device[g] = place;
        }
    }
}

static inline void find_views(trainer *t) {
    char name[32];
    for (int g = 0; g < t->model->count; g++) {
        snprintf(name, sizeof name, "gradient %d", g);
        t->on_device[g] = gsync_reducer_grad(t->device, name);
        CHECK(t->on_device[g] != NULL);
    }
}

static inline bool trainer_open(trainer *t, const model *m, gsync_comm *comm, const gsync_options *options,
                                int producers) {
    *t = (trainer){.model = m, .rank = gsync_rank(comm), .ranks = gsync_world_size(comm), .producers = producers};
    gsync_options on_device = *options;
    on_device.memory = m->has_views ? GSYNC_MEMORY_DEVICE : options->memory;
    gsync_options on_host = *options;
    on_host.is_strict = 0;
    on_host.memory = GSYNC_MEMORY_AUTO;
    for (int p = 0; p < producers; p++) {
        char name[32];
        OK(cudaStreamCreateWithFlags(&t->compute[p], cudaStreamNonBlocking));
        snprintf(name, sizeof name, "compute %d", p);
        simcuda_name(t->compute[p], name);
    }
    const size_t bytes = place_of(m, m->count);
    OK(cudaMalloc(&t->memory, bytes));
    OK(cudaMallocHost(&t->back, bytes));
    for (int g = 0; g < m->count; g++) {
        t->on_host[g] = calloc(1, bytes_of(m, g));
        memset(t->on_host[g], m->starts_apart ? t->rank + 1 : 0, bytes_of(m, g));
    }
    OK(cudaMemsetAsync(t->memory, m->starts_apart ? t->rank + 1 : 0, bytes, t->compute[0]));
    OK(cudaStreamSynchronize(t->compute[0]));
    CHECK(gsync_reducer_create(&t->device, comm, &on_device) == GSYNC_OK);
    CHECK(gsync_reducer_create(&t->host, comm, &on_host) == GSYNC_OK);
    add_gradients(t, t->device, true);
    add_gradients(t, t->host, false);
    if (m->wire_options.struct_size != 0) {
        gsync_wire_options of_host = m->wire_options;
        of_host.sum = GSYNC_WIRE_SUM_DIRECT; /* the host knows no other */
        CHECK(gsync_reducer_set_wire(t->device, NULL, m->wire, &m->wire_options) == GSYNC_OK);
        CHECK(gsync_reducer_set_wire(t->host, NULL, m->wire, &of_host) == GSYNC_OK);
    }
    const gsync_status status = gsync_reducer_commit(t->device);
    if (status != GSYNC_OK) {
        fprintf(stderr, "rank %d: commit: %s\n", t->rank, gsync_last_error());
    }
    CHECK(status == GSYNC_OK);
    CHECK(gsync_reducer_commit(t->host) == GSYNC_OK);
    if (m->has_views && status == GSYNC_OK) {
        find_views(t);
    }
    return status == GSYNC_OK;
}

static inline void trainer_close(trainer *t) {
    gsync_reducer_destroy(&t->device);
    gsync_reducer_destroy(&t->host);
    for (int p = 0; p < t->producers; p++) {
        OK(cudaStreamSynchronize(t->compute[p]));
        OK(cudaStreamDestroy(t->compute[p]));
    }
    for (int g = 0; g < t->model->count; g++) {
        free(t->on_host[g]);
    }
    OK(cudaFree(t->memory));
    OK(cudaFreeHost(t->back));
}

/* ---- steps ---- */

static inline void report_failure(const trainer *t, const char *call, gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "rank %d micro-batch %llu: %s: %s: %s\n", t->rank, (unsigned long long)t->micro_batch, call,
                gsync_status_name(status), gsync_last_error());
    }
    CHECK(status == GSYNC_OK);
}

static inline void trainer_compare_used(const trainer *t) {
    char name[32];
    for (int g = 0; g < t->model->count; g++) {
        snprintf(name, sizeof name, "gradient %d", g);
        CHECK(gsync_is_used(t->device, name) == gsync_is_used(t->host, name));
    }
}

/* Backward, from the last gradient to the first or the other way round. The other producers begin when the first has
 * been where the step before was consumed, as any trainer has to see to. */
static inline void trainer_backward_with(trainer *t, bool adds, bool has_twin, cudaEvent_t consumed) {
    OK(cudaEventRecord(consumed, t->compute[0]));
    for (int p = 1; p < t->producers; p++) {
        OK(cudaStreamWaitEvent(t->compute[p], consumed, 0));
    }
    t->micro_batch++;
    for (int i = 0; i < t->model->count; i++) {
        const int g = t->model->is_forward ? i : t->model->count - 1 - i;
        cudaStream_t stream = t->compute[g % t->producers];
        if (uses(t->model, t->rank, t->micro_batch, g)) {
            backward_one(t, g, stream, adds);
            report_failure(t, "ready_on", gsync_ready_on(t->device, t->on_device[g], stream));
            report_failure(t, "the twin's ready", has_twin ? gsync_ready(t->host, t->on_host[g]) : GSYNC_OK);
        }
    }
}

static inline void trainer_backward(trainer *t, bool adds, cudaEvent_t consumed) {
    trainer_backward_with(t, adds, true, consumed);
}

/* In a micro-batch that the twin does not have. */
static inline void trainer_backward_alone(trainer *t, cudaEvent_t consumed) {
    trainer_backward_with(t, false, false, consumed);
}

static inline gsync_status trainer_finish(trainer *t, ending how, gsync_step_info *info) {
    const gsync_status status =
        how == WAITS_ON_HOST ? gsync_finish(t->device, info) : gsync_finish_on(t->device, t->compute[0], info);
    report_failure(t, how == WAITS_ON_HOST ? "finish" : "finish_on", status);
    gsync_step_info twin = GSYNC_STEP_INFO_INIT;
    report_failure(t, "the twin's finish", gsync_finish(t->host, &twin));
    if (how == WAITS_ON_HOST && info != NULL && status == GSYNC_OK) {
        CHECK(info->divisor == twin.divisor);
        CHECK(info->weight_total == twin.weight_total);
        CHECK(info->participants == twin.participants);
        CHECK(t->model->has_views || info->bucket_count == twin.bucket_count); /* views stay where they are */
        CHECK(info->gradients_unused == twin.gradients_unused);
        trainer_compare_used(t);
        CHECK(t->model->has_views || info->buckets_reduced == twin.buckets_reduced);
        CHECK(info->found_inf == twin.found_inf && info->found_inf_rank == twin.found_inf_rank);
        CHECK(info->values_saturated == twin.values_saturated && info->values_flushed == twin.values_flushed);
    }
    return status;
}

/* The results are what the twin has. Counts the elements that are not. */
static inline size_t trainer_compare(trainer *t) {
    size_t wrong = 0;
    const size_t size = gsync_dtype_size(t->model->dtype);
    for (int g = 0; g < t->model->count; g++) {
        char *back = (char *)t->back + place_of(t->model, g);
        OK(cudaMemcpyAsync(back, t->on_device[g], bytes_of(t->model, g), cudaMemcpyDefault, t->compute[0]));
        OK(cudaStreamSynchronize(t->compute[0]));
        for (size_t r = 0; r < rows_of(t->model, g); r++) {
            for (size_t c = 0; c < t->model->columns[g]; c++) {
                const size_t at = (r * pitch_of(t->model, g) + c) * size;
                wrong += memcmp(back + at, (char *)t->on_host[g] + at, size) != 0;
            }
        }
    }
    if (wrong != 0) {
        fprintf(stderr, "rank %d of %d, micro-batch %llu: %zu elements differ from the host's\n", t->rank, t->ranks,
                (unsigned long long)t->micro_batch, wrong);
    }
    CHECK(wrong == 0);
    return wrong;
}

static inline void print_reports(void) {
    simcuda_report reports[8];
    const size_t count = simcuda_reports(reports, 8);
    for (size_t i = 0; i < count && i < 8; i++) {
        fprintf(stderr, "simcuda: %s\n", reports[i].text);
    }
}

#endif
