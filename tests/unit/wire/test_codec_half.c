/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=gs_kernels_best,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec_trials.h"

enum { RANDOM = 20000 };

/* What one element is after its way over the wire, in double arithmetic. */
static float expected_half(float x, float scale) {
    const double rounded = rounded_to((double)x * (double)scale, 10, -14);
    if (isnan(x)) {
        return gs_float_from_bits(0x7fc00000u);
    }
    if (isfinite(x) && fabs(rounded) > 65504.0) {
        return (float)(copysign(65504.0, rounded) / (double)scale);
    }
    return (float)(rounded / (double)scale);
}

static float expected_bfloat(float x, float scale) {
    const double largest = 0x1.fep127;
    const double rounded = rounded_to((double)x, 7, -126);
    (void)scale;
    if (isnan(x)) {
        return gs_float_from_bits(0x7fc00000u);
    }
    return isfinite(x) && fabs(rounded) > largest ? (float)copysign(largest, rounded) : (float)rounded;
}

typedef struct subject {
    const gs_codec *codec;
    float (*expected)(float x, float scale);
    double bound;          /* of the relative error */
    double smallest_error; /* and the absolute one, of subnormals */
    float largest;
} subject;

static const subject half = {&gs_codec_float16, expected_half, 0x1p-11, 0x1p-25, 65504.0f};
static const subject bfloat = {&gs_codec_bfloat16, expected_bfloat, 0x1p-8, 0x1p-134, 0x1.fep127f};

static void expect_all(const subject *of, const float *x, size_t count, float scale) {
    const gs_codec_terms terms = {.scale = scale};
    gs_findings findings = {.nonfinite_source = -1};
    float *const back = through(of->codec, x, count, &terms, &findings);
    float *const unnoted = through(of->codec, x, count, &terms, NULL);
    for (size_t i = 0; i < count; i++) {
        expect_same_float(of->codec->name, i, x[i], back[i], of->expected(x[i], scale));
    }
    assert_memory_equal(unnoted, back, count * sizeof *back);
    free(unnoted);
    free(back);
}

/* ---- Claims --------------------------------------------------------------------------------------------------------
 */

static void expect_every_code_back(const subject *of) {
    float *const x = new_bytes(65536 * sizeof *x);
    uint16_t *const wire = new_bytes(65536 * sizeof *wire);
    uint16_t *const again = new_bytes(65536 * sizeof *again);
    for (uint32_t code = 0; code < 65536; code++) {
        wire[code] = (uint16_t)code;
    }
    of->codec->decode(x, wire, 65536, &plain_terms);
    of->codec->encode(again, x, 65536, &plain_terms, NULL);
    for (uint32_t code = 0; code < 65536; code++) {
        const uint16_t one_nan = of == &half ? 0x7e00 : 0x7fc0;
        assert_int_equal(again[code], isnan(x[code]) ? one_nan : code);
    }
    free(again);
    free(wire);
    free(x);
}

static void every_code(void) {
    expect_every_code_back(&half);
    expect_every_code_back(&bfloat);
}

static void every_code_survives_decoding_and_encoding(void **state) {
    (void)state;
    for_every_isa(every_code);
}

/* Around every code, and in the middle between any two: ties to even, overflow, and what becomes zero. */
static void expect_between_codes(const subject *of) {
    enum { PER_CODE = 6 };
    float *const x = new_bytes(65536 * PER_CODE * sizeof *x);
    float *const values = new_bytes(65536 * sizeof *values);
    uint16_t *const wire = new_bytes(65536 * sizeof *wire);
    size_t count = 0;
    for (uint32_t code = 0; code < 65536; code++) {
        wire[code] = (uint16_t)code;
    }
    of->codec->decode(values, wire, 65536, &plain_terms);
    for (uint32_t code = 0; code < 65535; code++) {
        const float middle = (float)(((double)values[code] + (double)values[code + 1]) / 2.0);
        const float around[PER_CODE] = {
            float_before(values[code] == 0.0f ? 1.0f : values[code]), values[code], float_after(values[code]),
            middle == 0.0f ? middle : float_before(middle),           middle,       float_after(middle)};
        memcpy(x + count, around, sizeof around);
        count += PER_CODE;
    }
    expect_all(of, x, count, 1.0f);
    free(wire);
    free(values);
    free(x);
}

