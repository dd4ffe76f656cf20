/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_TERMS_CUH
#define GS_DEVICE_CUDA_TERMS_CUH

/* Which gradient an element of a bucket belongs to, and what is owed of it. */

#include "device/cuda_formats.cuh"

namespace gs_cuda_code {

/* Where elements of the bucket belong. */
class Finder {
  public:
    /* terms NULL: there is only one. */
    GS_ANYWHERE Finder(const gs_cuda_term *terms, size_t term_count, const gs_cuda_term *only)
        : terms_(terms != NULL ? terms : only), term_count_(term_count), term_(terms_), offset_(0), end_(0) {
    }

    /* Whether the element belongs to a term; otherwise it only fills up a block. */
    GS_ANYWHERE bool seek(size_t element) {
        if (element < offset_ || element >= end_) {
            find(element);
        }
        return element >= offset_ && element < end_;
    }

    GS_ANYWHERE const gs_cuda_term &term() const {
        return *term_;
    }

    /* Its place in the term, where accumulators and residuals have it. */
    GS_ANYWHERE size_t place(size_t element) const {
        return element - offset_;
    }

    /* The element of the bucket behind the term's last one. */
    GS_ANYWHERE size_t end() const {
        return end_;
    }

    /* Its place in the term's memory, and how many elements lie there in a row. */
    GS_ANYWHERE size_t index(size_t element, size_t *row_left) const {
        const size_t place = element - offset_;
        const size_t columns = term_->columns;
        if (term_->rows <= 1 || term_->row_pitch == columns) {
            *row_left = end_ - element;
            return place;
        }
        /* Most fit into 32 bits, in which GPUs divide several times as fast. */
        const size_t row = (place | columns) >> 32 == 0 ? (uint32_t)place / (uint32_t)columns : place / columns;
        const size_t column = place - row * columns;
        *row_left = columns - column;
        return row * term_->row_pitch + column;
    }

  protected:
    GS_ANYWHERE size_t number() const {
        return (size_t)(term_ - terms_);
    }

  private:
    /* The last term that starts at the element or before it. */
    GS_ANYWHERE void find(size_t element) {
        size_t low = 0;
        size_t high = term_count_;
        while (high - low > 1) {
            const size_t middle = low + (high - low) / 2;
            if (terms_[middle].offset <= element) {
                low = middle;
            } else {
                high = middle;
            }
        }
        term_ = &terms_[low];
        offset_ = term_->offset;
        end_ = offset_ + term_->rows * term_->columns;
    }

    const gs_cuda_term *terms_;
    size_t term_count_;
    const gs_cuda_term *term_;
    size_t offset_;
    size_t end_;
};

/* The same for a pass, which knows what counts of each term. */
class Cursor : public Finder {
  public:
    explicit GS_ANYWHERE Cursor(const gs_cuda_pass_arguments &of) : Finder(of.terms, of.term_count, &of.only), of_(of) {
    }

    GS_ANYWHERE bool brings_data() const {
        return term().data != NULL && brings(GS_CUDA_BRINGS_DATA);
    }

    GS_ANYWHERE bool brings_accumulator() const {
        return term().accumulator != NULL && brings(GS_CUDA_BRINGS_ACCUMULATOR);
    }

    GS_ANYWHERE bool takes_result() const {
        return term().data != NULL && (of_.used == NULL || of_.used[number()] != 0);
    }

  private:
    GS_ANYWHERE bool brings(int what) const {
        return of_.brings == NULL || (of_.brings[number()] & what) != 0;
    }

    const gs_cuda_pass_arguments &of_;
};

/* ---- error feedback ---- */

/* From some element of a term on: what is owed, and where to write what is owed then. */
struct Owed {
    const float *now;
    float *then;
};

static inline GS_ANYWHERE Owed owed_at(const gs_cuda_feedback &of, const gs_cuda_term &term, size_t place) {
    const gs_cuda_residual &residual = of.residuals[term.number];
    const uint32_t valid = residual.valid;
    const Owed owed = {residual.sides[valid] + place, residual.sides[1 - valid] + place};
    return owed;
}

static inline GS_ANYWHERE float with_owed(float x, float owed, float unit) {
    const float product = owed * unit;
    return x + product;
}

static inline GS_ANYWHERE float lost_of(float wanted, float sent, float unit) {
    return (wanted - sent) / unit;
}

} // namespace gs_cuda_code

#endif
