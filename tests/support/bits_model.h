/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BITS_MODEL_H
#define BITS_MODEL_H

/*
 * A model whose reduced gradients are compared bit for bit with the serial oracle, over any reducer: the inputs and
 * the expected results are made once, then steps are taken with one setting after the other.
 *
 *     bits_model *model = bits_model_new(ctx, shapes, count, &terms);
 *     REQUIRE_OK(bits_model_open(model, ctx->comm, &options, BITS_APART));
 *     REQUIRE_OK(bits_model_step(model, 0, &random, NULL));     // checks every gradient and what lies around it
 *     bits_model_close(model);
 *
 * Steps alternate between two rounds of values, so that a result left over from the step before is seen.
 */

#include "serial_oracle.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BITS_ROUNDS 2

typedef enum bits_place {
    BITS_APART,   /* each gradient in memory of its own, on a 64-byte boundary */
    BITS_SHIFTED, /* likewise, one element behind the boundary */
    BITS_FLAT,    /* one behind the other, in order of registration, one element behind a boundary */
    BITS_PITCHED, /* rows with gaps */
    BITS_OWNED,   /* in the library */
    BITS_MIXED    /* tensor by tensor: apart, shifted, pitched, owned */
} bits_place;

typedef struct bits_shape {
    size_t count;
    gsync_dtype dtype;
} bits_shape;

typedef struct bits_tensor {
    char name[24];
    size_t count;
    size_t rows;
    size_t columns;
    size_t pitch;
    gsync_dtype dtype;
    void *grad;
    unsigned char *block; /* what grad lies in; NULL: in the library, or in the model's flat block */
    size_t block_bytes;
    void *input[BITS_ROUNDS];
    void *expected[BITS_ROUNDS];
} bits_tensor;

typedef struct bits_model bits_model;
struct bits_model {
    ranks_context *ctx;
    gsync_reducer *reducer; /* NULL unless open */
    ranks_model *keeper;    /* has the reducer destroyed when the test ends before bits_model_close */
    bits_tensor *tensors;
    size_t tensor_count;
    size_t bytes; /* of all gradients */
    unsigned char *flat;
    const char *setting; /* told when a check fails */
    /* Called when the gradients are registered and not yet committed; NULL: nothing is left to be said about them. */
    gsync_status (*prepare)(bits_model *model);
    void *prepare_with;
};

/* terms: dtype and key are the tensors' own. */
bits_model *bits_model_new(ranks_context *ctx, const bits_shape *shapes, size_t tensor_count,
                           const oracle_terms *terms);

/* Places the gradients, registers and commits them. */
gsync_status bits_model_open(bits_model *model, gsync_comm *comm, const gsync_options *options, bits_place place);
void bits_model_close(bits_model *model);

/* Puts the inputs of a round where the gradients are. */
void bits_model_load(bits_model *model, int round);

/* Marks a random part of the gradients in a random order. */
gsync_status bits_model_mark(bits_model *model, ranks_random *random);

/* Compares all gradients with a round's expectation, and looks at what lies around them. */
bool bits_model_check(const bits_model *model, int round);

/* load, begin, mark, finish, check. */
gsync_status bits_model_step(bits_model *model, int round, ranks_random *random, gsync_step_info *info);

#ifdef __cplusplus
}
#endif

#endif
