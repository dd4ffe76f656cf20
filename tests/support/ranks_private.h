/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RANKS_PRIVATE_H
#define RANKS_PRIVATE_H

/* What the files of the harness know of each other. */

#include "ranks.h"
#include "ranks_board.h"

#include <pthread.h>
#include <setjmp.h>

struct ranks_block; /* ranks_memory.c */

typedef struct ranks_owned_model {
    ranks_model model;
    struct ranks_owned_model *next;
} ranks_owned_model;

struct ranks_private {
    ranks_board *board;
    struct ranks_block *blocks;
    ranks_owned_model *models;
    jmp_buf way_out; /* of the body, for ranks_refuse */
    pthread_t body_thread;
};

/* Where gradients are on a GPU, tests/mirror puts itself between the bodies and the library. */
typedef struct ranks_device_ops {
    void (*begin)(ranks_context *ctx); /* on the rank's thread, before the body */
    void (*end)(ranks_context *ctx);   /* when nothing of the library is left, and memory is still there */
} ranks_device_ops;

/* Before ranks_main. */
void ranks_use_device(const ranks_device_ops *ops);

/* The test says something that a GPU does not do: it ends as skipped, for this reason, and does not return on the
 * thread of the body. What ranks find wrong later does not count any more. */
void ranks_refuse(const char *reason);

/* The block of this thread's test that holds the address; false if there is none. */
bool ranks_memory_find(const void *address, void **start, size_t *bytes);

/* The rank for which checks on this thread count; NULL: none. */
ranks_context *ranks_current(void);

/* Sets whom checks on this thread count for; NULL: nobody. */
void ranks_set_current(ranks_context *ctx);

void ranks_models_destroy(ranks_context *ctx);
void ranks_memory_free_all(ranks_context *ctx);

/* malloc that ends the program with words when there is no memory. */
void *ranks_allocate(size_t bytes);

#endif
