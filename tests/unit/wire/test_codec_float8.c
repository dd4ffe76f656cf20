/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=gs_kernels_best,malloc,calloc,realloc,aligned_alloc,posix_memalign,free memory=no */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec_trials.h"

#include <float.h>

enum { BLOCK = 256, BYTES = 257, BLOCKS = 40 };

static const gs_findings nothing = {.nonfinite_source = -1};

/* ---- E4M3 in double arithmetic -------------------------------------------------------------------------------------
 */

static double value_of(unsigned code) {
    const int exponent = (int)(code >> 3 & 15u);
    const int fraction = (int)(code & 7u);
    const double magnitude = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    if ((code & 0x7fu) == 0x7fu) {
        return NAN;
    }
    return code & 0x80u ? -magnitude : magnitude;
}

static double absmax_of(const float *x) {
    double most = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
    }
    return most;
}

/* The least power of two whose 448fold is no less than the absmax, among those that a byte can name. */
static int expected_exponent(double absmax) {
    int e = 0;
    while (ldexp(448.0, e - 127) < absmax) {
        e++;
    }
    return e;
}

static float expected_value(float x, int e) {
    const double scale = ldexp(1.0, e - 127);
    const double rounded = rounded_to((double)x / scale, 3, -6);
    const double value = rounded * scale;
    return (float)(fabs(value) > (double)FLT_MAX ? copysign(240.0 * scale, value) : value);
}

static void expect_blocks(const float *x, size_t blocks) {
    unsigned char *const wire = new_bytes(blocks * BYTES);
    gs_findings findings = nothing;
    gs_findings expected = nothing;
    gs_codec_float8.encode(wire, x, blocks * BLOCK, &plain_terms, &findings);
    float *const back = through(&gs_codec_float8, x, blocks * BLOCK, &plain_terms, NULL);
    double absmax = 0;
    for (size_t i = 0; i < blocks * BLOCK; i++) {
        absmax = i % BLOCK == 0 ? absmax_of(x + i) : absmax;
        const int e = expected_exponent(absmax);
        const double smallest_step = ldexp(1.0, e - 127 - 9);
        assert_int_equal(wire[i / BLOCK * BYTES + BLOCK], e);
        expect_same_float("float8", i, x[i], back[i], expected_value(x[i], e));
        assert_true(fabs((double)back[i] - (double)x[i]) <= 0x1p-4 * fabs((double)x[i]) + smallest_step / 2);
        expected.absmax = absmax > (double)expected.absmax ? (float)absmax : expected.absmax;
        expected.flushed += back[i] == 0.0f && x[i] != 0.0f;
        expected.saturated += fabs((double)x[i]) >= 0x1.fp127;
    }
    assert_true(findings.absmax == expected.absmax && !findings.has_nonfinite);
    assert_int_equal(findings.flushed, expected.flushed);
    assert_int_equal(findings.saturated, expected.saturated);
    free(back);
    free(wire);
}

static void expect_draws(float (*draw)(seeded *random)) {
    seeded random = {SEED};
    float *const x = new_bytes(sizeof(float) * BLOCKS * BLOCK);
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK; i++) {
        x[i] = draw(&random);
    }
    expect_blocks(x, BLOCKS);
    free(x);
}

/* ---- Claims --------------------------------------------------------------------------------------------------------
 */

static void every_code_and_scale(void) {
    unsigned char wire[BYTES];
    unsigned char again[BYTES];
    float x[BLOCK];
    for (unsigned code = 0; code < BLOCK; code++) {
        wire[code] = (unsigned char)code;
    }
    for (int e = 0; e < 256; e++) {
        wire[BLOCK] = (unsigned char)e;
        gs_codec_float8.decode(x, wire, BLOCK, &plain_terms);
        for (unsigned code = 0; code < BLOCK; code++) {
            const double value = value_of(code) * (e == 255 ? (double)NAN : ldexp(1.0, e - 127));
            assert_true(isnan(value) ? isnan(x[code]) : x[code] == (float)value);
            assert_true(isnan(value) || (signbit(x[code]) != 0) == (signbit(value) != 0));
        }
        x[0x7f] = 0.0f;
        x[0xff] = -0.0f;
        if (e < 247) { /* above that the largest codes are infinite */
            gs_codec_float8.encode(again, x, BLOCK, &plain_terms, NULL);
            wire[0x7f] = 0;
            wire[0xff] = 0x80;
            assert_memory_equal(again, wire, BYTES);
            wire[0x7f] = 0x7f;
            wire[0xff] = 0xff;
        }
    }
}

static void every_code_has_its_value_with_every_scale(void **state) {
    (void)state;
    for_every_isa(every_code_and_scale);
}

/* Around every value and in the middle between any two, with the absmax 448. */
static void between_codes(void) {
    float x[127 * 6 + 6];
    size_t count = 0;
    for (unsigned code = 0; code < 0x7e; code++) {
        const float value = (float)value_of(code);
        const float middle = (float)((value_of(code) + value_of(code + 1)) / 2.0);
        x[count++] = value;
        x[count++] = -float_after(value);
        x[count++] = float_before(middle);
        x[count++] = middle;
        x[count++] = -middle;
        x[count++] = float_after(middle);
    }
    x[0] = 448.0f;
    x[256] = -448.0f;
    x[512] = 448.0f;
    while (count < 3 * (size_t)BLOCK) {
        x[count++] = 448.0f;
    }
    expect_blocks(x, 3);
}

