/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADSYNC_BENCHMARKS_OVERLAP_TRAINER_H
#define GRADSYNC_BENCHMARKS_OVERLAP_TRAINER_H

/* A trainer that computes nothing useful, and the ways in which its gradients can be reduced. */

#include <gradsync/gradsync.h>
#include <mpi.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum { BUCKETS_MAX = 256, GRADIENTS_PER_BUCKET = 4 };

typedef struct overlap_options {
    size_t bytes;
    double compute_ms;
    size_t buckets;
    size_t rounds;
    const char *json; /* NULL: none */
} overlap_options;

/* What another thread of the trainer reduces. */
typedef struct reduce_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t complete; /* buckets */
} reduce_queue;

typedef struct overlap_trainer {
    int rank;
    int world_size;
    overlap_options options;
    MPI_Comm comm;
    bool has_threads; /* MPI_THREAD_MULTIPLE */
    size_t gradient_count;
    size_t gradient_floats;
    size_t bucket_floats;
    float *own; /* the gradients in memory of the trainer's; a bucket's lie side by side */
    gsync_comm *gsync;
    gsync_reducer *reducer;
    float **grads; /* the gradients in the library's buckets */
    float *work;
    size_t slices_per_gradient;
    size_t slices_per_test;
    size_t slices_since_test;
    unsigned round; /* values differ from round to round */
    MPI_Request requests[BUCKETS_MAX];
    reduce_queue queue;
} overlap_trainer;

/* Where the gradient of an index lies. */
typedef float *(*grad_place)(const overlap_trainer *trainer, size_t index);

typedef struct backward_hooks {
    void (*on_slice)(overlap_trainer *trainer);                  /* NULL: nothing */
    bool (*on_gradient)(overlap_trainer *trainer, size_t index); /* NULL: nothing */
} backward_hooks;

/* Collective. On failure the trainer is still to be closed. */
bool overlap_trainer_open(overlap_trainer *trainer, const overlap_options *options);
void overlap_trainer_close(overlap_trainer *trainer);

/* Prints what the library said unless it is GSYNC_OK. */
bool overlap_succeeded(gsync_status status);

float *overlap_own_grad(const overlap_trainer *trainer, size_t index);
float *overlap_library_grad(const overlap_trainer *trainer, size_t index);

/* From the last gradient to the first. */
bool overlap_backward(overlap_trainer *trainer, grad_place grad_of, const backward_hooks *hooks);

/* What backward leaves, without its arithmetic. */
void overlap_fill(overlap_trainer *trainer, grad_place grad_of);

/* Prints the first wrong element. */
bool overlap_is_right(const overlap_trainer *trainer, grad_place grad_of);

/* In the order of the table. */
enum { WAY_COMPUTE, WAY_MPI_ALONE, WAY_LIBRARY_ALONE, WAY_AFTER, WAY_NONBLOCKING, WAY_THREAD, WAY_LIBRARY, WAYS };

typedef struct overlap_way {
    const char *name;
    bool (*run)(overlap_trainer *trainer);
    grad_place place;
    bool reduces;
    bool needs_filling; /* no backward writes the gradients */
} overlap_way;

extern const overlap_way overlap_ways[WAYS];

#endif
