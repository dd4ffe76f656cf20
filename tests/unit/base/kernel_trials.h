/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_TRIALS_H
#define KERNEL_TRIALS_H

/*
 * What kernels are called with: lengths, places and modes from a seed, elements of all kinds, and buffers that end with
 * their last element. For one program, which includes cmocka.h first.
 */

#include "base/dtype.h"
#include "seeded.h"

#include <stdbool.h>
#include <stdlib.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { BUFFERS_MAX = 20, COUNT_MAX = 3000, OFFSET_MAX = 16, TRIALS = 160 };
#define SEED 20261129

/* ---- Trials --------------------------------------------------------------------------------------------------------
 */

/* What a kernel is called with; the elements follow from the seed. */
typedef struct trial {
    uint64_t seed;
    gsync_dtype dtype;
    size_t count;
    size_t offset; /* elements between a buffer's start, which is aligned, and the first one used */
    int source_count;
    int target_count;
    bool is_in_place; /* targets are sources, as far as there are any */
    bool flushes;     /* subnormals, on the way in and out */
    bool is_tame;     /* nothing that drowns the other elements of a sum */
    double scalar;    /* a divisor or factor */
} trial;

/* Short ones of every length first, then any. */
static inline trial trial_of(int number, gsync_dtype dtype) {
    static const double scalars[] = {1, 2, 3, 7, 0.1, 0.5, 1024, 12345.678, 16777217.0, 0x1p-126, 0x1p127, 3e-42, -5};
    seeded random = {SEED + (uint64_t)number};
    trial it = {.seed = seeded_next(&random), .dtype = dtype};
    it.count = number < TRIALS / 2 ? (size_t)number : seeded_below(&random, COUNT_MAX + 1);
    it.offset = seeded_below(&random, OFFSET_MAX + 1);
    it.source_count = 1 + (int)seeded_below(&random, number % 4 == 0 ? BUFFERS_MAX : 8);
    it.target_count = (int)seeded_below(&random, 6);
    it.is_in_place = number % 2 == 0;
    it.scalar = scalars[seeded_below(&random, sizeof scalars / sizeof scalars[0])];
    return it;
}

/* In and around the range of halves. */
static inline uint32_t tame_float(seeded *random) {
    const uint64_t bits = seeded_next(random);
    return ((uint32_t)(bits >> 32) & 0x807fffffu) | ((100u + (uint32_t)(bits >> 8) % 48) << 23);
}

static inline uint32_t any_float(seeded *random) {
    const uint32_t tame = tame_float(random);
    const uint32_t sign_and_fraction = tame & 0x807fffffu;
    const uint64_t bits = seeded_next(random);
    switch (bits % 64) {
    case 0:
        return sign_and_fraction & 0x80000000u;
    case 1: /* a NaN, quiet or not */
        return sign_and_fraction | 0x7f800000u;
    case 2:
        return (sign_and_fraction & 0x80000000u) | 0x7f800000u;
    case 3:
    case 4: /* a subnormal number */
        return sign_and_fraction;
    case 5:
    case 6: /* hardly a normal one */
        return sign_and_fraction | ((1u + (uint32_t)(bits >> 8) % 24) << 23);
    case 7: /* close to the largest */
        return sign_and_fraction | ((254u - (uint32_t)(bits >> 8) % 4) << 23);
    case 8:
        return (uint32_t)(bits >> 32);
    case 9: /* in the middle between two halves */
        return (tame & ~0x1fffu) | 0x1000u;
    case 10: /* in the middle between two bfloats */
        return (tame & ~0xffffu) | 0x8000u;
    default:
        return tame;
    }
}

/* The same kinds, with a wider exponent and a longer fraction. */
static inline uint64_t any_double(seeded *random, bool is_tame) {
    const uint32_t of_float = is_tame ? tame_float(random) : any_float(random);
    const uint64_t sign = (uint64_t)(of_float >> 31) << 63;
    const uint64_t exponent = (of_float >> 23) & 0xffu;
    const uint64_t short_fraction = (uint64_t)(of_float & 0x7fffffu) << 29;
    const uint64_t fraction = short_fraction == 0 ? 0 : short_fraction | (seeded_next(random) >> 35);
    const uint64_t wider = exponent == 0 ? 0 : (exponent >= 250 ? exponent + 1792 : exponent + 896);
    return sign | (wider << 52) | fraction;
}

/* ---- Buffers -------------------------------------------------------------------------------------------------------
 */

/* Each in a block that ends with its last element, so that AddressSanitizer sees the first one behind it. */
static void *blocks[4 * BUFFERS_MAX];
static int block_count;

static inline void *buffer_of(const trial *it, size_t size) {
    assert_in_range(block_count, 0, 4 * BUFFERS_MAX - 1);
    unsigned char *const block = calloc(it->offset + it->count + (it->offset + it->count == 0), size);
    assert_non_null(block);
    blocks[block_count++] = block;
    return block + it->offset * size;
}

static inline void free_buffers(void) {
    while (block_count > 0) {
        free(blocks[--block_count]);
    }
}

static inline void *copy_of(const trial *it, const void *elements, size_t size) {
    void *const copy = buffer_of(it, size);
    memcpy(copy, elements, it->count * size);
    return copy;
}

static inline void *elements_of(const trial *it, int index) {
    seeded random = {it->seed + (uint64_t)index * 1000003u};
    unsigned char *const elements = buffer_of(it, gsync_dtype_size(it->dtype));
    for (size_t i = 0; i < it->count; i++) {
        if (it->dtype == GSYNC_FLOAT64) {
            const uint64_t bits = any_double(&random, it->is_tame);
            memcpy(elements + i * sizeof bits, &bits, sizeof bits);
        } else {
            const uint32_t bits = it->is_tame ? tame_float(&random) : any_float(&random);
            memcpy(elements + i * sizeof bits, &bits, sizeof bits);
        }
    }
    return elements;
}

static inline void expect_bits(const trial *it, const char *what, const void *got, const void *expected, size_t size) {
    for (size_t i = 0; i < it->count; i++) {
        uint64_t a = 0;
        uint64_t b = 0;
        memcpy(&a, (const unsigned char *)got + i * size, size);
        memcpy(&b, (const unsigned char *)expected + i * size, size);
        if (a != b) {
            fail_msg("%s, %s, seed %llx, element %zu of %zu at %zu, %d sources, scalar %a: got %llx, expected %llx",
                     what, gs_dtype_name(it->dtype), (unsigned long long)it->seed, i, it->count, it->offset,
                     it->source_count, it->scalar, (unsigned long long)a, (unsigned long long)b);
        }
    }
}

/* ---- Flushing ------------------------------------------------------------------------------------------------------
 */

#if defined(__SSE2__)
enum { CAN_FLUSH = true, FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };

static inline unsigned enter_mode(const trial *it) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(it->flushes ? before | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO : before);
    return before;
}

static inline void leave_mode(unsigned before) {
    _mm_setcsr(before);
}
#else
enum { CAN_FLUSH = false };

static inline unsigned enter_mode(const trial *it) {
    (void)it;
    return 0;
}

static inline void leave_mode(unsigned before) {
    (void)before;
}
#endif

#endif
