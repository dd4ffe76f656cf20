/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_TOPK_CUH
#define GS_DEVICE_CUDA_TOPK_CUH

/*
 * The passes of the wire TOPK over a bucket, in phases between which a block's threads wait for each other. A tile is
 * of one gradient. The least key that is chosen of a gradient is found digit by digit; then tiles are counted, so that
 * each knows how many elements are chosen before it, and entries are written in the order of their indices. Whichever
 * block is the last one at a gradient does what needs all of its tiles: no order of blocks is promised, none is needed,
 * and since only whole numbers are added by several, what comes out is always the same.
 */

#include "base/wire_format.h"
#include "device/cuda_formats.cuh"
#include "device/topk_cuda_kernels.h"

namespace gs_cuda_code {

enum {
    TOPK_EACH = GS_CUDA_TOPK_TILE / GS_CUDA_THREADS, /* elements of a thread: one in each of so many steps */
    TOPK_ROW = 32,                                   /* neighbours, which a warp takes in one step */
    TOPK_ROWS = GS_CUDA_TOPK_TILE / TOPK_ROW,
    TOPK_COUNTERS = GS_CUDA_TOPK_DIGITS / GS_CUDA_THREADS, /* of a thread: neighbours */
    TOPK_RANKS = GS_CUDA_THREADS / 2                       /* whose entries are looked for at once */
};

/* ---- what threads do together. In the tests' simulation they come one after the other ---- */

/* Returns what was there. */
static inline GS_ANYWHERE uint32_t add_to(uint32_t *to, uint32_t count) {
#if defined(__CUDA_ARCH__)
    return atomicAdd(to, count);
#else
    const uint32_t before = *to;
    *to += count;
    return before;
#endif
}

/* What this thread has written is there for who learns from it that it has. */
static inline GS_ANYWHERE void publish() {
#if defined(__CUDA_ARCH__)
    __threadfence();
#endif
}

/* What another block has written. */
static inline GS_ANYWHERE uint32_t published(const uint32_t *from) {
#if defined(__CUDA_ARCH__)
    return __ldcg(from);
#else
    return *from;
#endif
}

static inline GS_ANYWHERE uint32_t bits_set(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return (uint32_t)__popc(bits);
#else
    return (uint32_t)__builtin_popcount(bits);
#endif
}

/* Every lane of a warp gives a bit of the same row, which was zero. */
static inline GS_ANYWHERE void vote(uint32_t *row, unsigned lane, bool is_set) {
#if defined(__CUDA_ARCH__)
    const uint32_t bits = __ballot_sync(0xffffffffu, is_set);
    if (lane == 0) {
        *row = bits;
    }
#else
    *row |= (uint32_t)is_set << lane;
#endif
}

/* The order of magnitudes; all NaNs are the same. */
static inline GS_ANYWHERE uint32_t topk_key_of(float x) {
    const uint32_t magnitude = gs_magnitude(x);
    return magnitude > GS_INFINITY ? GS_INFINITY + 1u : magnitude;
}

/* ---- tiles ---- */

/* A thread's place in the tile at work. */
class TopkTile {
  public:
    GS_ANYWHERE TopkTile(const gs_cuda_topk_arguments &of, unsigned thread)
        : of_(of), thread_(thread), choice_(NULL), tile_(0), first_(0), count_(0) {
    }

    GS_ANYWHERE void seek(uint32_t tile) {
        if (choice_ == NULL || tile - choice_->first_tile >= tiles()) {
            find(tile);
        }
        tile_ = tile;
        first_ = (tile - choice_->first_tile) * (uint32_t)GS_CUDA_TOPK_TILE;
        count_ = choice_->count - first_ < GS_CUDA_TOPK_TILE ? choice_->count - first_ : (uint32_t)GS_CUDA_TOPK_TILE;
    }

    GS_ANYWHERE const gs_cuda_choice &choice() const {
        return *choice_;
    }
    GS_ANYWHERE gs_cuda_topk_progress &progress() const {
        return of_.progress[choice_ - of_.choices];
    }
    GS_ANYWHERE uint32_t tiles() const {
        return gs_cuda_topk_tiles(choice_->count);
    }
    GS_ANYWHERE bool is_last() const {
        return choice_->count - first_ <= GS_CUDA_TOPK_TILE;
    }
    /* Of the gradient's elements. */
    GS_ANYWHERE uint32_t first() const {
        return first_;
    }
    GS_ANYWHERE uint32_t count() const {
        return count_;
    }
    /* Of the tile's elements: this thread's one in a step. */
    GS_ANYWHERE uint32_t at(unsigned step) const {
        return step * GS_CUDA_THREADS + thread_;
    }
    GS_ANYWHERE float *element(uint32_t at) const {
        return of_.bucket + choice_->offset + first_ + at;
    }
    GS_ANYWHERE gs_cuda_topk_sums &sums() const {
        return of_.sums[tile_];
    }

