/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MIRROR_H
#define MIRROR_H

/*
 * Runs tests of gradients on the host with their gradients on a GPU. A program that is linked with this has its calls
 * of the library replaced (CMakeLists.txt lists them): the library gets the addresses of twins in device memory, and
 * what the body writes to its own gradients, and reads from them, is copied when marks and results say that it may be.
 * README.md has the whole of it.
 */

#include "ranks_private.h"

#include <cuda_runtime_api.h>
#include <gradsync/gradsync_cuda.h>
#include <stdatomic.h>

enum { MIRROR_STREAMS = 3, NOBODY = -1 };

/* Device memory beside some memory of the host, byte for byte and with the same alignment, between guards. */
typedef struct mirror_region {
    struct mirror_region *next;
    const char *host;
    size_t bytes;
    char *allocation;
    size_t allocated;
    char *device;         /* the twin of host */
    unsigned char *owned; /* 1 for each byte that belongs to an element of a gradient; the others stay as they were */
} mirror_region;

typedef struct mirror_gradient {
    char *name;
    char *host;   /* where the body has it; NULL: in the library's memory, before commit */
    char *device; /* where the library has it */
    char *view_host;
    char *view_device; /* both NULL for one that was registered with an address */
    size_t rows;
    size_t row_bytes;
    size_t pitch_bytes;
    bool is_view;
    bool is_trainable;
    uint32_t uses;
    _Atomic uint32_t marks;
    _Atomic bool is_copied; /* in this micro-batch, by the last of its marks */
    uint64_t hash;          /* of what was copied then, where late writes matter */
} mirror_gradient;

typedef struct mirror {
    struct mirror *next;
    gsync_reducer *reducer; /* NULL: destroyed */
    int owner;              /* the rank whose end frees this; NOBODY: any */
    int device;
    mirror_region *regions;
    mirror_gradient *gradients;
    size_t count;
    size_t capacity;
    mirror_gradient **by_address; /* of the present micro-batch */
    void *views[64];
    size_t view_count;
    cudaStream_t streams[MIRROR_STREAMS]; /* NULL before commit */
    gsync_phase phase;
    bool is_in_step;
    bool needs_host; /* to be told in gsync_finish what the body asked for */
    bool has_scaler;
    bool checks_writes;
    uint64_t micro_batches;
} mirror;

/* What the variable GSYNC_TEST_MIRROR says: "native" and "streams", with a comma between them. */
typedef struct mirror_settings {
    bool is_native; /* sums in NCCL's order where the test does not ask for another */
    bool finishes_on_streams;
} mirror_settings;

const mirror_settings *mirror_get_settings(void);

/* For calls of the runtime: ends the program with words if one fails, since no test is about that. */
#define MIRROR_DO(call) mirror_do((call), #call)
void mirror_do(cudaError_t error, const char *call);

/* ---- mirror.c ---- */

/* NULL: the reducer's gradients are not mirrored. Any thread. */
mirror *mirror_find(const gsync_reducer *reducer);
mirror *mirror_new(gsync_reducer *reducer, const gsync_comm *comm);
/* The reducer is being destroyed. The memory stays until the test ends: cudaFree would wait for other reducers too. */
void mirror_forget(const gsync_reducer *reducer);
mirror_gradient *mirror_gradient_named(mirror *of, const char *name);
void mirror_end_rank(int rank);

/* ---- mirror_memory.c ---- */

/* The twin of so many bytes: of all memory of ranks_memory around them, so that what is adjacent stays so. */
char *mirror_twin(mirror *of, const void *host, size_t bytes);
/* The elements of the gradient belong to it from now on. */
void mirror_own(mirror *of, const mirror_gradient *gradient);
/* Of the body's elements. */
uint64_t mirror_hash(const mirror_gradient *gradient);
void mirror_copy_in(const mirror_gradient *gradient, cudaStream_t stream);
void mirror_copy_out(const mirror_gradient *gradient, cudaStream_t stream);
/* Gives gradients in the library's memory twins on the host. After commit. */
void mirror_find_views(mirror *of);
/* Says whether nothing was written beside gradients, and frees everything. */
void mirror_free_memory(mirror *of);

#endif
