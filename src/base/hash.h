/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_HASH_H
#define GS_BASE_HASH_H

/* A link in the chain of a hash, for hosts and GPUs. */

#include "base/dtype.h"

static inline GS_ANYWHERE uint64_t gs_hash_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

#endif
