/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Gathering buckets on a simulated GPU gives the bits of the host's passes. */

#include "cuda_fixture.h"
#include "simcuda.h"

#include "base/findings.h"
#include "wire/codec.h"

#include <math.h>

#define SEED 20261130
enum { ROUNDS = 16 };

static const gsync_dtype singles[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* What the host makes of element `first` on of the bucket: zeroes, and its terms. */
static void gather_on_host(const bucket *of, gsync_dtype wire, double factor, unsigned char *to) {
    const size_t size = gsync_dtype_size(wire);
    memset(to, 0, of->count * size);
    for (size_t i = 0; i < of->term_count; i++) {
        const gs_host_term term = {.tensor = &of->tensors[i],
                                   .has_tensor = of->terms[i].data != NULL,
                                   .accumulator = of->accumulators[i],
                                   .factor = factor};
        gs_host_gather(to + of->terms[i].offset * size, wire, &term);
    }
}

static void note_wide(const float *x, size_t count, gs_findings *found) {
    for (size_t k = 0; k < count; k++) {
        if (isfinite(x[k])) {
            found->absmax = fabsf(x[k]) > found->absmax ? fabsf(x[k]) : found->absmax;
        }
    }
}

static void note_nonfinite(gsync_dtype dtype, const void *elements, size_t count, gs_findings *found) {
    for (size_t k = 0; k < count && !found->has_nonfinite; k++) {
        const float x = dtype == GSYNC_FLOAT32   ? ((const float *)elements)[k]
                        : dtype == GSYNC_FLOAT16 ? gs_half_to_float(((const uint16_t *)elements)[k])
                                                 : gs_bfloat_to_float(((const uint16_t *)elements)[k]);
        const bool is_finite = dtype == GSYNC_FLOAT64 ? isfinite(((const double *)elements)[k]) : isfinite(x);
        found->has_nonfinite = !is_finite;
        found->nonfinite_element = k;
    }
}

/* The host's way over float32 and a codec, where the wire is narrow. */
static gs_findings encode_on_host(const bucket *of, gsync_dtype wire, float scale, double factor, unsigned char *to) {
    gs_findings found = {0};
    float *const wide = calloc(of->count + 1, sizeof *wide);
    if (wire != GSYNC_FLOAT64) {
        gather_on_host(of, GSYNC_FLOAT32, factor, (unsigned char *)wide);
    }
    if (scale == 0) {
        gather_on_host(of, wire, factor, to);
        if (of->dtype == GSYNC_FLOAT64 && wire != GSYNC_FLOAT64) {
            make_one_nan(to, wire, of->count); /* to turn one type into another is to compute */
        }
        note_wide(wide, of->count, &found);
        note_nonfinite(wire, to, of->count, &found);
    } else {
        const gs_codec *codec = wire == GSYNC_FLOAT16 ? &gs_codec_float16 : &gs_codec_bfloat16;
        codec->encode(to, wide, of->count, &(gs_codec_terms){.scale = scale}, &found);
    }
    free(wide);
    return found;
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

/* `shift` elements into memory that is aligned. */
static void expect_encoded(const gpu *on, const bucket *of, const gs_cuda_pass *pass, size_t shift, uint64_t seed) {
    enum { GUARD = 0x5a, GUARD_BYTES = 64 };
    const size_t size = gsync_dtype_size(pass->wire);
    const size_t bytes = (of->count + shift) * size + GUARD_BYTES;
    unsigned char *const got = malloc(bytes);
    unsigned char *const expected = malloc(bytes);
    memset(got, GUARD, bytes);
    memset(expected, GUARD, bytes);
    unsigned char *const memory = gpu_copy_of(on, got, bytes);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);

    const gs_findings wanted = encode_on_host(of, pass->wire, pass->scale, pass->factor, expected + shift * size);
    gs_cuda_pass noting = *pass;
    noting.notebook = notebook;
    assert_int_equal(gs_cuda_encode(on->cuda, &noting, memory + shift * size, on->stream), GSYNC_OK);
    gpu_get(on, got, memory, bytes);
    expect_same_elements(got + shift * size, expected + shift * size, pass->wire, of->count, "encode", seed);
    assert_memory_equal(got, expected, bytes);
    const gs_cuda_findings found = gpu_findings(on, notebook);
    expect_found(&found, &wanted, seed);

    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, memory);
    free(expected);
    free(got);
}

