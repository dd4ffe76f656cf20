/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Wires of 8 bits on a simulated GPU have the codes, scales, sums and findings of the host's codecs. */

#include "cuda_fixture.h"
#include "cuda_layout.h"
#include "simcuda.h"

#include "base/findings.h"
#include "base/hash.h"
#include "collective/shard.h"

#include <float.h>
#include <math.h>

#define SEED 20261204
enum { ROUNDS = 12, RANKS = 3 };

static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16, GSYNC_FLOAT64};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* ---- blocks of every kind ---- */

static float element_of(unsigned kind, seeded *random) {
    const uint64_t bits = seeded_next(random);
    const float small = (float)(int32_t)(bits >> 40) * 0x1p-23f - 1.0f;
    switch (kind) {
    case 0:
        return bits % 2 == 0 ? 0.0f : -0.0f;
    case 1: /* subnormal */
        return small * 0x1p-130f;
    case 2: /* about where factors need care */
        return small * 0x1p-95f;
    case 3:
        return small * FLT_MAX;
    case 4: /* of any size */
        return small * ldexpf(1.0f, (int)(bits % 200) - 100);
    case 5:
        return bits % 97 == 0 ? NAN : (bits % 89 == 0 ? -INFINITY : small);
    default:
        return small * 3.0f;
    }
}

static void fill_blocks(float *to, size_t count, seeded *random) {
    unsigned kind = 0;
    for (size_t k = 0; k < count; k++) {
        kind = k % BLOCK == 0 ? (unsigned)seeded_below(random, 8) : kind;
        to[k] = element_of(kind, random);
    }
}

/* The same, rounded to the type, or with more digits. */
static void fill_blocks_of(void *to, gsync_dtype dtype, size_t count, seeded *random) {
    float *const wide = calloc(count + 1, sizeof *wide);
    fill_blocks(wide, count, random);
    for (size_t k = 0; k < count; k++) {
        if (dtype == GSYNC_FLOAT64) { /* halfway to the next float32 but one digit */
            ((double *)to)[k] = (double)wide[k] * (1 + (double)(k % 3) * 0x1.fffffp-25);
        } else if (dtype == GSYNC_FLOAT32) {
            ((float *)to)[k] = wide[k];
        } else {
            ((uint16_t *)to)[k] = dtype == GSYNC_FLOAT16 ? gs_half_from_float(wide[k]) : gs_bfloat_from_float(wide[k]);
        }
    }
    free(wide);
}

static bucket bucket_of_blocks(const gpu *on, gsync_dtype dtype, bool has_sums, uint64_t seed) {
    seeded random = {seed};
    bucket made = {.dtype = dtype};
    const size_t terms = 1 + seeded_below(&random, TERMS_MAX - 1);
    for (size_t i = 0; i < terms; i++) {
        const size_t columns = 1 + seeded_below(&random, seeded_below(&random, 3) == 0 ? 3000 : 300);
        const bool has_rows = seeded_below(&random, 3) == 0;
        gs_tensor shape = {.rows = has_rows ? 1 + seeded_below(&random, 4) : 1, .columns = columns};
        shape.row_pitch = columns + (has_rows ? seeded_below(&random, 9) : 0);
        bucket_add(on, &made, shape, seeded_below(&random, 2) * seeded_below(&random, 8), ORDINARY,
                   has_sums && seeded_below(&random, 2) == 0, &random);
        fill_blocks_of(made.host_blocks[i], dtype, made.spans[i] / gsync_dtype_size(dtype), &random);
        gpu_put(on, made.blocks[i], made.host_blocks[i], made.spans[i]);
        made.count = (made.count + BLOCK - 1) / BLOCK * BLOCK;
    }
    bucket_upload_terms(on, &made);
    return made;
}

static void expect_same_bytes(const unsigned char *got, const unsigned char *expected, size_t count,
                              gs_cuda_codec codec, const char *what, uint64_t seed) {
    const size_t block_bytes = codec_of(codec)->block_bytes;
    for (size_t i = 0; i < count / BLOCK * block_bytes; i++) {
        if (got[i] != expected[i]) {
            fail_msg("seed %llu: %s %s: byte %zu of block %zu of %zu is %#x, expected %#x", (unsigned long long)seed,
                     codec_of(codec)->name, what, i % block_bytes, i / block_bytes, count / BLOCK, got[i], expected[i]);
        }
    }
}

