/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SEEDED_H
#define SEEDED_H

/*
 * Random numbers that a printed seed brings back. Each case of a test starts from a seed of its own, so that the seed
 * in a failure's text is enough to repeat that case alone.
 */

#include <stddef.h>
#include <stdint.h>

typedef struct seeded {
    uint64_t state;
} seeded;

/* splitmix64 */
static inline uint64_t seeded_next(seeded *random) {
    uint64_t z = random->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* In 0 .. end - 1. The remainder's bias does not matter to tests. */
static inline size_t seeded_below(seeded *random, size_t end) {
    return (size_t)(seeded_next(random) % end);
}

/* Any order of 0 .. count - 1, each as likely as the other. */
static inline void seeded_permutation(seeded *random, uint32_t *order, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const size_t j = seeded_below(random, i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}

#endif
