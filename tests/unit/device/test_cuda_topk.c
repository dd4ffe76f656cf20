/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Kernels for the wire TOPK on a simulated GPU choose what gs_topk_select chooses, and add up in the order of ranks. */

#include "cuda_fixture.h"
#include "simcuda.h"

#include "device/topk_cuda.h"
#include "wire/codec.h"

#include <math.h>

#define SEED 20261205
enum { ROUNDS = 24, CHOICES_MAX = 8, RANKS_MAX = 300 };

/* A bucket of gradients, which lie as they do in a stream's buffers, and what to choose of them. */
typedef struct scene {
    size_t choice_count;
    gs_cuda_choice choices[CHOICES_MAX];
    gs_cuda_choice *device_choices;
    float *bucket; /* on the host; what lies between gradients is marked */
    float *device_bucket;
    gs_cuda_topk topk;
} scene;

/* ---- values ---- */

typedef enum kind { ANY, SAME, ZEROS, SUBNORMAL, FEW_VALUES, MANY_NANS, NORMAL, KINDS } kind;

static float value_of(kind of, seeded *random) {
    const uint64_t bits = seeded_next(random);
    const float small = (float)(int32_t)(bits >> 40) * 0x1p-23f - 1.0f;
    switch (of) {
    case ANY:
        return gs_float_from_bits((uint32_t)bits);
    case SAME:
        return bits % 2 == 0 ? 1.5f : -1.5f;
    case ZEROS:
        return bits % 3000 == 0 ? small : (bits % 2 == 0 ? 0.0f : -0.0f);
    case SUBNORMAL:
        return gs_float_from_bits((uint32_t)bits & 0x800007ffu);
    case FEW_VALUES:
        return gs_float_from_bits(0x3f800000u + (uint32_t)(bits % 3));
    case MANY_NANS:
        return bits % 3 == 0 ? gs_float_from_bits(0x7f800001u + (uint32_t)(bits >> 40) % 0x7ffffe)
                             : (bits % 7 == 0 ? -INFINITY : small);
    default:
        return small;
    }
}

/* ---- scenes ---- */

static void add_choice(scene *to, uint32_t count, uint32_t kept, uint64_t gap) {
    const gs_cuda_choice *before = to->choice_count != 0 ? &to->choices[to->choice_count - 1] : NULL;
    const uint64_t end = before != NULL ? before->offset + before->count : 0;
    to->choices[to->choice_count++] = (gs_cuda_choice){.offset = end + gap,
                                                       .first_entry = to->topk.entry_count,
                                                       .count = count,
                                                       .kept = kept,
                                                       .first_tile = to->topk.tile_count};
    to->topk.entry_count += kept;
    to->topk.tile_count += gs_cuda_topk_tiles(count);
    to->topk.element_count = end + gap + count;
}

static void open_scene(const gpu *on, scene *to, kind of, seeded *random) {
    const size_t count = to->topk.element_count + 1;
    to->bucket = malloc(count * sizeof *to->bucket);
    for (size_t k = 0; k < count; k++) {
        to->bucket[k] = value_of(of == KINDS ? (kind)(k / 5000 % KINDS) : of, random);
    }
    to->device_bucket = gpu_copy_of(on, to->bucket, count * sizeof *to->bucket);
    to->device_choices = gpu_copy_of(on, to->choices, to->choice_count * sizeof *to->choices);
    to->topk.choices = to->device_choices;
    to->topk.choice_count = to->choice_count;
    to->topk.bucket = to->device_bucket;
    if (to->topk.scratch == NULL) {
        to->topk.choices_max = to->choice_count;
        to->topk.scratch = gpu_new(on, gs_cuda_topk_scratch_bytes(to->choice_count, to->topk.tile_count));
    }
}

static void close_scene(const gpu *on, scene *from) {
    gs_cuda_free(on->cuda, from->topk.scratch);
    gs_cuda_free(on->cuda, from->device_choices);
    gs_cuda_free(on->cuda, from->device_bucket);
    free(from->bucket);
}

/* ---- choosing ---- */

