/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMULATED_LAUNCH_H
#define SIMULATED_LAUNCH_H

/*
 * The library's kernels on the host, in place of src/device/cuda_launch.cuh: the same threads of the same blocks one
 * after the other, and what they found added up in the same order.
 */

#include "device/cuda_blocks.cuh"
#include "device/cuda_digests.cuh"
#include "device/cuda_feedback.cuh"
#include "simcuda.h"

#include <vector>

namespace gs_cuda_code {

/* ---- what a launch touches ---- */

class Touched {
  public:
    void add(const void *start, size_t bytes, bool is_write) {
        if (start != nullptr && bytes > 0) {
            accesses_.push_back({start, bytes, is_write ? 1 : 0});
        }
    }

    /* Row by row: what lies between rows is somebody else's. */
    void add_rows(const gs_cuda_term &term, size_t size, bool is_write) {
        const bool is_dense = term.rows <= 1 || term.row_pitch == term.columns;
        const size_t rows = is_dense ? 1 : term.rows;
        const size_t columns = is_dense ? term.rows * term.columns : term.columns;
        for (size_t row = 0; row < rows && term.data != nullptr; row++) {
            add(static_cast<const char *>(term.data) + row * term.row_pitch * size, columns * size, is_write);
        }
    }

    void add_notebook(const gs_cuda_notebook *notebook) {
        add(notebook, sizeof *notebook, false);
        add(notebook, sizeof *notebook, true);
    }

    const std::vector<simcuda_access> &accesses() const {
        return accesses_;
    }