    /* What is owed of the tile; before: as it was before this step. */
    GS_ANYWHERE float *owed(bool before) const {
        const gs_cuda_residual &residual = of_.residuals[choice_->number];
        return residual.sides[before ? residual.valid : 1 - residual.valid] + first_;
    }

    GS_ANYWHERE void add_owed() const {
        const float *const owed_before = owed(true);
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            if (at(step) < count_) {
                *element(at(step)) += owed_before[at(step)] * of_.unit;
            }
        }
    }

    /* -1 stands for what is beyond the end: no key is less. */
    GS_ANYWHERE void load_keys(int32_t *keys) const {
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            keys[step] = at(step) < count_ ? (int32_t)topk_key_of(*element(at(step))) : -1;
        }
    }

    /* One thread of each block says that its tile is done; true in the one that was the gradient's last. */
    GS_ANYWHERE bool count_up() const {
        publish();
        const bool is_all = add_to(&progress().tiles_done, 1) + 1 == tiles();
        if (is_all) {
            progress().tiles_done = 0;
        }
        return is_all;
    }

  private:
    /* Choices without elements have no tiles, and the place of the next one: the last of those is meant. */
    GS_ANYWHERE void find(uint32_t tile) {
        size_t low = 0;
        size_t high = of_.choice_count;
        while (high - low > 1) {
            const size_t middle = low + (high - low) / 2;
            if (of_.choices[middle].first_tile <= tile) {
                low = middle;
            } else {
                high = middle;
            }
        }
        choice_ = &of_.choices[low];
    }

    const gs_cuda_topk_arguments &of_;
    unsigned thread_;
    const gs_cuda_choice *choice_;
    uint32_t tile_;
    uint32_t first_;
    uint32_t count_;
};

/* ---- one digit of the least chosen key ---- */

class TopkDigit {
  public:
    typedef gs_cuda_topk_arguments Arguments;
    struct Shared {
        uint32_t counters[GS_CUDA_TOPK_DIGITS];
        uint32_t parts[GS_CUDA_THREADS];
        bool is_last;
    };

    GS_ANYWHERE TopkDigit(const Arguments &of, Shared *shared, unsigned thread)
        : of_(of), shared_(*shared), thread_(thread), tile_(of, thread), prefix_(0), wanted_(0) {
    }

    GS_ANYWHERE void start(uint32_t tile) {
        tile_.seek(tile);
        prefix_ = of_.is_first ? 0 : tile_.progress().prefix;
        wanted_ = of_.is_first ? tile_.choice().kept : tile_.progress().wanted;
    }

    GS_ANYWHERE unsigned phases() const {
        return 6;
    }

    GS_ANYWHERE void run(unsigned phase) {
        switch (phase) {
        case 0:
            each_counter([&](uint32_t counter) { shared_.counters[counter] = 0; });
            if (of_.is_first && of_.residuals != NULL) {
                tile_.add_owed();
            }
            break;
        case 1:
            count_keys();
            break;
        case 2:
            each_counter([&](uint32_t counter) { pass_on(counter); });
            publish();
            break;
        case 3:
            if (thread_ == 0) {
                shared_.is_last = tile_.count_up();
            }
            break;
        case 4:
            if (shared_.is_last) {
                add_counters();
            }
            break;
        default:
            if (shared_.is_last) {
                find_digit();
            }
            break;
        }
    }

  private:
    template <class Do> GS_ANYWHERE void each_counter(Do what) {
        GS_UNROLL
        for (uint32_t k = 0; k < TOPK_COUNTERS; k++) {
            what(thread_ * TOPK_COUNTERS + k);
        }
    }

