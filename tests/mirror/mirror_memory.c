/* SPDX-License-Identifier: Apache-2.0 */
#include "mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Twins. Addresses of the device are never looked at, only copied from and to. */

enum { ALIGNMENT = 256, GUARD = 256, PATTERN = 0x5a };

/* ---- regions ---- */

static mirror_region *region_of(const mirror *of, const void *host, size_t bytes) {
    for (mirror_region *region = of->regions; region != NULL; region = region->next) {
        const uintptr_t from = (uintptr_t)region->host;
        if ((uintptr_t)host >= from && (uintptr_t)host + bytes <= from + region->bytes) {
            return region;
        }
    }
    return NULL;
}

static mirror_region *region_new(mirror *of, const void *host, size_t bytes) {
    mirror_region *region = ranks_allocate(sizeof *region);
    const size_t offset = (uintptr_t)host % ALIGNMENT;
    cudaStream_t stream;
    int current = 0;
    *region = (mirror_region){.next = of->regions, .host = host, .bytes = bytes};
    region->allocated = GUARD + offset + bytes + GUARD;
    region->owned = calloc(bytes + 1, 1);
    if (region->owned == NULL) {
        mirror_do(cudaErrorMemoryAllocation, "calloc");
    }
    MIRROR_DO(cudaGetDevice(&current));
    MIRROR_DO(cudaSetDevice(of->device));
    MIRROR_DO(cudaMalloc((void **)&region->allocation, region->allocated));
    MIRROR_DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MIRROR_DO(cudaMemsetAsync(region->allocation, PATTERN, region->allocated, stream));
    MIRROR_DO(cudaStreamSynchronize(stream));
    MIRROR_DO(cudaStreamDestroy(stream));
    MIRROR_DO(cudaSetDevice(current));
    region->device = region->allocation + GUARD + offset;
    of->regions = region;
    return region;
}

char *mirror_twin(mirror *of, const void *host, size_t bytes) {
    for (size_t i = 0; i < of->count; i++) {
        if (of->gradients[i].host == host) {
            return of->gradients[i].device; /* the library is to see that there are two of them */
        }
    }
    mirror_region *region = region_of(of, host, bytes);
    if (region == NULL) {
        void *start = NULL;
        size_t length = 0;
        const bool is_within =
            ranks_memory_find(host, &start, &length) && (uintptr_t)host + bytes <= (uintptr_t)start + length;
        region = is_within ? region_new(of, start, length) : region_new(of, host, bytes);
    }
    return region->device + ((const char *)host - region->host);
}

void mirror_own(mirror *of, const mirror_gradient *gradient) {
    const size_t bytes = (gradient->rows - 1) * gradient->pitch_bytes + gradient->row_bytes;
    const mirror_region *region =
        gradient->host != NULL && gradient->rows != 0 ? region_of(of, gradient->host, bytes) : NULL;
    for (size_t row = 0; region != NULL && row < gradient->rows; row++) {
        memset(region->owned + (gradient->host - region->host) + row * gradient->pitch_bytes, 1, gradient->row_bytes);
    }
}

/* ---- copies ---- */

static void copy(const mirror_gradient *gradient, char *to, const char *from, enum cudaMemcpyKind kind,
                 cudaStream_t stream) {
    const bool is_dense = gradient->pitch_bytes == gradient->row_bytes;
    const size_t bytes = is_dense ? gradient->rows * gradient->row_bytes : gradient->row_bytes;
    for (size_t row = 0; bytes != 0 && row < (is_dense ? 1 : gradient->rows); row++) {
        const size_t at = row * gradient->pitch_bytes;
        MIRROR_DO(cudaMemcpyAsync(to + at, from + at, bytes, kind, stream));
    }
}

uint64_t mirror_hash(const mirror_gradient *gradient) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t row = 0; row < gradient->rows; row++) {
        const unsigned char *at = (const unsigned char *)gradient->host + row * gradient->pitch_bytes;
        for (size_t i = 0; i < gradient->row_bytes; i++) {
            hash = (hash ^ at[i]) * 0x100000001b3u;
        }
    }
    return hash;
}

void mirror_copy_in(const mirror_gradient *gradient, cudaStream_t stream) {
    copy(gradient, gradient->device, gradient->host, cudaMemcpyHostToDevice, stream);
}