static void expect_entries(const float *x, const gs_cuda_choice *of, const gs_cuda_entry *got, const char *what,
                           uint64_t seed) {
    uint32_t *const indices = malloc((of->kept + 1) * sizeof *indices);
    void *const scratch = malloc(gs_topk_scratch_bytes(of->count) + 1);
    gs_topk_select(x, of->count, of->kept, indices, scratch);
    for (uint32_t k = 0; k < of->kept; k++) {
        if (got[k].index != indices[k] || gs_float_bits(got[k].value) != gs_float_bits(x[indices[k]])) {
            fail_msg("%s, seed %llu: entry %u of %u is element %u with %#x, expected element %u with %#x, of %u", what,
                     (unsigned long long)seed, k, of->kept, got[k].index, gs_float_bits(got[k].value), indices[k],
                     gs_float_bits(x[indices[k]]), of->count);
        }
    }
    free(scratch);
    free(indices);
}

static void expect_chosen(const gpu *on, scene *of, const char *what, uint64_t seed) {
    const size_t bytes = (of->topk.entry_count + 1) * sizeof(gs_cuda_entry);
    gs_cuda_entry *const got = malloc(bytes);
    gs_cuda_entry *const entries = gpu_new(on, bytes);
    assert_int_equal(gs_cuda_topk_select(on->cuda, &of->topk, entries, on->stream), GSYNC_OK);
    gpu_get(on, got, entries, bytes);
    for (size_t i = 0; i < of->choice_count; i++) {
        const gs_cuda_choice *choice = &of->choices[i];
        expect_entries(of->bucket + choice->offset, choice, got + choice->first_entry, what, seed);
    }
    assert_int_equal(got[of->topk.entry_count].index, 0);
    gs_cuda_free(on->cuda, entries);
    free(got);
}

/* The search leaves its memory as it found it: a second one gives the same. */
static void expect_chosen_twice(const gpu *on, scene *of, const char *what, uint64_t seed) {
    expect_chosen(on, of, what, seed);
    expect_chosen(on, of, what, seed);
}

static void of_random_bits_the_largest_are_chosen(void **state) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        seeded random = {SEED + round};
        scene s = {.choice_count = 0};
        const size_t choices = 1 + seeded_below(&random, CHOICES_MAX);
        for (size_t i = 0; i < choices; i++) {
            const uint32_t most = seeded_below(&random, 3) == 0 ? 30000 : 300;
            const uint32_t count = (uint32_t)seeded_below(&random, most);
            const uint32_t kept = count == 0 ? 0 : 1 + (uint32_t)seeded_below(&random, count);
            add_choice(&s, count, kept, seeded_below(&random, 2) * seeded_below(&random, 9));
        }
        open_scene(*state, &s, (kind)(round % (KINDS + 1)), &random);
        expect_chosen_twice(*state, &s, "at random", SEED + round);
        close_scene(*state, &s);
    }
}

/* Where a bucket of one gradient has left numbers, the second gradient of another one begins to count. */
static void buckets_take_turns_with_one_scratch(void **state) {
    enum { SCENES = 3 };
    const gpu *on = *state;
    seeded random = {SEED};
    scene scenes[SCENES] = {{.choice_count = 0}};
    void *const scratch = gpu_new(on, gs_cuda_topk_scratch_bytes(SCENES, 3 * SCENES));
    for (uint32_t i = 0; i < SCENES; i++) {
        scenes[i].topk.scratch = scratch;
        scenes[i].topk.choices_max = SCENES;
        for (uint32_t k = 0; k <= i; k++) {
            add_choice(&scenes[i], 10000 + k, 700 + i, 0);
        }
        open_scene(on, &scenes[i], NORMAL, &random);
    }
    for (int turn = 0; turn < 2 * SCENES; turn++) {
        expect_chosen(on, &scenes[turn % SCENES], "in turn", (uint64_t)turn);
    }
    for (int i = 0; i < SCENES; i++) {
        scenes[i].topk.scratch = NULL;
        close_scene(on, &scenes[i]);
    }
    gs_cuda_free(on->cuda, scratch);
}

