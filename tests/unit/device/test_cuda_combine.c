/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Adding up shards on a simulated GPU gives the bits of the host's passes. */

#include "cuda_results.h"
#include "simcuda.h"

#include "collective/shard.h"

/* Zeros that stand for nothing are not added: a sum of -0 stays -0. Whole chunks, and a rest. */
static void parts_of_ranks_without_data_are_left_out(void **state) {
    enum { COUNT = 9, OF = 16, ALL = 3 };
    const gpu *const on = *state;
    float elements[ALL * OF] = {0.0f};
    for (int k = OF; k < ALL * OF; k++) {
        elements[k] = -0.0f;
    }
    for (int bringing = 0; bringing <= 2; bringing++) {
        gs_cuda_share shares[ALL] = {{.contributes = 0}, {.contributes = bringing > 0}, {.contributes = bringing > 1}};
        float got[COUNT];
        float *const parts = gpu_copy_of(on, elements, sizeof elements);
        float *const shard = gpu_new(on, sizeof got);
        gs_cuda_share *const on_device = gpu_copy_of(on, shares, sizeof shares);
        const gs_cuda_combination sum = {.parts = parts,
                                         .ranks = ALL,
                                         .shares = on_device,
                                         .stride = OF,
                                         .shard = shard,
                                         .count = COUNT,
                                         .wire = GSYNC_FLOAT32};
        assert_int_equal(gs_cuda_combine(on->cuda, &sum, on->stream), GSYNC_OK);
        gpu_get(on, got, shard, sizeof got);
        for (int k = 0; k < COUNT; k++) {
            assert_true(got[k] == 0.0f);
            assert_int_equal(signbit(got[k]) != 0, bringing > 0);
        }
        gs_cuda_free(on->cuda, on_device);
        gs_cuda_free(on->cuda, shard);
        gs_cuda_free(on->cuda, parts);
    }
}

enum { RANKS = 5, PARTS = 5003, STRIDE = 5008 };

/* The parts of all ranks, as the host's reductions take them. */
typedef struct parts {
    gsync_dtype wire;
    float scale;
    float result_scale; /* 0: scale */
    unsigned char *elements;
    float *decoded; /* narrow wires */
    const void *sources[RANKS];
} parts;

static parts parts_random(gsync_dtype wire, float scale, values kind, uint64_t seed) {
    seeded random = {seed};
    const size_t size = gsync_dtype_size(wire);
    parts made = {.wire = wire, .scale = scale};
    made.elements = calloc((size_t)RANKS * STRIDE, size);
    made.decoded = calloc((size_t)RANKS * STRIDE, sizeof *made.decoded);
    fill_values(made.elements, wire, (size_t)RANKS * STRIDE, kind, &random);
    const gs_codec *codec = wire == GSYNC_FLOAT16 ? &gs_codec_float16 : &gs_codec_bfloat16;
    for (size_t rank = 0; rank < RANKS; rank++) {
        unsigned char *const part = made.elements + rank * STRIDE * size;
        made.sources[rank] = part;
        if (scale != 0) {
            made.sources[rank] = made.decoded + rank * STRIDE;
            codec->decode(made.decoded + rank * STRIDE, part, PARTS, &(gs_codec_terms){.scale = scale});
        }
    }
    return made;
}

static float result_scale_of(const parts *of) {
    return of->result_scale != 0 ? of->result_scale : of->scale;
}

/* Returns what the host found in the results; sources have been looked at by those who encoded them. */
static gs_findings combine_on_host(const parts *of, double divisor, int ranks, unsigned char *shard) {
    gs_findings found = {0};
    float *const sums = calloc(PARTS, sizeof(double));
    const bool is_narrow = of->scale != 0;
    void *target = is_narrow ? (void *)sums : (void *)shard;
    gs_shard_job job = {.sources = of->sources,
                        .source_count = ranks,
                        .source_dtype = is_narrow ? GSYNC_FLOAT32 : of->wire,
                        .targets = &target,
                        .target_count = 1,
                        .target_dtype = is_narrow ? GSYNC_FLOAT32 : of->wire,
                        .op = GSYNC_SUM,
                        .divisor = divisor,
                        .count = PARTS};
    if (is_narrow) {
        const gs_codec *codec = of->wire == GSYNC_FLOAT16 ? &gs_codec_float16 : &gs_codec_bfloat16;
        gs_shard_reduce(&job);
        codec->encode(shard, sums, PARTS, &(gs_codec_terms){.scale = result_scale_of(of)}, &found);
    } else {
        job.findings = of->wire == GSYNC_FLOAT64 ? NULL : &found;
        gs_shard_reduce(&job);
    }
    free(sums);
    return found;
}

