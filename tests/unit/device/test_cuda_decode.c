/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Scattering buckets and adding up shards on a simulated GPU gives the bits of the host's passes. */

#include "cuda_fixture.h"
#include "simcuda.h"

#include "collective/shard.h"
#include "wire/codec.h"

#include <math.h>

#define SEED 20261201
enum { ROUNDS = 22 };

static const gsync_dtype singles[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16};

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

static double as_double(gsync_dtype dtype, const void *elements, size_t k) {
    switch (dtype) {
    case GSYNC_FLOAT64:
        return ((const double *)elements)[k];
    case GSYNC_FLOAT32:
        return (double)((const float *)elements)[k];
    case GSYNC_FLOAT16:
        return (double)gs_half_to_float(((const uint16_t *)elements)[k]);
    default:
        return (double)gs_bfloat_to_float(((const uint16_t *)elements)[k]);
    }
}

/* ---- decode ---- */

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
        for (size_t row = 0; row < tensor->rows; row++) {
            unsigned char *const at =
                (unsigned char *)tensor->data + row * tensor->row_pitch * gsync_dtype_size(tensor->dtype);
            make_one_nan(at, tensor->dtype, tensor->columns);
        }
    }
    free(decoded);
}

typedef struct expectation {
    double square_sum;
    double tolerance;
    bool has_nonfinite;
    size_t first_nonfinite;
} expectation;

static void expect_result(double x, size_t element, expectation *of) {
    if (!isfinite(x) && !of->has_nonfinite) {
        of->has_nonfinite = true;
        of->first_nonfinite = element;
    }
    of->square_sum += x * x;
    of->tolerance = 1e-12 * of->square_sum;
}

static void expect_found(const gs_cuda_findings *got, const expectation *expected, uint64_t seed) {
    const bool is_same_sum = isfinite(expected->square_sum)
                                 ? fabs(got->square_sum - expected->square_sum) <= expected->tolerance
                                 : !isfinite(got->square_sum);
    if (!is_same_sum || got->has_nonfinite != expected->has_nonfinite ||
        (expected->has_nonfinite && got->first_nonfinite != expected->first_nonfinite)) {
        fail_msg("seed %llu: squares %a, nonfinite %u at %llu; expected %a, %d at %zu", (unsigned long long)seed,
                 got->square_sum, got->has_nonfinite, (unsigned long long)got->first_nonfinite, expected->square_sum,
                 expected->has_nonfinite, expected->first_nonfinite);
    }
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

/* ---- combine ---- */

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

/* ---- a scale for results ---- */

/* What makes the result scale, and what it then is. */
typedef struct scaling {
    double divisor;
    double usual;
    float scale;
    float expected;
} scaling;

static const scaling scalings[] = {
    {4.0, 4.0, 0x1p9f, 0x1p9f},
    {0x1p26, 4.0, 0x1p9f, 0x1p33f},
    {7.9, 4.0, 0x1p9f, 0x1p9f},
    {3.9, 4.0, 0x1p-9f, 0x1p-10f},
    {0.0, 4.0, 0x1p9f, 0x1p9f},
    {NAN, 4.0, 0x1p9f, 0x1p9f},
    {-3.0, 4.0, 0x1p9f, 0x1p9f},
    {0x1p1000, 1.0, 0x1p9f, 0x1p126f},
    {INFINITY, 1.0, 0x1p-112f, 0x1p126f},
    {0x1p-1000, 1.0, 0x1p126f, 0x1p-112f},
    {0x1p-1074, 1.0, 0x1p126f, 0x1p-112f},
    {1e300, 1e308, 0x1p60f, 0x1p33f},
    {0x1.fffffffffffffp1, 2.0, 1.0f, 1.0f},
};

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
    const gpu *const on = *state;
    for (size_t i = 0; i < sizeof scalings / sizeof *scalings; i++) {
        const scaling *const as = &scalings[i];
        const gs_cuda_result_scale results = {.usual = as->usual, .scale = as->scale};
        for (int kind = 0; kind < 2; kind++) {
            parts made = parts_random(GSYNC_FLOAT16, 0x1p3f, kind == 0 ? ANY_BITS : ORDINARY, SEED + i);
            made.result_scale = as->expected;
            expect_combined(on, &made, as->divisor, &results, RANKS, SEED + i);
            free(made.decoded);
            free(made.elements);
        }
        expect_decoded_with(on, as, SEED + i);
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
        TEST(decode_divides_scales_and_scatters_as_the_host_does),
        TEST(decode_narrows_what_was_added_up_in_float32),
        TEST(decode_undoes_narrow_wires_as_the_codecs_do),
        TEST(a_result_that_goes_nowhere_is_still_looked_at),
        TEST(a_result_of_what_nobody_used_is_looked_at_and_not_written),
        TEST(squares_add_up_to_the_same_bits_however_a_bucket_is_cut),
        TEST(findings_of_several_passes_add_up),
        TEST(parts_of_ranks_without_data_are_left_out),
        TEST(combine_adds_ranks_in_their_order_as_the_host_does),
        TEST(combine_rounds_to_narrow_wires_as_the_codecs_do),
        TEST(results_have_a_scale_that_follows_from_what_divides),
        TEST(the_divisor_is_made_of_the_shares_of_those_who_contribute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