static void choose(const gpu *on, kind of, uint32_t count, uint32_t kept) {
    seeded random = {SEED};
    scene s = {.choice_count = 0};
    add_choice(&s, count, kept, 1);
    open_scene(on, &s, of, &random);
    expect_chosen(on, &s, "one gradient", (uint64_t)of);
    close_scene(on, &s);
}

static void lengths_about_those_of_tiles_and_shares_about_the_ends_do_not_matter(void **state) {
    static const uint32_t counts[] = {1, 2, 31, 32, 33, 4095, 4096, 4097, 8192, 12289};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const uint32_t count = counts[i];
        const uint32_t shares[] = {1, 2, count / 2, count - 1, count};
        for (size_t k = 0; k < 5; k++) {
            if (shares[k] >= 1 && shares[k] <= count) {
                choose(*state, (kind)((i + k) % KINDS), count, shares[k]);
            }
        }
    }
}

static void of_equals_the_first_are_chosen(void **state) {
    for (kind of = SAME; of <= MANY_NANS; of++) {
        choose(*state, of, 20000, 1);
        choose(*state, of, 20000, 7001);
        choose(*state, of, 20000, 19999);
    }
}

/* Blocks take many tiles in turn, and their sums have more than one a thread. */
static void gradients_of_more_tiles_than_there_are_blocks_are_chosen_from(void **state) {
    const uint32_t count = (GS_CUDA_BLOCKS_MAX + 40) * GS_CUDA_TOPK_TILE + 17;
    choose(*state, NORMAL, count, count / 100);
    choose(*state, FEW_VALUES, count, count / 2);
}

/* ---- error feedback ---- */

/* What is owed of each gradient; gradients have other numbers than places in the bucket. */
typedef struct debts {
    gs_cuda_residual host[CHOICES_MAX]; /* sides are on the device */
    gs_cuda_residual *table;
    float *before[CHOICES_MAX]; /* of a choice, on the host */
} debts;

static debts make_debts(const gpu *on, scene *of, seeded *random) {
    debts made = {.table = NULL};
    for (size_t i = 0; i < of->choice_count; i++) {
        const uint32_t number = (uint32_t)(of->choice_count - 1 - i);
        const size_t bytes = (of->choices[i].count + 1) * sizeof(float);
        gs_cuda_residual *residual = &made.host[number];
        made.before[i] = malloc(bytes);
        for (uint32_t k = 0; k <= of->choices[i].count; k++) {
            made.before[i][k] = value_of(k % 11 == 0 ? SUBNORMAL : NORMAL, random);
        }
        residual->valid = i % 2;
        residual->sides[i % 2] = gpu_copy_of(on, made.before[i], bytes);
        residual->sides[1 - i % 2] = gpu_new(on, bytes);
        of->choices[i].number = number;
    }
    made.table = gpu_copy_of(on, made.host, of->choice_count * sizeof *made.table);
    gpu_put(on, of->device_choices, of->choices, of->choice_count * sizeof *of->choices);
    return made;
}

static void free_debts(const gpu *on, const scene *of, debts *from) {
    for (size_t i = 0; i < of->choice_count; i++) {
        gs_cuda_free(on->cuda, from->host[i].sides[0]);
        gs_cuda_free(on->cuda, from->host[i].sides[1]);
        free(from->before[i]);
    }
    gs_cuda_free(on->cuda, from->table);
}

/* wanted: what was chosen from. Becomes what is owed after it, of one gradient. */
static void expect_owed(const gpu *on, const gs_cuda_choice *of, float *wanted, const debts *kept, float unit,
                        uint64_t seed) {
    const gs_cuda_residual *residual = &kept->host[of->number];
    uint32_t *const indices = malloc((of->kept + 1) * sizeof *indices);
    void *const scratch = malloc(gs_topk_scratch_bytes(of->count) + 1);
    float *const got = malloc((of->count + 1) * sizeof *got);
    gs_topk_select(wanted, of->count, of->kept, indices, scratch);
    for (uint32_t k = 0; k < of->kept; k++) {
        wanted[indices[k]] = 0.0f;
    }
    for (uint32_t k = 0; k < of->count; k++) {
        wanted[k] /= unit;
    }
    gpu_get(on, got, residual->sides[1 - residual->valid], of->count * sizeof *got);
    expect_same_elements(got, wanted, GSYNC_FLOAT32, of->count, "owed", seed);
    free(got);
    free(scratch);
    free(indices);
}