static void expect_found(const gs_cuda_findings *got, const gs_findings *expected, uint64_t seed) {
    if (got->absmax_bits != gs_float_bits(expected->absmax) || got->has_nonfinite != expected->has_nonfinite ||
        (expected->has_nonfinite && got->first_nonfinite != expected->nonfinite_element) ||
        got->saturated != expected->saturated || got->flushed != expected->flushed) {
        fail_msg("seed %llu: found absmax %#x, nonfinite %u at %llu, %llu saturated, %llu flushed; expected %#x, %d at "
                 "%zu, %llu, %llu",
                 (unsigned long long)seed, got->absmax_bits, got->has_nonfinite,
                 (unsigned long long)got->first_nonfinite, (unsigned long long)got->saturated,
                 (unsigned long long)got->flushed, gs_float_bits(expected->absmax), expected->has_nonfinite,
                 expected->nonfinite_element, (unsigned long long)expected->saturated,
                 (unsigned long long)expected->flushed);
    }
}

/* ---- encode ---- */

static void gather_on_host(const bucket *of, double factor, float *to) {
    memset(to, 0, of->count * sizeof *to);
    for (size_t i = 0; i < of->term_count; i++) {
        const gs_host_term term = {
            .tensor = &of->tensors[i], .has_tensor = true, .accumulator = of->accumulators[i], .factor = factor};
        gs_host_gather((unsigned char *)(to + of->terms[i].offset), GSYNC_FLOAT32, &term);
    }
}

static void expect_encoded(const gpu *on, const bucket *of, gs_cuda_codec codec, double factor, uint64_t seed) {
    const gs_cuda_blocks blocks = gs_cuda_blocks_of(codec, of->count, RANKS);
    const size_t bytes = RANKS * blocks.part_bytes;
    float *const wide = calloc(of->count + 1, sizeof *wide);
    unsigned char *const expected = calloc(1, of->count * 2);
    unsigned char *const got = calloc(1, of->count * 2);
    unsigned char *const back = calloc(1, bytes);
    unsigned char *const memory = gpu_copy_of(on, back, bytes);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    gs_findings wanted = {0};
    gs_cuda_pass pass = pass_of(of, GSYNC_FLOAT32);
    pass.blocks = blocks;
    pass.factor = factor;
    pass.notebook = notebook;
    gather_on_host(of, factor, wide);
    codec_of(codec)->encode(expected, wide, of->count, &(gs_codec_terms){.scale = 1.0f}, &wanted);
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    gpu_get(on, back, memory, bytes);
    lay_out(back, got, of->count, &blocks, false);
    expect_same_bytes(got, expected, of->count, codec, "encode", seed);
    const gs_cuda_findings found = gpu_findings(on, notebook);
    expect_found(&found, &wanted, seed);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, memory);
    free(back);
    free(got);
    free(expected);
    free(wide);
}

static void encode_gives_the_codes_and_findings_of_the_codecs(void **state) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (size_t d = 0; d < DTYPES; d++) {
            bucket made = bucket_of_blocks(*state, dtypes[d], round % 2 != 0, SEED + round);
            expect_encoded(*state, &made, GS_CUDA_INT8, round % 3 == 0 ? 1.0 : 0.7, SEED + round);
            expect_encoded(*state, &made, GS_CUDA_FLOAT8, round % 3 == 0 ? 1.0 : 0.7, SEED + round);
            bucket_free(*state, &made);
        }
    }
}

/* Gradient by gradient, as each has random numbers of its own. */
static void encode_at_random(const bucket *of, const float *wide, uint64_t prefix, unsigned char *to) {
    for (size_t i = 0; i < of->term_count; i++) {
        const size_t first = of->terms[i].offset;
        const size_t next = i + 1 < of->term_count ? of->terms[i + 1].offset : of->count;
        const gs_codec_terms terms = {
            .scale = 1.0f, .is_stochastic = true, .key = gs_hash_mix(prefix, of->terms[i].number)};
        gs_codec_int8.encode(to + first / BLOCK * gs_codec_int8.block_bytes, wide + first, next - first, &terms, NULL);
    }
}

