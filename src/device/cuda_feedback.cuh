/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_FEEDBACK_CUH
#define GS_DEVICE_CUDA_FEEDBACK_CUH

/* What becomes of residuals between the passes that write them. */

#include "device/cuda_tiles.cuh"

namespace gs_cuda_code {

/* A thread for each term, though a few of them do all the work. */
class Settle {
  public:
    typedef gs_cuda_settle_arguments Arguments;
    static const int CHUNK = 1;

    static GS_ANYWHERE void run(const Arguments &of, unsigned block, unsigned blocks, unsigned thread,
                                gs_cuda_tally *) {
        const gs_cuda_settlement &what = of.settlement;
        const bool is_infinite = what.has_nonfinite != NULL && *what.has_nonfinite != 0;
        if (*what.divisor == 0 || is_infinite) {
            return;
        }
        if (block == 0 && thread == 0) {
            *what.kept_divisor = *what.divisor / what.loss_scale;
        }
        const size_t step = (size_t)blocks * GS_CUDA_THREADS;
        for (size_t i = (size_t)block * GS_CUDA_THREADS + thread; i < of.count; i += step) {
            settle_term(what, i);
        }
    }

  private:
    static GS_ANYWHERE void settle_term(const gs_cuda_settlement &what, size_t i) {
        const bool arrives = what.used == NULL || what.used[i] != 0;
        const unsigned written = arrives ? what.written[i] : 0;
        const uint64_t number = what.terms[i].number;
        if ((written & GS_CUDA_WROTE_CONTRIBUTION) != 0) {
            what.contributions[number].valid ^= 1;
        }
        if ((written & GS_CUDA_WROTE_RESULT) != 0) {
            what.results[number].valid ^= 1;
        }
    }
};

class Fold {
  public:
    typedef gs_cuda_fold_arguments Arguments;
    static const int CHUNK = 1;

    static GS_ANYWHERE void run(const Arguments &of, unsigned block, unsigned blocks, unsigned thread,
                                gs_cuda_tally *) {
        const gs_cuda_folding &what = of.folding;
        float *const to = what.contribution->sides[what.contribution->valid];
        float *const from = what.result->sides[what.result->valid];
        float *const other = what.result->sides[1 - what.result->valid];
        const float divisor = (float)*what.divisor;
        const size_t step = (size_t)blocks * GS_CUDA_THREADS;
        for (size_t k = (size_t)block * GS_CUDA_THREADS + thread; k < of.count; k += step) {
            const float product = from[k] * divisor;
            to[k] += product;
            from[k] = 0;
            other[k] = 0;
        }
    }
};

} // namespace gs_cuda_code

#endif