static void expect_random(const gpu *on, gsync_dtype dtype, gsync_dtype wire, float scale, double factor,
                          bool has_sums) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const uint64_t seed = SEED + round;
        bucket made = bucket_random(on, dtype, round % 2 == 0 ? ANY_BITS : ORDINARY, has_sums, seed);
        gs_cuda_pass pass = pass_of(&made, wire);
        pass.scale = scale;
        pass.factor = factor;
        expect_encoded(on, &made, &pass, round % 4 == 3 ? round % 5 : 0, seed);
        bucket_free(on, &made);
    }
}

static void encode_copies_gradients_of_the_buckets_own_type(void **state) {
    expect_random(*state, GSYNC_FLOAT64, GSYNC_FLOAT64, 0, 1.0, false);
    for (size_t d = 0; d < 3; d++) {
        expect_random(*state, singles[d], singles[d], 0, 1.0, false);
    }
}

static void encode_weighs_and_adds_what_was_accumulated(void **state) {
    expect_random(*state, GSYNC_FLOAT64, GSYNC_FLOAT64, 0, 1.0 / 3, true);
    for (size_t d = 0; d < 3; d++) {
        expect_random(*state, singles[d], singles[d], 0, 1.0 / 3, true);
        expect_random(*state, singles[d], singles[d], 0, 1.0, true);
    }
}

/* The oracle has only what is brought. */
static void encode_brings_of_each_gradient_what_counts(void **state) {
    const gpu *const on = *state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        seeded random = {SEED + round};
        bucket made = bucket_random(on, singles[round % 3], ORDINARY, true, SEED + round);
        bucket brought = made;
        uint8_t brings[TERMS_MAX];
        for (size_t i = 0; i < made.term_count; i++) {
            brings[i] = (uint8_t)seeded_below(&random, 4);
            brought.terms[i].data = (brings[i] & GS_CUDA_BRINGS_DATA) != 0 ? made.terms[i].data : NULL;
            brought.accumulators[i] = (brings[i] & GS_CUDA_BRINGS_ACCUMULATOR) != 0 ? made.accumulators[i] : NULL;
        }
        uint8_t *const memory = gpu_copy_of(on, brings, sizeof brings);
        gs_cuda_pass pass = pass_of(&made, GSYNC_FLOAT32);
        pass.brings = memory;
        pass.factor = 1.0 / 3;
        expect_encoded(on, &brought, &pass, 0, SEED + round);
        gs_cuda_free(on->cuda, memory);
        bucket_free(on, &made);
    }
}

static void encode_widens_halves(void **state) {
    expect_random(*state, GSYNC_FLOAT16, GSYNC_FLOAT32, 0, 1.0, false);
    expect_random(*state, GSYNC_FLOAT16, GSYNC_FLOAT32, 0, 0.7, true);
    expect_random(*state, GSYNC_BFLOAT16, GSYNC_FLOAT32, 0, 1.0, true);
    expect_random(*state, GSYNC_BFLOAT16, GSYNC_FLOAT32, 0, 0.7, false);
}

static void encode_gives_the_bytes_and_findings_of_the_codecs_on_narrow_wires(void **state) {
    static const float scales[] = {1.0f, 0x1p12f, 0x1p-100f, 0x1p100f};
    for (size_t d = 0; d < 3; d++) {
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
            expect_random(*state, singles[d], GSYNC_FLOAT16, scales[s], 0.7, s % 2 == 0);
            expect_random(*state, singles[d], GSYNC_FLOAT16, scales[s], 1.0, s % 2 != 0);
        }
        expect_random(*state, singles[d], GSYNC_BFLOAT16, 1.0f, 0.7, false);
        expect_random(*state, singles[d], GSYNC_BFLOAT16, 1.0f, 1.0, true);
    }
}

