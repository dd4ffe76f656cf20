/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_fault.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* The linker's --wrap sends calls of f to __wrap_f, and __real_f to f. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void __real_free(void *block);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void __wrap_free(void *block);

static atomic_size_t failing_nth;
static atomic_size_t attempts;
static atomic_long live;

void alloc_fault_fail_nth(size_t nth) {
    atomic_store(&attempts, 0);
    atomic_store(&failing_nth, nth);
}

size_t alloc_fault_count(void) {
    return atomic_load(&attempts);
}

long alloc_fault_live(void) {
    return atomic_load(&live);
}

static bool must_fail(void) {
    const size_t attempt = atomic_fetch_add(&attempts, 1) + 1;
    const bool fails = attempt == atomic_load(&failing_nth);
    if (fails) {
        errno = ENOMEM;
    }
    return fails;
}

static void *count_live(void *block) {
    if (block != NULL) {
        atomic_fetch_add(&live, 1);
    }
    return block;
}

void *__wrap_malloc(size_t size) {
    return must_fail() ? NULL : count_live(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return must_fail() ? NULL : count_live(__real_calloc(count, size));
}

void *__wrap_realloc(void *block, size_t size) {
    if (must_fail()) {
        return NULL;
    }
    /* An old block stays one block, whether it moves or, on failure, remains. */
    return block == NULL ? count_live(__real_realloc(NULL, size)) : __real_realloc(block, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return must_fail() ? NULL : count_live(__real_aligned_alloc(alignment, size));
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size) {
    if (must_fail()) {
        return ENOMEM;
    }
    const int error = __real_posix_memalign(out, alignment, size);
    if (error == 0) {
        count_live(*out);
    }
    return error;
}

void __wrap_free(void *block) {
    if (block != NULL) {
        atomic_fetch_sub(&live, 1);
    }
    __real_free(block);
}