void mirror_copy_out(const mirror_gradient *gradient, cudaStream_t stream) {
    copy(gradient, gradient->host, gradient->device, cudaMemcpyDeviceToHost, stream);
}

/* ---- gradients in the library's memory ---- */

/* Those of a bucket are as far apart on the host as the library has them. */
typedef struct extent {
    char *from;
    char *to;
    long bucket;
} extent;

static size_t bytes_of(const mirror_gradient *gradient) {
    return gradient->rows * gradient->row_bytes;
}

static extent extent_of(const mirror *of, long bucket) {
    extent found = {NULL, NULL, bucket};
    for (size_t i = 0; i < of->count; i++) {
        const mirror_gradient *gradient = &of->gradients[i];
        if (gradient->view_device == NULL || gsync_bucket_of(of->reducer, gradient->name) != bucket) {
            continue;
        }
        char *end = gradient->view_device + bytes_of(gradient);
        found.from = found.from == NULL || gradient->view_device < found.from ? gradient->view_device : found.from;
        found.to = found.to == NULL || end > found.to ? end : found.to;
    }
    return found;
}

static char *host_memory(mirror *of, size_t bytes) {
    char *memory = aligned_alloc(ALIGNMENT, (bytes + 2 * ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (memory == NULL || of->view_count == sizeof of->views / sizeof of->views[0]) {
        mirror_do(cudaErrorMemoryAllocation, "aligned_alloc of a bucket's twin");
    }
    of->views[of->view_count++] = memory;
    return memory;
}

static void place_views(mirror *of, extent where) {
    const size_t offset = (uintptr_t)where.from % ALIGNMENT;
    char *memory = host_memory(of, offset + (size_t)(where.to - where.from)) + offset;
    for (size_t i = 0; i < of->count; i++) {
        mirror_gradient *gradient = &of->gradients[i];
        if (gradient->view_device != NULL && gsync_bucket_of(of->reducer, gradient->name) == where.bucket) {
            gradient->view_host = memory + (gradient->view_device - where.from);
            gradient->host = gradient->view_host;
            gradient->device = gradient->view_device;
            mirror_copy_out(gradient, of->streams[0]);
        }
    }
}

void *__real_gsync_reducer_grad(const gsync_reducer *reducer, const char *name);

void mirror_find_views(mirror *of) {
    bool has_views = false;
    for (size_t i = 0; i < of->count; i++) {
        mirror_gradient *gradient = &of->gradients[i];
        gradient->view_device = gradient->is_view ? __real_gsync_reducer_grad(of->reducer, gradient->name) : NULL;
        has_views = has_views || gradient->view_device != NULL;
    }
    for (long bucket = -1; has_views && bucket < (long)gsync_bucket_count(of->reducer); bucket++) {
        const extent where = extent_of(of, bucket);
        if (where.from != NULL) {
            place_views(of, where);
        }
    }
    MIRROR_DO(cudaStreamSynchronize(of->streams[0]));
}

/* ---- the end ---- */

static void check_region(const mirror_region *region, cudaStream_t stream) {
    unsigned char *back = ranks_allocate(region->allocated);
    const size_t before = (size_t)(region->device - region->allocation);
    MIRROR_DO(cudaMemcpyAsync(back, region->allocation, region->allocated, cudaMemcpyDeviceToHost, stream));
    MIRROR_DO(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < region->allocated; i++) {
        const bool is_within = i >= before && i - before < region->bytes;
        if (back[i] != PATTERN && !(is_within && region->owned[i - before])) {
            ranks_fail(__FILE__, __LINE__, "the device's memory was written beside gradients, %td bytes from the start",
                       (ptrdiff_t)i - (ptrdiff_t)before);
            break;
        }
    }
    free(back);
}

void mirror_free_memory(mirror *of) {
    cudaStream_t stream;
    MIRROR_DO(cudaSetDevice(of->device));
    if (of->regions != NULL) {
        MIRROR_DO(cudaDeviceSynchronize());
        MIRROR_DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (const mirror_region *region = of->regions; region != NULL; region = region->next) {
            check_region(region, stream);
        }
        MIRROR_DO(cudaStreamDestroy(stream));
    }
    while (of->regions != NULL) {
        mirror_region *region = of->regions;
        of->regions = region->next;
        MIRROR_DO(cudaFree(region->allocation));
        free(region->owned);
        free(region);
    }
    for (size_t i = 0; i < of->view_count; i++) {
        free(of->views[i]);
    }
}
