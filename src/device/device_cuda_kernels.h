/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_DEVICE_CUDA_KERNELS_H
#define GS_DEVICE_DEVICE_CUDA_KERNELS_H

/* The launchers, which device_cuda_kernels.cu gives to C. They return a cudaError_t, and launch nothing for 0 elements.
 */

#include "device/cuda_elements.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A thread of a block takes so many chunks of 16 bytes at once. */
enum { GS_CUDA_THREADS = 256, GS_CUDA_CHUNKS = 2 };

/* Encode and decode. */
typedef struct gs_cuda_pass_arguments {
    const gs_cuda_term *terms; /* NULL: the one in here */
    gs_cuda_term only;
    size_t term_count;
    const uint8_t *brings; /* encode */
    const float *used;     /* decode */
    uint64_t *digests;     /* digest */
    size_t count;
    void *bucket; /* decode only reads it */
    double factor;
    const double *divisor;
    gs_cuda_narrowing narrowing;
    gs_cuda_result_scale results;
    gs_cuda_blocks blocks;
    gs_cuda_randomness random;
    gs_cuda_feedback feedback;
    gs_cuda_notebook *notebook;
} gs_cuda_pass_arguments;

typedef struct gs_cuda_combine_arguments {
    const void *parts;
    int ranks;
    const gs_cuda_share *shares;
    size_t stride;
    void *shard;
    size_t count;
    const double *divisor;
    gs_cuda_narrowing narrowing; /* of the parts */
    gs_cuda_result_scale results;
    gs_cuda_blocks blocks;
    gs_cuda_feedback feedback;
    const gs_cuda_term *terms;
    size_t term_count;
    size_t first;
    gs_cuda_notebook *notebook;
} gs_cuda_combine_arguments;

typedef struct gs_cuda_shares_arguments {
    const gs_cuda_share *shares;
    int ranks;
    gs_cuda_divide divide;
    double factor;
    double *divisor;
    size_t count;               /* 1 */
    gs_cuda_notebook *notebook; /* NULL */
} gs_cuda_shares_arguments;

typedef struct gs_cuda_settle_arguments {
    gs_cuda_settlement settlement;
    size_t count;               /* of terms */
    gs_cuda_notebook *notebook; /* NULL */
} gs_cuda_settle_arguments;

typedef struct gs_cuda_fold_arguments {
    gs_cuda_folding folding;
    size_t count;               /* of elements */
    gs_cuda_notebook *notebook; /* NULL */
} gs_cuda_fold_arguments;

/* The wire FLOAT64 is for the dtype FLOAT64. `what` names the launch to the simulator. */
int gs_cuda_kernels_encode(const char *what, const gs_cuda_pass_arguments *arguments, const gs_cuda_term *host_terms,
                           gsync_dtype dtype, gsync_dtype wire, void *stream);
int gs_cuda_kernels_decode(const gs_cuda_pass_arguments *arguments, const gs_cuda_term *host_terms, gsync_dtype dtype,
                           gsync_dtype wire, void *stream);
int gs_cuda_kernels_digest(const gs_cuda_pass_arguments *arguments, const gs_cuda_term *host_terms, gsync_dtype dtype,
                           void *stream);
int gs_cuda_kernels_combine(const gs_cuda_combine_arguments *arguments, const gs_cuda_term *host_terms,
                            gsync_dtype wire, void *stream);
int gs_cuda_kernels_add_shares(const gs_cuda_shares_arguments *arguments, void *stream);
int gs_cuda_kernels_settle(const gs_cuda_settle_arguments *arguments, void *stream);
int gs_cuda_kernels_fold(const gs_cuda_fold_arguments *arguments, void *stream);

/* Whether this process uses CUDA already. Otherwise no memory can be a device's, and to ask the runtime would load the
 * driver, and take room on a GPU, for trainers that have no use for it. */
bool gs_cuda_kernels_have_driver(void);

/* Loads all of them on the current device. */
int gs_cuda_kernels_load(void);

/* Launches, for sources that know no CUDA, with the device current; doing: what then fails. */
gsync_status gs_cuda_launch(gs_cuda *cuda, int (*launcher)(const void *arguments, void *stream), const void *arguments,
                            void *stream, const char *doing);

#ifdef __cplusplus
}
#endif

#endif
