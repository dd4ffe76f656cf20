/* SPDX-License-Identifier: Apache-2.0 */
#include "random_layout.h"
#include "serial_oracle.h"

#include <string.h>

/* ---- inputs ---- */

/* Over many binades, so that every order of addition rounds differently; now and then zero, subnormal or very large. */
static uint64_t random_bits(oracle_format of, uint64_t random) {
    const uint64_t bias = (UINT64_C(1) << (of.exponent_bits - 1)) - 1;
    const uint64_t special[] = {0, 0, 1, 2 * bias};
    const uint64_t kind = random >> 1 & 63u;
    const uint64_t exponent = kind < 4 ? special[kind] : bias - 6 + (kind - 4) % 13;
    const uint64_t fraction = kind == 0 ? 0 : random >> 12 & ((UINT64_C(1) << of.fraction_bits) - 1);
    return (random & 1u) << (of.exponent_bits + of.fraction_bits) | exponent << of.fraction_bits | fraction;
}

void layout_fill(const layout *drawn, uint32_t step, uint32_t micro_batch, size_t tensor, int rank, void *values) {
    const layout_tensor *of = &drawn->tensors[tensor];
    const uint64_t stream = (((uint64_t)step * 8 + micro_batch) * LAYOUT_TENSORS_MAX + tensor) * 64 + (uint64_t)rank;
    ranks_random random = ranks_random_from(drawn->seed, stream + 1000);
    const oracle_format bits_of = oracle_format_of(of->dtype);
    const size_t size = gsync_dtype_size(of->dtype);
    for (size_t i = 0; i < layout_count(of); i++) {
        const uint64_t bits = random_bits(bits_of, ranks_random_next(&random));
        memcpy((unsigned char *)values + i * size, &bits, size); /* little endian, as everything that has MPI today */
    }
}

/* ---- 16 bits ---- */

static float widened(gsync_dtype dtype, uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t exponent = bits >> 10 & 31u;
    const uint32_t fraction = bits & 1023u;
    uint32_t wide = sign | (exponent + 112) << 23 | fraction << 13;
    float value;
    if (dtype == GSYNC_BFLOAT16) {
        wide = (uint32_t)bits << 16;
    } else if (exponent == 0) {
        value = (float)fraction / 16777216.0f;
        return sign != 0 ? -value : value;
    }
    memcpy(&value, &wide, sizeof value); /* inputs are finite */
    return value;
}

static double value_at(gsync_dtype dtype, const void *values, size_t i) {
    switch (dtype) {
    case GSYNC_FLOAT64:
        return ((const double *)values)[i];
    case GSYNC_FLOAT32:
        return (double)((const float *)values)[i];
    default:
        return (double)widened(dtype, ((const uint16_t *)values)[i]);
    }
}

/* ---- sums: each cast to the type of the sum is its rounding ---- */

typedef struct sums {
    double *rank; /* float32 values lie in float64 as they are */
    double *host;
    double *all;
    void *values; /* one rank's in one micro-batch */
} sums;

static sums carve(const layout *drawn, size_t tensor, void *scratch) {
    const size_t count = layout_count(&drawn->tensors[tensor]);
    double *at = scratch;
    return (sums){at, at + count, at + 2 * count, at + 3 * count};
}

size_t layout_scratch_bytes(const layout *drawn, size_t tensor) {
    return 4 * sizeof(double) * layout_count(&drawn->tensors[tensor]);
}

/*
 * float32 arithmetic done in float64 and rounded once gives the bits of float32 arithmetic, since 53 >= 2 * 24 + 2.
 */
static double rounded(const layout_tensor *of, double value) {
    return of->dtype == GSYNC_FLOAT64 ? value : (double)(float)value;
}

static void add(const layout_tensor *of, double *to, const double *from, bool is_first) {
    for (size_t i = 0; i < layout_count(of); i++) {
        to[i] = is_first ? from[i] : rounded(of, to[i] + from[i]);
    }
}

static void sum_micro_batches(const layout *drawn, uint32_t step, size_t tensor, int rank, sums *into) {
    const layout_tensor *of = &drawn->tensors[tensor];
    const bool overwrites = drawn->options.accumulation == GSYNC_CLIENT_OVERWRITES;
    /* A trainer that adds up itself has put everything into the buffer by the last one. */
    for (uint32_t m = overwrites ? 0 : drawn->micro_batches - 1; m < drawn->micro_batches; m++) {
        const double factor = drawn->options.weighting == GSYNC_WEIGHT_OF_MEANS ? drawn->weights[rank][m] : 1.0;
        layout_fill(drawn, step, m, tensor, rank, into->values);
        for (size_t i = 0; i < layout_count(of); i++) {
            const double term = rounded(of, factor * value_at(of->dtype, into->values, i));
            into->rank[i] = m == 0 || !overwrites ? term : rounded(of, into->rank[i] + term);
        }
    }
}

/* Ranks in their order; hosts, where there are several, first each on its own. */
static void sum_ranks(const layout *drawn, uint32_t step, size_t tensor, sums *into) {
    const layout_tensor *of = &drawn->tensors[tensor];
    const int per_host = drawn->ranks_per_host == 0 ? drawn->world : (int)drawn->ranks_per_host;
    for (int first = 0; first < drawn->world; first += per_host) {
        bool is_first = true;
        memset(into->host, 0, layout_count(of) * sizeof *into->host);
        for (int rank = first; rank < first + per_host && rank < drawn->world; rank++) {
            if (layout_has_data(drawn, rank)) {
                sum_micro_batches(drawn, step, tensor, rank, into);
                add(of, into->host, into->rank, is_first);
                is_first = false;
            }
        }
        add(of, into->all, into->host, first == 0);
    }
}

static double divisor_of(const layout *drawn) {
    const gsync_options *options = &drawn->options;
    const double window = options->averages_window != 0 ? (double)drawn->micro_batches : 1.0;
    double participants = 0;
    double weight = 0;
    for (int rank = 0; rank < drawn->world; rank++) {
        participants += layout_has_data(drawn, rank) ? 1.0 : 0.0;
        for (uint32_t m = 0; m < drawn->micro_batches && layout_has_data(drawn, rank); m++) {
            weight += drawn->weights[rank][m];
        }
    }
    switch (options->op) {
    case GSYNC_MEAN:
        return window * (options->divisor == GSYNC_DIVIDE_BY_WORLD ? (double)drawn->world : participants);
    case GSYNC_WEIGHTED_MEAN:
        return weight;
    default:
        return 1.0;
    }
}

void layout_expect(const layout *drawn, uint32_t step, size_t tensor, void *expected, void *scratch) {
    const layout_tensor *of = &drawn->tensors[tensor];
    const double divisor = divisor_of(drawn);
    sums into = carve(drawn, tensor, scratch);
    sum_ranks(drawn, step, tensor, &into);
    for (size_t i = 0; i < layout_count(of); i++) {
        const double result = rounded(of, into.all[i] / divisor);
        switch (of->dtype) {
        case GSYNC_FLOAT64:
            ((double *)expected)[i] = result;
            break;
        case GSYNC_FLOAT32:
            ((float *)expected)[i] = (float)result;
            break;
        default:
            ((uint16_t *)expected)[i] = oracle_narrowed(of->dtype, (float)result);
            break;
        }
    }
}
