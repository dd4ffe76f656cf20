/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RANKS_PRIVATE_H
#define RANKS_PRIVATE_H

/* What the files of the harness know of each other. */

#include "ranks.h"
#include "ranks_board.h"

struct ranks_block; /* ranks_memory.c */

typedef struct ranks_owned_model {
    ranks_model model;
    struct ranks_owned_model *next;
} ranks_owned_model;

struct ranks_private {
    ranks_board *board;
    struct ranks_block *blocks;
    ranks_owned_model *models;
};

/* Sets whom checks on this thread count for; NULL: nobody. */
void ranks_set_current(ranks_context *ctx);

void ranks_models_destroy(ranks_context *ctx);
void ranks_memory_free_all(ranks_context *ctx);

/* malloc that ends the program with words when there is no memory. */
void *ranks_allocate(size_t bytes);

#endif
