/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CODEC_TRIALS_H
#define CODEC_TRIALS_H

/*
 * Codecs run with each instruction set in turn, elements of all kinds, and rounding in double arithmetic. For one
 * program, which includes cmocka.h first and wraps gs_kernels_best.
 */

#include "base/float_mode.h"
#include "seeded.h"
#include "wire/codec.h"

#include <math.h>
#include <stdlib.h>

#if !defined(SEED)
#define SEED 20261130
#endif

static const gs_codec_terms plain_terms = {.scale = 1.0f};

/* ---- Instruction sets ----------------------------------------------------------------------------------------------
 */

static const gs_kernels *tested_kernels;

const gs_kernels *__wrap_gs_kernels_best(void);
const gs_kernels *__wrap_gs_kernels_best(void) {
    return tested_kernels != NULL ? tested_kernels : gs_kernels_get(GS_ISA_PLAIN);
}

/* Calls the claim once for every table that this machine can run. */
static inline void for_every_isa(void (*claim)(void)) {
    for (gs_isa isa = GS_ISA_PLAIN; isa < GS_ISA_COUNT; isa++) {
        tested_kernels = gs_kernels_get(isa);
        if (tested_kernels != NULL) {
            claim();
        }
    }
    tested_kernels = NULL;
}

/* ---- Elements ------------------------------------------------------------------------------------------------------
 */

/* Standard normal, near enough: a sum of twelve. */
static inline float gaussian(seeded *random) {
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        sum += (double)(seeded_next(random) >> 11) * 0x1p-53;
    }
    return (float)sum;
}

/* Now and then a thousand times as large. */
static inline float heavy_tailed(seeded *random) {
    const double u = (double)((seeded_next(random) >> 11) + 1) * 0x1p-53;
    return (float)((double)gaussian(random) * pow(u, -1.0 / 3.0));
}

/* Any finite float32, with every exponent as likely as the others. */
static inline float any_finite(seeded *random) {
    const uint64_t bits = seeded_next(random);
    const uint32_t exponent = (uint32_t)(bits >> 32) % 255u;
    return gs_float_from_bits(((uint32_t)bits & 0x807fffffu) | exponent << 23);
}

/* All within a few powers of two, so that a block does not consist of zeros but for one element. */
static inline float near_exponent(seeded *random, uint32_t exponent) {
    const uint64_t bits = seeded_next(random);
    const uint32_t less = (uint32_t)(bits >> 32) % 12u;
    return gs_float_from_bits(((uint32_t)bits & 0x807fffffu) | (exponent > less ? exponent - less : 0) << 23);
}

static inline float float_before(float x) {
    return gs_float_from_bits(gs_float_bits(x) - 1);
}

static inline float float_after(float x) {
    return gs_float_from_bits(gs_float_bits(x) + 1);
}

/* In a block that ends with its last element, so that AddressSanitizer sees the first one behind it. */
static inline void *new_bytes(size_t bytes) {
    void *const block = malloc(bytes + (bytes == 0));
    assert_non_null(block);
    memset(block, 0xa5, bytes);
    return block;
}

static inline float *copy_floats(const float *x, size_t count) {
    float *const copy = new_bytes(count * sizeof *copy);
    memcpy(copy, x, count * sizeof *copy);
    return copy;
}

/* ---- Rounding ------------------------------------------------------------------------------------------------------
 */

/* To nearest even among numbers with so many fraction bits, the smallest step being 2^(least_exponent - bits). */
static inline double rounded_to(double value, int fraction_bits, int least_exponent) {
    if (value == 0.0 || !isfinite(value)) {
        return value;
    }
    const int exponent = ilogb(value) > least_exponent ? ilogb(value) : least_exponent;
    const double step = ldexp(1.0, exponent - fraction_bits);
    return copysign(nearbyint(value / step) * step, value);
}

static inline void expect_same_float(const char *what, size_t index, float x, float got, float expected) {
    if (gs_float_bits(got) != gs_float_bits(expected)) {
        fail_msg("%s, %s, element %zu: %a became %a (%08x), not %a", __wrap_gs_kernels_best()->name, what, index,
                 (double)x, (double)got, gs_float_bits(got), (double)expected);
    }
}

/* ---- What any codec does -------------------------------------------------------------------------------------------
 */

/* decode(encode(x)), for whole blocks. */
static inline float *through(const gs_codec *codec, const float *x, size_t count, const gs_codec_terms *terms,
                             gs_findings *findings) {
    void *const wire = new_bytes(gs_codec_bytes(codec, count));
    float *const back = new_bytes(count * sizeof *back);
    codec->encode(wire, x, count, terms, findings);
    codec->decode(back, wire, count, terms);
    free(wire);
    return back;
}

static inline double nmse_of(const gs_codec *codec, float (*draw)(seeded *random), size_t count, bool is_stochastic) {
    seeded random = {SEED};
    const gs_codec_terms terms = {.scale = 1.0f, .is_stochastic = is_stochastic, .key = SEED};
    float *const x = new_bytes(count * sizeof *x);
    double error = 0;
    double power = 0;
    for (size_t i = 0; i < count; i++) {
        x[i] = draw(&random);
    }
    float *const back = through(codec, x, count, &terms, NULL);
    for (size_t i = 0; i < count; i++) {
        error += ((double)back[i] - (double)x[i]) * ((double)back[i] - (double)x[i]);
        power += (double)x[i] * (double)x[i];
    }
    free(back);
    free(x);
    return error / power;
}

#endif
