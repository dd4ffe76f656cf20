/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Scattering buckets on a simulated GPU gives the bits of the host's passes. */

#include "cuda_results.h"
#include "simcuda.h"

#include "collective/shard.h"

enum { ROUNDS = 22 };

/* Divisors: powers of two, what float32 holds and what it does not, and the special ones. 0 as `has` says: none. */
typedef struct finish {
    bool has_divisor;
    double divisor;
    double factor;
} finish;

static const finish finishes[] = {{false, 0, 1.0},      {true, 1.0, 1.0},    {true, 4.0, 1.0},   {true, 3.0, 1.0},
                                  {true, 1.0 / 3, 1.0}, {true, 0.0, 1.0},    {true, 7.0, 0.125}, {false, 0, 0.1},
                                  {true, 0x1p100, 1.0}, {true, 0x1p-128, 3}, {true, 1e300, 1.0}};
enum { FINISHES = sizeof finishes / sizeof *finishes };

/* ---- decode ---- */

static void make_rows_one_nan(const gs_tensor *tensor) {
    for (size_t row = 0; row < tensor->rows; row++) {
        const size_t first = row * tensor->row_pitch * gsync_dtype_size(tensor->dtype);
        make_one_nan((unsigned char *)tensor->data + first, tensor->dtype, tensor->columns);
    }
}

/* tensor = the wire's elements, divided and stored, then scaled and stored. */
static void decode_on_host(const gs_tensor *tensor, const unsigned char *wire, gsync_dtype wire_dtype, float scale,
                           finish by) {
    const size_t count = gs_tensor_count(tensor);
    const gsync_dtype wide = gs_dtype_wide(wire_dtype);
    void *const decoded = calloc(count + 1, sizeof(double));
    const void *source = wire;
    gsync_dtype source_dtype = wire_dtype;
    if (scale != 0) {
        const gs_codec *codec = wire_dtype == GSYNC_FLOAT16 ? &gs_codec_float16 : &gs_codec_bfloat16;
        codec->decode(decoded, wire, count, &(gs_codec_terms){.scale = scale});
        if (wire_dtype == GSYNC_FLOAT16) {
            make_one_nan(decoded, GSYNC_FLOAT32, count); /* codecs send no other, but NCCL may have */
        }
        source = decoded;
        source_dtype = GSYNC_FLOAT32;
    }
    if (by.has_divisor) {
        void *const quotient = calloc(count + 1, sizeof(double));
        void *target = quotient;
        gs_shard_reduce(&(gs_shard_job){.sources = &source,
                                        .source_count = 1,
                                        .source_dtype = source_dtype,
                                        .targets = &target,
                                        .target_count = 1,
                                        .target_dtype = wide,
                                        .op = GSYNC_SUM,
                                        .divisor = by.divisor,
                                        .count = count});
        make_one_nan(quotient, wide, count);
        gs_host_scatter(tensor, quotient, wide);
        free(quotient);
    } else {
        gs_host_scatter(tensor, source, source_dtype);
    }
    if (by.factor != 1.0) {
        gs_host_scale(tensor, by.factor);
    }
    if (by.factor != 1.0 || (tensor->dtype == GSYNC_FLOAT64 && source_dtype != GSYNC_FLOAT64)) {
        make_rows_one_nan(tensor); /* to turn one type into another is to compute */
    }
    free(decoded);
}

