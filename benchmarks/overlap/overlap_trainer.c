/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap_trainer.h"

#include "../measure.h"

#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

enum { PASSES_PER_SLICE = 16 };

static const double TEST_INTERVAL_MS = 3.0;

bool overlap_succeeded(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "overlap: %s: %s\n", gsync_status_name(status), gsync_last_error());
    }
    return status == GSYNC_OK;
}

/* ---- Backward --------------------------------------------------------------------------------------------------- */

/* Small integers, so that sums are exact in any order. */
static float value_of(size_t i, unsigned round) {
    return (float)((i + round) & 63U);
}

static void write_gradient(const overlap_trainer *trainer, float *grad) {
    for (size_t i = 0; i < trainer->gradient_floats; i++) {
        grad[i] = value_of(i, trainer->round) + (float)trainer->rank;
    }
}

/* From the last gradient to the first. */
bool overlap_backward(overlap_trainer *trainer, grad_place grad_of, const backward_hooks *hooks) {
    bool is_ok = true;
    for (size_t left = trainer->gradient_count; left > 0 && is_ok; left--) {
        for (size_t slice = 0; slice < trainer->slices_per_gradient; slice++) {
            measure_compute(trainer->work, PASSES_PER_SLICE);
            if (hooks->on_slice != NULL) {
                hooks->on_slice(trainer);
            }
        }
        write_gradient(trainer, grad_of(trainer, left - 1));
        is_ok = hooks->on_gradient == NULL || hooks->on_gradient(trainer, left - 1);
    }
    return is_ok;
}

float *overlap_own_grad(const overlap_trainer *trainer, size_t index) {
    return trainer->own + index * trainer->gradient_floats;
}

float *overlap_library_grad(const overlap_trainer *trainer, size_t index) {
    return trainer->grads[index];
}

bool overlap_is_right(const overlap_trainer *trainer, grad_place grad_of) {
    const float ranks = (float)trainer->world_size;
    const float of_ranks = ranks * (ranks - 1) / 2;
    for (size_t g = 0; g < trainer->gradient_count; g++) {
        const float *grad = grad_of(trainer, g);
        for (size_t i = 0; i < trainer->gradient_floats; i++) {
            if (grad[i] != ranks * value_of(i, trainer->round) + of_ranks) {
                fprintf(stderr, "overlap: rank %d: element %zu of gradient %zu is wrong\n", trainer->rank, i, g);
                return false;
            }
        }
    }
    return true;
}

void overlap_fill(overlap_trainer *trainer, float *(*grad_of)(const struct overlap_trainer *, size_t)) {
    for (size_t g = 0; g < trainer->gradient_count; g++) {
        write_gradient(trainer, grad_of(trainer, g));
    }
}

/* ---- Making the trainer ----------------------------------------------------------------------------------------- */

/* The first rank's speed counts for all: they have the same amount of work. */
static void calibrate(overlap_trainer *trainer) {
    double least = measure_compute_ms(trainer->work, PASSES_PER_SLICE);
    MPI_Bcast(&least, 1, MPI_DOUBLE, 0, trainer->comm);
    const double per_gradient = trainer->options.compute_ms / least / (double)trainer->gradient_count;
    trainer->slices_per_gradient = per_gradient < 1 ? 1 : (size_t)(per_gradient + 0.5);
    trainer->slices_per_test = least >= TEST_INTERVAL_MS ? 1 : (size_t)(TEST_INTERVAL_MS / least);
}

static bool open_reducer(overlap_trainer *trainer) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = trainer->bucket_floats * sizeof(float);
    options.op = GSYNC_SUM;
    bool is_ok = overlap_succeeded(gsync_comm_create(&trainer->gsync, NULL)) &&
                 overlap_succeeded(gsync_reducer_create(&trainer->reducer, trainer->gsync, &options));
    char name[32];
    for (size_t g = 0; g < trainer->gradient_count && is_ok; g++) {
        snprintf(name, sizeof name, "g%zu", g);
        is_ok =
            overlap_succeeded(gsync_reducer_add(trainer->reducer, name, NULL, trainer->gradient_floats, GSYNC_FLOAT32));
    }
    is_ok = is_ok && overlap_succeeded(gsync_reducer_commit(trainer->reducer));
    for (size_t g = 0; g < trainer->gradient_count && is_ok; g++) {
        snprintf(name, sizeof name, "g%zu", g);
        trainer->grads[g] = gsync_reducer_grad(trainer->reducer, name);
    }
    return is_ok;
}

bool overlap_trainer_open(overlap_trainer *trainer, const overlap_options *options) {
    int level;
    MPI_Query_thread(&level);
    trainer->options = *options;
    trainer->has_threads = level == MPI_THREAD_MULTIPLE;
    MPI_Comm_dup(MPI_COMM_WORLD, &trainer->comm);
    MPI_Comm_rank(trainer->comm, &trainer->rank);
    MPI_Comm_size(trainer->comm, &trainer->world_size);
    trainer->gradient_count = options->buckets * GRADIENTS_PER_BUCKET;
    /* Whole cache lines: no bucket is larger than its share. */
    trainer->gradient_floats = (options->bytes / sizeof(float) / trainer->gradient_count + 15) / 16 * 16;
    trainer->bucket_floats = trainer->gradient_floats * GRADIENTS_PER_BUCKET;
    trainer->own = calloc(trainer->gradient_count * trainer->gradient_floats, sizeof(float));
    trainer->grads = calloc(trainer->gradient_count, sizeof *trainer->grads);
    trainer->work = calloc(MEASURE_WORK_FLOATS, sizeof(float));
    pthread_mutex_init(&trainer->queue.lock, NULL);
    pthread_cond_init(&trainer->queue.changed, NULL);
    if (trainer->own == NULL || trainer->grads == NULL || trainer->work == NULL) {
        fprintf(stderr, "overlap: not enough memory\n");
        return false;
    }
    calibrate(trainer);
    return open_reducer(trainer);
}

void overlap_trainer_close(overlap_trainer *trainer) {
    gsync_reducer_destroy(&trainer->reducer);
    gsync_comm_destroy(&trainer->gsync);
    pthread_cond_destroy(&trainer->queue.changed);
    pthread_mutex_destroy(&trainer->queue.lock);
    free(trainer->own);
    free((void *)trainer->grads);
    free(trainer->work);
    MPI_Comm_free(&trainer->comm);
}
