/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWO_STREAMS_H
#define TWO_STREAMS_H

/*
 * What the library is about, in small: backward writes buckets on a compute stream, each is reduced on a communication
 * stream as soon as it is there, and the optimizer reads all of them. Each defect leaves out one of the waits.
 */

#include "rank_threads.h"
#include "simcuda.h"

#include <nccl.h>

enum { BUCKETS = 3, ELEMENTS = 1024, STEPS = 3 };

typedef enum defect {
    NO_DEFECT,
    NO_PRODUCER_WAIT, /* the communication stream does not wait for backward */
    NO_CONSUMER_WAIT, /* the optimizer does not wait for the reductions */
    NO_HOST_WAIT,     /* the host reads the loss before it has waited */
    EARLY_REUSE,      /* the next backward overwrites buckets that are still being reduced */
    DEFECTS
} defect;

typedef struct two_streams {
    ncclUniqueId id;
    defect defect;
    unsigned compute_delay_us;
    int slow_rank; /* only its compute stream is delayed */
} two_streams;

typedef struct fill_arguments {
    float *values;
    float value;
} fill_arguments;

static inline void fill(void *argument) {
    const fill_arguments *const a = argument;
    for (int i = 0; i < ELEMENTS; i++) {
        a->values[i] = a->value;
    }
}

typedef struct add_arguments {
    float *into;
    const float *values;
} add_arguments;

static inline void add(void *argument) {
    const add_arguments *const a = argument;
    for (int i = 0; i < ELEMENTS; i++) {
        a->into[i] += a->values[i];
    }
}

typedef struct two_streams_rank {
    const two_streams *how;
    int rank;
    ncclComm_t comm;
    cudaStream_t compute;
    cudaStream_t communication;
    cudaEvent_t ready[BUCKETS];
    cudaEvent_t reduced;
    float *buckets[BUCKETS];
    float *weights;
    float *loss; /* on the host */
} two_streams_rank;

static inline void two_streams_open(two_streams_rank *r, int ranks) {
    OK(cudaStreamCreateWithFlags(&r->compute, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithPriority(&r->communication, cudaStreamNonBlocking, -5));
    simcuda_name(r->compute, "compute");
    simcuda_name(r->communication, "communication");
    if (r->rank == r->how->slow_rank) {
        simcuda_delay(r->compute, r->how->compute_delay_us);
    }
    OK(ncclCommInitRank(&r->comm, ranks, r->how->id, r->rank));
    OK(cudaEventCreateWithFlags(&r->reduced, cudaEventDisableTiming));
    for (int b = 0; b < BUCKETS; b++) {
        OK(cudaEventCreateWithFlags(&r->ready[b], cudaEventDisableTiming));
        OK(cudaMalloc((void **)&r->buckets[b], ELEMENTS * sizeof(float)));
    }
    OK(cudaMalloc((void **)&r->weights, ELEMENTS * sizeof(float)));
    OK(cudaMallocHost((void **)&r->loss, sizeof(float)));
    OK(cudaMemsetAsync(r->weights, 0, ELEMENTS * sizeof(float), r->compute));
}

static inline void two_streams_backward(two_streams_rank *r, int step, int bucket) {
    const fill_arguments arguments = {r->buckets[bucket], (float)(r->rank + 1)};
    const simcuda_access access = {r->buckets[bucket], ELEMENTS * sizeof(float), 1};
    OK(simcuda_launch(r->compute, fill, &arguments, sizeof arguments, "backward", &access, 1));
    OK(cudaEventRecord(r->ready[bucket], r->compute));
    if (r->how->defect != NO_PRODUCER_WAIT || step != 1 || bucket != 1) {
        OK(cudaStreamWaitEvent(r->communication, r->ready[bucket], 0));
    }
    OK(ncclAllReduce(r->buckets[bucket], r->buckets[bucket], ELEMENTS, ncclFloat32, ncclSum, r->comm,
                     r->communication));
}

static inline void two_streams_optimizer(two_streams_rank *r) {
    for (int b = 0; b < BUCKETS; b++) {
        const add_arguments arguments = {r->weights, r->buckets[b]};
        const simcuda_access accesses[] = {{r->weights, ELEMENTS * sizeof(float), 0},
                                           {r->weights, ELEMENTS * sizeof(float), 1},
                                           {r->buckets[b], ELEMENTS * sizeof(float), 0}};
        OK(simcuda_launch(r->compute, add, &arguments, sizeof arguments, "optimizer", accesses, 3));
    }
}

static inline void two_streams_step(two_streams_rank *r, int step) {
    for (int b = 0; b < BUCKETS; b++) {
        two_streams_backward(r, step, b);
    }
    OK(cudaEventRecord(r->reduced, r->communication));
    if (r->how->defect == EARLY_REUSE && step == 0) {
        return; /* nobody reads the sums, and the next step writes while they are made */
    }
    if (r->how->defect != NO_CONSUMER_WAIT || step != STEPS - 1) {
        OK(cudaStreamWaitEvent(r->compute, r->reduced, 0));
    }
    two_streams_optimizer(r);
}

/* Returns the loss. */
static inline float two_streams_loss(two_streams_rank *r) {
    OK(cudaMemcpyAsync(r->loss, r->weights, sizeof(float), cudaMemcpyDeviceToHost, r->compute));
    if (r->how->defect != NO_HOST_WAIT) {
        OK(cudaStreamSynchronize(r->compute));
    }
    simcuda_host_access(r->loss, sizeof(float), 0, "the trainer's read of the loss");
    const float loss = *r->loss;
    OK(cudaStreamSynchronize(r->compute));
    return loss;
}

static inline void two_streams_close(two_streams_rank *r) {
    OK(cudaDeviceSynchronize());
    OK(ncclCommDestroy(r->comm));
    for (int b = 0; b < BUCKETS; b++) {
        OK(cudaFree(r->buckets[b]));
        OK(cudaEventDestroy(r->ready[b]));
    }
    OK(cudaFree(r->weights));
    OK(cudaFreeHost(r->loss));
    OK(cudaEventDestroy(r->reduced));
    OK(cudaStreamDestroy(r->compute));
    OK(cudaStreamDestroy(r->communication));
}

static inline void two_streams_run(int rank, int ranks, void *context) {
    two_streams_rank r = {.how = context, .rank = rank};
    two_streams_open(&r, ranks);
    for (int step = 0; step < STEPS; step++) {
        two_streams_step(&r, step);
    }
    const float loss = two_streams_loss(&r);
    if (r.how->defect == NO_DEFECT) {
        CHECK(loss == (float)(STEPS * BUCKETS * ranks * (ranks + 1) / 2));
    }
    two_streams_close(&r);
}

#endif
