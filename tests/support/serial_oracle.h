/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERIAL_ORACLE_H
#define SERIAL_ORACLE_H

/*
 * What a reduction must give, bit for bit: the documented arithmetic, written down once more as one thread would do it
 * with all ranks' data before it. Shares no code with the library.
 *
 * Sum: in float32 (float64 for float64), in the order of ranks; over several hosts first inside each host, then over
 * the hosts. Then one division, then one rounding to the dtype.
 */

#include "ranks.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oracle_terms {
    gsync_dtype dtype;
    int world;
    int ranks_per_host; /* 0: all ranks are on one host */
    double divisor;     /* 1: a sum */
    uint64_t key;       /* seed, round and tensor in one number: another key, other values */
    uint32_t members;   /* bit r: rank r contributes; 0: all */
} oracle_terms;

uint64_t oracle_key(const ranks_context *ctx, uint64_t round, size_t tensor);

/*
 * This rank's input: zeros of both signs, subnormals, values near the largest, values that cancel against the rank
 * before, and ordinary ones over many binades. Always finite.
 */
void oracle_fill(const oracle_terms *terms, int rank, void *buffer, size_t count);

/* The result. */
void oracle_reduce(const oracle_terms *terms, void *buffer, size_t count);

/* An IEEE format: sign, exponent, fraction. */
typedef struct oracle_format {
    int exponent_bits;
    int fraction_bits;
} oracle_format;

oracle_format oracle_format_of(gsync_dtype dtype);

/* A float32 as FLOAT16 or BFLOAT16, to nearest even. */
uint16_t oracle_narrowed(gsync_dtype dtype, float value);

/* Index of the first element whose bits differ; count if none. Any NaN equals any other: who wins is the adder's. */
size_t oracle_first_difference(gsync_dtype dtype, const void *a, const void *b, size_t count);

/* Checks got against expected, bit for bit. */
#define CHECK_BITS(dtype, got, expected, count, what)                                                                  \
    oracle_check_bits((dtype), (got), (expected), (count), (what), __FILE__, __LINE__)
bool oracle_check_bits(gsync_dtype dtype, const void *got, const void *expected, size_t count, const char *what,
                       const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