/* What lies between rows and around tensors has to stay: whole blocks are compared. */
static void expect_decoded(const gpu *on, bucket *of, gs_cuda_pass *pass, finish by, float scale, size_t shift,
                           seeded *random, uint64_t seed) {
    const size_t size = gsync_dtype_size(pass->wire);
    unsigned char *const wire = calloc(of->count + shift + 1, size);
    fill_values(wire + shift * size, pass->wire, of->count, seed % 2 == 0 ? ANY_BITS : ORDINARY, random);
    unsigned char *const memory = gpu_copy_of(on, wire, (of->count + shift + 1) * size);
    double *const divisor = by.has_divisor ? gpu_copy_of(on, &by.divisor, sizeof by.divisor) : NULL;
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    pass->divisor = divisor;
    pass->factor = by.factor;
    pass->notebook = notebook;
    assert_int_equal(gs_cuda_decode(on->cuda, pass, memory + shift * size, on->stream), GSYNC_OK);
    expectation expected = {0};
    for (size_t i = 0; i < of->term_count; i++) {
        const gs_tensor *const tensor = &of->tensors[i];
        unsigned char *const got = malloc(of->spans[i]);
        decode_on_host(tensor, wire + (shift + of->terms[i].offset) * size, pass->wire, scale, by);
        gpu_get(on, got, of->blocks[i], of->spans[i]);
        expect_same_elements(got, of->host_blocks[i], of->dtype, of->spans[i] / gsync_dtype_size(of->dtype), "decode",
                             seed);
        for (size_t k = 0; k < gs_tensor_count(tensor); k++) {
            const size_t at = k / tensor->columns * tensor->row_pitch + k % tensor->columns;
            expect_result(as_double(of->dtype, tensor->data, at), of->terms[i].offset + k, &expected);
        }
        free(got);
    }
    const gs_cuda_findings found = gpu_findings(on, notebook);
    expect_found(&found, &expected, seed);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, divisor);
    gs_cuda_free(on->cuda, memory);
    free(wire);
}

static void expect_random(const gpu *on, gsync_dtype dtype, gsync_dtype wire, float scale) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const uint64_t seed = SEED + round;
        seeded random = {seed};
        bucket made = bucket_random(on, dtype, ORDINARY, false, seed);
        gs_cuda_pass pass = pass_of(&made, wire);
        pass.scale = scale;
        expect_decoded(on, &made, &pass, finishes[round % FINISHES], scale, round % 4 == 3 ? round % 5 : 0, &random,
                       seed);
        bucket_free(on, &made);
    }
}

static void decode_divides_scales_and_scatters_as_the_host_does(void **state) {
    expect_random(*state, GSYNC_FLOAT64, GSYNC_FLOAT64, 0);
    for (size_t d = 0; d < 3; d++) {
        expect_random(*state, singles[d], singles[d], 0);
    }
}

static void decode_narrows_what_was_added_up_in_float32(void **state) {
    expect_random(*state, GSYNC_FLOAT16, GSYNC_FLOAT32, 0);
    expect_random(*state, GSYNC_BFLOAT16, GSYNC_FLOAT32, 0);
}

static void decode_undoes_narrow_wires_as_the_codecs_do(void **state) {
    for (size_t d = 0; d < 3; d++) {
        expect_random(*state, singles[d], GSYNC_FLOAT16, 0x1p9f);
        expect_random(*state, singles[d], GSYNC_FLOAT16, 0x1p-100f);
        expect_random(*state, singles[d], GSYNC_BFLOAT16, 1.0f);
    }
}

/* What NCCL added up may hold any NaN. */
static void decode_widens_floats_to_doubles(void **state) {
    expect_random(*state, GSYNC_FLOAT64, GSYNC_FLOAT32, 0);
    expect_random(*state, GSYNC_FLOAT64, GSYNC_FLOAT16, 0x1p9f);
    expect_random(*state, GSYNC_FLOAT64, GSYNC_BFLOAT16, 1.0f);
}