  private:
    std::vector<simcuda_access> accesses_;
};

/* The terms as the host knows them. */
inline const gs_cuda_term *terms_of(const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms) {
    return of.terms == nullptr ? &of.only : host_terms;
}

inline size_t term_count_of(const gs_cuda_pass_arguments &of) {
    return of.terms == nullptr ? 1 : of.term_count;
}

/* Which side is valid only the device knows. Of the bucket's elements from first on. */
inline void add_owed(Touched *touched, const gs_cuda_feedback &of, const gs_cuda_term *terms, size_t term_count,
                     size_t first, size_t count) {
    for (size_t i = 0; i < term_count && of.residuals != nullptr; i++) {
        const size_t begin = terms[i].offset > first ? terms[i].offset : first;
        const size_t end = terms[i].offset + terms[i].rows * terms[i].columns;
        const size_t last = end < first + count ? end : first + count;
        const gs_cuda_residual &residual = of.host_residuals[terms[i].number];
        touched->add(&of.residuals[terms[i].number], sizeof residual, false);
        for (int side = 0; side < 2 && begin < last; side++) {
            const float *const from = residual.sides[side] + (begin - terms[i].offset);
            touched->add(from, (last - begin) * sizeof *from, false);
            touched->add(from, (last - begin) * sizeof *from, true);
        }
    }
}

template <class D, class W, bool OWES>
void touch(Touched *touched, const Encode<D, W, OWES> *, const gs_cuda_pass_arguments &of,
           const gs_cuda_term *host_terms) {
    touched->add(of.terms, of.term_count * sizeof *of.terms, false);
    touched->add(of.brings, of.term_count, false);
    for (size_t i = 0; i < term_count_of(of); i++) {
        const gs_cuda_term &term = terms_of(of, host_terms)[i];
        touched->add_rows(term, sizeof(typename D::Stored), false);
        touched->add(term.accumulator, term.rows * term.columns * sizeof(typename D::Wide), false);
    }
    add_owed(touched, of.feedback, terms_of(of, host_terms), term_count_of(of), 0, of.count);
    touched->add(of.bucket, of.count * sizeof(typename W::Stored), true);
    touched->add_notebook(of.notebook);
}

template <class D, class W>
void touch(Touched *touched, const Decode<D, W> *, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms) {
    touched->add(of.terms, of.term_count * sizeof *of.terms, false);
    touched->add(of.divisor, sizeof *of.divisor, false);
    touched->add(of.results.divisor, sizeof *of.results.divisor, false);
    touched->add(of.used, of.term_count * sizeof *of.used, false);
    touched->add(of.bucket, of.count * sizeof(typename W::Stored), false);
    for (size_t i = 0; i < term_count_of(of); i++) {
        touched->add_rows(terms_of(of, host_terms)[i], sizeof(typename D::Stored), true);
    }
    touched->add_notebook(of.notebook);
}

template <class D>
void touch(Touched *touched, const Digest<D> *, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms) {
    touched->add(of.terms, of.term_count * sizeof *of.terms, false);
    for (size_t i = 0; i < term_count_of(of); i++) {
        touched->add_rows(terms_of(of, host_terms)[i], sizeof(typename D::Stored), false);
    }
    touched->add(of.digests, term_count_of(of) * sizeof *of.digests, false);
    touched->add(of.digests, term_count_of(of) * sizeof *of.digests, true);
}

template <class W, bool OWES>
void touch(Touched *touched, const Combine<W, OWES> *, const gs_cuda_combine_arguments &of,
           const gs_cuda_term *host_terms) {
    const size_t size = sizeof(typename W::Stored);
    for (int rank = 0; rank < of.ranks; rank++) {
        touched->add(static_cast<const char *>(of.parts) + static_cast<size_t>(rank) * of.stride * size,
                     of.count * size, false);
    }
    touched->add(of.divisor, sizeof *of.divisor, false);
    touched->add(of.results.divisor, sizeof *of.results.divisor, false);
    touched->add(of.shares, static_cast<size_t>(of.ranks) * sizeof *of.shares, false);
    touched->add(of.terms, of.term_count * sizeof *of.terms, false);
    add_owed(touched, of.feedback, host_terms, of.term_count, of.first, of.count);
    touched->add(of.shard, of.count * size, true);
    touched->add_notebook(of.notebook);
}

/* All parts of a bucket of blocks that hold any. */
inline size_t block_bytes(const gs_cuda_blocks &blocks, size_t count) {
    const size_t in_bucket = count / GS_WIRE_BLOCK;
    return (in_bucket + blocks.per_part - 1) / blocks.per_part * blocks.part_bytes;
}

template <class D, class C, bool OWES>
void touch(Touched *touched, const BlockEncode<D, C, OWES> *, const gs_cuda_pass_arguments &of,
           const gs_cuda_term *host_terms) {
    touched->add(of.terms, of.term_count * sizeof *of.terms, false);
    touched->add(of.brings, of.term_count, false);
    for (size_t i = 0; i < term_count_of(of); i++) {
        const gs_cuda_term &term = terms_of(of, host_terms)[i];
        touched->add_rows(term, sizeof(typename D::Stored), false);
        touched->add(term.accumulator, term.rows * term.columns * sizeof(typename D::Wide), false);
    }
    add_owed(touched, of.feedback, terms_of(of, host_terms), term_count_of(of), 0, of.count);
    touched->add(of.bucket, block_bytes(of.blocks, of.count), true);
    touched->add_notebook(of.notebook);
}

template <class D, class C>
void touch(Touched *touched, const BlockDecode<D, C> *, const gs_cuda_pass_arguments &of,
           const gs_cuda_term *host_terms) {
    touched->add(of.terms, of.term_count * sizeof *of.terms, false);
    touched->add(of.used, of.term_count * sizeof *of.used, false);
    touched->add(of.bucket, block_bytes(of.blocks, of.count), false);
    for (size_t i = 0; i < term_count_of(of); i++) {
        touched->add_rows(terms_of(of, host_terms)[i], sizeof(typename D::Stored), true);
    }
    touched->add_notebook(of.notebook);
}

template <class C, bool OWES>
void touch(Touched *touched, const BlockSum<C, OWES> *, const gs_cuda_combine_arguments &of,
           const gs_cuda_term *host_terms) {
    touched->add(of.parts, static_cast<size_t>(of.ranks) * of.blocks.part_bytes, false);
    touched->add(of.divisor, sizeof *of.divisor, false);
    touched->add(of.shares, static_cast<size_t>(of.ranks) * sizeof *of.shares, false);
    touched->add(of.terms, of.term_count * sizeof *of.terms, false);
    add_owed(touched, of.feedback, host_terms, of.term_count, of.first, of.count);
    touched->add(of.shard, of.blocks.part_bytes, true);
    touched->add_notebook(of.notebook);
}

inline void touch(Touched *touched, const Shares *, const gs_cuda_shares_arguments &of, const gs_cuda_term *) {
    touched->add(of.shares, static_cast<size_t>(of.ranks) * sizeof *of.shares, false);
    touched->add(of.divisor, sizeof *of.divisor, true);
}

inline void touch(Touched *touched, const Settle *, const gs_cuda_settle_arguments &of, const gs_cuda_term *) {
    const gs_cuda_settlement &what = of.settlement;
    for (const gs_cuda_residual *residuals : {what.contributions, what.results}) {
        touched->add(residuals, what.residual_count * sizeof *residuals, false);
        touched->add(residuals, what.residual_count * sizeof *residuals, true);
    }
    touched->add(what.terms, what.term_count * sizeof *what.terms, false);
    touched->add(what.written, what.term_count * sizeof *what.written, false);
    touched->add(what.used, what.term_count * sizeof *what.used, false);
    touched->add(what.has_nonfinite, sizeof *what.has_nonfinite, false);
    touched->add(what.divisor, sizeof *what.divisor, false);
    touched->add(what.kept_divisor, sizeof *what.kept_divisor, true);
}

inline void touch(Touched *touched, const Fold *, const gs_cuda_fold_arguments &of, const gs_cuda_term *) {
    const gs_cuda_folding &what = of.folding;
    touched->add(what.contribution, sizeof *what.contribution, false);
    touched->add(what.result, sizeof *what.result, false);
    touched->add(what.divisor, sizeof *what.divisor, false);
    for (int side = 0; side < 2; side++) {
        const size_t bytes = of.count * sizeof(float);
        touched->add(what.host_contribution->sides[side], bytes, false);
        touched->add(what.host_contribution->sides[side], bytes, true);
        touched->add(what.host_result->sides[side], bytes, false);
        touched->add(what.host_result->sides[side], bytes, true);
    }
}

/* ---- running ---- */

/* Of a block's threads, in the order of cuda_launch.cuh. */
inline gs_cuda_findings folded(std::vector<gs_cuda_findings> *of_threads) {
    enum { WARP = 32 };
    gs_cuda_findings *const found = of_threads->data();
    for (unsigned warp = 0; warp < GS_CUDA_THREADS; warp += WARP) {
        for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
            for (unsigned lane = 0; lane < distance; lane++) {
                gs_cuda_merge(&found[warp + lane], &found[warp + lane + distance]);
            }
        }
    }
    for (unsigned warp = WARP; warp < GS_CUDA_THREADS; warp += WARP) {
        gs_cuda_merge(&found[0], &found[warp]);
    }
    return found[0];
}