    GS_ANYWHERE void count_keys() {
        int32_t keys[TOPK_EACH];
        tile_.load_keys(keys);
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            const uint32_t key = (uint32_t)keys[step];
            if (keys[step] >= 0 && key >> of_.shift >> of_.digit_bits == prefix_) {
                add_to(&shared_.counters[key >> of_.shift & ((1u << of_.digit_bits) - 1)], 1);
            }
        }
    }

    GS_ANYWHERE void pass_on(uint32_t counter) {
        if (shared_.counters[counter] != 0) {
            add_to(&tile_.progress().counters[counter], shared_.counters[counter]);
        }
    }

    GS_ANYWHERE void add_counters() {
        uint32_t sum = 0;
        publish();
        each_counter([&](uint32_t counter) { sum += published(&tile_.progress().counters[counter]); });
        shared_.parts[thread_] = sum;
    }

    /* One thread has the digit among its counters. All leave theirs as they were. */
    GS_ANYWHERE void find_digit() {
        gs_cuda_topk_progress &progress = tile_.progress();
        uint32_t above = 0;
        for (unsigned other = thread_ + 1; other < GS_CUDA_THREADS; other++) {
            above += shared_.parts[other];
        }
        if (above < wanted_ && wanted_ - above <= shared_.parts[thread_]) {
            uint32_t digit = thread_ * TOPK_COUNTERS + TOPK_COUNTERS - 1;
            uint32_t left = wanted_ - above;
            while (published(&progress.counters[digit]) < left) {
                left -= published(&progress.counters[digit--]);
            }
            progress.prefix = prefix_ << of_.digit_bits | digit;
            progress.wanted = left;
        }
        each_counter([&](uint32_t counter) { progress.counters[counter] = 0; });
    }

    const Arguments &of_;
    Shared &shared_;
    unsigned thread_;
    TopkTile tile_;
    uint32_t prefix_;
    uint32_t wanted_;
};

/* ---- how many elements of every tile are chosen ---- */

class TopkCount {
  public:
    typedef gs_cuda_topk_arguments Arguments;
    struct Shared {
        gs_cuda_topk_sums sum;
        gs_cuda_topk_sums parts[GS_CUDA_THREADS];
        bool is_last;
    };

    GS_ANYWHERE TopkCount(const Arguments &of, Shared *shared, unsigned thread)
        : of_(of), shared_(*shared), thread_(thread), tile_(of, thread) {
    }

    GS_ANYWHERE void start(uint32_t tile) {
        tile_.seek(tile);
    }

    GS_ANYWHERE unsigned phases() const {
        return 5;
    }

    GS_ANYWHERE void run(unsigned phase) {
        switch (phase) {
        case 0:
            if (thread_ == 0) {
                shared_.sum.above = 0;
                shared_.sum.equal = 0;
            }
            break;
        case 1:
            count_keys();
            break;
        case 2:
            if (thread_ == 0) {
                tile_.sums().above = shared_.sum.above;
                tile_.sums().equal = shared_.sum.equal;
                shared_.is_last = tile_.count_up();
            }
            break;
        case 3:
            if (shared_.is_last) {
                add_tiles();
            }
            break;
        default:
            if (shared_.is_last) {
                add_up_to_tiles();
            }
            break;
        }
    }

  private:
    GS_ANYWHERE void count_keys() {
        int32_t keys[TOPK_EACH];
        uint32_t above = 0;
        uint32_t equal = 0;
        const int32_t least = (int32_t)tile_.progress().prefix;
        tile_.load_keys(keys);
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            above += keys[step] > least;
            equal += keys[step] == least;
        }
        if (above != 0) {
            add_to(&shared_.sum.above, above);
        }
        if (equal != 0) {
            add_to(&shared_.sum.equal, equal);
        }
    }

    /* A thread's share of the gradient's tiles: neighbours. */
    template <class Do> GS_ANYWHERE void each_tile_sum(Do what) {
        const uint32_t tiles = tile_.tiles();
        const uint32_t share = (tiles + GS_CUDA_THREADS - 1) / GS_CUDA_THREADS;
        for (uint32_t k = 0; k < share && thread_ * share + k < tiles; k++) {
            what(of_.sums[tile_.choice().first_tile + thread_ * share + k]);
        }
    }

    GS_ANYWHERE void add_tiles() {
        gs_cuda_topk_sums sum = {0, 0};
        publish();
        each_tile_sum([&](const gs_cuda_topk_sums &of_tile) {
            sum.above += published(&of_tile.above);
            sum.equal += published(&of_tile.equal);
        });
        shared_.parts[thread_] = sum;
    }

    GS_ANYWHERE void add_up_to_tiles() {
        gs_cuda_topk_sums before = {0, 0};
        for (unsigned other = 0; other < thread_; other++) {
            before.above += shared_.parts[other].above;
            before.equal += shared_.parts[other].equal;
        }
        each_tile_sum([&](gs_cuda_topk_sums &of_tile) {
            const gs_cuda_topk_sums own = {published(&of_tile.above), published(&of_tile.equal)};
            of_tile = before;
            before.above += own.above;
            before.equal += own.equal;
        });
    }

    const Arguments &of_;
    Shared &shared_;
    unsigned thread_;
    TopkTile tile_;
};

