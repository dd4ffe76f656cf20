/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_TRAINER_H
#define WIRE_TRAINER_H

/*
 * A bits_model whose gradients travel on narrow wires, with the wire_reference that tells what each step must give.
 * Every rank makes the values of all ranks.
 */

#include "bits_model.h"
#include "wire_reference.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How one gradient is to travel. */
typedef struct wire_choice {
    gsync_wire wire;
    gsync_wire_options options;
} wire_choice;

typedef struct wire_trainer {
    ranks_context *ctx;
    bits_model *model;
    wire_reference *reference;
    const wire_choice *choices; /* by gradient, over and over */
    size_t choice_count;
    wire_values_kind kind;
    double magnitudes[WIRE_GRADIENTS_MAX]; /* of each gradient's values; 1 at first */
    int micro_batches;                     /* of a window, with GSYNC_CLIENT_OVERWRITES; 0: 1 */
    bool weighs;                           /* GSYNC_WEIGHTED_MEAN: rank r's micro-batches count r + 1 */
    bool marks_all;                        /* instead of some */
    int absent;                            /* this rank has no data in the next step; -1: none */
    double loss_scale;                     /* the scaler's; 0: there is none */
    int poisoned_rank; /* -1: none. In the next step element poisoned_element of gradient poisoned_gradient is */
    size_t poisoned_gradient;
    size_t poisoned_element;
    float poison;
    void (*set_mode)(const struct wire_trainer *trainer, bool is_on); /* around what the library does; NULL: nothing */
    uint64_t round;       /* tells the values of one step from those of another */
    float **inputs;       /* as wire_reference_step wants them */
    gsync_step_info info; /* of the last step */
} wire_trainer;

/* Gradients of these counts and of one dtype. */
wire_trainer *wire_trainer_new(ranks_context *ctx, const size_t *counts, size_t count, gsync_dtype dtype);

/* Registers them over comm with choice after choice. ranks_per_host: comm's; 0: one host. */
gsync_status wire_trainer_open(wire_trainer *trainer, gsync_comm *comm, int ranks_per_host,
                               const gsync_options *options, bits_place place, const wire_choice *choices,
                               size_t choice_count);
void wire_trainer_close(wire_trainer *trainer);

/* One window; what it gives is compared bit for bit. */
gsync_status wire_trainer_step(wire_trainer *trainer, ranks_random *random);

#ifdef __cplusplus
}
#endif

#endif