static void a_result_that_goes_nowhere_is_still_looked_at(void **state) {
    const gpu *const on = *state;
    enum { COUNT = 5000, FOUND = 1234 };
    float elements[COUNT] = {[FOUND] = INFINITY, [COUNT - 1] = NAN};
    float *const memory = gpu_copy_of(on, elements, sizeof elements);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    const gs_cuda_term term = {.rows = 1, .columns = COUNT - 1, .row_pitch = COUNT - 1};
    gs_cuda_term *const terms = gpu_copy_of(on, &term, sizeof term);
    const gs_cuda_pass pass = {.terms = terms,
                               .host_terms = &term,
                               .term_count = 1,
                               .count = COUNT,
                               .dtype = GSYNC_FLOAT32,
                               .wire = GSYNC_FLOAT32,
                               .factor = 1.0,
                               .notebook = notebook};
    assert_int_equal(gs_cuda_decode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    const gs_cuda_findings found = gpu_findings(on, notebook);
    assert_true(found.has_nonfinite);
    assert_int_equal(found.first_nonfinite, FOUND);
    assert_true(isinf(found.square_sum)); /* the NaN only fills up the bucket */
    gs_cuda_free(on->cuda, terms);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, memory);
}

/* Of two gradients in a bucket. */
static void a_result_of_what_nobody_used_is_looked_at_and_not_written(void **state) {
    const gpu *const on = *state;
    enum { COUNT = 3001 };
    float elements[2 * COUNT] = {[7] = INFINITY};
    const float own[2 * COUNT] = {[0] = 5.0f, [COUNT - 1] = 6.0f, [2 * COUNT - 1] = 7.0f};
    float *const memory = gpu_copy_of(on, elements, sizeof elements);
    float *const data = gpu_copy_of(on, own, sizeof own);
    const float used[] = {0.0f, 2.0f};
    float *const device_used = gpu_copy_of(on, used, sizeof used);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    const gs_cuda_term terms[] = {{data, NULL, 1, COUNT, COUNT, 0, 0}, {data + COUNT, NULL, 1, COUNT, COUNT, COUNT, 0}};
    gs_cuda_term *const device_terms = gpu_copy_of(on, terms, sizeof terms);
    const gs_cuda_pass pass = {.terms = device_terms,
                               .host_terms = terms,
                               .term_count = 2,
                               .used = device_used,
                               .count = (size_t)2 * COUNT,
                               .dtype = GSYNC_FLOAT32,
                               .wire = GSYNC_FLOAT32,
                               .factor = 1.0,
                               .notebook = notebook};
    assert_int_equal(gs_cuda_decode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    gpu_get(on, elements, data, sizeof elements);
    assert_memory_equal(elements, own, COUNT * sizeof *own);
    assert_true(elements[2 * COUNT - 1] == 0.0f);
    assert_true(gpu_findings(on, notebook).has_nonfinite);
    gs_cuda_free(on->cuda, device_terms);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, device_used);
    gs_cuda_free(on->cuda, data);
    gs_cuda_free(on->cuda, memory);
}

/* ---- the sum of squares ---- */

/* Of a bucket cut into tensors of `length` elements, shifted in their memory. */
static double square_sum_of(const gpu *on, const float *elements, size_t count, size_t length, size_t shift) {
    const size_t term_count = (count + length - 1) / length;
    gs_cuda_term *const terms = calloc(term_count, sizeof *terms);
    float *const data = gpu_new(on, (count + shift) * sizeof *data);
    float *const memory = gpu_copy_of(on, elements, count * sizeof *memory);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    for (size_t i = 0; i < term_count; i++) {
        const size_t columns = count - i * length < length ? count - i * length : length;
        terms[i] = (gs_cuda_term){data + shift + i * length, NULL, 1, columns, columns, i * length, 0};
    }
    gs_cuda_term *const device_terms = gpu_copy_of(on, terms, term_count * sizeof *terms);
    const gs_cuda_pass pass = {.terms = device_terms,
                               .host_terms = terms,
                               .term_count = term_count,
                               .count = count,
                               .dtype = GSYNC_FLOAT32,
                               .wire = GSYNC_FLOAT32,
                               .factor = 1.0,
                               .notebook = notebook};
    assert_int_equal(gs_cuda_decode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    const gs_cuda_findings found = gpu_findings(on, notebook);
    gs_cuda_free(on->cuda, device_terms);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, memory);
    gs_cuda_free(on->cuda, data);
    free(terms);
    return found.square_sum;
}