static void what_is_between_codes_goes_to_the_nearest_and_ties_to_the_even_one(void **state) {
    (void)state;
    for_every_isa(between_codes);
}

static void usual_blocks(void) {
    expect_draws(gaussian);
    expect_draws(heavy_tailed);
    expect_draws(any_finite);
}

static void elements_become_the_nearest_value(void **state) {
    (void)state;
    for_every_isa(usual_blocks);
}

static void all_exponents(void) {
    float *const x = new_bytes(sizeof(float) * BLOCK * 255);
    seeded random = {SEED};
    for (size_t i = 0; i < (size_t)BLOCK * 255; i++) {
        x[i] = near_exponent(&random, (uint32_t)(i / BLOCK));
    }
    expect_blocks(x, 255);
    free(x);
}

static void elements_become_the_nearest_value_at_every_exponent(void **state) {
    (void)state;
    for_every_isa(all_exponents);
}

/* The absmax is just what a scale can do, and one float more and less; at the end of float32's range as well. */
static void edges(void) {
    float *const x = new_bytes(sizeof(float) * BLOCK * 3 * 256);
    size_t blocks = 0;
    for (uint32_t e = 0; e < 255; e++) {
        for (uint32_t more = 0; more < 3; more++) {
            const float most = gs_float_from_bits((e << 23 | 0x600000u) - 1u + more);
            for (size_t i = 0; i < BLOCK; i++) {
                x[blocks * BLOCK + i] = i % 2 == 0 ? most / 3.0f : -0.0f;
            }
            x[blocks * BLOCK + e % BLOCK] = more == 1 ? -most : most;
            blocks++;
        }
    }
    static const float large[] = {0x1.fffffep127f, 0x1.fp127f, 0x1.effffep127f};
    for (size_t m = 0; m < 3; m++, blocks++) {
        for (size_t i = 0; i < BLOCK; i++) {
            x[blocks * BLOCK + i] = i % 3 == 0 ? -large[m] : large[m] / (float)(i + 1);
        }
    }
    expect_blocks(x, blocks);
    free(x);
}

static void the_scale_is_the_least_with_which_nothing_saturates(void **state) {
    (void)state;
    for_every_isa(edges);
}

static void zeros(void) {
    float x[BLOCK] = {0};
    unsigned char wire[BYTES];
    unsigned char expected[BYTES] = {0};
    gs_codec_float8.encode(wire, x, BLOCK, &plain_terms, NULL);
    assert_memory_equal(wire, expected, BYTES);
    x[5] = -0.0f;
    expected[5] = 0x80;
    gs_codec_float8.encode(wire, x, BLOCK, &plain_terms, NULL);
    assert_memory_equal(wire, expected, BYTES);
}

static void a_block_of_zeros_keeps_their_signs(void **state) {
    (void)state;
    for_every_isa(zeros);
}

static void expect_poisoned(float poison) {
    seeded random = {SEED};
    float *const x = new_bytes(sizeof(float) * BLOCKS * BLOCK);
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK; i++) {
        x[i] = gaussian(&random);
    }
    const size_t place = (size_t)BLOCK * 7 + seeded_below(&random, BLOCK);
    x[place] = poison;
    x[place + BLOCK] = 99.0f;
    x[(size_t)BLOCK * 20] = poison;
    gs_findings findings = nothing;
    float *const back = through(&gs_codec_float8, x, (size_t)BLOCKS * BLOCK, &plain_terms, &findings);
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK; i++) {
        const bool is_poisoned = i / BLOCK == 7 || i / BLOCK == 20;
        assert_int_equal(isnan(back[i]) ? gs_float_bits(back[i]) : 0, is_poisoned ? 0x7fc00000 : 0);
    }
    assert_true(findings.has_nonfinite && findings.absmax == 99.0f);
    assert_int_equal(findings.nonfinite_element, place);
    free(back);
    free(x);
}

static void poison(void) {
    expect_poisoned(NAN);
    expect_poisoned(-INFINITY);
}

static void a_block_with_inf_or_nan_decodes_to_nan(void **state) {
    (void)state;
    for_every_isa(poison);
}

static void gates(void) {
    assert_true(nmse_of(&gs_codec_float8, gaussian, 65536, false) <= 1.6e-3);
    assert_true(nmse_of(&gs_codec_float8, heavy_tailed, 65536, false) <= 1.6e-3);
}

static void the_mean_square_error_is_small(void **state) {
    (void)state;
    for_every_isa(gates);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value_with_every_scale),
        cmocka_unit_test(what_is_between_codes_goes_to_the_nearest_and_ties_to_the_even_one),
        cmocka_unit_test(elements_become_the_nearest_value),
        cmocka_unit_test(elements_become_the_nearest_value_at_every_exponent),
        cmocka_unit_test(the_scale_is_the_least_with_which_nothing_saturates),
        cmocka_unit_test(a_block_of_zeros_keeps_their_signs),
        cmocka_unit_test(a_block_with_inf_or_nan_decodes_to_nan),
        cmocka_unit_test(the_mean_square_error_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
