/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_BLOCKS_CUH
#define GS_DEVICE_CUDA_BLOCKS_CUH

/*
 * Wires of 8 bits: blocks of GS_WIRE_BLOCK codes with a common scale. A warp takes a block, each of its lanes some
 * neighbouring elements; between loading them and storing codes the lanes tell each other the largest magnitude, which
 * is up to who starts the threads. Codes and scales are those of codec_int8.c and codec_float8.c, but lie apart.
 */

#include "base/hash.h"
#include "base/wire_format.h"
#include "device/cuda_tiles.cuh"

namespace gs_cuda_code {

enum { LANES = 32, PER_LANE = GS_WIRE_BLOCK / LANES };

/* ---- formats ---- */

struct Int8 {
    typedef float Scale;
    typedef gs_int8_block Block;

    static GS_ANYWHERE Block block_of(uint32_t most) {
        if (most == 0 || most >= GS_INFINITY) {
            const Block none = {gs_float_from_bits(most == 0 ? 0 : GS_ONE_NAN), 0.0f, 1.0f};
            return none;
        }
        return gs_int8_block_of(gs_float_from_bits(most));
    }
    static GS_ANYWHERE Scale scale_of(const Block &block) {
        return block.scale;
    }
    static GS_ANYWHERE uint8_t code_of(const Block &block, uint32_t most, float x) {
        return most < GS_INFINITY ? (uint8_t)gs_int8_code(x * block.lift * block.factor) : (uint8_t)0;
    }
    static GS_ANYWHERE uint8_t code_of(const Block &block, uint32_t most, float x, uint32_t random_bits) {
        const float largest = gs_float_from_bits(most) * block.lift;
        const float fixed = gs_int8_fixed_factor(largest, block.factor * 0x1p24f);
        const bool has_code = most != 0 && most < GS_INFINITY;
        return has_code ? (uint8_t)gs_int8_stochastic_code(x * block.lift * fixed, random_bits) : (uint8_t)0;
    }
    static GS_ANYWHERE bool is_zero(uint8_t code) {
        return code == 0;
    }
    static GS_ANYWHERE bool is_saturated(uint32_t, float) {
        return false;
    }
    static GS_ANYWHERE float value_of(uint8_t code, Scale scale) {
        return gs_one_nan_f32((float)(int8_t)code * scale);
    }
};

struct Float8 {
    typedef uint8_t Scale;
    struct Block {
        uint32_t exponent;
        float factor;
        float limit;
    };

    static GS_ANYWHERE Block block_of(uint32_t most) {
        Block block = {GS_FLOAT8_NAN_EXPONENT, 0.0f, 448.0f};
        if (most < GS_INFINITY) {
            const bool is_huge = most >= GS_FLOAT8_END;
            block.exponent = is_huge ? (uint32_t)GS_FLOAT8_LARGEST_EXPONENT : gs_float8_exponent(most);
            block.factor = gs_float8_factor(block.exponent);
            block.limit = is_huge ? GS_FLOAT8_LARGEST_SCALED : 448.0f;
        }
        return block;
    }
    static GS_ANYWHERE Scale scale_of(const Block &block) {
        return (Scale)block.exponent;
    }
    static GS_ANYWHERE uint8_t code_of(const Block &block, uint32_t most, float x) {
        const float scaled = x * block.factor;
        const float low = scaled < -block.limit ? -block.limit : scaled;
        return most < GS_INFINITY ? (uint8_t)gs_float8_from_float(low > block.limit ? block.limit : low) : (uint8_t)0;
    }
    static GS_ANYWHERE uint8_t code_of(const Block &block, uint32_t most, float x, uint32_t) {
        return code_of(block, most, x);
    }
    static GS_ANYWHERE bool is_zero(uint8_t code) {
        return (code & 0x7fu) == 0;
    }
    static GS_ANYWHERE bool is_saturated(uint32_t most, float x) {
        return most < GS_INFINITY && gs_magnitude(x) >= GS_FLOAT8_END;
    }
    static GS_ANYWHERE float value_of(uint8_t code, Scale scale) {
        return gs_one_nan_f32(gs_float8_to_float(code) * gs_float8_scale(scale));
    }
};

/* ---- where codes and scales are ---- */

template <class C> class Places {
  public:
    GS_ANYWHERE Places(const gs_cuda_blocks &of, const void *base) : of_(of), base_((uint8_t *)base) {
    }

    GS_ANYWHERE uint8_t *codes(size_t part, size_t block) const {
        return base_ + part * of_.part_bytes + block * GS_WIRE_BLOCK;
    }
    GS_ANYWHERE typename C::Scale *scale(size_t part, size_t block) const {
        return (typename C::Scale *)codes(part, of_.per_part) + block;
    }

  private:
    const gs_cuda_blocks &of_;
    uint8_t *base_;
};

/* Of the elements of one lane. */
struct Randomness {
    bool is_on;
    gs_random_stream stream;
    uint32_t number; /* of the first one */
};

static inline GS_ANYWHERE Randomness no_randomness(void) {
    const Randomness none = {false, {0, 0}, 0};
    return none;
}

/* A block has the stream in which its first element is. */
static inline GS_ANYWHERE Randomness randomness_of(const gs_cuda_randomness &of, uint64_t gradient, uint64_t element,
                                                   unsigned lane) {
    Randomness random = no_randomness();
    if (of.is_on) {
        random.is_on = true;
        random.stream = gs_random_stream_of(gs_hash_mix(of.prefix, gradient), (uint32_t)(element >> 32));
        random.number = (uint32_t)element + lane * PER_LANE;
    }
    return random;
}

template <class C> struct Values {
    float at[PER_LANE];

    GS_ANYWHERE void load(const Places<C> &places, size_t part, size_t block, unsigned lane) {
        Pack<uint8_t, PER_LANE> codes;
        const typename C::Scale scale = *places.scale(part, block);
        gs_cuda_code::load(&codes, (const uint8_t *)places.codes(part, block) + lane * PER_LANE);
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            at[k] = C::value_of(codes.at[k], scale);
        }
    }

