/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include "base/fail.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 128 /* two cache lines: processors fetch them in pairs */
#define FIRST_CAPACITY 8

/* `out` is the address of some T *. Copying bytes, because writing it as a void * would break strict aliasing. */
static void store_pointer(void *out, void *pointer) {
    memcpy(out, &pointer, sizeof pointer);
}

static gsync_status fail_exhausted(size_t count, size_t size, const char *what) {
    return gs_fail(GSYNC_ERR_MEMORY, "out of memory: %zu x %zu bytes for %s", count, size, what);
}

/* No object can be larger than PTRDIFF_MAX. Asking anyway makes sanitizers end the process instead of failing. */
static bool is_possible(size_t count, size_t size) {
    return count <= (size_t)PTRDIFF_MAX / size;
}

gsync_status gs_memory_new(void *out, size_t count, size_t size, const char *what) {
    if (count == 0 || size == 0) {
        store_pointer(out, NULL);
        return GSYNC_OK;
    }
    void *const block = is_possible(count, size) ? calloc(count, size) : NULL;
    if (block == NULL) {
        return fail_exhausted(count, size, what);
    }
    store_pointer(out, block);
    return GSYNC_OK;
}

gsync_status gs_memory_new_aligned(void *out, size_t bytes, const char *what) {
    if (bytes == 0) {
        store_pointer(out, NULL);
        return GSYNC_OK;
    }
    /* aligned_alloc wants a multiple of the alignment; it also keeps neighbours off the last cache lines. */
    const size_t lines = bytes / ALIGNMENT + (bytes % ALIGNMENT != 0);
    void *const block = is_possible(lines, ALIGNMENT) ? aligned_alloc(ALIGNMENT, lines * ALIGNMENT) : NULL;
    if (block == NULL) {
        return fail_exhausted(1, bytes, what);
    }
    memset(block, 0, lines * ALIGNMENT);
    store_pointer(out, block);
    return GSYNC_OK;
}

gsync_status gs_memory_grow(void *items, size_t *capacity, size_t count, size_t size, const char *what) {
    if (count < *capacity) {
        return GSYNC_OK;
    }
    const size_t grown = *capacity == 0 ? FIRST_CAPACITY : *capacity * 2;
    void *old = NULL;
    memcpy(&old, items, sizeof old);
    void *const block = is_possible(grown, size) ? realloc(old, grown * size) : NULL;
    if (block == NULL) {
        return fail_exhausted(grown, size, what);
    }
    memset((char *)block + *capacity * size, 0, (grown - *capacity) * size);
    store_pointer(items, block);
    *capacity = grown;
    return GSYNC_OK;
}

void gs_memory_free(void *pointer) {
    free(pointer);
}
