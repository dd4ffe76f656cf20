/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_TOPK_CUDA_KERNELS_H
#define GS_DEVICE_TOPK_CUDA_KERNELS_H

/* The launchers, which topk_cuda_kernels.cu gives to C. They return a cudaError_t, and launch nothing for 0 tiles. */

#include "device/topk_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys have 31 bits. They are looked at in three digits, so that few counters are enough. */
enum { GS_CUDA_TOPK_KEY_BITS = 31, GS_CUDA_TOPK_DIGIT_BITS = 11, GS_CUDA_TOPK_DIGITS = 1 << GS_CUDA_TOPK_DIGIT_BITS };

/* How far the search for a gradient's least chosen key is. */
typedef struct gs_cuda_topk_progress {
    uint32_t prefix;                        /* the digits that are known */
    uint32_t wanted;                        /* as many of the keys that begin so are chosen */
    uint32_t tiles_done;                    /* 0 between kernels */
    uint32_t counters[GS_CUDA_TOPK_DIGITS]; /* of keys that begin so, by their next digit; 0 between kernels */
} gs_cuda_topk_progress;

/* Elements of a tile; then of all tiles of its gradient that come before it. */
typedef struct gs_cuda_topk_sums {
    uint32_t above; /* the least chosen key */
    uint32_t equal; /* to it */
} gs_cuda_topk_sums;

typedef struct gs_cuda_topk_arguments {
    const gs_cuda_choice *choices;
    size_t choice_count;
    uint32_t tile_count;
    size_t entry_count;
    size_t element_count;
    float *bucket;
    gs_cuda_topk_progress *progress; /* of every choice */
    gs_cuda_topk_sums *sums;         /* of every tile */
    gs_cuda_entry *entries;
    const gs_cuda_residual *residuals;
    size_t residual_count;
    const gs_cuda_residual *host_residuals; /* for the simulator, as */
    const gs_cuda_choice *host_choices;
    float unit;
    bool is_first; /* of the digits */
    uint32_t shift;
    uint32_t digit_bits;
    int ranks;
    const gs_cuda_share *shares;
} gs_cuda_topk_arguments;

/* Finds the next digit of every gradient's least chosen key: the one at `shift`. */
int gs_cuda_topk_launch_digit(const void *arguments, void *stream);
/* When it is known: counts what tiles hold. */
int gs_cuda_topk_launch_count(const void *arguments, void *stream);
/* When that is known: writes entries. */
int gs_cuda_topk_launch_take(const void *arguments, void *stream);
int gs_cuda_topk_launch_sum(const void *arguments, void *stream);

/* Loads all of them on the current device. */
int gs_cuda_topk_load(void);

#ifdef __cplusplus
}
#endif

#endif