/* ---- entries ---- */

class TopkTake {
  public:
    typedef gs_cuda_topk_arguments Arguments;
    /* A bit for each element, and how many are set in the rows before. */
    struct Shared {
        uint32_t above[TOPK_ROWS];
        uint32_t equal[TOPK_ROWS];
        uint32_t above_before[TOPK_ROWS];
        uint32_t equal_before[TOPK_ROWS];
    };

    GS_ANYWHERE TopkTake(const Arguments &of, Shared *shared, unsigned thread)
        : of_(of), shared_(*shared), thread_(thread), tile_(of, thread) {
    }

    GS_ANYWHERE void start(uint32_t tile) {
        tile_.seek(tile);
    }

    GS_ANYWHERE unsigned phases() const {
        return 4;
    }

    GS_ANYWHERE void run(unsigned phase) {
        switch (phase) {
        case 0:
            if (thread_ < TOPK_ROWS) {
                shared_.above[thread_] = 0;
                shared_.equal[thread_] = 0;
            }
            load();
            break;
        case 1:
            compare();
            break;
        case 2:
            if (thread_ < TOPK_ROWS) {
                add_up_to_row();
            }
            break;
        default:
            take();
            break;
        }
    }

  private:
    GS_ANYWHERE void load() {
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            values_[step] = tile_.at(step) < tile_.count() ? *tile_.element(tile_.at(step)) : 0.0f;
        }
    }

    GS_ANYWHERE unsigned row_at(unsigned step) const {
        return tile_.at(step) / TOPK_ROW;
    }

    GS_ANYWHERE void compare() {
        const uint32_t least = tile_.progress().prefix;
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            const bool is_there = tile_.at(step) < tile_.count();
            const uint32_t key = topk_key_of(values_[step]);
            vote(&shared_.above[row_at(step)], thread_ % TOPK_ROW, is_there && key > least);
            vote(&shared_.equal[row_at(step)], thread_ % TOPK_ROW, is_there && key == least);
        }
    }

    GS_ANYWHERE void add_up_to_row() {
        gs_cuda_topk_sums before = tile_.sums();
        for (unsigned row = 0; row < thread_; row++) {
            before.above += bits_set(shared_.above[row]);
            before.equal += bits_set(shared_.equal[row]);
        }
        shared_.above_before[thread_] = before.above;
        shared_.equal_before[thread_] = before.equal;
    }

    GS_ANYWHERE void take() {
        const uint32_t lane = 1u << thread_ % TOPK_ROW;
        const uint32_t equals = tile_.progress().wanted;
        float *const owed = of_.residuals != NULL ? tile_.owed(false) : NULL;
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            const unsigned row = row_at(step);
            const uint32_t above = shared_.above_before[row] + bits_set(shared_.above[row] & (lane - 1));
            const uint32_t equal = shared_.equal_before[row] + bits_set(shared_.equal[row] & (lane - 1));
            const bool is_taken =
                (shared_.above[row] & lane) != 0 || ((shared_.equal[row] & lane) != 0 && equal < equals);
            if (is_taken) {
                give(above + (equal < equals ? equal : equals), step);
            }
            if (owed != NULL && tile_.at(step) < tile_.count()) {
                owed[tile_.at(step)] = (is_taken ? 0.0f : values_[step]) / of_.unit;
            }
        }
    }

    GS_ANYWHERE void give(uint32_t place, unsigned step) {
        gs_cuda_entry entry;
        entry.index = tile_.first() + tile_.at(step);
        entry.value = values_[step];
        of_.entries[tile_.choice().first_entry + place] = entry;
    }

    const Arguments &of_;
    Shared &shared_;
    unsigned thread_;
    TopkTile tile_;
    float values_[TOPK_EACH];
};