/* More tiles than there are blocks. */
static void squares_add_up_to_the_same_bits_however_a_bucket_is_cut(void **state) {
    enum { COUNT = (GS_CUDA_BLOCKS_MAX + 9) * 2048 + 77 };
    float *const elements = malloc(COUNT * sizeof *elements);
    seeded random = {SEED};
    fill_values(elements, GSYNC_FLOAT32, COUNT, ORDINARY, &random);
    const double whole = square_sum_of(*state, elements, COUNT, COUNT, 0);
    const gs_tensor tensor = {elements, 1, COUNT, COUNT, GSYNC_FLOAT32};
    const double on_host = gs_host_square_sum(&tensor, 1.0);
    assert_true(whole == square_sum_of(*state, elements, COUNT, COUNT, 0));
    assert_true(whole == square_sum_of(*state, elements, COUNT, 1000, 1));
    assert_true(whole == square_sum_of(*state, elements, COUNT, 99991, 3));
    assert_true(fabs(whole - on_host) <= 1e-12 * on_host);
    free(elements);
}

static void findings_of_several_passes_add_up(void **state) {
    const gpu *const on = *state;
    const float elements[] = {3.0f, NAN, 4.0f};
    float *const memory = gpu_copy_of(on, elements, sizeof elements);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    for (int pass = 0; pass < 3; pass++) {
        const size_t first = pass == 1 ? 0 : 2; /* and the NaN only in the second one */
        const gs_cuda_combination sum = {.parts = memory + first,
                                         .ranks = 1,
                                         .shard = memory + first,
                                         .count = pass == 1 ? 2 : 1,
                                         .wire = GSYNC_FLOAT32,
                                         .notebook = notebook};
        assert_int_equal(gs_cuda_combine(on->cuda, &sum, on->stream), GSYNC_OK);
        const gs_cuda_findings found = gpu_findings(on, notebook);
        assert_int_equal(found.has_nonfinite, pass > 0);
        assert_true(pass > 0 ? isnan(found.square_sum) : found.square_sum == 16.0);
    }
    const gs_cuda_findings found = gpu_findings(on, notebook);
    assert_int_equal(found.first_nonfinite, 1);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, memory);
}

/* ---- a scale for results ---- */

static void expect_decoded_with(const gpu *on, const scaling *as, uint64_t seed) {
    seeded random = {seed};
    bucket made = bucket_random(on, GSYNC_FLOAT32, ORDINARY, false, seed);
    double *const divisor = gpu_copy_of(on, &as->divisor, sizeof as->divisor);
    gs_cuda_pass pass = pass_of(&made, GSYNC_FLOAT16);
    pass.scale = 0x1p3f; /* of contributions: nothing of it is left */
    pass.results = (gs_cuda_result_scale){.divisor = divisor, .usual = as->usual, .scale = as->scale};
    expect_decoded(on, &made, &pass, (finish){false, 0, 1.0}, as->expected, 0, &random, seed);
    gs_cuda_free(on->cuda, divisor);
    bucket_free(on, &made);
}

static void results_have_a_scale_that_follows_from_what_divides(void **state) {
    for (size_t i = 0; i < SCALINGS; i++) {
        expect_decoded_with(*state, &scalings[i], SEED + i);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(decode_divides_scales_and_scatters_as_the_host_does),
        TEST(decode_narrows_what_was_added_up_in_float32),
        TEST(decode_undoes_narrow_wires_as_the_codecs_do),
        TEST(decode_widens_floats_to_doubles),
        TEST(a_result_that_goes_nowhere_is_still_looked_at),
        TEST(a_result_of_what_nobody_used_is_looked_at_and_not_written),
        TEST(squares_add_up_to_the_same_bits_however_a_bucket_is_cut),
        TEST(findings_of_several_passes_add_up),
        TEST(results_have_a_scale_that_follows_from_what_divides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