static void what_is_owed_is_added_and_what_is_left_is_owed(void **state) {
    const gpu *on = *state;
    for (uint64_t round = 0; round < 6; round++) {
        seeded random = {SEED + round};
        scene s = {.choice_count = 0};
        const float unit = round % 2 == 0 ? 1.0f : 0x1p16f;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t count = 1 + (uint32_t)seeded_below(&random, i % 2 == 0 ? 400 : 9000);
            add_choice(&s, count, 1 + (uint32_t)seeded_below(&random, count), i);
        }
        open_scene(on, &s, NORMAL, &random);
        debts kept = make_debts(on, &s, &random);
        for (size_t i = 0; i < s.choice_count; i++) {
            for (uint32_t k = 0; k < s.choices[i].count; k++) {
                s.bucket[s.choices[i].offset + k] += kept.before[i][k] * unit;
            }
        }
        s.topk.residuals = kept.table;
        s.topk.residual_count = s.choice_count;
        s.topk.host_residuals = kept.host;
        s.topk.host_choices = s.choices;
        s.topk.unit = unit;
        expect_chosen(on, &s, "with what is owed", SEED + round);
        for (size_t i = 0; i < s.choice_count; i++) {
            expect_owed(on, &s.choices[i], s.bucket + s.choices[i].offset, &kept, unit, SEED + round);
        }
        free_debts(on, &s, &kept);
        close_scene(on, &s);
    }
}

/* ---- adding up ---- */

typedef struct gathering {
    int ranks;
    gs_cuda_share *shares;
    gs_cuda_entry *entries; /* of all ranks */
} gathering;

static void gather(const scene *of, gathering *to, int ranks, seeded *random) {
    to->ranks = ranks;
    to->shares = calloc((size_t)ranks, sizeof *to->shares);
    to->entries = calloc((size_t)ranks * of->topk.entry_count + 1, sizeof *to->entries);
    for (int rank = 0; rank < ranks; rank++) {
        to->shares[rank].contributes = rank % 5 != 3;
        for (size_t i = 0; i < of->choice_count; i++) {
            const gs_cuda_choice *choice = &of->choices[i];
            gs_cuda_entry *own = to->entries + (size_t)rank * of->topk.entry_count + choice->first_entry;
            uint32_t index = 0;
            for (uint32_t k = 0; k < choice->kept; k++) {
                const uint32_t left = choice->count - index - (choice->kept - k);
                index += (uint32_t)seeded_below(random, left / (choice->kept - k) + 1);
                own[k] = (gs_cuda_entry){index++, value_of(rank % 2 == 0 ? NORMAL : ANY, random)};
            }
        }
    }
}

static void add_on_host(const scene *of, const gathering *from, float *to) {
    for (size_t i = 0; i < of->choice_count; i++) {
        const gs_cuda_choice *choice = &of->choices[i];
        memset(to + choice->offset, 0, choice->count * sizeof *to);
        for (int rank = 0; rank < from->ranks; rank++) {
            const gs_cuda_entry *own = from->entries + (size_t)rank * of->topk.entry_count + choice->first_entry;
            for (uint32_t k = 0; k < choice->kept && from->shares[rank].contributes != 0; k++) {
                to[choice->offset + own[k].index] += own[k].value;
            }
        }
    }
}

static void add_on_device(const gpu *on, scene *of, const gathering *from, float *to) {
    const size_t ranks = (size_t)from->ranks;
    gs_cuda_share *const shares = gpu_copy_of(on, from->shares, ranks * sizeof *shares);
    gs_cuda_entry *const entries = gpu_copy_of(on, from->entries, (ranks * of->topk.entry_count + 1) * sizeof *entries);
    assert_int_equal(gs_cuda_topk_sum(on->cuda, &of->topk, entries, shares, from->ranks, on->stream), GSYNC_OK);
    gpu_get(on, to, of->device_bucket, of->topk.element_count * sizeof *to);
    gs_cuda_free(on->cuda, entries);
    gs_cuda_free(on->cuda, shares);
}

