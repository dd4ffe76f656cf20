/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_REFERENCE_H
#define WIRE_REFERENCE_H

/*
 * What steps over narrow wires must give, bit for bit: the documented arithmetic, written down once more as one thread
 * would do it with all ranks' gradients before it. Shares no code with the library; its codecs are scalar ones.
 *
 *     wire_reference *reference = wire_reference_new(ctx, world, ranks_per_host);
 *     wire_reference_add(reference, count, GSYNC_FLOAT32, GSYNC_WIRE_INT8, &options);
 *     wire_reference_step(reference, inputs, results);
 */

#include "serial_oracle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wire_values_kind {
    WIRE_GAUSSIAN,
    WIRE_HEAVY_TAILED, /* a cubed gaussian over a wide range of magnitudes */
    WIRE_CONSTANT,
    WIRE_ZERO,
    WIRE_DENORMAL,
    WIRE_HUGE, /* around 2^110: sums are finite */
    WIRE_MIXED /* zeros of both signs, subnormals, equal magnitudes, ordinary numbers over 20 binades */
} wire_values_kind;

/* The same on every rank that asks for the same. */
void wire_values(wire_values_kind kind, uint64_t key, int rank, float *to, size_t count);

/* Of the random numbers of stochastic rounding; the library's own secret, which a test brings. */
typedef uint64_t (*wire_key)(uint64_t seed, uint64_t step, int rank, uint32_t gradient);
/* Of number under key: 24 bits. Likewise. */
typedef uint32_t (*wire_random)(uint64_t key, uint64_t number);

typedef struct wire_gradient {
    size_t count;
    gsync_dtype dtype;
    gsync_wire wire;
    gsync_wire_options options;
    float **owed; /* with feedback, by rank; between hosts by host */
    float **owed_next;
    float *owed_of_result;
    float *owed_of_result_next;
} wire_gradient;

enum { WIRE_GRADIENTS_MAX = 16 };

typedef struct wire_reference {
    ranks_context *ctx;
    int world;
    int ranks_per_host; /* 0: all ranks on one host */
    double divisor;     /* of the next step; the world size at first */
    double loss_scale;  /* 1 at first */
    wire_key key;
    wire_random random;
    uint64_t step;    /* that counted, or was skipped */
    float half_scale; /* of the next step; 0: not known */
    bool found_inf;   /* in the last step */
    float absmax;     /* work */
    wire_gradient gradients[WIRE_GRADIENTS_MAX];
    size_t gradient_count;
} wire_reference;

wire_reference *wire_reference_new(ranks_context *ctx, int world, int ranks_per_host);
/* options NULL: the defaults */
void wire_reference_add(wire_reference *reference, size_t count, gsync_dtype dtype, gsync_wire wire,
                        const gsync_wire_options *options);
/* inputs[gradient * world + rank] as float32; NULL: that rank contributes nothing. results[gradient]: of its dtype. */
void wire_reference_step(wire_reference *reference, const float *const *inputs, void *const *results);

/* Does the gradient travel on its narrow wire in the next step? */
bool wire_reference_is_narrow(const wire_reference *reference, size_t gradient);

/* One rounding of one stretch of elements, the first of which begins a block. */
void wire_round(gsync_wire wire, float scale, float *x, size_t count);

/* The scale for gradients of up to this magnitude. */
float wire_half_scale(double absmax, int world);

#ifdef __cplusplus
}
#endif

#endif
