/* SPDX-License-Identifier: Apache-2.0 */

/*
 * For trainers that have an ncclComm_t already: the library makes communicators of its own from it, and leaves it to
 * the trainer, which goes on using it. Here the loss is added up by the trainer's own ncclAllReduce.
 */

#include "line.h"
#include "meet.h"

#include <gradsync/gradsync_cuda.h>

#include <stdio.h>
#include <string.h>

enum { STEPS = 60 };

typedef struct trainer {
    meeting meeting;
    ncclComm_t nccl; /* the trainer's own */
    gsync_comm *comm;
    gsync_reducer *reducer;
    cudaStream_t compute;
    float *weights; /* on the GPU, as the next two */
    float *gradient;
    float *loss;
} trainer;

/* ---- Errors ------------------------------------------------------------------------------------------------ */

static bool cuda_did(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: CUDA says %s\n", what, cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

static bool nccl_did(ncclResult_t result, const char *what) {
    if (result != ncclSuccess) {
        fprintf(stderr, "%s: NCCL says %s\n", what, ncclGetErrorString(result));
    }
    return result == ncclSuccess;
}

static bool gsync_did(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "%s: %s\n", gsync_status_name(status), gsync_last_error());
    }
    return status == GSYNC_OK;
}

/* ---- Setting up -------------------------------------------------------------------------------------------- */

/* Where each rank sees its own GPU only, that is number 0; two ranks on one GPU NCCL refuses. */
static bool use_gpu(int local_rank) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    return cuda_did(count == 0 && error == cudaSuccess ? cudaErrorNoDevice : error, "a GPU for this rank") &&
           cuda_did(cudaSetDevice(local_rank % count), "a GPU for this rank");
}

/* What the trainer had before it knew the library. */
static bool join(trainer *t, const char *id_file) {
    return meet(&t->meeting, id_file) && use_gpu(t->meeting.local_rank) &&
           nccl_did(ncclCommInitRank(&t->nccl, t->meeting.ranks, t->meeting.id, t->meeting.rank), "ncclCommInitRank") &&
           cuda_did(cudaStreamCreateWithFlags(&t->compute, cudaStreamNonBlocking), "a stream") &&
           cuda_did(cudaMalloc((void **)&t->weights, LINE_WEIGHTS * sizeof(float)), "weights") &&
           cuda_did(cudaMalloc((void **)&t->gradient, LINE_WEIGHTS * sizeof(float)), "a gradient") &&
           cuda_did(cudaMalloc((void **)&t->loss, sizeof(float)), "the loss") &&
           cuda_did(cudaMemsetAsync(t->weights, 0, LINE_WEIGHTS * sizeof(float), t->compute), "weights");
}

/* Nothing of the trainer's communicator is under way here. */
static bool open_reducer(trainer *t) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN; /* the sum of all gradients over the number of all samples */
    return gsync_did(gsync_comm_from_nccl(&t->comm, t->nccl, NULL)) &&
           gsync_did(gsync_reducer_create(&t->reducer, t->comm, &options)) &&
           gsync_did(gsync_reducer_add(t->reducer, "weights", t->gradient, LINE_WEIGHTS, GSYNC_FLOAT32)) &&
           gsync_did(gsync_reducer_commit(t->reducer));
}

/* ---- Steps ------------------------------------------------------------------------------------------------- */

static int sample_count(const trainer *t) {
    return (LINE_SAMPLES - t->meeting.rank + t->meeting.ranks - 1) / t->meeting.ranks;
}

/*
 * The trainer's own collective is queued behind gsync_finish_on, on the stream that it made wait: the library's are
 * done then, and those of the next step wait for this stream. Collectives of two communicators are never under way at
 * the same time, and come in the same order on all ranks. Where they may be, NCCL's kernels can wait for each other for
 * ever.
 */
static bool run_step(trainer *t) {
    return gsync_did(gsync_begin(t->reducer, GSYNC_SYNC)) && gsync_did(gsync_set_weight(t->reducer, sample_count(t))) &&
           cuda_did(line_gradient(t->compute, t->weights, t->meeting.rank, t->meeting.ranks, t->gradient, t->loss),
                    "backward") &&
           gsync_did(gsync_ready_on(t->reducer, t->gradient, t->compute)) &&
           gsync_did(gsync_finish_on(t->reducer, t->compute, NULL)) &&
           cuda_did(line_step(t->compute, t->weights, t->gradient, 0.3f), "optimizer") &&
           nccl_did(ncclAllReduce(t->loss, t->loss, 1, ncclFloat, ncclSum, t->nccl, t->compute), "the loss of all");
}

/* Waits for the stream. */
static bool tell(trainer *t, int step) {
    float loss = 0;
    float weights[LINE_WEIGHTS];
    if (!cuda_did(cudaMemcpyAsync(&loss, t->loss, sizeof loss, cudaMemcpyDefault, t->compute), "the loss") ||
        !cuda_did(cudaMemcpyAsync(weights, t->weights, sizeof weights, cudaMemcpyDefault, t->compute), "weights") ||
        !cuda_did(cudaStreamSynchronize(t->compute), "the step")) {
        return false;
    }
    if (t->meeting.rank == 0) {
        printf("step %2d  loss %.6f  weights %.4f %.4f %.4f\n", step, (double)loss / LINE_SAMPLES, (double)weights[0],
               (double)weights[1], (double)weights[2]);
    }
    return true;
}

static bool train(trainer *t) {
    if (t->meeting.rank == 0) {
        printf("%s\n", gsync_comm_describe(t->comm));
    }
    for (int step = 1; step <= STEPS; step++) {
        if (!run_step(t) || (step % 10 == 0 && !tell(t, step))) {
            return false;
        }
    }
    return true;
}

/* ---- The end ----------------------------------------------------------------------------------------------- */

/*
 * What uses something goes before it: the reducer, the library's communicators, the trainer's, and what they read.
 * After a failure other ranks may be waiting in one of either; both are then aborted, so that they learn of it.
 */
static void tear_down(trainer *t, bool is_ok) {
    if (!is_ok && t->comm != NULL) {
        gsync_comm_abort(t->comm, "this rank's trainer failed; it has said why");
    }
    gsync_reducer_destroy(&t->reducer);
    gsync_comm_destroy(&t->comm);
    if (t->nccl != NULL) {
        (void)(is_ok ? ncclCommDestroy(t->nccl) : ncclCommAbort(t->nccl));
    }
    if (t->compute != NULL) {
        (void)cudaStreamSynchronize(t->compute);
        (void)cudaStreamDestroy(t->compute);
    }
    (void)cudaFree(t->weights);
    (void)cudaFree(t->gradient);
    (void)cudaFree(t->loss);
    meet_clean_up(&t->meeting);
    meet_end(&t->meeting);
}

int main(int argc, char **argv) {
    trainer t = {.nccl = NULL};
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--help") == 0)) {
        printf(
            "usage: mpirun -n 2 04_bring_your_own_nccl\n"
            "       torchrun --no-python --nproc-per-node 2 04_bring_your_own_nccl ID_FILE\n"
            "Each rank needs a GPU. ID_FILE is where rank 0 leaves NCCL's id: a path that all ranks see and that does\n"
            "not exist yet.\n");
        return argc > 2 ? 2 : 0;
    }
    const bool is_ok = join(&t, argv[1]) && open_reducer(&t) && train(&t);
    tear_down(&t, is_ok);
    return is_ok ? 0 : 1;
}
