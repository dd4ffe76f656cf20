/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_shard.h"

#include <string.h>

enum { BUFFERS_MAX = 64 };

/*
 * One function for each element, vector width and number of buffers. A macro, because the compiler splits a wide vector
 * before it inlines: a common function would be compiled for the narrowest instructions. `ranks` is a constant for the
 * usual numbers, so that the inner loops vanish. Two vectors at a time; what is left over goes element by element.
 */
#define DEFINE_SUM(name, instructions, element, vector_bytes, ranks)                                                   \
    instructions static void name(void *const *buffers, int count, size_t begin, size_t end) {                         \
        typedef element vector __attribute__((vector_size(vector_bytes), aligned(sizeof(element)), may_alias));        \
        const size_t lanes = (vector_bytes) / sizeof(element);                                                         \
        element *at[BUFFERS_MAX];                                                                                      \
        memcpy(at, buffers, (size_t)(ranks) * sizeof *at);                                                             \
        size_t i = begin;                                                                                              \
        for (; i + 2 * lanes <= end; i += 2 * lanes) {                                                                 \
            vector low = *(const vector *)(at[0] + i);                                                                 \
            vector high = *(const vector *)(at[0] + i + lanes);                                                        \
            for (int r = 1; r < (ranks); r++) {                                                                        \
                low += *(const vector *)(at[r] + i);                                                                   \
                high += *(const vector *)(at[r] + i + lanes);                                                          \
            }                                                                                                          \
            for (int r = 0; r < (ranks); r++) {                                                                        \
                *(vector *)(at[r] + i) = low;                                                                          \
                *(vector *)(at[r] + i + lanes) = high;                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        for (; i < end; i++) {                                                                                         \
            element sum = at[0][i];                                                                                    \
            for (int r = 1; r < (ranks); r++) {                                                                        \
                sum += at[r][i];                                                                                       \
            }                                                                                                          \
            for (int r = 0; r < (ranks); r++) {                                                                        \
                at[r][i] = sum;                                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        (void)count;                                                                                                   \
    }

#define DEFINE_SUMS(name, instructions, vector_bytes)                                                                  \
    DEFINE_SUM(name##_float_2, instructions, float, vector_bytes, 2)                                                   \
    DEFINE_SUM(name##_float_4, instructions, float, vector_bytes, 4)                                                   \
    DEFINE_SUM(name##_float_n, instructions, float, vector_bytes, count)                                               \
    DEFINE_SUM(name##_double_2, instructions, double, vector_bytes, 2)                                                 \
    DEFINE_SUM(name##_double_4, instructions, double, vector_bytes, 4)                                                 \
    DEFINE_SUM(name##_double_n, instructions, double, vector_bytes, count)

#define SUMS(name)                                                                                                     \
    {                                                                                                                  \
        {name##_float_2, name##_float_4, name##_float_n}, {                                                            \
            name##_double_2, name##_double_4, name##_double_n                                                          \
        }                                                                                                              \
    }

typedef struct sums {
    perf_shard_sum *of[2][3]; /* float, double; 2, 4, any number of buffers */
} sums;

DEFINE_SUMS(plain, , 16)
static const sums PLAIN = {SUMS(plain)};
#if defined(__x86_64__) && defined(__GNUC__)
DEFINE_SUMS(avx2, __attribute__((target("avx2"))), 32)
DEFINE_SUMS(avx512, __attribute__((target("avx512f"))), 64)
static const sums AVX2 = {SUMS(avx2)};
static const sums AVX512 = {SUMS(avx512)};
#endif

static const sums *widest(const char **instructions) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f")) {
        *instructions = "AVX-512";
        return &AVX512;
    }
    if (__builtin_cpu_supports("avx2")) {
        *instructions = "AVX2";
        return &AVX2;
    }
#endif
    *instructions = "the compiler's vectors";
    return &PLAIN;
}

perf_shard_sum *perf_shard_find(gsync_dtype dtype, int count, const char **instructions) {
    const sums *found = widest(instructions);
    if ((dtype != GSYNC_FLOAT32 && dtype != GSYNC_FLOAT64) || count > BUFFERS_MAX) {
        return NULL;
    }
    return found->of[dtype == GSYNC_FLOAT64 ? 1 : 0][count == 2 ? 0 : (count == 4 ? 1 : 2)];
}