static void encode_turns_doubles_to_floats_first(void **state) {
    static const gsync_dtype wires[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t w = 0; w < 3; w++) {
        const float scale = wires[w] == GSYNC_FLOAT32 ? 0 : (wires[w] == GSYNC_FLOAT16 ? 0x1p9f : 1.0f);
        expect_random(*state, GSYNC_FLOAT64, wires[w], scale, 1.0, false);
        expect_random(*state, GSYNC_FLOAT64, wires[w], scale, 1.0 / 3, true);
    }
}

static void every_half_survives_the_way_to_float32(void **state) {
    const gpu *const on = *state;
    enum { HALVES = 0x10000 };
    uint16_t *const halves = malloc(HALVES * sizeof *halves);
    float *const got = malloc(HALVES * sizeof *got);
    for (uint32_t h = 0; h < HALVES; h++) {
        halves[h] = (uint16_t)h;
    }
    void *const data = gpu_copy_of(on, halves, HALVES * sizeof *halves);
    float *const wide = gpu_new(on, HALVES * sizeof *wide);
    const gs_cuda_term term = {.data = data, .rows = 1, .columns = HALVES, .row_pitch = HALVES};
    gs_cuda_term *const terms = gpu_copy_of(on, &term, sizeof term);
    const gs_cuda_pass pass = {.terms = terms,
                               .host_terms = &term,
                               .term_count = 1,
                               .count = HALVES,
                               .dtype = GSYNC_FLOAT16,
                               .wire = GSYNC_FLOAT32,
                               .factor = 1.0};
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, wide, on->stream), GSYNC_OK);
    gpu_get(on, got, wide, HALVES * sizeof *got);
    for (uint32_t h = 0; h < HALVES; h++) {
        assert_int_equal(gs_float_bits(got[h]), gs_float_bits(gs_half_to_float((uint16_t)h)));
    }
    gs_cuda_free(on->cuda, terms);
    gs_cuda_free(on->cuda, wide);
    gs_cuda_free(on->cuda, data);
    free(got);
    free(halves);
}

static void a_term_that_brings_nothing_is_zero_and_one_without_data_what_was_accumulated(void **state) {
    const gpu *const on = *state;
    for (uint64_t seed = SEED; seed < SEED + ROUNDS; seed++) {
        bucket made = bucket_random(on, GSYNC_FLOAT32, ORDINARY, true, seed);
        for (size_t i = seed % 2; i < made.term_count; i += 2) {
            made.terms[i].data = NULL;
        }
        gs_cuda_free(on->cuda, made.device_terms);
        bucket_upload_terms(on, &made);
        gs_cuda_pass pass = pass_of(&made, GSYNC_FLOAT32);
        pass.factor = 3.0;
        expect_encoded(on, &made, &pass, 0, seed);
        bucket_free(on, &made);
    }
}

static void a_bucket_without_terms_is_zero(void **state) {
    const gpu *const on = *state;
    bucket empty = {.dtype = GSYNC_FLOAT16, .count = 1000};
    const gs_cuda_pass pass = pass_of(&empty, GSYNC_FLOAT16);
    expect_encoded(on, &empty, &pass, 0, 0);
}

static void accumulating_gives_the_bits_of_the_host(void **state) {
    const gpu *const on = *state;
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16, GSYNC_FLOAT64};
    for (uint64_t round = 0; round < 4 * ROUNDS; round++) {
        const uint64_t seed = SEED + round;
        bucket made = bucket_random(on, dtypes[round % 4], round % 8 < 4 ? ANY_BITS : ORDINARY, true, seed);
        for (size_t i = 0; i < made.term_count; i++) {
            const gsync_dtype wide = gs_dtype_wide(made.dtype);
            const size_t count = gs_tensor_count(&made.tensors[i]);
            void *const got = calloc(count + 1, sizeof(double));
            const bool starts = seed % 3 == 0;
            const double factor = seed % 5 == 0 ? 1.0 : 0.3;
            if (made.accumulators[i] != NULL) {
                void *const sum = (void *)made.terms[i].accumulator;
                gs_host_accumulate(made.accumulators[i], &made.tensors[i], factor, starts);
                assert_int_equal(
                    gs_cuda_accumulate(on->cuda, sum, &made.terms[i], made.dtype, factor, starts, on->stream),
                    GSYNC_OK);
                gpu_get(on, got, sum, count * gsync_dtype_size(wide));
                expect_same_elements(got, made.accumulators[i], wide, count, "accumulate", seed);
            }
            free(got);
        }
        bucket_free(on, &made);
    }
}