    GS_ANYWHERE uint32_t most() const {
        uint32_t most = 0;
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            most = gs_magnitude(at[k]) > most ? gs_magnitude(at[k]) : most;
        }
        return most;
    }

    /* Returns through tally what encoding noticed, and in sent, where that is wanted, what others will read; `first` is
     * the number of the lane's first element. */
    GS_ANYWHERE void store(const Places<C> &places, size_t part, size_t block, unsigned lane, uint32_t most,
                           size_t first, const Randomness &random, gs_cuda_tally *tally, bool wants_sent,
                           Values *sent) const {
        Pack<uint8_t, PER_LANE> codes;
        const typename C::Block how = C::block_of(most);
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            const uint32_t number = random.number + (uint32_t)k;
            codes.at[k] = random.is_on ? C::code_of(how, most, at[k], gs_random_bits(random.stream, number))
                                       : C::code_of(how, most, at[k]);
            note(at[k], codes.at[k], most, first + (size_t)k, tally);
            if (wants_sent) {
                sent->at[k] = C::value_of(codes.at[k], C::scale_of(how));
            }
        }
        gs_cuda_code::store(places.codes(part, block) + lane * PER_LANE, codes);
        if (lane == 0) {
            *places.scale(part, block) = C::scale_of(how);
        }
    }

  private:
    static GS_ANYWHERE void note(float x, uint8_t code, uint32_t most, size_t element, gs_cuda_tally *tally) {
        gs_cuda_note_absmax(tally, x);
        if (gs_magnitude(x) >= GS_INFINITY) {
            gs_cuda_note_nonfinite(tally, element);
        }
        tally->flushed += most < GS_INFINITY && C::is_zero(code) && gs_magnitude(x) != 0;
        tally->saturated += C::is_saturated(most, x);
    }
};

/* ---- error feedback ---- */

/* What is owed of one lane's elements, of which the first `count` belong to the term. */
class LaneOwed {
  public:
    /* `at`: the lane's first element; the term is that of its block. */
    GS_ANYWHERE LaneOwed(const gs_cuda_feedback &of, const Finder &finder, size_t at)
        : unit_(of.unit), owed_(owed_at(of, finder.term(), finder.place(at))), count_(count_of(finder, at)) {
    }

    GS_ANYWHERE void add_to(float *values) const {
        Pack<float, PER_LANE> owed;
        if (count_ == PER_LANE) {
            gs_cuda_code::load(&owed, owed_.now);
        }
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            if (k < count_) {
                values[k] = with_owed(values[k], count_ == PER_LANE ? owed.at[k] : owed_.now[k], unit_);
            }
        }
    }

    GS_ANYWHERE void keep(const float *wanted, const float *sent) const {
        Pack<float, PER_LANE> lost;
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            lost.at[k] = lost_of(wanted[k], sent[k], unit_);
        }
        if (count_ == PER_LANE) {
            gs_cuda_code::store(owed_.then, lost);
            return;
        }
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            if (k < count_) {
                owed_.then[k] = lost.at[k];
            }
        }
    }

  private:
    static GS_ANYWHERE int count_of(const Finder &finder, size_t at) {
        const size_t end = finder.end();
        return at >= end ? 0 : (end - at < PER_LANE ? (int)(end - at) : (int)PER_LANE);
    }

    float unit_;
    Owed owed_;
    int count_;
};

