/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_TILES_CUH
#define GS_DEVICE_CUDA_TILES_CUH

/*
 * What one thread of a kernel does: chunks of 16 bytes or so on the wider side, a few of them at once so that their
 * loads overlap. Blocks take tiles in turn. Which thread does what follows from the number of elements and of blocks,
 * and the number of blocks from that of elements.
 */

#include "device/cuda_formats.cuh"

namespace gs_cuda_code {

/* ---- terms ---- */

/* Where elements of the bucket belong. */
class Cursor {
  public:
    explicit GS_ANYWHERE Cursor(const gs_cuda_pass_arguments &of) : of_(of), term_(&of.only), offset_(0), end_(0) {
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

    GS_ANYWHERE bool brings_data() const {
        return term_->data != NULL && brings(GS_CUDA_BRINGS_DATA);
    }

    GS_ANYWHERE bool brings_accumulator() const {
        return term_->accumulator != NULL && brings(GS_CUDA_BRINGS_ACCUMULATOR);
    }

    GS_ANYWHERE bool takes_result() const {
        return term_->data != NULL && (of_.used == NULL || of_.used[term_ - of_.terms] != 0);
    }

    /* Its place in the term, where accumulators have it. */
    GS_ANYWHERE size_t place(size_t element) const {
        return element - offset_;
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

  private:
    GS_ANYWHERE bool brings(int what) const {
        return of_.brings == NULL || (of_.brings[term_ - of_.terms] & what) != 0;
    }

    /* The last term that starts at the element or before it. */
    GS_ANYWHERE void find(size_t element) {
        size_t low = 0;
        size_t high = of_.term_count;
        while (high - low > 1) {
            const size_t middle = low + (high - low) / 2;
            if (of_.terms[middle].offset <= element) {
                low = middle;
            } else {
                high = middle;
            }
        }
        term_ = of_.terms == NULL ? &of_.only : &of_.terms[low];
        offset_ = term_->offset;
        end_ = offset_ + term_->rows * term_->columns;
    }

    const gs_cuda_pass_arguments &of_;
    const gs_cuda_term *term_;
    size_t offset_;
    size_t end_;
};

/* 16 bytes on the wider side, or more where the narrower one would have less than 8. */
constexpr int chunk_of(size_t one, size_t other) {
    return (int)(one > other ? (16 / one > 8 / other ? 16 / one : 8 / other)
                             : (16 / other > 8 / one ? 16 / other : 8 / one));
}

/* Each chunk of the thread's share of all elements is loaded and finished, or done one by one where that is refused. */
template <class Each>
static inline GS_ANYWHERE void each_tile(Each &each, size_t count, unsigned block, unsigned blocks, unsigned thread) {
    const size_t tile = (size_t)Each::CHUNK * GS_CUDA_THREADS * GS_CUDA_CHUNKS;
    for (size_t first = block * tile; first < count; first += blocks * tile) {
        const size_t at = first + (size_t)thread * Each::CHUNK;
        const size_t next = (size_t)GS_CUDA_THREADS * Each::CHUNK;
        typename Each::Loaded loaded[GS_CUDA_CHUNKS];
        unsigned refused = 0;
        GS_UNROLL
        for (unsigned c = 0; c < GS_CUDA_CHUNKS; c++) {
            each.load(&loaded[c], at + c * next);
        }
        GS_UNROLL
        for (unsigned c = 0; c < GS_CUDA_CHUNKS; c++) {
            refused |= each.finish(loaded[c], at + c * next) ? 0u : 1u << c;
        }
        GS_UNROLL_NOT
        for (unsigned c = 0; refused >> c != 0; c++) {
            const size_t begin = at + c * next;
            const size_t end = begin + Each::CHUNK < count ? begin + Each::CHUNK : count;
            GS_UNROLL_NOT
            for (size_t k = begin; (refused >> c & 1u) != 0 && k < end; k++) {
                each.one(k);
            }
        }
    }
}

/* ---- encode ---- */

template <class D>
static inline GS_ANYWHERE typename D::Wide weighed(bool has_data, typename D::Stored data, bool has_sum,
                                                   typename D::Wide sum, double weight) {
    typedef typename D::Wide Wide;
    if (!has_data) {
        return has_sum ? sum : 0;
    }
    const Wide x = D::widen(data);
    const Wide factor = (Wide)weight;
    if (has_sum) {
        const Wide product = x * factor;
        return one_nan(sum + product);
    }
    return weight != 1.0 ? one_nan(x * factor) : x;
}

template <class D, class W> class Encode {
  public:
    typedef gs_cuda_pass_arguments Arguments;
    typedef D Data;
    typedef W Bucket;
    typedef typename D::Wide Wide;
    static const int CHUNK = chunk_of(sizeof(typename D::Stored), sizeof(typename W::Stored));
    static const bool reads_terms = true;

    /* Of a chunk that lies in one row of one term. */
    struct Loaded {
        Pack<typename D::Stored, CHUNK> data;
        const Wide *sum; /* where it is, because few have one */
        bool is_whole;
        bool has_data;
    };

    static GS_ANYWHERE void run(const Arguments &of, unsigned block, unsigned blocks, unsigned thread,
                                gs_cuda_tally *tally) {
        Encode each(of, tally);
        each_tile(each, of.count, block, blocks, thread);
    }

    GS_ANYWHERE void load(Loaded *to, size_t at) {
        to->is_whole = false;
        if (at + CHUNK > of_.count || !cursor_.seek(at)) {
            return;
        }
        size_t row_left;
        const size_t index = cursor_.index(at, &row_left);
        if (row_left < CHUNK) {
            return;
        }
        const gs_cuda_term &term = cursor_.term();
        to->is_whole = true;
        to->has_data = cursor_.brings_data();
        to->sum = cursor_.brings_accumulator() ? (const Wide *)term.accumulator + cursor_.place(at) : NULL;
        if (to->has_data) {
            gs_cuda_code::load(&to->data, (const typename D::Stored *)term.data + index);
        }
    }

    GS_ANYWHERE bool finish(const Loaded &from, size_t at) {
        if (!from.is_whole) {
            return false;
        }
        const bool has_sum = from.sum != NULL;
        Pack<Wide, CHUNK> sum;
        if (has_sum) {
            gs_cuda_code::load(&sum, from.sum);
        }
        Pack<typename W::Stored, CHUNK> to;
        GS_UNROLL
        for (int k = 0; k < CHUNK; k++) {
            to.at[k] = element(from.has_data, from.data.at[k], has_sum, sum.at[k], at + k);
        }
        store((typename W::Stored *)of_.bucket + at, to);
        return true;
    }

    GS_ANYWHERE void one(size_t at) {
        typename W::Stored to = 0;
        if (cursor_.seek(at)) {
            const gs_cuda_term &term = cursor_.term();
            size_t row_left;
            const size_t index = cursor_.index(at, &row_left);
            const bool has_data = cursor_.brings_data();
            const bool has_sum = cursor_.brings_accumulator();
            to = element(has_data, has_data ? ((const typename D::Stored *)term.data)[index] : 0, has_sum,
                         has_sum ? ((const Wide *)term.accumulator)[cursor_.place(at)] : 0, at);
        }
        ((typename W::Stored *)of_.bucket)[at] = to;
    }

  private:
    GS_ANYWHERE Encode(const Arguments &of, gs_cuda_tally *tally) : of_(of), tally_(tally), cursor_(of) {
    }

    GS_ANYWHERE typename W::Stored element(bool has_data, typename D::Stored data, bool has_sum, Wide sum, size_t at) {
        typedef typename W::Wide Sent;
        const Sent wide = Turned<Sent, Wide>::of(weighed<D>(has_data, data, has_sum, sum, of_.factor));
        typename W::Stored to = Wire<W>::encode(wide, of_.narrowing, tally_);
        if (Same<D, W>::value && has_data && !has_sum && of_.factor == 1.0 && !of_.narrowing.is_on) {
            to = copied(data); /* to and fro the payload of a NaN could change */
        }
        if (of_.notebook != NULL) {
            note_absmax(tally_, wide);
            note_stored<W>(tally_, to, at);
        }
        return to;
    }

    static GS_ANYWHERE typename W::Stored copied(typename D::Stored data) {
        return (typename W::Stored)data;
    }

    const Arguments &of_;
    gs_cuda_tally *tally_;
    Cursor cursor_;
};

/* ---- decode ---- */

template <class D, class W> class Decode {
  public:
    typedef gs_cuda_pass_arguments Arguments;
    typedef D Data;
    typedef W Bucket;
    typedef typename D::Wide Wide;
    static const int CHUNK = chunk_of(sizeof(typename D::Stored), sizeof(typename W::Stored));
    static const bool reads_terms = false;

    struct Loaded {
        Pack<typename W::Stored, CHUNK> bucket;
        bool is_whole;
    };

    static GS_ANYWHERE void run(const Arguments &of, unsigned block, unsigned blocks, unsigned thread,
                                gs_cuda_tally *tally) {
        Decode each(of, tally);
        each_tile(each, of.count, block, blocks, thread);
    }

    GS_ANYWHERE void load(Loaded *to, size_t at) const {
        to->is_whole = at + CHUNK <= of_.count;
        if (to->is_whole) {
            gs_cuda_code::load(&to->bucket, (const typename W::Stored *)of_.bucket + at);
        }
    }

    GS_ANYWHERE bool finish(const Loaded &from, size_t at) {
        size_t row_left = 0;
        const size_t index = from.is_whole && cursor_.seek(at) ? cursor_.index(at, &row_left) : 0;
        if (row_left < CHUNK) {
            return false;
        }
        Pack<typename D::Stored, CHUNK> to;
        GS_UNROLL
        for (int k = 0; k < CHUNK; k++) {
            to.at[k] = element(from.bucket.at[k], at + k);
        }
        if (cursor_.takes_result()) {
            store((typename D::Stored *)cursor_.term().data + index, to);
        }
        return true;
    }

    GS_ANYWHERE void one(size_t at) {
        if (!cursor_.seek(at)) {
            return;
        }
        size_t row_left;
        const size_t index = cursor_.index(at, &row_left);
        const typename D::Stored to = element(((const typename W::Stored *)of_.bucket)[at], at);
        if (cursor_.takes_result()) {
            ((typename D::Stored *)cursor_.term().data)[index] = to;
        }
    }

  private:
    GS_ANYWHERE Decode(const Arguments &of, gs_cuda_tally *tally)
        : of_(of), tally_(tally), cursor_(of), division_(gs_cuda_division_by(of.divisor)),
          narrowing_(narrowing_of_results<W>(of.narrowing, of.results)) {
    }

    /* Divided and stored, and then scaled and stored: as the host does it in two passes. */
    GS_ANYWHERE typename D::Stored element(typename W::Stored from, size_t at) {
        const bool is_copied =
            Same<D, W>::value && division_.how == GS_CUDA_NOT && of_.factor == 1.0 && !narrowing_.is_on;
        typename D::Stored to = (typename D::Stored)from;
        if (!is_copied) {
            to = stored<D>(divided(Wire<W>::decode(from, narrowing_), division_));
            if (of_.factor != 1.0) {
                to = D::narrow(scaled(D::widen(to), of_.factor));
            }
        }
        if (of_.notebook != NULL) {
            note_result<D>(tally_, to, at);
        }
        return to;
    }

    const Arguments &of_;
    gs_cuda_tally *tally_;
    Cursor cursor_;
    gs_cuda_division division_;
    gs_cuda_narrowing narrowing_;
};

/* ---- combine ---- */

/* A rank without data sent zeros. As on the host they are not added: -0 stays -0. */
static inline GS_ANYWHERE bool contributes(const gs_cuda_combine_arguments &of, int rank) {
    return of.shares == NULL || of.shares[rank].contributes != 0;
}

template <class W> class Combine {
  public:
    typedef gs_cuda_combine_arguments Arguments;
    typedef W Bucket;
    typedef typename W::Wide Wide;
    static const int CHUNK = chunk_of(sizeof(typename W::Stored), sizeof(typename W::Stored));

    /* Every rank's part would be too much to hold: they are read when the sum is made. */
    struct Loaded {};

    static GS_ANYWHERE void run(const Arguments &of, unsigned block, unsigned blocks, unsigned thread,
                                gs_cuda_tally *tally) {
        Combine each(of, tally);
        each_tile(each, of.count, block, blocks, thread);
    }

    GS_ANYWHERE void load(Loaded *, size_t) const {
    }

    GS_ANYWHERE bool finish(const Loaded &, size_t at) {
        typedef typename W::Stored Stored;
        if (at + CHUNK > of_.count) {
            return false;
        }
        Pack<Wide, CHUNK> sum = {};
        bool has_any = false;
        GS_UNROLL_BY_4
        for (int rank = 0; rank < of_.ranks; rank++) {
            if (!contributes(of_, rank)) {
                continue;
            }
            Pack<Stored, CHUNK> part;
            gs_cuda_code::load(&part, (const Stored *)of_.parts + (size_t)rank * of_.stride + at);
            GS_UNROLL
            for (int k = 0; k < CHUNK; k++) {
                sum.at[k] = has_any ? sum.at[k] + decoded(part.at[k]) : decoded(part.at[k]);
            }
            has_any = true;
        }
        Pack<Stored, CHUNK> to;
        GS_UNROLL
        for (int k = 0; k < CHUNK; k++) {
            to.at[k] = element(sum.at[k], at + k);
        }
        store((Stored *)of_.shard + at, to);
        return true;
    }

    GS_ANYWHERE void one(size_t at) {
        typedef typename W::Stored Stored;
        Wide sum = 0;
        bool has_any = false;
        for (int rank = 0; rank < of_.ranks; rank++) {
            if (contributes(of_, rank)) {
                const Wide part = decoded(((const Stored *)of_.parts + (size_t)rank * of_.stride)[at]);
                sum = has_any ? sum + part : part;
                has_any = true;
            }
        }
        ((Stored *)of_.shard)[at] = element(sum, at);
    }

  private:
    GS_ANYWHERE Combine(const Arguments &of, gs_cuda_tally *tally)
        : of_(of), tally_(tally), division_(gs_cuda_division_by(of.divisor)),
          results_(narrowing_of_results<W>(of.narrowing, of.results)) {
    }

    GS_ANYWHERE Wide decoded(typename W::Stored x) const {
        return Wire<W>::decode(x, of_.narrowing);
    }

    GS_ANYWHERE typename W::Stored element(Wide sum, size_t at) {
        const typename W::Stored to = Wire<W>::encode(one_nan(divided(sum, division_)), results_, tally_);
        if (of_.notebook != NULL) {
            note_stored<W>(tally_, to, at);
            gs_cuda_note_square(tally_, (double)Wire<W>::decode(to, results_));
        }
        return to;
    }

    const Arguments &of_;
    gs_cuda_tally *tally_;
    gs_cuda_division division_;
    gs_cuda_narrowing results_;
};

/* ---- what divides a step ---- */

class Shares {
  public:
    typedef gs_cuda_shares_arguments Arguments;
    static const int CHUNK = 1;

    static GS_ANYWHERE void run(const Arguments &of, unsigned block, unsigned, unsigned thread, gs_cuda_tally *) {
        if (block != 0 || thread != 0) {
            return;
        }
        double total = 0;
        for (int rank = 0; rank < of.ranks; rank++) {
            const gs_cuda_share &share = of.shares[rank];
            if (share.contributes != 0) {
                total = added(total, share, of.divide);
            }
        }
        *of.divisor = total * of.factor;
    }

  private:
    static GS_ANYWHERE double added(double total, const gs_cuda_share &share, gs_cuda_divide divide) {
        const double micro_batches = (double)share.micro_batches;
        switch (divide) {
        case GS_CUDA_DIVIDE_WINDOW:
            return micro_batches > total ? micro_batches : total;
        case GS_CUDA_DIVIDE_PARTICIPANTS:
            return total + 1;
        case GS_CUDA_DIVIDE_MICRO_BATCHES:
            return total + micro_batches;
        case GS_CUDA_DIVIDE_WEIGHT:
            break;
        }
        return total + share.weight;
    }
};

} // namespace gs_cuda_code

#endif
