/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_TILES_CUH
#define GS_DEVICE_CUDA_TILES_CUH

/*
 * What one thread of a kernel does: chunks of 16 bytes or so on the wider side, a few of them at once so that their
 * loads overlap. Blocks take tiles in turn. Which thread does what follows from the number of elements and of blocks,
 * and the number of blocks from that of elements.
 */

#include "device/cuda_terms.cuh"

namespace gs_cuda_code {

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

/* OWES: adds what is owed before it rounds, and keeps what rounding loses. A kernel of its own, since it takes more
 * registers. */
template <class D, class W, bool OWES> class Encode {
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
        Owed owed;       /* likewise */
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
        if (OWES) {
            to->owed = owed_at(of_.feedback, term, cursor_.place(at));
        }
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
        Pack<float, CHUNK> owed;
        if (OWES) {
            gs_cuda_code::load(&owed, from.owed.now);
        }
        Pack<typename W::Stored, CHUNK> to;
        GS_UNROLL
        for (int k = 0; k < CHUNK; k++) {
            to.at[k] = element(from.has_data, from.data.at[k], has_sum, sum.at[k], &owed.at[k], at + k);
        }
        if (OWES) {
            store(from.owed.then, owed);
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
            const Owed owed = OWES ? owed_at(of_.feedback, term, cursor_.place(at)) : Owed{NULL, NULL};
            float rest = OWES ? *owed.now : 0;
            to = element(has_data, has_data ? ((const typename D::Stored *)term.data)[index] : 0, has_sum,
                         has_sum ? ((const Wide *)term.accumulator)[cursor_.place(at)] : 0, &rest, at);
            if (OWES) {
                *owed.then = rest;
            }
        }
        ((typename W::Stored *)of_.bucket)[at] = to;
    }

  private:
    GS_ANYWHERE Encode(const Arguments &of, gs_cuda_tally *tally) : of_(of), tally_(tally), cursor_(of) {
    }

    /* *owed: what was owed, and then what is. */
    GS_ANYWHERE typename W::Stored element(bool has_data, typename D::Stored data, bool has_sum, Wide sum, float *owed,
                                           size_t at) {
        typedef typename W::Wide Sent;
        Sent wide = Turned<Sent, Wide>::of(weighed<D>(has_data, data, has_sum, sum, of_.factor));
        if (OWES) {
            wide = with_owed((float)wide, *owed, of_.feedback.unit);
        }
        typename W::Stored to = Wire<W>::encode(wide, of_.narrowing, tally_);
        if (OWES) {
            *owed = lost_of((float)wide, (float)Wire<W>::decode(to, of_.narrowing), of_.feedback.unit);
        }
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

template <class W, bool OWES> class Combine {
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
        if (at + CHUNK > of_.count || (owes_ && !is_in_one_term(at))) {
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
        const Owed place = owes_ ? owed_by(at) : Owed{NULL, NULL};
        Pack<float, CHUNK> owed;
        if (owes_) {
            gs_cuda_code::load(&owed, place.now);
        }
        Pack<Stored, CHUNK> to;
        GS_UNROLL
        for (int k = 0; k < CHUNK; k++) {
            to.at[k] = element(sum.at[k], owes_, &owed.at[k], at + k);
        }
        if (owes_) {
            store(place.then, owed);
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
        const bool owes = owes_ && finder_.seek(of_.first + at);
        const Owed place = owes ? owed_by(at) : Owed{NULL, NULL};
        float owed = owes ? *place.now : 0;
        ((Stored *)of_.shard)[at] = element(sum, owes, &owed, at);
        if (owes) {
            *place.then = owed;
        }
    }

  private:
    GS_ANYWHERE Combine(const Arguments &of, gs_cuda_tally *tally)
        : of_(of), tally_(tally), division_(gs_cuda_division_by(of.divisor)),
          results_(narrowing_of_results<W>(of.narrowing, of.results)), finder_(of.terms, of.term_count, NULL),
          owes_(OWES && division_.how != GS_CUDA_BY_ZERO) {
    }

    GS_ANYWHERE bool is_in_one_term(size_t at) {
        return finder_.seek(of_.first + at) && finder_.end() - (of_.first + at) >= CHUNK;
    }

    GS_ANYWHERE Owed owed_by(size_t at) const {
        return owed_at(of_.feedback, finder_.term(), finder_.place(of_.first + at));
    }

    GS_ANYWHERE Wide decoded(typename W::Stored x) const {
        return Wire<W>::decode(x, of_.narrowing);
    }

    /* *owed: what was owed, and then what is. */
    GS_ANYWHERE typename W::Stored element(Wide sum, bool owes, float *owed, size_t at) {
        Wide wide = one_nan(divided(sum, division_));
        if (owes) {
            wide = with_owed((float)wide, *owed, of_.feedback.unit);
        }
        const typename W::Stored to = Wire<W>::encode(wide, results_, tally_);
        if (owes) {
            *owed = lost_of((float)wide, (float)Wire<W>::decode(to, results_), of_.feedback.unit);
        }
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
    Finder finder_;
    bool owes_;
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