static void between_codes(void) {
    expect_between_codes(&half);
    expect_between_codes(&bfloat);
}

static void what_is_between_codes_goes_to_the_nearest_and_ties_to_the_even_one(void **state) {
    (void)state;
    for_every_isa(between_codes);
}

static void any_float_and_scale(void) {
    static const float scales[] = {1.0f, 0.5f, 4096.0f, 0x1p-20f, 0x1p40f, 0x1p-100f, 0x1p-112f, 0x1p126f};
    float *const x = new_bytes(RANDOM * sizeof *x);
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
        seeded random = {SEED + s};
        for (size_t i = 0; i < RANDOM; i++) {
            const float any = any_finite(&random);
            x[i] = i % 2 == 0 ? any : (float)(ldexp(fmod((double)any, 1.0), (int)(i % 40) - 26) / (double)scales[s]);
        }
        x[RANDOM / 2] = INFINITY;
        x[RANDOM / 3] = -INFINITY;
        x[RANDOM / 4] = -NAN;
        expect_all(&half, x, RANDOM, scales[s]);
        expect_all(&bfloat, x, RANDOM, 1.0f);
    }
    free(x);
}

static void any_float_becomes_the_nearest_with_any_scale(void **state) {
    (void)state;
    for_every_isa(any_float_and_scale);
}

static void expect_bound(const subject *of) {
    float *const x = new_bytes(RANDOM * sizeof *x);
    seeded random = {SEED};
    for (size_t i = 0; i < RANDOM; i++) {
        x[i] = i % 2 == 0 ? gaussian(&random) : heavy_tailed(&random) * 0x1p-10f;
    }
    float *const back = through(of->codec, x, RANDOM, &plain_terms, NULL);
    for (size_t i = 0; i < RANDOM; i++) {
        const double error = fabs((double)back[i] - (double)x[i]);
        assert_true(error <= of->bound * fabs((double)x[i]) + of->smallest_error);
    }
    free(back);
    free(x);
}

static void bounds(void) {
    expect_bound(&half);
    expect_bound(&bfloat);
    assert_true(nmse_of(&gs_codec_float16, gaussian, 65536, false) <= 1e-7);
    assert_true(nmse_of(&gs_codec_bfloat16, gaussian, 65536, false) <= 6e-6);
}

static void errors_are_within_the_bounds(void **state) {
    (void)state;
    for_every_isa(bounds);
}

/* 9000 ordinary elements, and these at the places given. */
static gs_findings findings_with(const subject *of, float scale, size_t place, float x0, float x1, gs_findings before) {
    enum { COUNT = 9000 };
    const gs_codec_terms terms = {.scale = scale};
    float *const x = new_bytes(COUNT * sizeof *x);
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = 0.25f / scale;
    }
    x[place] = x0;
    x[place + 1] = x1;
    gs_findings encoded = before;
    gs_findings rounded = before;
    void *const wire = new_bytes(gs_codec_bytes(of->codec, COUNT));
    of->codec->encode(wire, x, COUNT, &terms, &encoded);
    of->codec->round(x, COUNT, &terms, &rounded);
    free(wire);
    free(x);
    assert_true(encoded.absmax == rounded.absmax && encoded.has_nonfinite == rounded.has_nonfinite);
    assert_int_equal(encoded.saturated, rounded.saturated);
    assert_int_equal(encoded.flushed, rounded.flushed);
    assert_int_equal(encoded.nonfinite_element, rounded.nonfinite_element);
    return encoded;
}

static const gs_findings nothing = {.nonfinite_source = -1};