/* What the last block does. */
inline void settle(gs_cuda_notebook *notebook, unsigned blocks) {
    std::vector<gs_cuda_findings> sums(GS_CUDA_THREADS);
    for (unsigned block = 0; block < blocks; block++) {
        gs_cuda_merge(&sums[block % GS_CUDA_THREADS], &notebook->partial[block]);
    }
    const gs_cuda_findings sum = folded(&sums);
    gs_cuda_note_pass(notebook, &sum);
}

template <class Pass> struct Launch {
    typename Pass::Arguments of;
    unsigned blocks;
};

template <class Pass> void simulate(void *copy) {
    const Launch<Pass> &launch = *static_cast<const Launch<Pass> *>(copy);
    std::vector<gs_cuda_findings> found(GS_CUDA_THREADS);
    for (unsigned block = 0; block < launch.blocks; block++) {
        for (unsigned thread = 0; thread < GS_CUDA_THREADS; thread++) {
            gs_cuda_tally tally = gs_cuda_no_tally();
            Pass::run(launch.of, block, launch.blocks, thread, &tally);
            found[thread] = gs_cuda_findings_of(&tally);
        }
        if (launch.of.notebook != nullptr) {
            launch.of.notebook->partial[block] = folded(&found);
        }
    }
    if (launch.of.notebook != nullptr) {
        settle(launch.of.notebook, launch.blocks);
    }
}