static void expect_encoded_at_random(const gpu *on, bucket *of, uint64_t seed) {
    const gs_cuda_blocks blocks = gs_cuda_blocks_of(GS_CUDA_INT8, of->count, RANKS);
    float *const wide = calloc(of->count + 1, sizeof *wide);
    unsigned char *const expected = calloc(1, of->count * 2);
    unsigned char *const got = calloc(1, of->count * 2);
    unsigned char *const back = calloc(RANKS, blocks.part_bytes);
    unsigned char *const memory = gpu_copy_of(on, back, RANKS * blocks.part_bytes);
    for (size_t i = 0; i < of->term_count; i++) {
        of->terms[i].number = 100 + i;
    }
    gpu_put(on, of->device_terms, of->terms, of->term_count * sizeof *of->terms);
    gs_cuda_pass pass = pass_of(of, GSYNC_FLOAT32);
    pass.blocks = blocks;
    pass.random = (gs_cuda_randomness){.is_on = true, .prefix = seed};
    gather_on_host(of, 1.0, wide);
    encode_at_random(of, wide, seed, expected);
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    gpu_get(on, back, memory, RANKS * blocks.part_bytes);
    lay_out(back, got, of->count, &blocks, false);
    expect_same_bytes(got, expected, of->count, GS_CUDA_INT8, "encode at random", seed);
    gs_cuda_free(on->cuda, memory);
    free(back);
    free(got);
    free(expected);
    free(wide);
}

static void encode_rounds_at_random_as_the_codec_does(void **state) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        bucket made = bucket_of_blocks(*state, dtypes[round % DTYPES], false, SEED + round);
        expect_encoded_at_random(*state, &made, SEED + round);
        bucket_free(*state, &made);
    }
}

/* ---- combine ---- */

/* Blocks of all ranks' parts, and as floats. */
static void encode_parts(unsigned char *device, float *floats, const gs_cuda_blocks *blocks, size_t count,
                         seeded *random) {
    unsigned char *const wire = calloc(1, count * 2);
    for (size_t rank = 0; rank < RANKS; rank++) {
        float *const own = floats + rank * count;
        fill_blocks(own, count, random);
        codec_of(blocks->codec)->encode(wire, own, count, &(gs_codec_terms){.scale = 1.0f}, NULL);
        codec_of(blocks->codec)->decode(own, wire, count, &(gs_codec_terms){.scale = 1.0f});
        lay_out(device + rank * blocks->part_bytes, wire, count, blocks, true);
    }
    free(wire);
}

/* left_out: a rank without data; -1: there is none. */
static gs_findings combine_on_host(const float *floats, size_t count, double divisor, gs_cuda_codec codec, int left_out,
                                   unsigned char *wire) {
    gs_findings found = {0};
    float *const sum = calloc(count, sizeof *sum);
    const void *sources[RANKS];
    void *target = sum;
    int source_count = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        sources[source_count] = floats + (size_t)rank * count;
        source_count += rank != left_out;
    }
    gs_shard_reduce(&(gs_shard_job){.sources = sources,
                                    .source_count = source_count,
                                    .source_dtype = GSYNC_FLOAT32,
                                    .targets = &target,
                                    .target_count = 1,
                                    .target_dtype = GSYNC_FLOAT32,
                                    .op = GSYNC_SUM,
                                    .divisor = divisor,
                                    .count = count});
    codec_of(codec)->encode(wire, sum, count, &(gs_codec_terms){.scale = 1.0f}, &found);
    free(sum);
    return found;
}