/* ---- encode ---- */

template <class D, class C, bool OWES> class BlockEncode {
  public:
    typedef gs_cuda_pass_arguments Arguments;
    typedef typename D::Stored Stored;
    typedef typename D::Wide Wide;

    static GS_ANYWHERE size_t block_count(const Arguments &of) {
        return of.count / GS_WIRE_BLOCK;
    }

    GS_ANYWHERE BlockEncode(const Arguments &of, gs_cuda_tally *tally) : of_(of), tally_(tally), cursor_(of) {
    }

    /* Returns the largest magnitude. */
    GS_ANYWHERE uint32_t load(size_t block, unsigned lane) {
        const size_t at = block * GS_WIRE_BLOCK + lane * PER_LANE;
        size_t row_left = 0;
        const size_t index = cursor_.seek(at) ? cursor_.index(at, &row_left) : 0;
        if (row_left >= PER_LANE) {
            load_whole(at, index);
        } else {
            GS_UNROLL
            for (int k = 0; k < PER_LANE; k++) {
                values_.at[k] = one(at + (size_t)k);
            }
        }
        if (OWES && cursor_.seek(block * GS_WIRE_BLOCK)) {
            LaneOwed(of_.feedback, cursor_, at).add_to(values_.at);
        }
        return values_.most();
    }

    GS_ANYWHERE void store(size_t block, unsigned lane, uint32_t most) {
        const Places<C> places(of_.blocks, of_.bucket);
        const size_t part = block / of_.blocks.per_part;
        const size_t first = block * GS_WIRE_BLOCK;
        const bool has_term = cursor_.seek(first); /* its gradient ends perhaps before this lane */
        const Randomness random = randomness_of(of_.random, cursor_.term().number, cursor_.place(first), lane);
        Values<C> sent;
        values_.store(places, part, block - part * of_.blocks.per_part, lane, most, first + lane * PER_LANE, random,
                      tally_, OWES, &sent);
        if (OWES && has_term) {
            LaneOwed(of_.feedback, cursor_, first + lane * PER_LANE).keep(values_.at, sent.at);
        }
    }

  private:
    GS_ANYWHERE void load_whole(size_t at, size_t index) {
        const gs_cuda_term &term = cursor_.term();
        const bool has_data = cursor_.brings_data();
        const bool has_sum = cursor_.brings_accumulator();
        Pack<Stored, PER_LANE> data;
        Pack<Wide, PER_LANE> sum;
        if (has_data) {
            gs_cuda_code::load(&data, (const Stored *)term.data + index);
        }
        if (has_sum) {
            gs_cuda_code::load(&sum, (const Wide *)term.accumulator + cursor_.place(at));
        }
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            values_.at[k] = sent(has_data, data.at[k], has_sum, sum.at[k]);
        }
    }

    GS_ANYWHERE float one(size_t at) {
        if (!cursor_.seek(at)) {
            return 0;
        }
        const gs_cuda_term &term = cursor_.term();
        const bool has_data = cursor_.brings_data();
        const bool has_sum = cursor_.brings_accumulator();
        size_t row_left;
        const size_t index = cursor_.index(at, &row_left);
        return sent(has_data, has_data ? ((const Stored *)term.data)[index] : 0, has_sum,
                    has_sum ? ((const Wide *)term.accumulator)[cursor_.place(at)] : 0);
    }

    GS_ANYWHERE float sent(bool has_data, Stored data, bool has_sum, Wide sum) const {
        return Turned<float, Wide>::of(weighed<D>(has_data, data, has_sum, sum, of_.factor));
    }

    const Arguments &of_;
    gs_cuda_tally *tally_;
    Cursor cursor_;
    Values<C> values_;
};

/* ---- the sum of a shard ---- */

