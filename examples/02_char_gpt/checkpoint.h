/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_CHECKPOINT_H
#define CHAR_GPT_CHECKPOINT_H

/*
 * Parameters, optimizer state and step in one file. Training that is resumed from it continues with the same bits as
 * if it had not stopped. One rank writes and reads; the file is for machines of the same byte order.
 */

#include "model.h"
#include "optimizer.h"

/* What has to be the same for the continuation to make sense. */
typedef struct checkpoint_identity {
    model_shape shape;
    optimizer_kind optimizer;
    int wire;
    uint64_t seed;
    int global_batch;
    uint64_t text_hash;
} checkpoint_identity;

/* Where it goes wrong, both return false and say why in `reason`. */
typedef struct checkpoint_reason {
    char words[512];
} checkpoint_reason;

/* Whether a checkpoint could be written there: better known before the training than after. */
bool checkpoint_is_writable(const char *path, checkpoint_reason *reason);

/* Writes beside the path and renames at the end: whatever happens meanwhile, an older checkpoint stays whole. */
bool checkpoint_write(const char *path, const checkpoint_identity *identity, int64_t step, const model *m,
                      const optimizer *o, checkpoint_reason *reason);

/* Fills m and o, and sets *step to the last finished one. After a failure m and o hold nothing of use. */
bool checkpoint_read(const char *path, const checkpoint_identity *identity, model *m, optimizer *o, int64_t *step,
                     checkpoint_reason *reason);

/*
 * What one rank remembers beside that, in the file PATH.rankN, written before the checkpoint itself. A crash between
 * the two leaves files of different steps, which are refused when they are read.
 */
bool checkpoint_part_write(const char *path, int rank, int64_t step, const void *part, size_t bytes,
                           checkpoint_reason *reason);

/* Exactly `bytes`, of that step. */
bool checkpoint_part_read(const char *path, int rank, int64_t step, void *part, size_t bytes,
                          checkpoint_reason *reason);

#endif
