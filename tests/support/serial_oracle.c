/* SPDX-License-Identifier: Apache-2.0 */
#include "serial_oracle.h"

#include <math.h>
#include <string.h>

static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t oracle_key(const ranks_context *ctx, uint64_t round, size_t tensor) {
    return mixed(mixed(ctx->seed ^ mixed(round)) ^ (uint64_t)tensor);
}

/* ---- Inputs ---------------------------------------------------------------------------------------------------- */

oracle_format oracle_format_of(gsync_dtype dtype) {
    switch (dtype) {
    case GSYNC_FLOAT64:
        return (oracle_format){11, 52};
    case GSYNC_FLOAT16:
        return (oracle_format){5, 10};
    case GSYNC_BFLOAT16:
        return (oracle_format){8, 7};
    default:
        return (oracle_format){8, 23};
    }
}

static uint64_t compose(oracle_format format, uint64_t sign, uint64_t exponent, uint64_t fraction) {
    const uint64_t mask = (UINT64_C(1) << format.fraction_bits) - 1;
    return sign << (format.exponent_bits + format.fraction_bits) | exponent << format.fraction_bits | (fraction & mask);
}

static uint64_t own_bits(oracle_format format, uint64_t random) {
    const uint64_t bias = (UINT64_C(1) << (format.exponent_bits - 1)) - 1;
    const uint64_t sign = random & 1u;
    const uint64_t fraction = random >> 12;
    const uint64_t spread = format.exponent_bits == 5 ? 8 : 12;
    switch ((random >> 1) & 15u) {
    case 0:
        return compose(format, sign, 0, 0);
    case 1:
        return compose(format, sign, 0, fraction);
    case 2: /* the largest binade: sums overflow */
        return compose(format, sign, 2 * bias, fraction);
    case 3: /* the smallest normal one: means become subnormal */
        return compose(format, sign, 1, fraction);
    default:
        return compose(format, sign, bias - spread + (random >> 5) % (2 * spread), fraction);
    }
}

static uint64_t input_bits(const oracle_terms *terms, oracle_format format, int rank, size_t element) {
    const uint64_t at = terms->key + 0x632be59bd9b4e019u * element;
    const uint64_t sign_bit = UINT64_C(1) << (format.exponent_bits + format.fraction_bits);
    /* One element in 16 cancels against the rank before. */
    if (rank % 2 == 1 && (mixed(at) & 15u) == 0) {
        return own_bits(format, mixed(at ^ mixed((uint64_t)rank - 1))) ^ sign_bit;
    }
    return own_bits(format, mixed(at ^ mixed((uint64_t)rank)));
}

void oracle_fill(const oracle_terms *terms, int rank, void *buffer, size_t count) {
    const oracle_format format = oracle_format_of(terms->dtype);
    const size_t size = gsync_dtype_size(terms->dtype);
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = input_bits(terms, format, rank, i);
        memcpy((unsigned char *)buffer + i * size, &bits, size); /* little endian, as everything that has MPI today */
    }
}

/* ---- Results --------------------------------------------------------------------------------------------------- */

static double value_of(gsync_dtype dtype, uint64_t bits) {
    if (dtype == GSYNC_BFLOAT16) {
        bits <<= 16;
        dtype = GSYNC_FLOAT32;
    }
    return ranks_load(&bits, dtype, 0);
}

static bool contributes(const oracle_terms *terms, int rank) {
    return terms->members == 0 || (terms->members >> rank & 1u) != 0;
}

static int host_of(const oracle_terms *terms, int rank) {
    return terms->ranks_per_host == 0 ? 0 : rank / terms->ranks_per_host;
}

/*
 * Adds ranks, then hosts, in `sum`'s precision: the cast after every addition is the rounding of that precision.
 * float32 sums of float32 values computed in float64 and rounded once are the same bits, since 53 >= 2 * 24 + 2.
 */
