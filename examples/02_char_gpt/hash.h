/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_HASH_H
#define CHAR_GPT_HASH_H

/* Tells whether two buffers hold the same bytes: for logs that are compared, and for torn checkpoints. */

#include "random_numbers.h"

#include <stddef.h>
#include <string.h>

/* Eight bytes at a time, since the parameters are hashed after every step. */
static inline uint64_t hash_bytes(const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    uint64_t hash = random_spread(size);
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    uint64_t rest = 0;
    if (size > 0) {
        memcpy(&rest, at, size);
    }
    return random_spread(hash ^ rest);
}

#endif
