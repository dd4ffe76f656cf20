/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_RANDOM_NUMBERS_H
#define CHAR_GPT_RANDOM_NUMBERS_H

/*
 * Random numbers without a state: each is a function of (seed, stream, index). A rank can therefore draw the
 * numbers of any sample without having drawn those before it, which is what makes one rank and many see the same
 * data, and a resumed run continue where the interrupted one stopped.
 */

#include <stdint.h>

enum random_stream { RANDOM_WEIGHTS = 1, RANDOM_SAMPLES = 2, RANDOM_TEXT = 3, RANDOM_CHECK = 4 };

/* Spreads every bit of x over the whole word (the finaliser of splitmix64). */
static inline uint64_t random_spread(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline uint64_t random_bits(uint64_t seed, enum random_stream stream, uint64_t index) {
    return random_spread(random_spread(random_spread(seed) + (uint64_t)stream) + index);
}

/* Strictly between 0 and 1, so that its logarithm is finite. */
static inline double random_unit(uint64_t seed, enum random_stream stream, uint64_t index) {
    return ((double)(random_bits(seed, stream, index) >> 11) + 0.5) / 9007199254740992.0;
}

#endif
