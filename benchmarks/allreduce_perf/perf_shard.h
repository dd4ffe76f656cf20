/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_SHARD_H
#define PERF_SHARD_H

/* The sum of a piece of several buffers, written into all of them: each byte is read once and written once. */

#include <gradsync/gradsync.h>

typedef void perf_shard_sum(void *const *buffers, int count, size_t begin, size_t end);

/* For elements begin to end of count buffers of dtype, with the widest instructions that this processor has; they are
 * named in *instructions. NULL: not for this dtype. */
perf_shard_sum *perf_shard_find(gsync_dtype dtype, int count, const char **instructions);

#endif
