/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { LINE_BYTES = 64, PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 << 20 };

const gsync_memory perf_memory_kind = GSYNC_MEMORY_AUTO;

const perf_stream_clock *const perf_memory_stream_clock = NULL;

const char *perf_memory_choose(int local_rank) {
    (void)local_rank; /* all of it is everybody's */
    return NULL;
}

const char *perf_memory_open(perf_memory **memory) {
    *memory = NULL;
    return NULL;
}

void perf_memory_close(perf_memory **memory) {
    *memory = NULL;
}

const char *perf_memory_describe(const perf_memory *memory) {
    (void)memory;
    return NULL;
}

/* Large tensors get large pages where the system has them: the peers' memory is not to be slower than it could be. */
void *perf_memory_allocate(perf_memory *memory, size_t bytes) {
    const size_t align = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : (bytes >= PAGE_BYTES ? PAGE_BYTES : LINE_BYTES);
    const size_t rounded = (bytes + align - 1) / align * align;
    void *allocated = aligned_alloc(align, rounded);
    (void)memory;
#if defined(MADV_HUGEPAGE)
    if (allocated != NULL && align == HUGE_PAGE_BYTES) {
        madvise(allocated, rounded, MADV_HUGEPAGE);
    }
#endif
    return allocated;
}

void perf_memory_free(perf_memory *memory, void *allocated) {
    (void)memory;
    free(allocated);
}

/* The host sees all of it where it is. */
perf_piece perf_memory_piece(perf_memory *memory, void *at, size_t bytes) {
    (void)memory;
    return (perf_piece){.at = at, .host = at, .bytes = bytes};
}

const char *perf_memory_get(perf_memory *memory, const perf_piece *piece) {
    (void)memory;
    (void)piece;
    return NULL;
}

const char *perf_memory_put(perf_memory *memory, const perf_piece *piece) {
    (void)memory;
    (void)piece;
    return NULL;
}