/* ---- the sum over ranks ---- */

/*
 * The tile is added up in the block's own memory, rank by rank. A rank's indices are all different, so its entries need
 * not wait for each other; between ranks all threads do. Where a rank's entries of the tile begin and end is found by
 * bisection, half of the threads for one end each.
 */
class TopkSum {
  public:
    typedef gs_cuda_topk_arguments Arguments;
    struct Shared {
        float sum[GS_CUDA_TOPK_TILE];
        uint32_t begins[TOPK_RANKS];
        uint32_t ends[TOPK_RANKS];
        bool is_broken; /* there is an index beyond the gradient's end */
    };

    GS_ANYWHERE TopkSum(const Arguments &of, Shared *shared, unsigned thread)
        : of_(of), shared_(*shared), thread_(thread), tile_(of, thread) {
    }

    GS_ANYWHERE void start(uint32_t tile) {
        tile_.seek(tile);
    }

    /* First; each group of ranks is looked for and added; last. */
    GS_ANYWHERE unsigned phases() const {
        return 2 + (unsigned)of_.ranks + ((unsigned)of_.ranks + TOPK_RANKS - 1) / TOPK_RANKS;
    }

    GS_ANYWHERE void run(unsigned phase) {
        if (phase == 0) {
            clear();
        } else if (phase + 1 == phases()) {
            finish();
        } else {
            const unsigned group = (phase - 1) / (TOPK_RANKS + 1);
            const unsigned place = (phase - 1) % (TOPK_RANKS + 1);
            if (place == 0) {
                look_for(group * TOPK_RANKS + thread_ % TOPK_RANKS);
            } else if (contributes(group * TOPK_RANKS + place - 1)) {
                add(group * TOPK_RANKS + place - 1, place - 1);
            }
        }
    }

  private:
    GS_ANYWHERE bool contributes(unsigned rank) const {
        return of_.shares[rank].contributes != 0;
    }

    GS_ANYWHERE const gs_cuda_entry *entries_of(unsigned rank) const {
        return of_.entries + rank * of_.entry_count + tile_.choice().first_entry;
    }

    GS_ANYWHERE void clear() {
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            shared_.sum[tile_.at(step)] = 0.0f;
        }
        if (thread_ == 0) {
            shared_.is_broken = false;
        }
    }

    /* The first entry that is of the element or of one behind it. */
    GS_ANYWHERE uint32_t find_entry(const gs_cuda_entry *entries, uint32_t element) const {
        uint32_t low = 0;
        uint32_t high = tile_.choice().kept;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (entries[middle].index < element) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    GS_ANYWHERE void look_for(unsigned rank) {
        if (rank >= (unsigned)of_.ranks || !contributes(rank)) {
            return;
        }
        const bool looks_for_end = thread_ >= TOPK_RANKS;
        const uint32_t element = tile_.first() + (looks_for_end ? tile_.count() : 0);
        const uint32_t all =
            looks_for_end && tile_.is_last() ? tile_.choice().kept : find_entry(entries_of(rank), element);
        (looks_for_end ? shared_.ends : shared_.begins)[rank % TOPK_RANKS] = all;
    }

    GS_ANYWHERE void add(unsigned rank, unsigned place) {
        const gs_cuda_entry *const entries = entries_of(rank);
        for (uint32_t k = shared_.begins[place] + thread_; k < shared_.ends[place]; k += GS_CUDA_THREADS) {
            const gs_cuda_entry entry = entries[k];
            if (entry.index - tile_.first() < tile_.count()) {
                shared_.sum[entry.index - tile_.first()] += entry.value;
            } else {
                shared_.is_broken = true;
            }
        }
    }

    GS_ANYWHERE void finish() {
        GS_UNROLL
        for (unsigned step = 0; step < TOPK_EACH; step++) {
            const uint32_t at = tile_.at(step);
            const bool is_broken = shared_.is_broken && at + 1 == tile_.count();
            if (at < tile_.count()) {
                *tile_.element(at) = is_broken ? gs_float_from_bits(GS_ONE_NAN) : one_nan(shared_.sum[at]);
            }
        }
    }

    const Arguments &of_;
    Shared &shared_;
    unsigned thread_;
    TopkTile tile_;
};

} // namespace gs_cuda_code

#endif
