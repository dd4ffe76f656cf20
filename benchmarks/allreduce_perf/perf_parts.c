/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_parts.h"

#include <stdio.h>
#include <stdlib.h>

/* As in a model: matrices, and small vectors between them. */
static const size_t WEIGHTS[] = {64, 1, 16, 1, 36, 4, 1};
enum { WEIGHT_COUNT = sizeof WEIGHTS / sizeof *WEIGHTS };

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

bool perf_parts_init(perf_parts *parts, perf_memory *memory, size_t elements, size_t element_bytes, int tensors) {
    const size_t count = (size_t)tensors < elements ? (size_t)tensors : elements;
    *parts = (perf_parts){calloc(count, sizeof(perf_part)), count, element_bytes, memory};
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

bool perf_parts_allocate(perf_parts *parts) {
    for (size_t i = 0; i < parts->count; i++) {
        perf_part *part = &parts->part[i];
        part->owned = perf_memory_allocate(parts->memory, part->count * parts->element_bytes);
        part->buffer = part->owned;
        if (part->owned == NULL) {
            return false;
        }
    }
    return true;
}

void perf_parts_clear(perf_parts *parts) {
    for (size_t i = 0; i < parts->count; i++) {
        if (parts->part[i].owned != NULL) {
            perf_memory_free(parts->memory, parts->part[i].owned);
        }
    }
    free(parts->part);
    *parts = (perf_parts){0};
}

/* From the element `done` of a part on. */
static perf_piece piece_of(const perf_parts *parts, const perf_part *part, size_t done) {
    unsigned char *at = (unsigned char *)part->buffer + done * parts->element_bytes;
    return perf_memory_piece(parts->memory, at, (part->count - done) * parts->element_bytes);
}

static const char *fill(const perf_parts *parts, const perf_part *part, const perf_values *values, unsigned call) {
    const char *problem = NULL;
    for (size_t done = 0; done < part->count && problem == NULL;) {
        const perf_piece piece = piece_of(parts, part, done);
        const size_t elements = piece.bytes / parts->element_bytes;
        perf_values_fill(values, call, part->first + done, piece.host, elements);
        problem = perf_memory_put(parts->memory, &piece);
        done += elements;
    }
    return problem;
}

const char *perf_parts_fill(const perf_parts *parts, const perf_values *values, unsigned call) {
    const char *problem = NULL;
    for (size_t i = 0; i < parts->count && problem == NULL; i++) {
        problem = fill(parts, &parts->part[i], values, call);
    }
    return problem;
}

static const char *count_wrong(const perf_parts *parts, const perf_part *part, const perf_values *values, unsigned call,
                               gsync_op op, int64_t *wrong) {
    for (size_t done = 0; done < part->count;) {
        const perf_piece piece = piece_of(parts, part, done);
        const size_t elements = piece.bytes / parts->element_bytes;
        const char *problem = perf_memory_get(parts->memory, &piece);
        if (problem != NULL) {
            return problem;
        }
        *wrong += (int64_t)perf_values_wrong(values, call, op, part->first + done, piece.host, elements);
        done += elements;
    }
    return NULL;
}

const char *perf_parts_count_wrong(const perf_parts *parts, const perf_values *values, unsigned call, gsync_op op,
                                   int64_t *wrong) {
    const char *problem = NULL;
    for (size_t i = 0; i < parts->count && problem == NULL; i++) {
        problem = count_wrong(parts, &parts->part[i], values, call, op, wrong);
    }
    return problem;
}

const char *perf_parts_spoil(const perf_parts *parts) {
    const perf_part *last = &parts->part[parts->count - 1];
    const perf_piece piece = piece_of(parts, last, last->count - 1);
    const char *problem = perf_memory_get(parts->memory, &piece);
    *(unsigned char *)piece.host ^= 1u;
    return problem != NULL ? problem : perf_memory_put(parts->memory, &piece);
}
