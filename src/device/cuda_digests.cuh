/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_DIGESTS_CUH
#define GS_DEVICE_CUDA_DIGESTS_CUH

/*
 * A number for what a gradient holds. Threads see its elements in no order, so it is a sum: of each element's bits and
 * place, hashed. It depends on nothing else, neither on rows nor on the bucket.
 */

#include "device/cuda_tiles.cuh"

namespace gs_cuda_code {

static inline GS_ANYWHERE uint64_t hash_of(uint64_t bits, uint64_t place) {
    uint64_t x = bits + (place + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

static inline GS_ANYWHERE uint64_t bits_of(uint16_t x) {
    return x;
}
static inline GS_ANYWHERE uint64_t bits_of(float x) {
    return gs_float_bits(x);
}
static inline GS_ANYWHERE uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* In the tests' simulation one thread does everything. */
static inline GS_ANYWHERE void add_digest(uint64_t *to, uint64_t digest) {
#if defined(__CUDA_ARCH__)
    atomicAdd((unsigned long long *)to, (unsigned long long)digest);
#else
    *to += digest;
#endif
}

template <class D> class Digest {
  public:
    typedef gs_cuda_pass_arguments Arguments;
    typedef typename D::Stored Stored;
    static const int CHUNK = chunk_of(sizeof(Stored), sizeof(Stored));

    struct Loaded {};

    static GS_ANYWHERE void run(const Arguments &of, unsigned block, unsigned blocks, unsigned thread,
                                gs_cuda_tally *) {
        Digest each(of);
        each_tile(each, of.count, block, blocks, thread);
        each.give();
    }

    GS_ANYWHERE void load(Loaded *, size_t) const {
    }

    GS_ANYWHERE bool finish(const Loaded &, size_t at) {
        size_t row_left = 0;
        const size_t index = at + CHUNK <= of_.count && seek(at) ? cursor_.index(at, &row_left) : 0;
        if (row_left < CHUNK) {
            return false;
        }
        Pack<Stored, CHUNK> from;
        gs_cuda_code::load(&from, (const Stored *)cursor_.term().data + index);
        GS_UNROLL
        for (int k = 0; k < CHUNK; k++) {
            sum_ += hash_of(bits_of(from.at[k]), cursor_.place(at) + (size_t)k);
        }
        return true;
    }

    GS_ANYWHERE void one(size_t at) {
        if (seek(at)) {
            size_t row_left;
            const size_t index = cursor_.index(at, &row_left);
            sum_ += hash_of(bits_of(((const Stored *)cursor_.term().data)[index]), cursor_.place(at));
        }
    }

  private:
    explicit GS_ANYWHERE Digest(const Arguments &of) : of_(of), cursor_(of), term_(NULL), sum_(0) {
    }

    /* What was summed up of another term is given away first. */
    GS_ANYWHERE bool seek(size_t at) {
        if (!cursor_.seek(at) || cursor_.term().data == NULL) {
            return false;
        }
        if (term_ != &cursor_.term()) {
            give();
            term_ = &cursor_.term();
        }
        return true;
    }

    GS_ANYWHERE void give() {
        if (term_ != NULL) {
            add_digest(&of_.digests[of_.terms == NULL ? 0 : term_ - of_.terms], sum_);
        }
        sum_ = 0;
    }

    const Arguments &of_;
    Cursor cursor_;
    const gs_cuda_term *term_;
    uint64_t sum_;
};

} // namespace gs_cuda_code

#endif
