/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/codec.h"

#include <assert.h>

/*
 * The k-th largest key is found digit by digit, from the top: one pass counts the first digits of all, a second keeps
 * the keys that have the k-th's, and the rest happens among these, which are few unless most elements are alike. A last
 * pass takes the indices of the larger keys, and of as many equal ones as are still wanted.
 */

enum {
    KEY_BITS = 31,
    DIGIT_BITS = 11, /* 3 digits */
    DIGITS = 1 << DIGIT_BITS,
    LAST_DIGIT_BITS = KEY_BITS - 2 * DIGIT_BITS,
    TABLES = 4,
    GROUP = 64
};

/* The order of magnitudes; all NaNs are the same. */
static uint32_t key_of(float x) {
    const uint32_t magnitude = gs_magnitude(x);
    return magnitude > GS_INFINITY ? GS_INFINITY + 1u : magnitude;
}

/* The digit that holds the `wanted`-th largest; *wanted becomes its rank among those with this digit. */
static uint32_t find_digit(const uint32_t *counts, size_t *wanted) {
    uint32_t digit = DIGITS - 1;
    while (counts[digit] < *wanted) {
        *wanted -= counts[digit--];
    }
    return digit;
}

/* Neighbours count in tables of their own: like ones would wait for each other's sum. */
static uint32_t find_first_digit(const float *x, size_t count, size_t *wanted, uint32_t *counts) {
    memset(counts, 0, TABLES * DIGITS * sizeof *counts);
    for (size_t i = 0; i < count; i++) {
        counts[i % TABLES * DIGITS + (key_of(x[i]) >> (KEY_BITS - DIGIT_BITS))]++;
    }
    for (size_t table = 1; table < TABLES; table++) {
        for (size_t digit = 0; digit < DIGITS; digit++) {
            counts[digit] += counts[table * DIGITS + digit];
        }
    }
    return find_digit(counts, wanted);
}

/* Keys with this first digit. Written before it is known whether they stay, which needs no branch. */
static size_t collect_keys(const float *x, size_t count, uint32_t digit, uint32_t *keys) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t key = key_of(x[i]);
        keys[kept] = key;
        kept += key >> (KEY_BITS - DIGIT_BITS) == digit;
    }
    return kept;
}

/* Keeps the keys with the digit at `shift` that holds the `wanted`-th largest. Returns how many. */
static size_t narrow_keys(uint32_t *keys, size_t count, int shift, size_t *wanted, uint32_t *counts) {
    memset(counts, 0, DIGITS * sizeof *counts);
    for (size_t i = 0; i < count; i++) {
        counts[(keys[i] >> shift) & (DIGITS - 1)]++;
    }
    const uint32_t digit = find_digit(counts, wanted);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t key = keys[i];
        keys[kept] = key;
        kept += ((key >> shift) & (DIGITS - 1)) == digit;
    }
    return kept;
}

static bool has_key_from(const float *x, uint32_t least) {
    uint32_t any = 0;
    for (size_t i = 0; i < GROUP; i++) {
        any |= gs_magnitude(x[i]) >= least;
    }
    return any != 0;
}

/*
 * The k indices with keys above `least`, and the first `equals` of those that equal it. Indices are written before it
 * is known whether they stay, like keys; there are fewer than k before the last one.
 */
static void collect_indices(const float *x, size_t count, size_t k, uint32_t least, size_t equals, uint32_t *indices) {
    size_t found = 0;
    for (size_t i = 0; found < k; i++) {
        while (i % GROUP == 0 && count - i > GROUP && !has_key_from(x + i, least)) {
            i += GROUP;
        }
        const uint32_t key = key_of(x[i]);
        const size_t is_equal = (size_t)(key == least) & (size_t)(equals > 0);
        indices[found] = (uint32_t)i;
        found += (size_t)(key > least) | is_equal;
        equals -= is_equal;
    }
}

size_t gs_topk_scratch_bytes(size_t count) {
    return (TABLES * DIGITS + count) * sizeof(uint32_t);
}

void gs_topk_select(const float *x, size_t count, size_t k, uint32_t *indices, void *scratch) {
    assert(k <= count && count <= UINT32_MAX);
    uint32_t *const counts = scratch;
    uint32_t *const keys = counts + TABLES * DIGITS;
    size_t wanted = k;
    if (k == 0) {
        return;
    }
    const uint32_t digit = find_first_digit(x, count, &wanted, counts);
    size_t kept = collect_keys(x, count, digit, keys);
    kept = narrow_keys(keys, kept, LAST_DIGIT_BITS, &wanted, counts);
    narrow_keys(keys, kept, 0, &wanted, counts);
    collect_indices(x, count, k, keys[0], wanted, indices);
}