static void free_gathering(gathering *from) {
    free(from->shares);
    free(from->entries);
}

static void expect_added(const gpu *on, scene *of, int ranks, seeded *random, uint64_t seed) {
    gathering entries;
    float *const expected = of->bucket;
    float *const got = malloc((of->topk.element_count + 1) * sizeof *got);
    gather(of, &entries, ranks, random);
    add_on_host(of, &entries, expected);
    add_on_device(on, of, &entries, got);
    for (size_t i = 0; i < of->choice_count; i++) {
        const gs_cuda_choice *choice = &of->choices[i];
        make_one_nan(expected + choice->offset, GSYNC_FLOAT32, choice->count);
    }
    expect_same_elements(got, expected, GSYNC_FLOAT32, of->topk.element_count, "sum", seed);
    free_gathering(&entries);
    free(got);
}

static scene scene_to_add(seeded *random) {
    scene s = {.choice_count = 0};
    const size_t choices = 1 + seeded_below(random, CHOICES_MAX - 1);
    for (size_t i = 0; i < choices; i++) {
        const uint32_t count = (uint32_t)seeded_below(random, i % 2 == 0 ? 300 : 9000);
        add_choice(&s, count, count == 0 ? 0 : 1 + (uint32_t)seeded_below(random, count), seeded_below(random, 5));
    }
    add_choice(&s, 4100, 4100, 0);
    return s;
}

static void entries_are_added_up_in_the_order_of_ranks(void **state) {
    static const int worlds[] = {1, 2, 3, 8, 127, 128, 129, RANKS_MAX};
    for (uint64_t round = 0; round < 2 * sizeof worlds / sizeof *worlds; round++) {
        seeded random = {SEED + round};
        scene s = scene_to_add(&random);
        open_scene(*state, &s, NORMAL, &random);
        expect_added(*state, &s, worlds[round % 8], &random, SEED + round);
        close_scene(*state, &s);
    }
}

/* It is no address, and it is seen. */
static void an_index_behind_the_end_makes_NaN(void **state) {
    const gpu *on = *state;
    static const uint32_t bad[] = {5000, 5001, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        seeded random = {SEED};
        scene s = {.choice_count = 0};
        gathering entries;
        add_choice(&s, 5000, 10, 0);
        add_choice(&s, 100, 10, 0);
        open_scene(on, &s, NORMAL, &random);
        float *const got = malloc(s.topk.element_count * sizeof *got);
        gather(&s, &entries, 3, &random);
        entries.entries[s.topk.entry_count + 9].index = bad[i];
        add_on_device(on, &s, &entries, got);
        assert_true(isnan(got[4999]));
        entries.entries[s.topk.entry_count + 9].value = 0.0f;
        entries.entries[s.topk.entry_count + 9].index = 4999;
        add_on_host(&s, &entries, s.bucket);
        make_one_nan(s.bucket, GSYNC_FLOAT32, s.topk.element_count);
        s.bucket[4999] = got[4999];
        expect_same_elements(got, s.bucket, GSYNC_FLOAT32, s.topk.element_count, "beside it", i);
        free_gathering(&entries);
        free(got);
        close_scene(on, &s);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(of_random_bits_the_largest_are_chosen),
        TEST(buckets_take_turns_with_one_scratch),
        TEST(lengths_about_those_of_tiles_and_shares_about_the_ends_do_not_matter),
        TEST(of_equals_the_first_are_chosen),
        TEST(gradients_of_more_tiles_than_there_are_blocks_are_chosen_from),
        TEST(what_is_owed_is_added_and_what_is_left_is_owed),
        TEST(entries_are_added_up_in_the_order_of_ranks),
        TEST(an_index_behind_the_end_makes_NaN),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