/* results: what leads to the parts' result_scale, but for its divisor. */
static void expect_combined(const gpu *on, const parts *of, double divisor, const gs_cuda_result_scale *results,
                            int ranks, uint64_t seed) {
    const size_t size = gsync_dtype_size(of->wire);
    unsigned char *const expected = calloc(PARTS, size);
    unsigned char *const got = calloc(PARTS, size);
    unsigned char *const memory = gpu_copy_of(on, of->elements, (size_t)RANKS * STRIDE * size);
    double *const by = gpu_copy_of(on, &divisor, sizeof divisor);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    const gs_findings wanted = combine_on_host(of, divisor, ranks, expected);
    /* The shard takes the place of a part. */
    gs_cuda_combination sum = {.parts = memory,
                               .ranks = ranks,
                               .stride = STRIDE,
                               .shard = memory,
                               .count = PARTS,
                               .wire = of->wire,
                               .divisor = by,
                               .scale = of->scale,
                               .notebook = notebook};
    if (results != NULL) {
        sum.results = *results;
        sum.results.divisor = by;
    }
    assert_int_equal(gs_cuda_combine(on->cuda, &sum, on->stream), GSYNC_OK);
    gpu_get(on, got, memory, PARTS * size);
    expect_same_elements(got, expected, of->wire, PARTS, "combine", seed);
    const gs_cuda_findings found = gpu_findings(on, notebook);
    expectation wanted_in = {0};
    for (size_t k = 0; k < PARTS; k++) {
        const double x = as_double(of->wire, expected, k);
        expect_result(of->scale != 0 && of->wire == GSYNC_FLOAT16 ? x / (double)result_scale_of(of) : x, k, &wanted_in);
    }
    expect_found(&found, &wanted_in, seed);
    assert_int_equal(found.saturated, wanted.saturated);
    assert_int_equal(found.flushed, wanted.flushed);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, by);
    gs_cuda_free(on->cuda, memory);
    free(got);
    free(expected);
}

static void expect_combined_for_all_divisors(const gpu *on, gsync_dtype wire, float scale) {
    static const double divisors[] = {1.0, 2.0, 5.0, 1.0 / 3, 0.0, 0x1p-20};
    for (uint64_t round = 0; round < 12; round++) {
        const uint64_t seed = SEED + round;
        parts made = parts_random(wire, scale, round % 2 == 0 ? ANY_BITS : ORDINARY, seed);
        expect_combined(on, &made, divisors[round / 2], NULL, 2 + (int)(round % 4), seed);
        free(made.decoded);
        free(made.elements);
    }
}

static void combine_adds_ranks_in_their_order_as_the_host_does(void **state) {
    expect_combined_for_all_divisors(*state, GSYNC_FLOAT64, 0);
    for (size_t d = 0; d < 3; d++) {
        expect_combined_for_all_divisors(*state, singles[d], 0);
    }
}

static void combine_rounds_to_narrow_wires_as_the_codecs_do(void **state) {
    expect_combined_for_all_divisors(*state, GSYNC_FLOAT16, 1.0f);
    expect_combined_for_all_divisors(*state, GSYNC_FLOAT16, 0x1p14f);
    expect_combined_for_all_divisors(*state, GSYNC_FLOAT16, 0x1p-90f);
    expect_combined_for_all_divisors(*state, GSYNC_BFLOAT16, 1.0f);
}

static void results_have_a_scale_that_follows_from_what_divides(void **state) {
    for (size_t i = 0; i < 2 * (size_t)SCALINGS; i++) {
        const scaling *const as = &scalings[i / 2];
        const gs_cuda_result_scale results = {.usual = as->usual, .scale = as->scale};
        parts made = parts_random(GSYNC_FLOAT16, 0x1p3f, i % 2 == 0 ? ANY_BITS : ORDINARY, SEED + i / 2);
        made.result_scale = as->expected;
        expect_combined(*state, &made, as->divisor, &results, RANKS, SEED + i / 2);
        free(made.decoded);
        free(made.elements);
    }
}

/* ---- shares ---- */

static void the_divisor_is_made_of_the_shares_of_those_who_contribute(void **state) {
    const gpu *const on = *state;
    const gs_cuda_share shares[] = {{.weight = 0.1, .micro_batches = 3, .contributes = 1},
                                    {.weight = 0.2, .micro_batches = 9, .contributes = 0},
                                    {.weight = 0.3, .micro_batches = 4, .contributes = 1}};
    const double expected[] = {4.0, 2.0, 7.0, 0.1 + 0.3};
    gs_cuda_share *const memory = gpu_copy_of(on, shares, sizeof shares);
    double *const divisor = gpu_new(on, sizeof *divisor);
    for (int divide = GS_CUDA_DIVIDE_WINDOW; divide <= GS_CUDA_DIVIDE_WEIGHT; divide++) {
        double got;
        assert_int_equal(gs_cuda_add_shares(on->cuda, memory, 3, (gs_cuda_divide)divide, 8.0, divisor, on->stream),
                         GSYNC_OK);
        gpu_get(on, &got, divisor, sizeof got);
        assert_true(got == 8.0 * expected[divide]);
    }
    assert_int_equal(simcuda_launches("add shares"), 4);
    gs_cuda_free(on->cuda, divisor);
    gs_cuda_free(on->cuda, memory);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(parts_of_ranks_without_data_are_left_out),
        TEST(combine_adds_ranks_in_their_order_as_the_host_does),
        TEST(combine_rounds_to_narrow_wires_as_the_codecs_do),
        TEST(results_have_a_scale_that_follows_from_what_divides),
        TEST(the_divisor_is_made_of_the_shares_of_those_who_contribute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