static void encode_works_where_the_bucket_is_the_gradients_memory(void **state) {
    const gpu *const on = *state;
    seeded random = {SEED};
    bucket made = {.dtype = GSYNC_FLOAT32};
    bucket_add(on, &made, (gs_tensor){.rows = 1, .columns = 9001, .row_pitch = 9001}, 0, ORDINARY, true, &random);
    bucket_upload_terms(on, &made);
    gs_cuda_pass pass = pass_of(&made, GSYNC_FLOAT32);
    pass.factor = 0.3;
    float *const expected = malloc(made.count * sizeof *expected);
    float *const got = malloc(made.count * sizeof *got);
    gather_on_host(&made, GSYNC_FLOAT32, pass.factor, (unsigned char *)expected);
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, made.blocks[0], on->stream), GSYNC_OK);
    gpu_get(on, got, made.blocks[0], made.count * sizeof *got);
    expect_same_elements(got, expected, GSYNC_FLOAT32, made.count, "in place", SEED);
    free(got);
    free(expected);
    bucket_free(on, &made);
}

static void a_bucket_is_one_launch_and_an_empty_one_none(void **state) {
    const gpu *const on = *state;
    bucket made = bucket_random(on, GSYNC_FLOAT32, ORDINARY, false, SEED);
    void *const memory = gpu_new(on, made.count * sizeof(float));
    gs_cuda_pass pass = pass_of(&made, GSYNC_FLOAT32);
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    pass.count = 0;
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    assert_int_equal(simcuda_launches("encode"), 1);
    assert_int_equal(simcuda_all_launches(), 1);
    gs_cuda_free(on->cuda, memory);
    bucket_free(on, &made);
}

static void types_that_no_kernel_converts_are_refused(void **state) {
    const gpu *const on = *state;
    static const gsync_dtype pairs[][2] = {
        {GSYNC_FLOAT32, GSYNC_FLOAT64}, {GSYNC_FLOAT16, GSYNC_FLOAT64}, {GSYNC_INT32, GSYNC_INT32}};
    for (size_t i = 0; i < 3; i++) {
        const gs_cuda_pass pass = {.dtype = pairs[i][0], .wire = pairs[i][1], .count = 1};
        assert_int_equal(gs_cuda_encode(on->cuda, &pass, NULL, on->stream), GSYNC_ERR_UNSUPPORTED);
        assert_int_equal(gs_cuda_decode(on->cuda, &pass, NULL, on->stream), GSYNC_ERR_UNSUPPORTED);
    }
    assert_int_equal(simcuda_all_launches(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(encode_copies_gradients_of_the_buckets_own_type),
        TEST(encode_weighs_and_adds_what_was_accumulated),
        TEST(encode_brings_of_each_gradient_what_counts),
        TEST(encode_widens_halves),
        TEST(encode_gives_the_bytes_and_findings_of_the_codecs_on_narrow_wires),
        TEST(encode_turns_doubles_to_floats_first),
        TEST(every_half_survives_the_way_to_float32),
        TEST(a_term_that_brings_nothing_is_zero_and_one_without_data_what_was_accumulated),
        TEST(a_bucket_without_terms_is_zero),
        TEST(accumulating_gives_the_bits_of_the_host),
        TEST(encode_works_where_the_bucket_is_the_gradients_memory),
        TEST(a_bucket_is_one_launch_and_an_empty_one_none),
        TEST(types_that_no_kernel_converts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
