/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_values.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A prime: a chunk, shard or page that lands in the wrong place does not find the same values there. */
enum { PERIOD = 1021 };

/* Where the values of the next call start; a call finds no value where the call before left it. */
enum { CALL_STRIDE = 97 };

/* Values are 1 .. VALUE_MAX, or less where many ranks would leave the exact integers; with 1 alone they are equal. */
enum { VALUE_MAX = 16, VALUE_MAX_LEAST = 2 };

/* All integers up to this are exact. */
static double exact_max(gsync_dtype dtype) {
    switch (dtype) {
    case GSYNC_FLOAT16:
        return 2048.0;
    case GSYNC_BFLOAT16:
        return 256.0;
    default:
        return 16777216.0;
    }
}

/* The sum of a column is below world x (value_max + 1): the rest that makes it a multiple of world is below world. */
static int value_max(gsync_dtype dtype, int world) {
    const double most = floor(exact_max(dtype) / (double)world) - 1.0;
    return most < (double)VALUE_MAX ? (int)most : VALUE_MAX;
}

bool perf_values_are_exact(gsync_dtype dtype, int world) {
    return value_max(dtype, world) >= VALUE_MAX_LEAST;
}

/* splitmix64 of (rank, index): the same on all machines. */
static int drawn(int rank, int index, int most) {
    uint64_t x = ((uint64_t)(unsigned)rank << 32) + (uint64_t)(unsigned)index + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return 1 + (int)(x % (uint64_t)most);
}

/* An integer from 1 to 2048. */
static uint16_t half_bits(int value) {
    const int exponent = ilogb((double)value);
    const double fraction = ldexp((double)value, -exponent) - 1.0;
    return (uint16_t)((exponent + 15) * 1024 + (int)(fraction * 1024.0));
}

/* An integer from 1 to 256: the lower half of the float is zero. */
static uint16_t bfloat16_bits(int value) {
    const float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void encode(gsync_dtype dtype, int value, unsigned char *at) {
    const float single = (float)value;
    const double twofold = (double)value;
    uint16_t bits;
    switch (dtype) {
    case GSYNC_FLOAT64:
        memcpy(at, &twofold, sizeof twofold);
        break;
    case GSYNC_FLOAT16:
        bits = half_bits(value);
        memcpy(at, &bits, sizeof bits);
        break;
    case GSYNC_BFLOAT16:
        bits = bfloat16_bits(value);
        memcpy(at, &bits, sizeof bits);
        break;
    default:
        memcpy(at, &single, sizeof single);
    }
}

/* Into both copies of the period. */
static void set(const perf_values *values, gsync_dtype dtype, unsigned char *table, int index, int value) {
    unsigned char *at = table + (size_t)index * values->element_bytes;
    encode(dtype, value, at);
    memcpy(at + PERIOD * values->element_bytes, at, values->element_bytes);
}

bool perf_values_init(perf_values *values, gsync_dtype dtype, int rank, int world) {
    const size_t element_bytes = gsync_dtype_size(dtype);
    const size_t bytes = 2 * PERIOD * element_bytes;
    *values = (perf_values){element_bytes, malloc(bytes), malloc(bytes), malloc(bytes)};
    if (values->input == NULL || values->sum == NULL || values->mean == NULL) {
        perf_values_clear(values);
        return false;
    }
    const int most = value_max(dtype, world);
    for (int index = 0; index < PERIOD; index++) {
        int sum = 0;
        for (int r = 0; r < world; r++) {
            sum += drawn(r, index, most);
        }
        /* One rank, in turn, adds what is missing to a multiple of world. */
        const int rest = (world - sum % world) % world;
        set(values, dtype, values->input, index, drawn(rank, index, most) + (index % world == rank ? rest : 0));
        set(values, dtype, values->sum, index, sum + rest);
        set(values, dtype, values->mean, index, (sum + rest) / world);
    }
    return true;
}

void perf_values_clear(perf_values *values) {
    free(values->input);
    free(values->sum);
    free(values->mean);
    *values = (perf_values){0};
}

/* One period as the given call sees it from element first on. */
static const unsigned char *period_of(const perf_values *values, const unsigned char *table, unsigned call,
                                      size_t first) {
    return table + (size_t)((call * (uint64_t)CALL_STRIDE + first) % PERIOD) * values->element_bytes;
}

void perf_values_fill(const perf_values *values, unsigned call, size_t first, void *buffer, size_t count) {
    const unsigned char *period = period_of(values, values->input, call, first);
    unsigned char *at = buffer;
    for (size_t done = 0; done < count; done += PERIOD) {
        const size_t elements = count - done < PERIOD ? count - done : PERIOD;
        memcpy(at + done * values->element_bytes, period, elements * values->element_bytes);
    }
}

static size_t count_wrong(const unsigned char *period, const unsigned char *at, size_t elements, size_t element_bytes) {
    size_t wrong = 0;
    for (size_t i = 0; i < elements; i++) {
        wrong += memcmp(period + i * element_bytes, at + i * element_bytes, element_bytes) != 0;
    }
    return wrong;
}

size_t perf_values_wrong(const perf_values *values, unsigned call, gsync_op op, size_t first, const void *buffer,
                         size_t count) {
    const size_t element_bytes = values->element_bytes;
    const unsigned char *period = period_of(values, op == GSYNC_MEAN ? values->mean : values->sum, call, first);
    const unsigned char *at = buffer;
    size_t wrong = 0;
    for (size_t done = 0; done < count; done += PERIOD) {
        const size_t elements = count - done < PERIOD ? count - done : PERIOD;
        if (memcmp(period, at + done * element_bytes, elements * element_bytes) != 0) {
            wrong += count_wrong(period, at + done * element_bytes, elements, element_bytes);
        }
    }
    return wrong;
}