static void saturation(void) {
    for (size_t place = 0; place < 8999; place += 111) {
        gs_findings found = findings_with(&half, 2.0f, place, 32760.0f, -1e30f, nothing);
        assert_int_equal(found.saturated, 2);
        assert_true(found.absmax == 1e30f && !found.has_nonfinite && found.flushed == 0);
        found = findings_with(&half, 2.0f, place, float_before(32760.0f), -32752.0f, nothing);
        assert_int_equal(found.saturated, 0);
        found = findings_with(&bfloat, 1.0f, place, 0x1.ffp127f, -0x1.fffffep127f, nothing);
        assert_int_equal(found.saturated, 2);
        found = findings_with(&bfloat, 1.0f, place, float_before(0x1.ffp127f), -0x1.fep127f, nothing);
        assert_int_equal(found.saturated, 0);
    }
}

static void elements_beyond_the_range_saturate_and_are_counted(void **state) {
    (void)state;
    for_every_isa(saturation);
}

static void flushing(void) {
    for (size_t place = 0; place < 8999; place += 111) {
        gs_findings found = findings_with(&half, 2.0f, place, 0x1p-26f, -1e-30f, nothing);
        assert_int_equal(found.flushed, 2);
        assert_true(found.absmax == 0.125f && found.saturated == 0 && !found.has_nonfinite);
        found = findings_with(&half, 2.0f, place, float_after(0x1p-26f), -0.0f, nothing);
        assert_int_equal(found.flushed, 0);
        found = findings_with(&half, 2.0f, place, 1e-30f, NAN, nothing);
        assert_int_equal(found.flushed, 1);
        found = findings_with(&bfloat, 1.0f, place, 0x1p-149f, -0x1p-134f, nothing);
        assert_int_equal(found.flushed, 2);
        found = findings_with(&bfloat, 1.0f, place, float_after(0x1p-134f), 0.0f, nothing);
        assert_int_equal(found.flushed, 0);
    }
}

static void elements_that_become_zero_are_counted(void **state) {
    (void)state;
    for_every_isa(flushing);
}

static void nonfinite(void) {
    for (size_t place = 0; place < 8999; place += 111) {
        gs_findings found = findings_with(&half, 1.0f, place, NAN, -INFINITY, nothing);
        assert_true(found.has_nonfinite && found.absmax == 0.25f && found.saturated == 0);
        assert_int_equal(found.nonfinite_element, place);
        found = findings_with(&bfloat, 1.0f, place, 5.0f, -INFINITY, nothing);
        assert_true(found.has_nonfinite && found.absmax == 5.0f && found.saturated == 0);
        assert_int_equal(found.nonfinite_element, place + 1);
    }
}

static void inf_and_nan_are_found_at_their_first_place(void **state) {
    (void)state;
    for_every_isa(nonfinite);
}

static void findings_add_up(void) {
    const gs_findings before = {.absmax = 100.0f,
                                .saturated = 5,
                                .flushed = 7,
                                .has_nonfinite = true,
                                .nonfinite_source = 3,
                                .nonfinite_element = 12345,
                                .square_sum = 1.5};
    const gs_findings found = findings_with(&half, 1.0f, 10, 1e-20f, NAN, before);
    const gs_findings more = findings_with(&half, 1.0f, 10, 1e20f, 1.0f, before);
    assert_true(found.absmax == 100.0f && found.flushed == 8 && found.saturated == 5 && found.has_nonfinite);
    assert_true(more.absmax == 1e20f && more.flushed == 7 && more.saturated == 6);
    assert_int_equal(found.nonfinite_element, 12345);
    assert_int_equal(found.nonfinite_source, 3);
    assert_true(found.square_sum == 1.5);
}

static void findings_of_several_calls_add_up(void **state) {
    (void)state;
    for_every_isa(findings_add_up);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_survives_decoding_and_encoding),
        cmocka_unit_test(what_is_between_codes_goes_to_the_nearest_and_ties_to_the_even_one),
        cmocka_unit_test(any_float_becomes_the_nearest_with_any_scale),
        cmocka_unit_test(errors_are_within_the_bounds),
        cmocka_unit_test(elements_beyond_the_range_saturate_and_are_counted),
        cmocka_unit_test(elements_that_become_zero_are_counted),
        cmocka_unit_test(inf_and_nan_are_found_at_their_first_place),
        cmocka_unit_test(findings_of_several_calls_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
