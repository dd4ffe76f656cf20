/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap_trainer.h"

#include <mpi.h>

/* True when this gradient was the last that its bucket waited for; *bucket counts in the order of completion. */
static bool completes_bucket(const overlap_trainer *trainer, size_t index, size_t *bucket) {
    *bucket = trainer->options.buckets - 1 - index / GRADIENTS_PER_BUCKET;
    return index % GRADIENTS_PER_BUCKET == 0;
}

static float *own_bucket(const overlap_trainer *trainer, size_t bucket) {
    return trainer->own + (trainer->options.buckets - 1 - bucket) * trainer->bucket_floats;
}

/* ---- Ways ------------------------------------------------------------------------------------------------------- */

static bool reduce_bucket(overlap_trainer *trainer, size_t bucket) {
    return MPI_Allreduce(MPI_IN_PLACE, own_bucket(trainer, bucket), (int)trainer->bucket_floats, MPI_FLOAT, MPI_SUM,
                         trainer->comm) == MPI_SUCCESS;
}

static bool reduce_all(overlap_trainer *trainer) {
    bool is_ok = true;
    for (size_t bucket = 0; bucket < trainer->options.buckets && is_ok; bucket++) {
        is_ok = reduce_bucket(trainer, bucket);
    }
    return is_ok;
}

static bool run_compute(overlap_trainer *trainer) {
    return overlap_backward(trainer, overlap_own_grad, &(backward_hooks){NULL, NULL});
}

static bool run_sequential(overlap_trainer *trainer) {
    return run_compute(trainer) && reduce_all(trainer);
}

static bool finish_step(overlap_trainer *trainer) {
    return overlap_succeeded(gsync_begin(trainer->reducer, GSYNC_SYNC)) &&
           overlap_succeeded(gsync_finish(trainer->reducer, NULL));
}

static void test_now_and_then(overlap_trainer *trainer) {
    int ignored;
    if (++trainer->slices_since_test >= trainer->slices_per_test) {
        trainer->slices_since_test = 0;
        MPI_Testall((int)trainer->options.buckets, trainer->requests, &ignored, MPI_STATUSES_IGNORE);
    }
}

static bool start_bucket(overlap_trainer *trainer, size_t index) {
    size_t bucket;
    return !completes_bucket(trainer, index, &bucket) ||
           MPI_Iallreduce(MPI_IN_PLACE, own_bucket(trainer, bucket), (int)trainer->bucket_floats, MPI_FLOAT, MPI_SUM,
                          trainer->comm, &trainer->requests[bucket]) == MPI_SUCCESS;
}

static bool run_nonblocking(overlap_trainer *trainer) {
    for (size_t bucket = 0; bucket < trainer->options.buckets; bucket++) {
        trainer->requests[bucket] = MPI_REQUEST_NULL;
    }
    return overlap_backward(trainer, overlap_own_grad, &(backward_hooks){test_now_and_then, start_bucket}) &&
           MPI_Waitall((int)trainer->options.buckets, trainer->requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
}

static void *reduce_complete(void *argument) {
    overlap_trainer *trainer = argument;
    reduce_queue *queue = &trainer->queue;
    for (size_t bucket = 0; bucket < trainer->options.buckets; bucket++) {
        pthread_mutex_lock(&queue->lock);
        while (queue->complete <= bucket) {
            pthread_cond_wait(&queue->changed, &queue->lock);
        }
        pthread_mutex_unlock(&queue->lock);
        if (!reduce_bucket(trainer, bucket)) {
            return argument;
        }
    }
    return NULL;
}

static bool queue_bucket(overlap_trainer *trainer, size_t index) {
    size_t bucket;
    if (completes_bucket(trainer, index, &bucket)) {
        pthread_mutex_lock(&trainer->queue.lock);
        trainer->queue.complete = bucket + 1;
        pthread_cond_signal(&trainer->queue.changed);
        pthread_mutex_unlock(&trainer->queue.lock);
    }
    return true;
}

static bool run_thread(overlap_trainer *trainer) {
    pthread_t thread;
    void *failure;
    trainer->queue.complete = 0;
    if (pthread_create(&thread, NULL, reduce_complete, trainer) != 0) {
        return false;
    }
    return overlap_backward(trainer, overlap_own_grad, &(backward_hooks){NULL, queue_bucket}) &&
           pthread_join(thread, &failure) == 0 && failure == NULL;
}

static bool mark(overlap_trainer *trainer, size_t index) {
    return overlap_succeeded(gsync_ready(trainer->reducer, trainer->grads[index]));
}

static bool run_library(overlap_trainer *trainer) {
    return overlap_succeeded(gsync_begin(trainer->reducer, GSYNC_SYNC)) &&
           overlap_backward(trainer, overlap_library_grad, &(backward_hooks){NULL, mark}) &&
           overlap_succeeded(gsync_finish(trainer->reducer, NULL));
}

const overlap_way overlap_ways[WAYS] = {
    [WAY_COMPUTE] = {"compute", run_compute, overlap_own_grad, false, false},
    [WAY_MPI_ALONE] = {"MPI alone", reduce_all, overlap_own_grad, true, true},
    [WAY_LIBRARY_ALONE] = {"library alone", finish_step, overlap_library_grad, true, true},
    [WAY_AFTER] = {"MPI after", run_sequential, overlap_own_grad, true, false},
    [WAY_NONBLOCKING] = {"MPI_Iallreduce", run_nonblocking, overlap_own_grad, true, false},
    [WAY_THREAD] = {"MPI in a thread", run_thread, overlap_own_grad, true, false},
    [WAY_LIBRARY] = {"library", run_library, overlap_library_grad, true, false},
};