/* Lanes of a warp, which have loaded when the first of them stores. */
template <class Pass> void simulate_warp(const Launch<Pass> &launch, size_t first, gs_cuda_tally *tallies) {
    std::vector<Pass> lanes;
    const size_t warps = static_cast<size_t>(launch.blocks) * (GS_CUDA_THREADS / LANES);
    for (unsigned lane = 0; lane < LANES; lane++) {
        lanes.emplace_back(launch.of, &tallies[lane]);
    }
    for (size_t b = first; b < Pass::block_count(launch.of); b += warps) {
        uint32_t most = 0;
        for (unsigned lane = 0; lane < LANES; lane++) {
            const uint32_t own = lanes[lane].load(b, lane);
            most = own > most ? own : most;
        }
        for (unsigned lane = 0; lane < LANES; lane++) {
            lanes[lane].store(b, lane, most);
        }
    }
}

template <class Pass> void simulate_blocks(void *copy) {
    const Launch<Pass> &launch = *static_cast<const Launch<Pass> *>(copy);
    std::vector<gs_cuda_findings> found(GS_CUDA_THREADS);
    for (unsigned block = 0; block < launch.blocks; block++) {
        std::vector<gs_cuda_tally> tallies(GS_CUDA_THREADS, gs_cuda_no_tally());
        for (unsigned warp = 0; warp < GS_CUDA_THREADS / LANES; warp++) {
            const size_t first = static_cast<size_t>(block) * (GS_CUDA_THREADS / LANES) + warp;
            simulate_warp<Pass>(launch, first, &tallies[static_cast<size_t>(warp) * LANES]);
        }
        for (unsigned thread = 0; thread < GS_CUDA_THREADS; thread++) {
            found[thread] = gs_cuda_findings_of(&tallies[thread]);
        }
        if (launch.of.notebook != nullptr) {
            launch.of.notebook->partial[block] = folded(&found);
        }
    }
    if (launch.of.notebook != nullptr) {
        settle(launch.of.notebook, launch.blocks);
    }
}

template <class Pass>
int launch_blocks(const char *what, const typename Pass::Arguments &of, const gs_cuda_term *host_terms, unsigned blocks,
                  void *stream) {
    const Launch<Pass> copied = {of, blocks};
    Touched touched;
    touch(&touched, static_cast<const Pass *>(nullptr), of, host_terms);
    return simcuda_launch(static_cast<cudaStream_t>(stream), simulate_blocks<Pass>, &copied, sizeof copied, what,
                          touched.accesses().data(), touched.accesses().size());
}

template <class Pass> int load_blocks_kernel() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(&simulate_blocks<Pass>));
}

template <class Pass>
int launch(const char *what, const typename Pass::Arguments &of, const gs_cuda_term *host_terms, unsigned blocks,
           void *stream) {
    const Launch<Pass> copied = {of, blocks};
    Touched touched;
    touch(&touched, static_cast<const Pass *>(nullptr), of, host_terms);
    return simcuda_launch(static_cast<cudaStream_t>(stream), simulate<Pass>, &copied, sizeof copied, what,
                          touched.accesses().data(), touched.accesses().size());
}

/* Asks, so that tests can let it fail. */
template <class Pass> int load_kernel() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(&simulate<Pass>));
}

inline bool has_driver() {
    return true;
}

} // namespace gs_cuda_code

#endif