static void expect_combined(const gpu *on, gs_cuda_codec codec, double divisor, int left_out, uint64_t seed) {
    enum { COUNT = 11 * BLOCK };
    seeded random = {seed};
    const gs_cuda_blocks blocks = gs_cuda_blocks_of(codec, (size_t)COUNT * RANKS, RANKS);
    unsigned char *const parts = calloc(RANKS, blocks.part_bytes);
    float *const floats = calloc((size_t)RANKS * COUNT, sizeof *floats);
    static unsigned char expected[COUNT * 2];
    static unsigned char got[COUNT * 2];
    encode_parts(parts, floats, &blocks, COUNT, &random);
    const gs_findings wanted = combine_on_host(floats, COUNT, divisor, codec, left_out, expected);
    gs_cuda_share shares[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        shares[rank] = (gs_cuda_share){.contributes = rank != left_out};
    }
    gs_cuda_share *const shares_there = gpu_copy_of(on, shares, sizeof shares);
    unsigned char *const memory = gpu_copy_of(on, parts, RANKS * blocks.part_bytes);
    unsigned char *const shard = gpu_new(on, blocks.part_bytes);
    double *const by = gpu_copy_of(on, &divisor, sizeof divisor);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    const gs_cuda_combination sum = {.parts = memory,
                                     .ranks = RANKS,
                                     .shares = left_out < 0 ? NULL : shares_there,
                                     .shard = shard,
                                     .count = COUNT,
                                     .wire = GSYNC_FLOAT32,
                                     .divisor = by,
                                     .blocks = blocks,
                                     .notebook = notebook};
    assert_int_equal(gs_cuda_combine(on->cuda, &sum, on->stream), GSYNC_OK);
    gpu_get(on, parts, shard, blocks.part_bytes);
    lay_out(parts, got, COUNT, &blocks, false);
    expect_same_bytes(got, expected, COUNT, codec, "combine", seed);
    const gs_cuda_findings found = gpu_findings(on, notebook);
    expect_found(&found, &wanted, seed);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, by);
    gs_cuda_free(on->cuda, shares_there);
    gs_cuda_free(on->cuda, shard);
    gs_cuda_free(on->cuda, memory);
    free(floats);
    free(parts);
}

static void combine_adds_ranks_in_their_order_and_encodes_the_sum(void **state) {
    static const double divisors[] = {1.0, 4.0, 3.0, 0x1p-20, 0.0, 1.0 / 3};
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const int left_out = (int)(round % (RANKS + 1)) - 1;
        expect_combined(*state, GS_CUDA_INT8, divisors[round % 6], left_out, SEED + round);
        expect_combined(*state, GS_CUDA_FLOAT8, divisors[round % 6], left_out, SEED + round);
    }
}

/* ---- decode ---- */

static void expect_decoded(const gpu *on, bucket *of, gs_cuda_codec codec, uint64_t seed) {
    seeded random = {seed};
    const gs_cuda_blocks blocks = gs_cuda_blocks_of(codec, of->count, RANKS);
    float *const wide = calloc(of->count + 1, sizeof *wide);
    unsigned char *const wire = calloc(1, of->count * 2);
    unsigned char *const device = calloc(RANKS, blocks.part_bytes);
    fill_blocks(wide, of->count, &random);
    codec_of(codec)->encode(wire, wide, of->count, &(gs_codec_terms){.scale = 1.0f}, NULL);
    codec_of(codec)->decode(wide, wire, of->count, &(gs_codec_terms){.scale = 1.0f});
    lay_out(device, wire, of->count, &blocks, true);
    unsigned char *const memory = gpu_copy_of(on, device, RANKS * blocks.part_bytes);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    gs_cuda_pass pass = pass_of(of, GSYNC_FLOAT32);
    pass.blocks = blocks;
    pass.notebook = notebook;
    assert_int_equal(gs_cuda_decode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    for (size_t i = 0; i < of->term_count; i++) {
        unsigned char *const got = malloc(of->spans[i]);
        gs_host_scatter(&of->tensors[i], wide + of->terms[i].offset, GSYNC_FLOAT32);
        gpu_get(on, got, of->blocks[i], of->spans[i]);
        expect_same_elements(got, of->host_blocks[i], of->dtype, of->spans[i] / gsync_dtype_size(of->dtype), "decode",
                             seed);
        free(got);
    }
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, memory);
    free(device);
    free(wire);
    free(wide);
}

static void decode_gives_what_the_codecs_give(void **state) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        bucket made = bucket_of_blocks(*state, dtypes[round % DTYPES], false, SEED + round);
        expect_decoded(*state, &made, GS_CUDA_INT8, SEED + round);
        expect_decoded(*state, &made, GS_CUDA_FLOAT8, SEED + round);
        bucket_free(*state, &made);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(encode_gives_the_codes_and_findings_of_the_codecs),
        TEST(encode_rounds_at_random_as_the_codec_does),
        TEST(combine_adds_ranks_in_their_order_and_encodes_the_sum),
        TEST(decode_gives_what_the_codecs_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
