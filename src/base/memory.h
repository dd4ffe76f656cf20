/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_MEMORY_H
#define GS_BASE_MEMORY_H

/* Heap memory with the failure already worded. Everything that lives longer than a call comes from here. */

#include <gradsync/gradsync.h>

/* Zeroed, aligned for any scalar. *out is NULL (and GSYNC_OK) for a product of 0; overflow is GSYNC_ERR_MEMORY. */
gsync_status gs_memory_new(void *out, size_t count, size_t size, const char *what);

/* Like gs_memory_new, aligned to 128 bytes: for data that vector code and several threads touch. */
gsync_status gs_memory_new_aligned(void *out, size_t bytes, const char *what);

/* Makes room for one more element, doubling; keeps the old block on failure. `items` is the address of the pointer. */
gsync_status gs_memory_grow(void *items, size_t *capacity, size_t count, size_t size, const char *what);

void gs_memory_free(void *pointer);

#endif