#define SUM_OVER_RANKS(type, total)                                                                                    \
    do {                                                                                                               \
        const int host_count = host_of(terms, terms->world - 1) + 1;                                                   \
        for (int host = 0, rank = 0; host < host_count; host++) {                                                      \
            type sum = 0;                                                                                              \
            bool is_first = true;                                                                                      \
            for (; rank < terms->world && host_of(terms, rank) == host; rank++) {                                      \
                if (contributes(terms, rank)) {                                                                        \
                    const type term = (type)value_of(terms->dtype, input_bits(terms, format, rank, element));          \
                    sum = is_first ? term : (type)(sum + term);                                                        \
                    is_first = false;                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            total = host == 0 ? sum : (type)(total + sum);                                                             \
        }                                                                                                              \
    } while (0)

static double result_of(const oracle_terms *terms, oracle_format format, size_t element) {
    if (terms->dtype == GSYNC_FLOAT64) {
        double total = 0;
        SUM_OVER_RANKS(double, total);
        return total / terms->divisor;
    }
    float total = 0;
    SUM_OVER_RANKS(float, total);
    /* A float32 quotient where float32 holds the divisor, by the same argument; else it is divided in float64. */
    return (double)(float)((double)total / terms->divisor);
}

/* value >> shift, to nearest, ties to even. shift >= 1 */
static uint32_t shifted_to_nearest(uint32_t value, int shift) {
    const uint32_t kept = shift < 32 ? value >> shift : 0;
    const uint64_t lost = value - ((uint64_t)kept << shift);
    const uint64_t half = UINT64_C(1) << (shift - 1);
    return kept + (lost > half || (lost == half && kept % 2 == 1));
}

/* A float32 in fewer bits. What rounding up carries into the exponent is right as it is, up to infinity. */
uint16_t oracle_narrowed(gsync_dtype dtype, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (isnan(value)) {
        return sign | 0x7fff;
    }
    if (dtype == GSYNC_BFLOAT16) {
        return (uint16_t)(sign | shifted_to_nearest(magnitude, 16));
    }
    const int exponent = (int)(magnitude >> 23) - 127;
    if (exponent >= 16) {
        return sign | 0x7c00;
    }
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    if (exponent >= -14) {
        return (uint16_t)(sign | (((uint32_t)(exponent + 14) << 10) + shifted_to_nearest(significand, 13)));
    }
    return (uint16_t)(sign | (exponent < -30 ? 0 : shifted_to_nearest(significand, -1 - exponent)));
}

void oracle_reduce(const oracle_terms *terms, void *buffer, size_t count) {
    const oracle_format format = oracle_format_of(terms->dtype);
    for (size_t i = 0; i < count; i++) {
        const double result = result_of(terms, format, i);
        if (gsync_dtype_size(terms->dtype) == sizeof(uint16_t)) {
            ((uint16_t *)buffer)[i] = oracle_narrowed(terms->dtype, (float)result);
        } else {
            ranks_store(buffer, terms->dtype, i, result);
        }
    }
}

/* ---- Comparing ------------------------------------------------------------------------------------------------- */

size_t oracle_first_difference(gsync_dtype dtype, const void *a, const void *b, size_t count) {
    const size_t size = gsync_dtype_size(dtype);
    if (count == 0 || memcmp(a, b, count * size) == 0) {
        return count;
    }
    for (size_t i = 0; i < count; i++) {
        const bool is_same = memcmp((const char *)a + i * size, (const char *)b + i * size, size) == 0;
        if (!is_same && !(isnan(ranks_load(a, dtype, i)) && isnan(ranks_load(b, dtype, i)))) {
            return i;
        }
    }
    return count;
}

bool oracle_check_bits(gsync_dtype dtype, const void *got, const void *expected, size_t count, const char *what,
                       const char *file, int line) {
    const size_t at = oracle_first_difference(dtype, got, expected, count);
    if (at == count) {
        return true;
    }
    return ranks_fail(file, line, "%s: element %zu of %zu: got %a, expected %a", what, at, count,
                      ranks_load(got, dtype, at), ranks_load(expected, dtype, at));
}
