/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* As in a model: matrices, and small vectors between them. */
static const size_t WEIGHTS[] = {64, 1, 16, 1, 36, 4, 1};
enum { WEIGHT_COUNT = sizeof WEIGHTS / sizeof *WEIGHTS };

enum { LINE_BYTES = 64, PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 << 20 };

/* The sum of the first `tensors` weights. */
static size_t weight_before(size_t tensors) {
    size_t sum = 0;
    for (size_t i = 0; i < tensors; i++) {
        sum += WEIGHTS[i % WEIGHT_COUNT];
    }
    return sum;
}

/* One element each, so that no part is empty, and the rest by weight. The product is split: it could be too large. */
static size_t first_of(size_t part, size_t parts, size_t elements) {
    const size_t rest = elements - parts;
    const size_t before = weight_before(part);
    const size_t total = weight_before(parts);
    return part + rest / total * before + rest % total * before / total;
}

bool perf_parts_init(perf_parts *parts, size_t elements, size_t element_bytes, int tensors) {
    const size_t count = (size_t)tensors < elements ? (size_t)tensors : elements;
    *parts = (perf_parts){calloc(count, sizeof(perf_part)), count, element_bytes};
    if (parts->part == NULL) {
        parts->count = 0;
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        perf_part *part = &parts->part[i];
        snprintf(part->name, sizeof part->name, "gradient%zu", i);
        part->first = first_of(i, count, elements);
        part->count = first_of(i + 1, count, elements) - part->first;
    }
    return true;
}

/* Large tensors get large pages where the system has them: the peers' memory is not to be slower than it could be. */
static void *allocate(size_t bytes) {
    const size_t align = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : (bytes >= PAGE_BYTES ? PAGE_BYTES : LINE_BYTES);
    const size_t rounded = (bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, rounded);
#if defined(MADV_HUGEPAGE)
    if (memory != NULL && align == HUGE_PAGE_BYTES) {
        madvise(memory, rounded, MADV_HUGEPAGE);
    }
#endif
    return memory;
}

bool perf_parts_allocate(perf_parts *parts) {
    for (size_t i = 0; i < parts->count; i++) {
        perf_part *part = &parts->part[i];
        part->owned = allocate(part->count * parts->element_bytes);
        part->buffer = part->owned;
        if (part->owned == NULL) {
            return false;
        }
    }
    return true;
}

void perf_parts_clear(perf_parts *parts) {
    for (size_t i = 0; i < parts->count; i++) {
        free(parts->part[i].owned);
    }
    free(parts->part);
    *parts = (perf_parts){0};
}

void perf_parts_fill(const perf_parts *parts, const perf_values *values, unsigned call) {
    for (size_t i = 0; i < parts->count; i++) {
        const perf_part *part = &parts->part[i];
        perf_values_fill(values, call, part->first, part->buffer, part->count);
    }
}

size_t perf_parts_wrong(const perf_parts *parts, const perf_values *values, unsigned call, gsync_op op) {
    size_t wrong = 0;
    for (size_t i = 0; i < parts->count; i++) {
        const perf_part *part = &parts->part[i];
        wrong += perf_values_wrong(values, call, op, part->first, part->buffer, part->count);
    }
    return wrong;
}

void perf_parts_spoil(const perf_parts *parts) {
    const perf_part *last = &parts->part[parts->count - 1];
    unsigned char *element = (unsigned char *)last->buffer + (last->count - 1) * parts->element_bytes;
    *element ^= 1u;
}