template <class C, bool OWES> class BlockSum {
  public:
    typedef gs_cuda_combine_arguments Arguments;

    static GS_ANYWHERE size_t block_count(const Arguments &of) {
        return of.count / GS_WIRE_BLOCK;
    }

    GS_ANYWHERE BlockSum(const Arguments &of, gs_cuda_tally *tally)
        : of_(of), tally_(tally), division_(gs_cuda_division_by(of.divisor)), finder_(of.terms, of.term_count, NULL),
          owes_(OWES && division_.how != GS_CUDA_BY_ZERO) {
    }

    GS_ANYWHERE uint32_t load(size_t block, unsigned lane) {
        const Places<C> places(of_.blocks, of_.parts);
        bool has_any = false;
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            sum_.at[k] = 0;
        }
        GS_UNROLL_BY_4
        for (int rank = 0; rank < of_.ranks; rank++) {
            Values<C> part;
            if (!contributes(of_, rank)) {
                continue;
            }
            part.load(places, (size_t)rank, block, lane);
            GS_UNROLL
            for (int k = 0; k < PER_LANE; k++) {
                sum_.at[k] = has_any ? sum_.at[k] + part.at[k] : part.at[k];
            }
            has_any = true;
        }
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            sum_.at[k] = one_nan(divided(sum_.at[k], division_));
        }
        if (owes_ && finder_.seek(in_bucket(block))) {
            LaneOwed(of_.feedback, finder_, in_bucket(block) + lane * PER_LANE).add_to(sum_.at);
        }
        return sum_.most();
    }

    GS_ANYWHERE void store(size_t block, unsigned lane, uint32_t most) {
        const Places<C> places(of_.blocks, of_.shard);
        Values<C> sent;
        sum_.store(places, 0, block, lane, most, block * GS_WIRE_BLOCK + lane * PER_LANE, no_randomness(), tally_,
                   owes_, &sent);
        if (owes_ && finder_.seek(in_bucket(block))) {
            LaneOwed(of_.feedback, finder_, in_bucket(block) + lane * PER_LANE).keep(sum_.at, sent.at);
        }
    }

  private:
    GS_ANYWHERE size_t in_bucket(size_t block) const {
        return of_.first + block * GS_WIRE_BLOCK;
    }

    const Arguments &of_;
    gs_cuda_tally *tally_;
    gs_cuda_division division_;
    Finder finder_;
    bool owes_;
    Values<C> sum_;
};

/* ---- decode ---- */

template <class D, class C> class BlockDecode {
  public:
    typedef gs_cuda_pass_arguments Arguments;
    typedef typename D::Stored Stored;

    static GS_ANYWHERE size_t block_count(const Arguments &of) {
        return of.count / GS_WIRE_BLOCK;
    }

    GS_ANYWHERE BlockDecode(const Arguments &of, gs_cuda_tally *tally) : of_(of), tally_(tally), cursor_(of) {
    }

    GS_ANYWHERE uint32_t load(size_t block, unsigned lane) {
        const Places<C> places(of_.blocks, of_.bucket);
        const size_t part = block / of_.blocks.per_part;
        values_.load(places, part, block - part * of_.blocks.per_part, lane);
        return 0;
    }

    GS_ANYWHERE void store(size_t block, unsigned lane, uint32_t) {
        const size_t at = block * GS_WIRE_BLOCK + lane * PER_LANE;
        size_t row_left = 0;
        const size_t index = cursor_.seek(at) ? cursor_.index(at, &row_left) : 0;
        Pack<Stored, PER_LANE> to;
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            to.at[k] = stored<D>(values_.at[k]);
        }
        if (row_left < PER_LANE) {
            GS_UNROLL
            for (int k = 0; k < PER_LANE; k++) {
                one(at + (size_t)k, to.at[k]);
            }
            return;
        }
        if (cursor_.takes_result()) {
            gs_cuda_code::store((Stored *)cursor_.term().data + index, to);
        }
        GS_UNROLL
        for (int k = 0; k < PER_LANE; k++) {
            note_result<D>(tally_, to.at[k], at + (size_t)k);
        }
    }

  private:
    GS_ANYWHERE void one(size_t at, Stored to) {
        if (!cursor_.seek(at)) {
            return;
        }
        size_t row_left;
        const size_t index = cursor_.index(at, &row_left);
        if (cursor_.takes_result()) {
            ((Stored *)cursor_.term().data)[index] = to;
        }
        note_result<D>(tally_, to, at);
    }

    const Arguments &of_;
    gs_cuda_tally *tally_;
    Cursor cursor_;
    Values<C> values_;
};

} // namespace gs_cuda_code

#endif
