/* SPDX-License-Identifier: Apache-2.0 */
#include "device/topk_cuda.h"

#include "device/device_cuda_kernels.h"
#include "device/topk_cuda_kernels.h"

size_t gs_cuda_topk_scratch_bytes(size_t choices_max, size_t tiles_max) {
    return choices_max * sizeof(gs_cuda_topk_progress) + tiles_max * sizeof(gs_cuda_topk_sums);
}

/* Where sums are does not depend on the bucket: progress has to stay zero for the next one. */
static gs_cuda_topk_arguments arguments_of(const gs_cuda_topk *of) {
    gs_cuda_topk_progress *progress = of->scratch;
    return (gs_cuda_topk_arguments){.choices = of->choices,
                                    .choice_count = of->choice_count,
                                    .tile_count = of->tile_count,
                                    .entry_count = of->entry_count,
                                    .element_count = of->element_count,
                                    .bucket = of->bucket,
                                    .progress = progress,
                                    .sums = (gs_cuda_topk_sums *)(progress + of->choices_max)};
}

static gsync_status find_least(gs_cuda *cuda, gs_cuda_topk_arguments arguments, void *stream) {
    uint32_t left = GS_CUDA_TOPK_KEY_BITS;
    for (int digit = 0; digit < 3; digit++) {
        arguments.is_first = digit == 0;
        arguments.digit_bits = arguments.is_first ? GS_CUDA_TOPK_DIGIT_BITS : GS_CUDA_TOPK_DIGIT_BITS - 1;
        left -= arguments.digit_bits;
        arguments.shift = left;
        GS_TRY(gs_cuda_launch(cuda, gs_cuda_topk_launch_digit, &arguments, stream, "looking for the largest elements"));
    }
    return GSYNC_OK;
}

gsync_status gs_cuda_topk_select(gs_cuda *cuda, const gs_cuda_topk *of, gs_cuda_entry *entries, void *stream) {
    gs_cuda_topk_arguments arguments = arguments_of(of);
    arguments.entries = entries;
    arguments.residuals = of->residuals;
    arguments.residual_count = of->residual_count;
    arguments.host_residuals = of->host_residuals;
    arguments.host_choices = of->host_choices;
    arguments.unit = of->unit;
    GS_TRY(find_least(cuda, arguments, stream));
    GS_TRY(gs_cuda_launch(cuda, gs_cuda_topk_launch_count, &arguments, stream, "counting the largest elements"));
    return gs_cuda_launch(cuda, gs_cuda_topk_launch_take, &arguments, stream, "taking the largest elements");
}

gsync_status gs_cuda_topk_sum(gs_cuda *cuda, const gs_cuda_topk *of, const gs_cuda_entry *entries,
                              const gs_cuda_share *shares, int ranks, void *stream) {
    gs_cuda_topk_arguments arguments = arguments_of(of);
    arguments.entries = (gs_cuda_entry *)entries;
    arguments.shares = shares;
    arguments.ranks = ranks;
    return gs_cuda_launch(cuda, gs_cuda_topk_launch_sum, &arguments, stream, "adding up the largest elements");
}
